//! Limits of a child process.

use serde::{Deserialize, Serialize};

use super::probe::Probe;
use crate::files::limit::TextLimit;

/// Heap of a child, with the default `--text`.
const MIN_HEAP_BYTES: u64 = 400 << 20;
/// Heap for each byte of the files that are read: compressed rows unpack fourfold and become trees of values.
const HEAP_PER_FILE_BYTE: u64 = 20;
/// Computing time that every child has.
const BASE_MILLISECONDS: u64 = 4_000;
/// Bytes of files that are read in a millisecond of computing at the slowest.
const FILE_BYTES_PER_MILLISECOND: u64 = 10_000;
/// Computing time for each file of definitions or document. Most take a tenth.
const MICROSECONDS_PER_ITEM: u64 = 2_000;
/// Stack of every thread of a child.
pub(super) const CHILD_STACK_BYTES: usize = 2 << 20;
/// Stack of threads that use untrusted inputs after a child has tried them, with room for the frames of their callers.
pub const STACK_BYTES: usize = 8 << 20;

/// Limits of one child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Limits {
    /// Most bytes of the heap.
    pub(super) heap_bytes: u64,
    /// Computing time of all threads, without that for items.
    pub(super) milliseconds: u64,
}

impl Limits {
    /// Returns the limits for a probe, which grow with the files that it reads.
    pub(super) fn of(probe: &Probe) -> Self {
        let file_bytes = probe.file_bytes();
        Self {
            heap_bytes: MIN_HEAP_BYTES.max(TextLimit::current().bytes() / 5) + HEAP_PER_FILE_BYTE * file_bytes,
            milliseconds: BASE_MILLISECONDS + file_bytes / FILE_BYTES_PER_MILLISECOND,
        }
    }

    /// Returns the computing time after a number of items.
    pub(super) fn milliseconds_after(self, items: u64) -> u64 {
        self.milliseconds + items * MICROSECONDS_PER_ITEM / 1_000
    }
}

/// A limit that a child exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Exceeded {
    Heap,
    Time,
    Stack,
}

impl Exceeded {
    /// Returns what ran out, and the limit in words.
    pub(super) fn in_words(self, limits: Limits) -> (&'static str, String) {
        match self {
            Self::Heap => ("memory", format!("at most {} MB of memory", limits.heap_bytes >> 20)),
            Self::Time => ("time", format!("at most {} s of computing", limits.milliseconds.div_ceil(1_000))),
            Self::Stack => ("stack", format!("at most {} MB of stack", CHILD_STACK_BYTES >> 20)),
        }
    }
}
