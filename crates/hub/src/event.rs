//! What a fetch tells of itself while it goes on.

use serde::Serialize;

/// Something that happened. It has no secrets: no token, no signed address.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// So many files and bytes are to be brought; `here` bytes of them are here from an earlier attempt.
    FetchPlanned { files: usize, bytes: u64, here: u64 },
    /// A file is asked for. Its first `here` bytes are.
    FetchStarted { file: String, bytes: Option<u64>, here: u64 },
    /// So many bytes more came.
    FetchAdvanced { file: String, bytes: u64 },
    /// What had come of a file is of no use, and it begins anew.
    FetchRestarted { file: String, why: String },
    /// A file is whole, checked and in its place.
    Fetched { file: String, bytes: u64 },
    /// A file ended otherwise.
    FetchFailed { file: String, why: String },
    /// Nothing is done for so many seconds.
    FetchWaits { seconds: f64, why: String },
    /// Something to know.
    FetchNote { text: String },
}

/// Who is told.
pub trait Reporter: Sync {
    fn event(&self, event: Event);
}

/// Tells nobody.
pub struct Silent;

impl Reporter for Silent {
    fn event(&self, _: Event) {}
}
