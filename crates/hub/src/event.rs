//! Progress events during a fetch.

use serde::Serialize;

/// Progress event. Never contains secrets such as tokens or signed URLs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The fetch starts. `files` is the number of files that are not cached, and `bytes` their total size. `here` of
    /// these bytes are already present from an earlier attempt.
    FetchPlanned { files: usize, bytes: u64, here: u64 },
    /// The download of a file starts. Its first `here` bytes are already present.
    FetchStarted { file: String, bytes: Option<u64>, here: u64 },
    /// Bytes of a file were received. `bytes` is their number since the last event.
    FetchAdvanced { file: String, bytes: u64 },
    /// The received bytes of a file are unusable, so its download restarts.
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
