//! Attention of new rows over cached keys and values, one query at a time.
//!
//! Each query sums over its keys in order, so its result does not depend on the cache blocks or on other queries. With
//! few rows, the speed is limited by reading the keys from memory.

use std::ops::Range;

use rayon::prelude::*;

use super::attention::AttentionParams;
use crate::linalg::simd;
use crate::scratch::{Scratch, take_scratch};

/// Cache block with the rotated keys and the values of one layer, each `[tokens, K·D]`.
pub struct KeyValues {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl KeyValues {
    /// Allocates capacity for `tokens` tokens of `width` channels.
    pub fn with_capacity(tokens: usize, width: usize) -> Self {
        Self { keys: Vec::with_capacity(tokens * width), values: Vec::with_capacity(tokens * width) }
    }
}

/// New rows of a sequence and its cache blocks. `first` is the position of the first new row. `blocks` lists all cache
/// blocks of the sequence from its first token on, each with its number of tokens.
pub struct CachedRun<'a> {
    pub rows: Range<usize>,
    pub first: usize,
    pub blocks: Vec<(&'a KeyValues, usize)>,
}

/// Appends the keys and values of the given rows to a cache block.
///
/// # Shapes
/// `rotated [tokens, (H + K)·D]`, `qkv [tokens, (H + 2K)·D]`.
pub fn append_keys_values(
    block: &mut KeyValues,
    rotated: &[f32],
    qkv: &[f32],
    params: &AttentionParams<'_>,
    rows: Range<usize>,
) {
    let (q_width, k_width) = params.widths();
    let stride = q_width + 2 * k_width;
    let rotated_stride = q_width + k_width;
    for row in rows {
        block.keys.extend_from_slice(&rotated[row * rotated_stride + q_width..][..k_width]);
        block.values.extend_from_slice(&qkv[row * stride + q_width + k_width..][..k_width]);
    }
}

/// Computes attention for the new rows of all sequences, which are concatenated.
///
/// # Shapes
/// `rotated [tokens, (H + K)·D]`, result `[tokens, H·D]`.
pub fn attention_with_cache(rotated: &[f32], params: &AttentionParams<'_>, runs: &[CachedRun<'_>]) -> Scratch {
    let (head_dim, (q_width, k_width)) = (params.head_dim, params.widths());
    let rotated_stride = q_width + k_width;
    let tokens = rotated.len() / rotated_stride;
    let group = params.query_heads / params.kv_heads * head_dim;
    let mut out = take_scratch(tokens * q_width);
    let rows: Vec<(usize, &CachedRun<'_>)> =
        runs.iter().flat_map(|run| run.rows.clone().map(move |row| (run.first + row - run.rows.start, run))).collect();
    out.par_chunks_mut(group).enumerate().for_each(|(task, out)| {
        let row = task / params.kv_heads;
        let head = task % params.kv_heads;
        let (position, run) = rows[row];
        let queries = &rotated[row * rotated_stride + head * group..][..group];
        let seen = (position + 1).saturating_sub(params.window)..position + 1;
        attend(queries, run, seen, head * head_dim, params, out);
    });
    out
}

/// Computes attention at one position for the `G` query heads that share a key head, and writes the result to `out`.
/// `seen` are the visible positions, and `channel` is the first channel of the key head.
///
/// # Shapes
/// `queries [G, D]`, `out [G, D]`.
fn attend(
    queries: &[f32],
    run: &CachedRun<'_>,
    seen: Range<usize>,
    channel: usize,
    params: &AttentionParams<'_>,
    out: &mut [f32],
) {
    let width = params.kv_heads * params.head_dim;
    let head_dim = params.head_dim;
    let count = seen.len();
    let mut scores = take_scratch(queries.len() / head_dim * count);
    let first = seen.start;
    let end = seen.end;
    let mut before = 0;
    let visible = run.blocks.iter().flat_map(move |&(block, tokens)| {
        let start = before;
        before += tokens;
        (first.max(start)..end.min(before)).map(move |token| (block, (token - start) * width + channel))
    });
    simd::in_widest!({
        for (index, (block, start)) in visible.clone().enumerate() {
            let key = &block.keys[start..][..head_dim];
            for (query, scores) in queries.chunks_exact(head_dim).zip(scores.chunks_exact_mut(count)) {
                scores[index] = simd::dot(query, key);
            }
        }
        out.fill(0.0);
        if let Some(cap) = params.cap {
            simd::soft_cap(&mut scores, cap);
        }
        let sums = scores.chunks_exact_mut(count).map(simd::softmax_numerators).collect::<Vec<_>>();
        for (index, (block, start)) in visible.enumerate() {
            let value = &block.values[start..][..head_dim];
            for (out, scores) in out.chunks_exact_mut(head_dim).zip(scores.chunks_exact(count)) {
                let weight = scores[index];
                out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * value);
            }
        }
        for (out, sum) in out.chunks_exact_mut(head_dim).zip(&sums) {
            let scale = 1.0 / *sum;
            out.iter_mut().for_each(|x| *x *= scale);
        }
    });
}
