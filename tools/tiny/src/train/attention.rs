//! Causal attention within one window, and its gradient.
//!
//! Only one block of scores is in memory at a time. The backward pass recomputes the scores from the log-sum-exp of
//! each row, which is cheaper than writing them to memory and reading them back.

use super::real::{Real, dot, exponentials};
use ghostlab_core::in_widest;
use ghostlab_core::linalg::gemm::{MatrixView, MatrixViewMut, Update, gemm};

/// Queries scored at a time; small, so that few masked scores are computed.
const BLOCK: usize = 64;

/// Numbers of query and key/value heads, and their width.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    pub(super) queries: usize,
    /// Number of key/value heads; `queries / keys` query heads share one.
    pub(super) keys: usize,
    pub(super) head_dim: usize,
}

impl Heads {
    pub(super) fn query_width(&self) -> usize {
        self.queries * self.head_dim
    }

    pub(super) fn key_width(&self) -> usize {
        self.keys * self.head_dim
    }

    /// Returns the width of concatenated queries, keys and values.
    pub(super) fn projected(&self) -> usize {
        self.query_width() + 2 * self.key_width()
    }

    /// Returns the width of concatenated rotated queries and keys.
    pub(super) fn rotated(&self) -> usize {
        self.query_width() + self.key_width()
    }

    /// Returns the key head of a query head.
    fn key_of(&self, head: usize) -> usize {
        head * self.keys / self.queries
    }
}

/// Computes attention for one window.
///
/// # Shapes
/// `rotated [T, (H + K)·D]` (queries scaled by `1/√D`), `projected [T, (H + 2K)·D]` (its values are read), `out [T,
/// H·D]`, `sums [H, T]` (log-sum-exp of each row).
pub(super) fn forward<R: Real>(
    heads: Heads,
    rotated: &[R],
    projected: &[R],
    out: &mut [R],
    sums: &mut [R],
    scores: &mut Vec<R>,
) {
    let d = heads.head_dim;
    let q_width = heads.query_width();
    let stride = heads.rotated();
    let rows = out.len() / q_width;
    for head in 0..heads.queries {
        let key = heads.key_of(head);
        for first in (0..rows).step_by(BLOCK) {
            let block = BLOCK.min(rows - first);
            let seen = first + block;
            scores.resize(block * seen, R::ZERO);
            let queries = MatrixView::strided(&rotated[first * stride + head * d..], block, d, stride);
            let keys = MatrixView::strided(&rotated[q_width + key * d..], seen, d, stride);
            gemm(MatrixViewMut::rows(scores, block, seen), Update::Replace, queries, keys.t());
            let sums = &mut sums[head * rows + first..][..block];
            in_widest!({
                for (row, (scores, log_sum)) in scores.chunks_exact_mut(seen).zip(sums).enumerate() {
                    let (visible, masked) = scores.split_at_mut(first + row + 1);
                    let (shift, sum) = exponentials(visible);
                    let scale = R::ONE / sum;
                    for score in visible {
                        *score = *score * scale;
                    }
                    masked.fill(R::ZERO);
                    *log_sum = R::of(shift.wide() + sum.wide().ln());
                }
            });
            let values = values(heads, projected, key, seen);
            let out = MatrixViewMut::strided(&mut out[first * q_width + head * d..], block, d, q_width);
            gemm(out, Update::Replace, MatrixView::rows(scores, block, seen), values);
        }
    }
}

fn values<R: Real>(heads: Heads, projected: &[R], key: usize, count: usize) -> MatrixView<'_, R> {
    let d = heads.head_dim;
    let stride = heads.projected();
    MatrixView::strided(&projected[heads.rotated() + key * d..], count, d, stride)
}

/// Forward results needed by the backward pass.
#[derive(Clone, Copy)]
pub(super) struct SavedAttention<'a, R> {
    pub(super) rotated: &'a [R],
    pub(super) projected: &'a [R],
    pub(super) out: &'a [R],
    pub(super) sums: &'a [R],
}

/// Computes the gradient of [`forward`]. Adds to both results, which must be zero initially.
///
/// # Shapes
/// `d_out [T, H·D]`, `d_rotated [T, (H + K)·D]`, `d_projected [T, (H + 2K)·D]` (only its values are written).
pub(super) fn backward<R: Real>(
    heads: Heads,
    kept: SavedAttention<'_, R>,
    d_out: &[R],
    d_rotated: &mut [R],
    d_projected: &mut [R],
    scores: &mut Vec<R>,
    d_scores: &mut Vec<R>,
) {
    let SavedAttention { rotated, projected, out, sums } = kept;
    let d = heads.head_dim;
    let q_width = heads.query_width();
    let stride = heads.rotated();
    let rows = out.len() / q_width;
    for head in 0..heads.queries {
        let key = heads.key_of(head);
        for first in (0..rows).step_by(BLOCK) {
            let block = BLOCK.min(rows - first);
            let seen = first + block;
            scores.resize(block * seen, R::ZERO);
            d_scores.resize(block * seen, R::ZERO);
            let queries = MatrixView::strided(&rotated[first * stride + head * d..], block, d, stride);
            let keys = MatrixView::strided(&rotated[q_width + key * d..], seen, d, stride);
            gemm(MatrixViewMut::rows(scores, block, seen), Update::Replace, queries, keys.t());
            let start = first * q_width + head * d;
            let d_block = MatrixView::strided(&d_out[start..], block, d, q_width);
            let values = values(heads, projected, key, seen);
            gemm(MatrixViewMut::rows(d_scores, block, seen), Update::Replace, d_block, values.t());
            let sums = &sums[head * rows + first..][..block];
            in_widest!({
                let both = scores.chunks_exact_mut(seen).zip(d_scores.chunks_exact_mut(seen));
                for (row, ((scores, d_scores), &log_sum)) in both.zip(sums).enumerate() {
                    let at = start + row * q_width;
                    let along = dot(&out[at..at + d], &d_out[at..at + d]);
                    let (visible, masked) = scores.split_at_mut(first + row + 1);
                    let (d_visible, d_masked) = d_scores.split_at_mut(first + row + 1);
                    for (score, d_score) in visible.iter_mut().zip(d_visible) {
                        *score = (*score - log_sum).exp();
                        *d_score = *score * (*d_score - along);
                    }
                    masked.fill(R::ZERO);
                    d_masked.fill(R::ZERO);
                }
            });
            let scores = MatrixView::rows(scores, block, seen);
            let d_scores = MatrixView::rows(d_scores, block, seen);
            let projected_stride = heads.projected();
            let d_values = MatrixViewMut::strided(&mut d_projected[stride + key * d..], seen, d, projected_stride);
            gemm(d_values, Update::Add, scores.t(), d_block);
            let d_queries = MatrixViewMut::strided(&mut d_rotated[first * stride + head * d..], block, d, stride);
            gemm(d_queries, Update::Replace, d_scores, keys);
            let d_keys = MatrixViewMut::strided(&mut d_rotated[q_width + key * d..], seen, d, stride);
            gemm(d_keys, Update::Add, d_scores.t(), queries);
        }
    }
}
