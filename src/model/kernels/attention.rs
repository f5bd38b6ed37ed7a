//! Causal attention within segments: blocks of queries, masked key blocks skipped, softmax in place.
//!
//! The scores of one block of queries are the only thing materialised, and they stay in a core's cache. The products
//! go through the matrix kernel; what is left for us are the rotary embedding, the softmax and the mask's corner.

use std::ops::Range;

use rayon::prelude::*;

use super::{Norm, block_rows};
use crate::linalg::gemm::{Into, View, ViewMut, gemm};
use crate::linalg::lanes;
use crate::model::rope::Table;

/// Queries that one task scores at a time.
const QUERY_ROWS: usize = 64;

/// The shape of attention, and the norms of queries and keys.
pub(crate) struct Heads<'a> {
    pub(crate) queries: usize,
    /// Keys and values; a group of `queries / keys` query heads shares one.
    pub(crate) keys: usize,
    pub(crate) head_dim: usize,
    pub(crate) query_norm: Option<Norm<'a>>,
    pub(crate) key_norm: Option<Norm<'a>>,
}

/// Attention of all segments.
///
/// # Shapes
/// `qkv [tokens, (H + 2K)·D]` (queries, keys, values side by side); result `[tokens, H·D]`.
///
/// A norm weight of length `D` norms each head by itself, one of the projection's full width all heads together.
pub(crate) fn attention(qkv: &[f32], heads: &Heads<'_>, segments: &[Range<usize>], table: &Table) -> Vec<f32> {
    let head_dim = heads.head_dim;
    let (q_width, k_width) = (heads.queries * head_dim, heads.keys * head_dim);
    let (stride, rotated_stride) = (q_width + 2 * k_width, q_width + k_width);
    let rotated = rotate(qkv, heads, segments, table); // [tokens, (H + K)·D]
    let tokens = qkv.len() / stride;
    let mut out = vec![0.0; tokens * q_width];
    query_blocks(&mut out, q_width, segments).into_par_iter().for_each_init(Vec::new, |scores, block| {
        let Block { out, segment, first } = block;
        let rows = out.len() / q_width;
        // Keys after the block's last query are masked for all its queries: never computed.
        let seen = first + rows - segment.start;
        scores.resize(rows * seen, 0.0);
        for head in 0..heads.queries {
            let kv = head * heads.keys / heads.queries;
            let queries = &rotated[first * rotated_stride + head * head_dim..];
            let keys = &rotated[segment.start * rotated_stride + q_width + kv * head_dim..];
            let values = &qkv[segment.start * stride + q_width + k_width + kv * head_dim..];
            // [rows, seen]
            gemm(
                ViewMut::rows(scores, rows, seen),
                Into::Replace,
                View::strided(queries, rows, head_dim, rotated_stride),
                View::strided(keys, seen, head_dim, rotated_stride).t(),
            );
            lanes::widest(
                #[inline(always)]
                || {
                    for (row, scores) in scores.chunks_exact_mut(seen).enumerate() {
                        let (visible, masked) = scores.split_at_mut(seen - rows + row + 1);
                        lanes::softmax(visible);
                        masked.fill(0.0);
                    }
                },
            );
            // [rows, D]
            gemm(
                ViewMut::strided(&mut out[head * head_dim..], rows, head_dim, q_width),
                Into::Replace,
                View::rows(scores, rows, seen),
                View::strided(values, seen, head_dim, stride),
            );
        }
    });
    out
}

/// Some queries of one segment, and where their result goes.
struct Block<'a> {
    out: &'a mut [f32],
    segment: Range<usize>,
    /// The first query's row in the batch.
    first: usize,
}

/// Splits the output into blocks that do not cross segments, the longest work first (late queries see most keys).
fn query_blocks<'a>(mut out: &'a mut [f32], width: usize, segments: &[Range<usize>]) -> Vec<Block<'a>> {
    let mut blocks = Vec::new();
    for segment in segments {
        for first in segment.clone().step_by(QUERY_ROWS) {
            let rows = QUERY_ROWS.min(segment.end - first);
            let (block, rest) = out.split_at_mut(rows * width);
            out = rest;
            blocks.push(Block { out: block, segment: segment.clone(), first });
        }
    }
    blocks.sort_by_key(|block| std::cmp::Reverse(block.first - block.segment.start));
    blocks
}

/// Norms and rotates queries and keys; queries are scaled by `1/√D` as well.
///
/// # Shapes
/// Result `[tokens, (H + K)·D]`.
fn rotate(qkv: &[f32], heads: &Heads<'_>, segments: &[Range<usize>], table: &Table) -> Vec<f32> {
    let head_dim = heads.head_dim;
    let (q_width, k_width) = (heads.queries * head_dim, heads.keys * head_dim);
    let (stride, width) = (q_width + 2 * k_width, q_width + k_width);
    let tokens = qkv.len() / stride;
    let mut positions = vec![0usize; tokens];
    for segment in segments {
        for row in segment.clone() {
            positions[row] = row - segment.start;
        }
    }
    let scale = 1.0 / (head_dim as f32).sqrt();
    let mut out = vec![0.0; tokens * width];
    let step = block_rows(tokens, 256);
    out.par_chunks_mut(step * width).enumerate().for_each_init(Vec::new, |scratch: &mut Vec<f32>, (task, out)| {
        lanes::widest(
            #[inline(always)]
            || {
                for (row, out) in out.chunks_exact_mut(width).enumerate() {
                    let row = task * step + row;
                    let (cos, sin) = table.at(positions[row]);
                    let source = &qkv[row * stride..row * stride + width];
                    let (q, k) = source.split_at(q_width);
                    let (q_out, k_out) = out.split_at_mut(q_width);
                    for (x, out, norm, scale) in [(q, q_out, heads.query_norm, scale), (k, k_out, heads.key_norm, 1.0)]
                    {
                        let x = norm.map_or(x, |norm| {
                            scratch.resize(x.len(), 0.0);
                            let group = norm.weight.len();
                            for (x, out) in x.chunks_exact(group).zip(scratch.chunks_exact_mut(group)) {
                                lanes::rms_norm(x, norm.weight, norm.eps, out);
                            }
                            scratch
                        });
                        for (x, out) in x.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)) {
                            lanes::rotate(x, cos, sin, scale, out);
                        }
                    }
                }
            },
        );
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::Rope;
    use crate::model::rope::Rotary;

    /// Attention by its definition, one query at a time, in f64.
    fn by_definition(qkv: &[f32], h: usize, k: usize, d: usize, segments: &[Range<usize>], table: &Table) -> Vec<f32> {
        let stride = (h + 2 * k) * d;
        let turned = |row: usize, column: usize, position: usize| -> Vec<f64> {
            let x = &qkv[row * stride + column * d..][..d];
            let (cos, sin) = table.at(position);
            (0..d)
                .map(|i| {
                    let pair = i % (d / 2);
                    let other = if i < d / 2 { -x[i + d / 2] } else { x[i - d / 2] };
                    f64::from(x[i]) * f64::from(cos[pair]) + f64::from(other) * f64::from(sin[pair])
                })
                .collect()
        };
        let mut out = Vec::new();
        for segment in segments {
            for query in segment.clone() {
                for head in 0..h {
                    let q = turned(query, head, query - segment.start);
                    let group = head * k / h;
                    let weights: Vec<f64> = (segment.start..=query)
                        .map(|key| {
                            let key = turned(key, h + group, key - segment.start);
                            (q.iter().zip(&key).map(|(a, b)| a * b).sum::<f64>() / (d as f64).sqrt()).exp()
                        })
                        .collect();
                    let total: f64 = weights.iter().sum();
                    out.extend((0..d).map(|c| {
                        let value = |(i, w): (usize, &f64)| {
                            w * f64::from(qkv[(segment.start + i) * stride + (h + k + group) * d + c])
                        };
                        (weights.iter().enumerate().map(value).sum::<f64>() / total) as f32
                    }));
                }
            }
        }
        out
    }

    #[test]
    fn ragged_grouped_attention_equals_its_definition() {
        let (h, k, d) = (6, 2, 8);
        let segments = [0..1, 1..66, 66..200]; // one token; one block and one row; several blocks
        let qkv: Vec<f32> = (0..200 * (h + 2 * k) * d).map(|i| ((i * 7919) % 1013) as f32 / 500.0 - 1.0).collect();
        let rotary = Rotary::new(&Rope { theta: 10_000.0, scaling: None }, d);
        let table = rotary.table(134);
        let heads = Heads { queries: h, keys: k, head_dim: d, query_norm: None, key_norm: None };
        let ours = attention(&qkv, &heads, &segments, &table);
        let exact = by_definition(&qkv, h, k, d, &segments, &table);
        let worst = ours.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 2e-6, "{worst:e}");
    }
}
