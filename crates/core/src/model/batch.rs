//! Ragged batches: all tokens in one matrix, segments known to attention only, no padding.

use std::borrow::Cow;
use std::ops::Range;

use ghostlab_kernels::forward::Segments;
pub use ghostlab_kernels::forward::{Prediction, ScoredRow};

use crate::error::{Error, Result};

/// Tokens of several segments, one after the other.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub ids: Vec<u32>,
    /// Rows of each segment, in order and without gaps; attention stays within, apart from [`Self::parents`].
    pub segments: Vec<Range<usize>>,
    /// For a segment that continues another one, that one's index: it sees all of the other one's rows, and its
    /// positions go on from there. Segments with one parent follow it directly; a parent has no parent itself.
    pub parents: Vec<Option<usize>>,
    /// What the head scores, in ascending rows.
    pub targets: Vec<ScoredRow>,
}

impl Batch {
    /// Whole windows, each token but the first predicted from those before it.
    pub fn windows<'a>(windows: impl IntoIterator<Item = &'a [u32]>) -> Self {
        let mut batch = Self::default();
        for window in windows {
            let start = batch.push(window, None);
            let next = window.iter().skip(1).enumerate();
            batch.targets.extend(next.map(|(i, &token)| ScoredRow { row: start + i, token }));
        }
        batch
    }

    /// Appends a segment; its first row.
    pub fn push(&mut self, ids: &[u32], parent: Option<usize>) -> usize {
        let start = self.ids.len();
        self.ids.extend_from_slice(ids);
        self.segments.push(start..self.ids.len());
        self.parents.push(parent);
        start
    }

    /// The number of tokens.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// The rows that targets are predicted from, where the others are worth leaving out.
    pub(super) fn scored_rows(&self) -> Option<Vec<usize>> {
        let mut rows: Vec<usize> = self.targets.iter().map(|target| target.row).collect();
        rows.dedup();
        is_narrower(rows.len(), self.tokens()).then_some(rows)
    }

    /// The targets on a stream of so many rows: of all, or of [`Self::scored_rows`] alone, by their place among these.
    pub(super) fn targets_among(&self, rows: usize) -> Cow<'_, [ScoredRow]> {
        if rows == self.tokens() {
            return Cow::Borrowed(&self.targets);
        }
        let of_rows = self.targets.chunk_by(|a, b| a.row == b.row).enumerate();
        of_rows.flat_map(|(row, of)| of.iter().map(move |target| ScoredRow { row, ..*target })).collect()
    }

    /// Refuses token ids that an embedding of so many rows has not.
    pub(super) fn check_ids(&self, vocab: usize) -> Result<()> {
        match self.ids.iter().find(|&&id| id as usize >= vocab) {
            None => Ok(()),
            Some(id) => Err(Error::bad_input("a token id exceeds the embedding")
                .expected(format!("ids below {vocab}"))
                .found(id)
                .hint("the tokenizer is of another model")),
        }
    }

    /// How its rows see each other.
    pub(super) fn seen(&self) -> Segments<'_> {
        Segments { rows: &self.segments, parents: &self.parents }
    }

    /// The rows that a segment sees before its own.
    pub(super) fn prefix(&self, segment: usize) -> Range<usize> {
        self.seen().prefix(segment)
    }

    /// The longest way from a first token to a last one.
    pub fn longest(&self) -> usize {
        (0..self.segments.len()).map(|s| self.prefix(s).len() + self.segments[s].len()).max().unwrap_or(0)
    }

    /// The position of each row.
    pub(super) fn positions(&self) -> Vec<usize> {
        let of_segment = |s: usize| self.prefix(s).len()..self.prefix(s).len() + self.segments[s].len();
        (0..self.segments.len()).flat_map(of_segment).collect()
    }
}

/// Whether so many scored rows are so few of all that gathering them pays.
pub(super) fn is_narrower(scored: usize, tokens: usize) -> bool {
    4 * scored < 3 * tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_go_on_after_the_prefix() {
        let mut batch = Batch::default();
        batch.push(&[1, 2, 3], None);
        batch.push(&[4, 5], Some(0));
        batch.push(&[6], Some(0));
        batch.push(&[7, 8], None);
        assert_eq!(batch.positions(), [0, 1, 2, 3, 4, 3, 0, 1]);
        assert_eq!(batch.longest(), 5);
    }
}
