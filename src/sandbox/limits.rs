//! Resource limits for a child process.

use serde::{Deserialize, Serialize};

use super::probe::Probe;
use crate::files::limit::TextLimit;

/// Minimum heap limit of a child in bytes. [`HEAP_PER_FILE_BYTE`] is added for each byte of input, and a large `--text`
/// raises it.
const MIN_HEAP_BYTES: u64 = 400 << 20;
/// Additional heap bytes for each byte in the input files, which are unpacked and parsed into trees.
const HEAP_PER_FILE_BYTE: u64 = 20;
/// CPU time limit of a child in milliseconds, before time for files and items is added.
const BASE_MILLISECONDS: u64 = 4_000;
/// Number of input bytes that raise the time limit by one millisecond.
const FILE_BYTES_PER_MILLISECOND: u64 = 10_000;
/// Additional CPU time in microseconds for each definition file or document. Most need only a tenth of it.
const MICROSECONDS_PER_ITEM: u64 = 2_000;
/// Stack size in bytes for each thread of a child.
pub(super) const CHILD_STACK_BYTES: usize = 2 << 20;
/// Stack size in bytes for the threads in this process that repeat a child's work. It is larger than
/// `CHILD_STACK_BYTES`, because the stack also holds the callers' frames.
pub const STACK_BYTES: usize = 8 << 20;

/// Limits of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Limits {
    /// Maximum heap size in bytes.
    pub(super) heap_bytes: u64,
    /// Maximum CPU time of all threads in milliseconds, before the additional time per item.
    pub(super) milliseconds: u64,
}

impl Limits {
    /// Returns the limits for a probe, which grow with the size of its files.
    pub(super) fn for_probe(probe: &Probe) -> Self {
        let file_bytes = probe.file_bytes();
        Self {
            heap_bytes: MIN_HEAP_BYTES.max(TextLimit::current().bytes() / 5) + HEAP_PER_FILE_BYTE * file_bytes,
            milliseconds: BASE_MILLISECONDS + file_bytes / FILE_BYTES_PER_MILLISECOND,
        }
    }

    /// Returns the maximum CPU time in milliseconds once `items` items are finished.
    pub(super) fn milliseconds_after(self, items: u64) -> u64 {
        self.milliseconds + items * MICROSECONDS_PER_ITEM / 1_000
    }
}

/// Limit that a child exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ResourceLimit {
    Heap,
    Time,
    Stack,
}

impl ResourceLimit {
    /// Returns the name of the exhausted resource and a description of the limit.
    pub(super) fn describe(self, limits: Limits) -> (&'static str, String) {
        match self {
            Self::Heap => ("memory", format!("at most {} MB of memory", limits.heap_bytes >> 20)),
            Self::Time => ("time", format!("at most {} s", limits.milliseconds.div_ceil(1_000))),
            Self::Stack => ("stack", format!("at most {} MB of stack", CHILD_STACK_BYTES >> 20)),
        }
    }
}
