//! Resource limits of a child process.

use serde::{Deserialize, Serialize};

use super::probe::Probe;
use crate::files::limit::TextLimit;

/// Minimum heap limit of a child in bytes, before [`HEAP_PER_FILE_BYTE`] is added. A large `--text` raises the limit.
const MIN_HEAP_BYTES: u64 = 400 << 20;
/// Additional heap bytes per byte of the input files, which are unpacked and parsed into trees.
const HEAP_PER_FILE_BYTE: u64 = 20;
/// CPU time limit of a child without files and items.
const BASE_MILLISECONDS: u64 = 4_000;
/// Number of bytes of input files that raise the time limit by one millisecond.
const FILE_BYTES_PER_MILLISECOND: u64 = 10_000;
/// Additional time per definition file or document. Most definition files and documents need a tenth of this time.
const MICROSECONDS_PER_ITEM: u64 = 2_000;
/// Stack size of a child's threads.
pub(super) const CHILD_STACK_BYTES: usize = 2 << 20;
/// Stack size of the threads of this process that repeat the work of a child. It is larger than `CHILD_STACK_BYTES`,
/// because the stack also holds the frames of the callers.
pub const STACK_BYTES: usize = 8 << 20;

/// Limits of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Limits {
    /// Maximum heap size in bytes.
    pub(super) heap_bytes: u64,
    /// Maximum CPU time of all threads in milliseconds, without the additional time per item.
    pub(super) milliseconds: u64,
}

impl Limits {
    /// Returns the limits for a probe, which grow with its files.
    pub(super) fn of(probe: &Probe) -> Self {
        let file_bytes = probe.file_bytes();
        Self {
            heap_bytes: MIN_HEAP_BYTES.max(TextLimit::current().bytes() / 5) + HEAP_PER_FILE_BYTE * file_bytes,
            milliseconds: BASE_MILLISECONDS + file_bytes / FILE_BYTES_PER_MILLISECOND,
        }
    }

    /// Returns the maximum CPU time in milliseconds after `items` items.
    pub(super) fn milliseconds_after(self, items: u64) -> u64 {
        self.milliseconds + items * MICROSECONDS_PER_ITEM / 1_000
    }
}

/// Limit that a child exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Exceeded {
    Heap,
    Time,
    Stack,
}

impl Exceeded {
    /// Returns the exhausted resource, and the limit in words.
    pub(super) fn in_words(self, limits: Limits) -> (&'static str, String) {
        match self {
            Self::Heap => ("memory", format!("at most {} MB of memory", limits.heap_bytes >> 20)),
            Self::Time => ("time", format!("at most {} s", limits.milliseconds.div_ceil(1_000))),
            Self::Stack => ("stack", format!("at most {} MB of stack", CHILD_STACK_BYTES >> 20)),
        }
    }
}
