//! Progress events of a fetch.

use serde::Serialize;

/// Something that happened. It has no secrets: no token, no signed address.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// Number of files and bytes to download; `here` bytes are present from an earlier attempt.
    FetchPlanned { files: usize, bytes: u64, here: u64 },
    /// A file is asked for. Its first `here` bytes are.
    FetchStarted { file: String, bytes: Option<u64>, here: u64 },
    /// Number of bytes that arrived since the last event.
    FetchAdvanced { file: String, bytes: u64 },
    /// The received part of a file is unusable, and its download restarts.
    FetchRestarted { file: String, why: String },
    /// A file is whole, checked and in its place.
    Fetched { file: String, bytes: u64 },
    /// A file ended otherwise.
    FetchFailed { file: String, why: String },
    /// No activity for that many seconds.
    FetchWaits { seconds: f64, why: String },
    /// Something to know.
    FetchNote { text: String },
}

/// Receiver of events.
pub trait Reporter: Sync {
    fn event(&self, event: Event);
}

/// Ignores all events.
pub struct Silent;

impl Reporter for Silent {
    fn event(&self, _: Event) {}
}
