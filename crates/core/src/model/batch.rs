//! Ragged batches: all tokens in one matrix, segments known to attention only, no padding.

use std::borrow::Cow;
use std::ops::Range;

use ghostlab_kernels::forward::Segments;
pub use ghostlab_kernels::forward::{Divergence, Prediction, ScoredRow};

use crate::error::{Error, Result};

/// Tokens of several segments, one after the other.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub ids: Vec<u32>,
    /// Rows of each segment, in order and without gaps; attention stays within, apart from [`Self::parents`].
    pub segments: Vec<Range<usize>>,
    /// Parent of a segment that continues another one: it sees all rows of the parent, and its positions follow the
    /// parent's. Segments with one parent follow it directly; parents have no parent.
    pub parents: Vec<Option<usize>>,
    /// Rows that the head scores, in ascending order.
    pub targets: Vec<ScoredRow>,
}

impl Batch {
    /// Builds a batch of windows; each token but the first is predicted from those before it.
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

    /// Returns the number of tokens.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Returns the rows that targets are predicted from, if skipping the others pays off.
    pub(super) fn scored_rows(&self) -> Option<Vec<usize>> {
        let mut rows: Vec<usize> = self.targets.iter().map(|target| target.row).collect();
        rows.dedup();
        is_narrower(rows.len(), self.tokens()).then_some(rows)
    }

    /// Returns the targets of a stream of `rows` rows: of all rows, or of [`Self::scored_rows`] alone, by their index among
    /// these.
    pub(super) fn targets_among(&self, rows: usize) -> Cow<'_, [ScoredRow]> {
        if rows == self.tokens() {
            return Cow::Borrowed(&self.targets);
        }
        let of_rows = self.targets.chunk_by(|a, b| a.row == b.row).enumerate();
        of_rows.flat_map(|(row, targets)| targets.iter().map(move |target| ScoredRow { row, ..*target })).collect()
    }

    /// Rejects token ids beyond an embedding of `vocab` rows.
    pub(super) fn check_ids(&self, vocab: usize) -> Result<()> {
        match self.ids.iter().find(|&&id| id as usize >= vocab) {
            None => Ok(()),
            Some(id) => Err(Error::bad_input("a token id exceeds the embedding")
                .expected(format!("ids below {vocab}"))
                .found(id)
                .hint("the tokenizer is of another model")),
        }
    }

    /// Returns which rows each row attends to.
    pub(super) fn seen(&self) -> Segments<'_> {
        Segments { rows: &self.segments, parents: &self.parents }
    }

    /// Returns the rows before a segment that it attends to.
    pub(super) fn prefix(&self, segment: usize) -> Range<usize> {
        self.seen().prefix(segment)
    }

    /// Returns the longest path from a first to a last token.
    pub fn longest(&self) -> usize {
        (0..self.segments.len()).map(|s| self.prefix(s).len() + self.segments[s].len()).max().unwrap_or(0)
    }

    /// Returns the position of each row.
    pub(super) fn positions(&self) -> Vec<usize> {
        (0..self.segments.len())
            .flat_map(|s| self.prefix(s).len()..self.prefix(s).len() + self.segments[s].len())
            .collect()
    }
}

/// Returns whether gathering the scored rows pays off.
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
