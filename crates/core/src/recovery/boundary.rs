//! The dense activations on both sides of removed layers.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::calibrate::{Activations, HookPoint};
use crate::error::{Error, Result};
use crate::model::Engine;

/// Rows read at a time: what a method holds of a corpus of any size.
const BLOCK_ROWS: usize = 2048;

/// Removed layers `[start, end)` that are repaired together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Span {
    pub start: usize,
    pub end: usize,
}

/// Where a selection's operators stand.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Placement {
    /// One for each region (the paper's text).
    #[default]
    Region,
    /// One for each removed layer (the reference code for selections of several regions).
    Layer,
}

impl Placement {
    pub(super) fn spans(self, region: Span) -> Vec<Span> {
        match self {
            Self::Region => vec![region],
            Self::Layer => (region.start..region.end).map(|start| Span { start, end: start + 1 }).collect(),
        }
    }
}

/// One span of a selection with the calibration activations around it, in sequences of equal length.
pub struct Boundary<'a> {
    /// The dense backbone.
    pub backbone: &'a dyn Engine,
    pub activations: &'a Activations,
    pub span: Span,
    /// The repair is solved on the first of the sequences, so many; on all of them it is measured.
    pub fitted: usize,
}

impl Boundary<'_> {
    /// `C`
    pub fn channels(&self) -> usize {
        self.activations.shape().channels
    }

    /// All calibration sequences.
    pub fn sequences(&self) -> usize {
        self.activations.shape().sequences
    }

    /// Tokens of a sequence.
    pub fn length(&self) -> usize {
        self.activations.shape().length
    }

    /// Blocks of rows that cover the first `sequences` sequences.
    pub fn blocks(&self, sequences: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        self.activations.blocks(0..sequences * self.length(), BLOCK_ROWS)
    }

    /// The rows of one sequence.
    pub fn sequence(&self, index: usize) -> Range<usize> {
        index * self.length()..(index + 1) * self.length()
    }

    /// `X_pre`, `[rows, C]`.
    pub fn pre(&self, rows: Range<usize>) -> Result<&[f32]> {
        self.activations.rows(HookPoint::Stream(self.span.start), rows)
    }

    /// `X_post`, `[rows, C]`.
    pub fn post(&self, rows: Range<usize>) -> Result<&[f32]> {
        self.activations.rows(HookPoint::Stream(self.span.end), rows)
    }

    /// The residual stream before the MLP of layer `start − 1`, `[rows, C]`: `X_pre` minus this is that MLP's output `A`.
    pub fn middle(&self, rows: Range<usize>) -> Result<&[f32]> {
        self.activations.rows(HookPoint::Middle(self.layer_before()?), rows)
    }

    /// The layer that ends where the span begins.
    ///
    /// # Errors
    /// The span begins with layer 0.
    pub fn layer_before(&self) -> Result<usize> {
        self.span.start.checked_sub(1).ok_or_else(|| {
            Error::job("no layer stands before layer 0 whose weights could take the repair in")
                .expected("a selection that keeps layer 0")
                .found("layer 0 is removed")
        })
    }
}

/// `X_pre` and `Δ = X_post − X_pre` in f64.
pub(super) fn pre_and_delta(pre: &[f32], post: &[f32]) -> (Vec<f64>, Vec<f64>) {
    pre.iter().zip(post).map(|(&pre, &post)| (f64::from(pre), f64::from(post) - f64::from(pre))).unzip()
}

/// `A = X_pre − X_mid` and `Y = X_post − X_mid` in f64: what ReplaceMe maps, and to what.
pub(super) fn branch_and_target(pre: &[f32], middle: &[f32], post: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let rows = pre.iter().zip(middle).zip(post);
    rows.map(|((&pre, &middle), &post)| {
        let middle = f64::from(middle);
        (f64::from(pre) - middle, f64::from(post) - middle)
    })
    .unzip()
}

/// Adds `Σ_t |x|` of each channel of some rows.
pub(super) fn add_magnitudes(sums: &mut [f64], x: &[f32]) {
    for row in x.chunks_exact(sums.len()) {
        for (sum, v) in sums.iter_mut().zip(row) {
            *sum += f64::from(v.abs());
        }
    }
}
