//! The forward pass on the CPU: matrix products with what surrounds them fused in, on blocks of rows.
//!
//! Each kernel splits the rows of a batch among rayon's threads; a thread carries its rows through norm, product,
//! activation and residual addition while they are in its cache. A row's result depends on no other row of the block
//! and on no thread count beyond rounding inside the product.

mod attention;
mod cached;
mod head;
mod linear;
mod paired;
mod scratch;

pub(super) use attention::{Heads, plain_attention, rotate};
pub(super) use cached::{KeyValues, SeenRun, attention_over, keep};
pub(super) use head::{Ends, logits, predictions};
pub(super) use linear::MOST_ROWS as BLOCK_ROWS;
pub(super) use linear::{Linear, Mlp, Weight, add, apply_diagonal, gather, linear, mlp, norm, project, scatter};
pub(super) use paired::paired_attention;
pub(super) use scratch::Scratch;

/// A root-mean-square norm: weight `[C]` and epsilon.
#[derive(Clone, Copy)]
pub(super) struct Norm<'a> {
    pub(super) weight: &'a [f32],
    pub(super) eps: f32,
}

/// Rows that one task works on: enough tasks for all threads, blocks small enough for the cache, and of `least` rows, as
/// below that each block costs as much again in preparing the weights.
fn block_rows(rows: usize, least: usize, most: usize) -> usize {
    rows.div_ceil(rayon::current_num_threads()).clamp(least, most)
}
