//! Causal attention within [`Segments`] and their prefixes, in blocks of queries. Fully masked key blocks are skipped.
//!
//! Only the scores of one query block are materialized, so that they stay in cache. [`gemm()`] computes the products.

use std::ops::Range;

use rayon::prelude::*;

use super::tasks::task_rows;
use super::{Norm, RotaryTable, Segments};
use crate::linalg::bf16::Bf16Kernels;
use crate::linalg::gemm::{MatrixView, MatrixViewMut, Update, gemm};
use crate::linalg::simd;
use crate::scratch::{Scratch, take_scratch};

/// Maximum number of queries per block.
pub(super) const QUERY_ROWS: usize = 64;

/// Shape and parameters of attention. In other shapes, `H` is [`Self::query_heads`], `K` is [`Self::kv_heads`], and `D`
/// is [`Self::head_dim`].
pub struct AttentionParams<'a> {
    pub query_heads: usize,
    /// Number of key and value heads. Each is shared by a group of `query_heads / kv_heads` query heads.
    pub kv_heads: usize,
    pub head_dim: usize,
    pub query_norm: Option<Norm<'a>>,
    pub key_norm: Option<Norm<'a>>,
    /// Maximum number of tokens that a query attends to, including itself.
    pub window: usize,
    /// Factor applied to the scores before the soft cap.
    pub scale: f32,
    pub cap: Option<f32>,
    /// Kernels for bf16 products (queries by keys and weights by values). `None` selects f32.
    pub bf16_kernels: Option<Bf16Kernels>,
}

impl AttentionParams<'_> {
    /// Returns the numbers of query channels and key channels per row.
    pub(super) fn widths(&self) -> (usize, usize) {
        (self.query_heads * self.head_dim, self.kv_heads * self.head_dim)
    }
}

/// Computes attention for all segments in f32.
///
/// # Shapes
/// See [`super::attention`].
pub(super) fn attention_in_f32(
    qkv: &[f32],
    rotated: &[f32],
    params: &AttentionParams<'_>,
    segments: Segments<'_>,
) -> Scratch {
    let (q_width, k_width) = params.widths();
    let tokens = qkv.len() / (q_width + 2 * k_width);
    let projections = Projections { qkv, rotated, params };
    let mut out = take_scratch(tokens * q_width);
    let blocks = split_into_query_blocks(&mut out, q_width, segments, params.window);
    blocks.into_par_iter().for_each(|block| attend(&projections, block));
    out
}

/// Queries, keys and values of a batch, which are accessed by head.
///
/// # Shapes
/// `qkv [tokens, (H + 2K)·D]`, `rotated [tokens, (H + K)·D]`.
struct Projections<'a> {
    qkv: &'a [f32],
    rotated: &'a [f32],
    params: &'a AttentionParams<'a>,
}

impl<'a> Projections<'a> {
    /// Returns the queries of a head in the given rows, `[rows, D]`.
    fn queries(&self, head: usize, rows: Range<usize>) -> MatrixView<'a, f32> {
        self.rotated_columns(head * self.params.head_dim, rows)
    }

    /// Returns the keys of a key head in the given rows, `[rows, D]`.
    fn keys(&self, head: usize, rows: Range<usize>) -> MatrixView<'a, f32> {
        let (q_width, _) = self.params.widths();
        self.rotated_columns(q_width + head * self.params.head_dim, rows)
    }

    /// Returns the values of a key head in the given rows, `[rows, D]`.
    fn values(&self, head: usize, rows: Range<usize>) -> MatrixView<'a, f32> {
        let (q_width, k_width) = self.params.widths();
        let stride = q_width + 2 * k_width;
        let start = rows.start * stride + q_width + k_width + head * self.params.head_dim;
        MatrixView::strided(&self.qkv[start..], rows.len(), self.params.head_dim, stride)
    }

    fn rotated_columns(&self, column: usize, rows: Range<usize>) -> MatrixView<'a, f32> {
        let (q_width, k_width) = self.params.widths();
        let stride = q_width + k_width;
        let start = rows.start * stride + column;
        MatrixView::strided(&self.rotated[start..], rows.len(), self.params.head_dim, stride)
    }
}

/// Computes attention for one block of queries, and writes the result to `block.out`.
///
/// The block attends to the prefix and to a range of rows. The range starts at the first key that the first query
/// attends to, and ends at the last query. Scores for other keys would be masked for all queries, so they are never
/// computed.
fn attend(projections: &Projections<'_>, block: QueryBlock<'_>) {
    let params = projections.params;
    let head_dim = params.head_dim;
    let (q_width, _) = params.widths();
    let QueryBlock { out, first, prefix, starts } = block;
    let rows = out.len() / q_width;
    let before = prefix.len();
    let visible_rows = starts[0].segment_start..first + rows;
    let visible = visible_rows.len();
    let seen = before + visible;
    let mut scores = take_scratch(rows * seen);
    let mut sums = [0.0; QUERY_ROWS];
    for head in 0..params.query_heads {
        let kv_head = head * params.kv_heads / params.query_heads;
        let queries = projections.queries(head, first..first + rows);
        // The scores are `[rows, before]` and `[rows, visible]`, concatenated along the columns.
        if before > 0 {
            let scores = MatrixViewMut::strided(&mut scores, rows, before, seen);
            gemm(scores, Update::Replace, queries, projections.keys(kv_head, prefix.clone()).t());
        }
        gemm(
            MatrixViewMut::strided(&mut scores[before..], rows, visible, seen),
            Update::Replace,
            queries,
            projections.keys(kv_head, visible_rows.clone()).t(),
        );
        compute_masked_numerators(&mut scores, &mut sums, before, &starts, params.cap);
        let mut into = Update::Replace;
        if before > 0 {
            gemm(
                MatrixViewMut::strided(&mut out[head * head_dim..], rows, head_dim, q_width),
                into,
                MatrixView::strided(&scores, rows, before, seen),
                projections.values(kv_head, prefix.clone()),
            );
            into = Update::Add;
        }
        gemm(
            MatrixViewMut::strided(&mut out[head * head_dim..], rows, head_dim, q_width),
            into,
            MatrixView::strided(&scores[before..], rows, visible, seen),
            projections.values(kv_head, visible_rows.clone()),
        );
        simd::in_widest!({
            for (row, sum) in out.chunks_exact_mut(q_width).zip(sums) {
                let scale = 1.0 / sum;
                row[head * head_dim..(head + 1) * head_dim].iter_mut().for_each(|x| *x *= scale);
            }
        });
    }
}

/// Replaces scores with softmax numerators and masked scores with 0, and writes the sum of each row to `sums`.
///
/// # Shapes
/// `scores [rows, before + visible]`, where the first `before` columns are the prefix.
#[inline]
fn compute_masked_numerators(
    scores: &mut [f32],
    sums: &mut [f32],
    before: usize,
    starts: &[FirstVisibleKeys],
    cap: Option<f32>,
) {
    let rows = starts.len();
    let seen = scores.len() / rows;
    let start = starts[0].segment_start;
    simd::in_widest!({
        for (row, (scores, sum)) in scores.chunks_exact_mut(seen).zip(sums).enumerate() {
            let (visible, masked) = scores.split_at_mut(seen - rows + row + 1);
            if let Some(cap) = cap {
                simd::soft_cap(visible, cap);
            }
            // Masked keys are the prefix rows before the window, and the rows of the block's range before the query's
            // segment or window.
            let unseen = [0..starts[row].prefix, before..before + starts[row].segment_start - start];
            unseen.iter().for_each(|keys| visible[keys.clone()].fill(f32::NEG_INFINITY));
            *sum = simd::softmax_numerators(visible);
            unseen.into_iter().for_each(|keys| visible[keys].fill(0.0));
            masked.fill(0.0);
        }
    });
}

/// Block of queries that share a prefix, and the output rows for these queries.
pub(super) struct QueryBlock<'a> {
    pub(super) out: &'a mut [f32],
    /// Batch row of the first query.
    pub(super) first: usize,
    /// Rows of the shared prefix.
    prefix: Range<usize>,
    /// First visible keys of each query.
    pub(super) starts: Vec<FirstVisibleKeys>,
}

/// Indices of the first keys that a query attends to.
#[derive(Clone, Copy)]
pub(super) struct FirstVisibleKeys {
    /// First visible row of the prefix, relative to its start.
    pub(super) prefix: usize,
    /// First visible row of the query's own segment, as a row of the batch.
    pub(super) segment_start: usize,
}

/// Splits the output into blocks. A block may span several segments only if all of them have the same parent. The
/// blocks are sorted by decreasing work, so that no thread starts a long block last.
pub(super) fn split_into_query_blocks<'a>(
    mut out: &'a mut [f32],
    width: usize,
    segments: Segments<'_>,
    window: usize,
) -> Vec<QueryBlock<'a>> {
    let mut blocks = Vec::new();
    let mut segment = 0;
    while segment < segments.rows.len() {
        let siblings = match segments.parents[segment] {
            None => 1,
            parent => segments.parents[segment..].iter().take_while(|other| **other == parent).count(),
        };
        let group = &segments.rows[segment..segment + siblings];
        let prefix = segments.prefix(segment);
        let starts = group.iter().flat_map(|rows| {
            rows.clone().map(|row| FirstVisibleKeys {
                prefix: (prefix.len() + row + 1 - rows.start).saturating_sub(window).min(prefix.len()),
                segment_start: rows.start.max((row + 1).saturating_sub(window)),
            })
        });
        let starts: Vec<FirstVisibleKeys> = starts.collect();
        let mut first = group[0].start;
        for starts in starts.chunks(QUERY_ROWS) {
            let (block, rest) = out.split_at_mut(starts.len() * width);
            out = rest;
            blocks.push(QueryBlock { out: block, first, prefix: prefix.clone(), starts: starts.to_vec() });
            first += starts.len();
        }
        segment += siblings;
    }
    blocks.sort_by_key(|block| std::cmp::Reverse(block.prefix.len() + block.first - block.starts[0].segment_start));
    blocks
}

/// Applies norms and rotary embeddings to queries and keys, and scales the queries by the score factor. A norm weight
/// of length `D` normalizes each head separately. A weight of the full projection width normalizes all heads together.
///
/// # Shapes
/// `qkv [tokens, (H + 2K)·D]`, `positions [tokens]` (rows of the table), result `[tokens, (H + K)·D]`.
pub fn prepare_queries_and_keys(
    qkv: &[f32],
    params: &AttentionParams<'_>,
    positions: &[usize],
    table: &RotaryTable,
) -> Scratch {
    let (head_dim, (q_width, k_width)) = (params.head_dim, params.widths());
    let stride = q_width + 2 * k_width;
    let width = q_width + k_width;
    let tokens = qkv.len() / stride;
    let scale = params.scale;
    let mut out = take_scratch(tokens * width);
    let step = task_rows(tokens, 64, 256);
    out.par_chunks_mut(step * width).enumerate().for_each(|(task, out)| {
        let mut normed = take_scratch(q_width.max(k_width));
        simd::in_widest!({
            for (row, out) in out.chunks_exact_mut(width).enumerate() {
                let row = task * step + row;
                let (cos, sin) = table.at(positions[row]);
                let source = &qkv[row * stride..row * stride + width];
                let (q, k) = source.split_at(q_width);
                let (q_out, k_out) = out.split_at_mut(q_width);
                for (x, out, norm, scale) in [(q, q_out, params.query_norm, scale), (k, k_out, params.key_norm, 1.0)] {
                    let x = norm.map_or(x, |norm| {
                        let normed = &mut normed[..x.len()];
                        let group = norm.weight.len();
                        for (x, out) in x.chunks_exact(group).zip(normed.chunks_exact_mut(group)) {
                            simd::rms_norm(x, norm.weight, norm.eps, out);
                        }
                        &*normed
                    });
                    for (x, out) in x.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)) {
                        simd::rotate(x, cos, sin, scale, out);
                    }
                }
            }
        });
    });
    out
}

#[cfg(test)]
mod tests;
