//! The forward pass on the CPU: matrix products with what surrounds them fused in, on blocks of rows.
//!
//! Each kernel splits the rows of a batch among rayon's threads; a thread carries its rows through norm, product,
//! activation and residual addition while they are in its cache. A row's result depends on no other row of the block
//! and on no thread count beyond rounding inside the product.

mod attention;
mod cached;
mod divergence;
mod head;
mod linear;
mod paired;
mod rows;
mod scratch;

use std::ops::Range;

pub use attention::{Heads, rotate};
pub use cached::{KeyValues, SeenRun, attention_over, keep};
pub use divergence::{Divergence, divergences, divergences_of_logits};
pub use head::{Ends, logits, predictions};
pub use linear::MAX_ROWS as BLOCK_ROWS;
pub use linear::{Linear, Mlp, Weight, add, apply_diagonal, gather, linear, mlp, norm, project, scatter};
pub use rows::{add_rows, denominators, norm_rows, rotate_rows, silu_mul, weigh};
pub use scratch::Scratch;

use crate::linalg::bf16::Bf16;
use crate::linalg::bf16_amx::Bf16Amx;
use crate::linalg::float32::F32;
use crate::linalg::panels::Panels;

/// A root-mean-square norm: weight `[C]` and epsilon.
#[derive(Clone, Copy)]
pub struct Norm<'a> {
    pub weight: &'a [f32],
    pub eps: f32,
}

/// Weights `[inner, outer]` that stay while many rows are multiplied with them.
#[derive(Clone, Copy)]
pub enum Laid<'a> {
    F32(&'a Panels<F32>),
    /// The rows that they are multiplied with are rounded to bf16 as well.
    Bf16(&'a Panels<Bf16>),
    /// Weights in bf16, multiplied in the tile registers of Intel AMX.
    Bf16Amx(&'a Panels<Bf16Amx>),
}

/// Activation of an MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Silu,
    /// GELU in its tanh form.
    Gelu,
}

/// A token whose probability is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoredRow {
    /// The row of the batch whose residual stream predicts it.
    pub row: usize,
    pub token: u32,
}

/// Prediction of a target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// `ln p(token | row)`
    pub log_probability: f32,
    /// Whether no token is likelier; of equal ones the lowest counts.
    pub likeliest: bool,
}

/// The segments of a ragged batch.
#[derive(Debug, Clone, Copy)]
pub struct Segments<'a> {
    /// Rows of each, in order and without gaps.
    pub rows: &'a [Range<usize>],
    /// For a segment that continues another one, that one's index: it sees all of the other one's rows as well. Segments with one
    /// parent follow it directly; a parent has no parent itself.
    pub parents: &'a [Option<usize>],
}

impl Segments<'_> {
    /// Returns the rows before a segment that it attends to.
    pub fn prefix(&self, segment: usize) -> Range<usize> {
        self.parents[segment].map_or(0..0, |parent| self.rows[parent].clone())
    }
}

/// Cosines and sines of the rotary position embedding, one row of half the channels that turn for each position.
#[derive(Debug, Clone, Default)]
pub struct RotaryTable {
    pub cos: Vec<f32>,
    pub sin: Vec<f32>,
    pub half: usize,
}

impl RotaryTable {
    /// Returns `(cos, sin)` of one row, for half of the rotating channels each.
    pub fn at(&self, row: usize) -> (&[f32], &[f32]) {
        let range = row * self.half..(row + 1) * self.half;
        (&self.cos[range.clone()], &self.sin[range])
    }
}

/// Computes attention of all segments.
///
/// # Shapes
/// `qkv [tokens, (H + 2K)·D]` (queries, keys, values side by side), `rotated [tokens, (H + K)·D]`; result `[tokens, H·D]`.
pub fn attention(qkv: &[f32], rotated: &[f32], heads: &Heads<'_>, segments: Segments<'_>) -> Scratch {
    match heads.paired {
        Some(kernels) => paired::paired_attention(kernels, qkv, rotated, heads, segments),
        None => attention::plain_attention(qkv, rotated, heads, segments),
    }
}

/// Returns the rows per task: enough tasks for all threads, blocks small enough for the cache, and at least `least` rows,
/// below which preparing the weights costs as much as the product.
fn block_rows(rows: usize, least: usize, most: usize) -> usize {
    rows.div_ceil(rayon::current_num_threads()).clamp(least, most)
}
