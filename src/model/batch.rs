//! Ragged batches: all tokens in one matrix, segments known to attention only, no padding.

use std::ops::Range;

/// A token whose probability is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The row of the batch whose residual stream predicts it.
    pub row: usize,
    pub token: u32,
}

/// Tokens of several segments, one after the other.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub ids: Vec<u32>,
    /// Rows of each segment, in order and without gaps; positions restart in each, attention stays within.
    pub segments: Vec<Range<usize>>,
    /// What the head scores, in ascending rows.
    pub targets: Vec<Target>,
}

impl Batch {
    /// Whole windows, each token but the first predicted from those before it.
    pub fn windows<'a>(windows: impl IntoIterator<Item = &'a [u32]>) -> Self {
        let mut batch = Self::default();
        for window in windows {
            let start = batch.ids.len();
            batch.ids.extend_from_slice(window);
            batch.segments.push(start..batch.ids.len());
            let next = window.iter().skip(1).enumerate();
            batch.targets.extend(next.map(|(i, &token)| Target { row: start + i, token }));
        }
        batch
    }

    /// The number of tokens.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// The length of the longest segment.
    pub fn longest(&self) -> usize {
        self.segments.iter().map(Range::len).max().unwrap_or(0)
    }
}
