//! Progress events during a fetch.

use serde::Serialize;

/// Progress event. Never contains secrets such as tokens or signed URLs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The fetch is planned. `files` and `bytes` are the totals of the files that are not cached. `here` of these bytes
    /// are already present from an earlier attempt.
    FetchPlanned { files: usize, bytes: u64, here: u64 },
    /// The download of a file starts. Its first `here` bytes are already present.
    FetchStarted { file: String, bytes: Option<u64>, here: u64 },
    /// Part of a file was received. `bytes` counts the bytes since the last event.
    FetchAdvanced { file: String, bytes: u64 },
    /// The received part of a file is unusable, so its download restarts.
    FetchRestarted { file: String, why: String },
    /// A file is complete, verified and in the cache.
    Fetched { file: String, bytes: u64 },
    /// The download of a file failed.
    FetchFailed { file: String, why: String },
    /// The fetch pauses for the given number of seconds.
    FetchWaits { seconds: f64, why: String },
    /// Message for the user.
    FetchNote { text: String },
}

pub trait Reporter: Sync {
    fn event(&self, event: Event);
}

/// Reporter that ignores all events.
pub struct SilentReporter;

impl Reporter for SilentReporter {
    fn event(&self, _: Event) {}
}
