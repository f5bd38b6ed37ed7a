//! Ragged batches, which concatenate token sequences without padding. Only attention depends on the segment boundaries.

use std::borrow::Cow;
use std::ops::Range;

use ghostlab_kernels::forward::Segments;
pub use ghostlab_kernels::forward::{Divergence, Prediction, ScoredRow};

use crate::error::{Error, Result};

/// Tokens of several segments, concatenated.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub ids: Vec<u32>,
    /// Rows of each segment, in order and without gaps. Tokens attend only to their own segment and its
    /// [parent](Self::parents).
    pub segments: Vec<Range<usize>>,
    /// Index of each segment's parent, if any. A segment attends to all rows of its parent, and its positions continue
    /// those of the parent. Children directly follow their parent. A parent must not have a parent itself.
    pub parents: Vec<Option<usize>>,
    /// Rows scored by the head, in ascending order.
    pub targets: Vec<ScoredRow>,
}

impl Batch {
    /// Builds a batch with one segment per window. In each window, every token except the first is a target.
    pub fn windows<'a>(windows: impl IntoIterator<Item = &'a [u32]>) -> Self {
        let mut batch = Self::default();
        for window in windows {
            let start = batch.push(window, None);
            let next = window.iter().skip(1).enumerate();
            batch.targets.extend(next.map(|(i, &token)| ScoredRow { row: start + i, token }));
        }
        batch
    }

    /// Appends a segment and returns its first row.
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

    /// Returns the distinct rows of the targets, or `None` if they are too many for gathering to pay off.
    pub(super) fn scored_rows(&self) -> Option<Vec<usize>> {
        let mut rows: Vec<usize> = self.targets.iter().map(|target| target.row).collect();
        rows.dedup();
        is_narrower(rows.len(), self.tokens()).then_some(rows)
    }

    /// Returns the targets, with row indices that refer to a residual stream of `rows` rows. The stream contains either
    /// all rows or only [`Self::scored_rows`].
    pub(super) fn targets_for_rows(&self, rows: usize) -> Cow<'_, [ScoredRow]> {
        if rows == self.tokens() {
            return Cow::Borrowed(&self.targets);
        }
        let targets_by_row = self.targets.chunk_by(|a, b| a.row == b.row).enumerate();
        targets_by_row
            .flat_map(|(row, targets)| targets.iter().map(move |target| ScoredRow { row, ..*target }))
            .collect()
    }

    /// Checks that all token ids are below `vocab`.
    pub(super) fn check_ids(&self, vocab: usize) -> Result<()> {
        match self.ids.iter().find(|&&id| id as usize >= vocab) {
            None => Ok(()),
            Some(id) => Err(Error::bad_input("token id out of range")
                .expected(format!("ids below {vocab}"))
                .found(id)
                .hint("check that the tokenizer belongs to this model")),
        }
    }

    /// Returns the segments and their parents in the format of the attention kernels.
    pub(super) fn kernel_segments(&self) -> Segments<'_> {
        Segments { rows: &self.segments, parents: &self.parents }
    }

    /// Returns the rows of a segment's parent. The range is empty if the segment has no parent.
    pub(super) fn prefix(&self, segment: usize) -> Range<usize> {
        self.kernel_segments().prefix(segment)
    }

    /// Returns the number of tokens in the longest segment, including its parent.
    pub fn longest(&self) -> usize {
        (0..self.segments.len()).map(|s| self.prefix(s).len() + self.segments[s].len()).max().unwrap_or(0)
    }

    /// Returns the position of each row in its sequence.
    pub(super) fn positions(&self) -> Vec<usize> {
        (0..self.segments.len())
            .flat_map(|s| self.prefix(s).len()..self.prefix(s).len() + self.segments[s].len())
            .collect()
    }
}

/// Returns whether fewer than 3/4 of the rows are scored, so that gathering the scored rows saves work.
pub(super) fn is_narrower(scored: usize, tokens: usize) -> bool {
    4 * scored < 3 * tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_positions_continue_after_the_prefix() {
        let mut batch = Batch::default();
        batch.push(&[1, 2, 3], None);
        batch.push(&[4, 5], Some(0));
        batch.push(&[6], Some(0));
        batch.push(&[7, 8], None);
        assert_eq!(batch.positions(), [0, 1, 2, 3, 4, 3, 0, 1]);
        assert_eq!(batch.longest(), 5);
    }
}
