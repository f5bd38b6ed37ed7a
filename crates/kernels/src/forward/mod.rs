//! Forward pass on the CPU: matrix products fused with the surrounding operations, on blocks of rows.
//!
//! Each kernel divides the rows of a batch among rayon's threads. A thread applies norm, product, activation and
//! residual addition to its rows while they are in its cache. The result of a row does not depend on other rows, and
//! depends on the number of threads only through rounding in the product.

mod attention;
mod attention_bf16;
mod cached;
mod divergence;
mod head;
mod linear;
mod mlp;
mod rows;
mod tasks;

use std::ops::Range;
use std::sync::Arc;

pub use attention::{AttentionParams, prepare_queries_and_keys};
pub use cached::{CachedRun, KeyValues, append_keys_values, attention_with_cache};
pub use divergence::{Divergence, divergences, divergences_of_logits};
pub use head::{HeadParams, logits, predictions};
pub use linear::{
    Linear, Weight, add_assign, apply_diagonal, apply_norm, gather_rows, linear, norm_linear, scatter_add,
};
pub use mlp::{Mlp, mlp};
pub use rows::{add_rows, attention_weights, log_denominators, normalize_rows, rotate_rows, silu_mul};
pub use tasks::map_parts;

use crate::linalg::bf16::Bf16;
use crate::linalg::bf16_split::Bf16Split;
use crate::linalg::float32::F32;
use crate::linalg::panels::Panels;
pub use crate::scratch::Scratch;

/// Parameters of a root-mean-square norm: weight `[C]` and epsilon.
#[derive(Clone, Copy)]
pub struct Norm<'a> {
    pub weight: &'a [f32],
    pub eps: f32,
}

/// Weights `[inner, outer]`, packed for one of the matrix multiplication kernels. Clones share the panels.
#[derive(Clone)]
pub enum PackedWeights {
    F32(Arc<Panels<F32>>),
    /// Weights in bf16. Rows are rounded to bf16 before the product.
    Bf16(Arc<Panels<Bf16>>),
    /// Weights in bf16, multiplied with Intel AMX tiles.
    Bf16Amx(Arc<Panels<Bf16Split<1>>>),
    /// Weights as sums of two bf16 parts, multiplied with Intel AMX tiles. Rows are split in the same way.
    Bf16x3(Arc<Panels<Bf16Split<2>>>),
    /// Weights as sums of three bf16 parts, like [`Self::Bf16x3`].
    Bf16x6(Arc<Panels<Bf16Split<3>>>),
}

/// Evaluates an expression with the panels of [`PackedWeights`], regardless of their type.
macro_rules! with_panels {
    ($weights:expr, |$panels:ident| $body:expr) => {
        match $weights {
            $crate::forward::PackedWeights::F32($panels) => $body,
            $crate::forward::PackedWeights::Bf16($panels) => $body,
            $crate::forward::PackedWeights::Bf16Amx($panels) => $body,
            $crate::forward::PackedWeights::Bf16x3($panels) => $body,
            $crate::forward::PackedWeights::Bf16x6($panels) => $body,
        }
    };
}
use with_panels;

/// Activation of an MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Silu,
    /// GELU with the tanh approximation.
    Gelu,
}

/// A token whose probability is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoredRow {
    /// Row of the batch whose output predicts the token.
    pub row: usize,
    pub token: u32,
}

/// Prediction for a target token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// `ln p(token | row)`
    pub log_probability: f32,
    /// Whether the token is the most likely one. Ties go to the lowest token id.
    pub is_greedy: bool,
}

/// Segments of a ragged batch.
#[derive(Debug, Clone, Copy)]
pub struct Segments<'a> {
    /// Rows of each segment, in order and without gaps.
    pub rows: &'a [Range<usize>],
    /// Index of each segment's parent, if the segment continues another one. It then also attends to all rows of its
    /// parent. Children directly follow their parent. A parent must not have a parent itself.
    pub parents: &'a [Option<usize>],
}

impl Segments<'_> {
    /// Returns the rows of a segment's parent. The range is empty if the segment has no parent.
    pub fn prefix(&self, segment: usize) -> Range<usize> {
        self.parents[segment].map_or(0..0, |parent| self.rows[parent].clone())
    }
}

/// Cosines and sines of the rotary position embedding. Each position has one row, with one entry per pair of rotated
/// channels.
#[derive(Debug, Clone, Default)]
pub struct RotaryTable {
    pub cos: Vec<f32>,
    pub sin: Vec<f32>,
    /// Number of entries per row, i.e. half the number of rotated channels.
    pub half: usize,
}

impl RotaryTable {
    /// Returns cosines and sines of one row, each for half of the rotated channels.
    pub fn at(&self, row: usize) -> (&[f32], &[f32]) {
        let range = row * self.half..(row + 1) * self.half;
        (&self.cos[range.clone()], &self.sin[range])
    }
}

/// Computes the attention for all segments.
///
/// # Shapes
/// With the `H`, `K` and `D` of [`AttentionParams`]: `qkv [tokens, (H + 2K)·D]` (queries, keys, values side by side),
/// `rotated [tokens, (H + K)·D]`; result `[tokens, H·D]`.
pub fn attention(qkv: &[f32], rotated: &[f32], params: &AttentionParams<'_>, segments: Segments<'_>) -> Scratch {
    match params.bf16_kernels {
        Some(kernels) => attention_bf16::attention_in_bf16(kernels, qkv, rotated, params, segments),
        None => attention::attention_in_f32(qkv, rotated, params, segments),
    }
}
