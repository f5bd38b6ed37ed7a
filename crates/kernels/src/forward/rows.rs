//! Multithreaded operations on the rows of entire tensors, for engines with their own matrix products.

use rayon::prelude::*;

use super::Norm;
use crate::linalg::simd;

const ROWS_PER_TASK: usize = 32;
const ELEMENTS_PER_TASK: usize = 1 << 14;

/// Computes `x ← norm(x)`.
///
/// # Shapes
/// `x [rows, C]`.
pub fn normalize_rows(x: &mut [f32], norm: Norm<'_>) {
    x.par_chunks_mut(ROWS_PER_TASK * norm.weight.len().max(1)).for_each(|rows| super::apply_norm(rows, norm));
}

/// Applies the rotary embedding to all channels of each head.
///
/// # Shapes
/// `x`, `out [tokens, heads·D]`, `cos`, `sin [tokens, D/2]`.
pub fn rotate_rows(x: &[f32], heads: usize, head_dim: usize, [cos, sin]: [&[f32]; 2], out: &mut [f32]) {
    let row_width = heads * head_dim;
    let half = head_dim / 2;
    let tasks = out.par_chunks_mut(ROWS_PER_TASK * row_width).zip(x.par_chunks(ROWS_PER_TASK * row_width));
    tasks.zip(cos.par_chunks(ROWS_PER_TASK * half).zip(sin.par_chunks(ROWS_PER_TASK * half))).for_each(
        |((out, x), (cos, sin))| {
            simd::in_widest!({
                let rows = out.chunks_exact_mut(row_width).zip(x.chunks_exact(row_width));
                for ((out, x), (cos, sin)) in rows.zip(cos.chunks_exact(half).zip(sin.chunks_exact(half))) {
                    for (out, x) in out.chunks_exact_mut(head_dim).zip(x.chunks_exact(head_dim)) {
                        simd::rotate(x, cos, sin, 1.0, out);
                    }
                }
            });
        },
    );
}

/// Replaces scores with attention weights: the softmax of the scaled, capped and masked scores.
///
/// # Shapes
/// `scores [.., q, k]`, `mask [q, k]` with entries 0 and −∞.
pub fn attention_weights(scores: &mut [f32], mask: &[f32], keys: usize, scale: f32, cap: Option<f32>) {
    // One chunk per score matrix, so that the rows of a task match those of the mask.
    scores.par_chunks_mut(mask.len().max(1)).for_each(|block| {
        simd::in_widest!({
            for (row, mask) in block.chunks_exact_mut(keys.max(1)).zip(mask.chunks_exact(keys.max(1))) {
                row.iter_mut().for_each(|score| *score *= scale);
                if let Some(cap) = cap {
                    simd::soft_cap(row, cap);
                }
                simd::add(row, mask);
                let inverse_sum = 1.0 / simd::softmax_numerators(row);
                row.iter_mut().for_each(|weight| *weight *= inverse_sum);
            }
        });
    });
}

/// Computes `x ← x + y`.
///
/// # Panics
/// Panics if the lengths differ.
pub fn add_rows(x: &mut [f32], y: &[f32]) {
    assert!(x.len() == y.len(), "shape mismatch in a sum");
    x.par_chunks_mut(ELEMENTS_PER_TASK).zip(y.par_chunks(ELEMENTS_PER_TASK)).for_each(|(x, y)| super::add_assign(x, y));
}

/// Computes `gate ← silu(gate) * up`.
pub fn silu_mul(gate: &mut [f32], up: &[f32]) {
    gate.par_chunks_mut(ELEMENTS_PER_TASK).zip(up.par_chunks(ELEMENTS_PER_TASK)).for_each(|(gate, up)| {
        simd::in_widest!(simd::silu_mul(gate, up));
    });
}

/// Computes the log of the softmax denominator and the most likely token of each row of logits. Ties go to the lowest
/// token id. The token is `None` if all logits are NaN.
///
/// # Shapes
/// `logits [rows, vocab]`, results `[rows]`.
pub fn log_denominators(logits: &[f32], vocab: usize) -> (Vec<f32>, Vec<Option<usize>>) {
    logits
        .par_chunks(vocab)
        .map(|row| {
            simd::in_widest!({
                let max_logit = simd::max(row);
                let argmax = row.iter().position(|&logit| logit == max_logit);
                (max_logit + simd::sum_exp(row, max_logit).ln(), argmax)
            })
        })
        .unzip()
}
