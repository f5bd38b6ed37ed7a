//! The dense activations on both sides of a removed region.

use std::ops::Range;

use crate::calibrate::Activations;
use crate::error::Result;

/// Rows read at a time: what a method holds of a corpus of any size.
const BLOCK_ROWS: usize = 2048;

/// One region `[start, end)` of a selection with the calibration activations around it, in sequences of equal length.
pub struct Boundary<'a> {
    pub activations: &'a Activations,
    pub start: usize,
    pub end: usize,
    /// All calibration sequences.
    pub sequences: usize,
    /// The first of them, which solved operators use (design §1).
    pub operator_sequences: usize,
    /// Tokens of a sequence.
    pub length: usize,
    /// Whether the selection has no other region.
    pub only: bool,
}

impl Boundary<'_> {
    /// `C`
    pub fn channels(&self) -> usize {
        self.activations.channels()
    }

    /// `(X_pre, X_post)` of one sequence, each `[length, C]`.
    pub fn sequence(&self, index: usize) -> Result<(&[f32], &[f32])> {
        self.block(index * self.length..(index + 1) * self.length)
    }

    /// `(X_pre, X_post)` of the first `sequences` sequences, in blocks of rows.
    pub fn blocks(&self, sequences: usize) -> impl Iterator<Item = Result<(&[f32], &[f32])>> {
        let rows = sequences * self.length;
        (0..rows).step_by(BLOCK_ROWS).map(move |first| self.block(first..(first + BLOCK_ROWS).min(rows)))
    }

    fn block(&self, rows: Range<usize>) -> Result<(&[f32], &[f32])> {
        Ok((self.activations.rows(self.start, rows.clone())?, self.activations.rows(self.end, rows)?))
    }
}

/// `X_pre` and `Δ = X_post − X_pre` in f64.
pub(super) fn pre_and_delta(pre: &[f32], post: &[f32]) -> (Vec<f64>, Vec<f64>) {
    pre.iter().zip(post).map(|(&pre, &post)| (f64::from(pre), f64::from(post) - f64::from(pre))).unzip()
}
