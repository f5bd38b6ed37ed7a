//! Attention with both products in bf16. Queries, keys, softmax numerators and values are rounded to bf16. Sums and the
//! softmax are f32.
//!
//! Keys and values of a segment are packed once for all query blocks. Pairs of keys start at the segment's first key,
//! so that a query's result does not depend on other segments of the batch.

use std::ops::Range;

use rayon::prelude::*;

use super::Segments;
use super::attention::{AttentionParams, FirstVisibleKeys, QUERY_ROWS, QueryBlock, split_into_query_blocks};
use crate::linalg::bf16::{Bf16, Bf16Kernels, PairPanels, RowWords, pack_bf16_pair};
use crate::linalg::gemm::profile;
use crate::linalg::panels::{LANES, PackedFormat};
use crate::linalg::simd;
use crate::scratch::{Scratch, take_scratch};

/// Packed keys and values of one segment and key head, as words of two bf16 values.
#[derive(Default)]
struct PackedSegment {
    /// Keys `[keys / 32, D / 2, 32]`, one key per column.
    keys: Vec<u32>,
    /// Values `[D / 32, keys / 2, 32]`, one channel per column. The keys are padded to full panels.
    values: Vec<u32>,
}

impl PackedSegment {
    /// Packs the keys and values of a segment.
    ///
    /// # Shapes
    /// `keys`, `values [rows, ..]` start at the segment's first row, with row strides `strides`.
    fn new([keys, values]: [&[f32]; 2], strides: [usize; 2], rows: usize, head_dim: usize) -> Self {
        let panels = rows.div_ceil(LANES);
        let depth = head_dim.div_ceil(2);
        let mut packed = Self {
            keys: vec![0; panels * depth * LANES],
            values: vec![0; head_dim.div_ceil(LANES) * panels * LANES / 2 * LANES],
        };
        let value = |row: usize| &values[row * strides[1]..][..head_dim];
        simd::in_widest!({
            for row in 0..rows {
                Bf16::pack_column(
                    &keys[row * strides[0]..][..head_dim],
                    row % LANES,
                    &mut packed.keys[row / LANES * depth * LANES..][..depth * LANES],
                );
            }
            for row in (0..rows).step_by(2) {
                for (panel, first) in (0..head_dim).step_by(LANES).enumerate() {
                    let columns = first..head_dim.min(first + LANES);
                    let line = &mut packed.values[(panel * panels * LANES / 2 + row / 2) * LANES..][..columns.len()];
                    let one = line.iter_mut().zip(&value(row)[columns.clone()]);
                    if row + 1 < rows {
                        let both = one.zip(&value(row + 1)[columns]);
                        both.for_each(|((word, &a), &b)| *word = pack_bf16_pair(a, b));
                    } else {
                        one.for_each(|(word, &a)| *word = pack_bf16_pair(a, 0.0));
                    }
                }
            }
        });
        packed
    }
}

/// Keys of one segment, and the queries of a block that attend to them. Key indices are relative to the segment's first
/// key.
struct VisibleKeys<'a> {
    kernels: Bf16Kernels,
    /// Packed keys and values by key head.
    packed: &'a [PackedSegment],
    rows: Range<usize>,
    /// End of the range of keys that the first row attends to.
    first_end: usize,
    /// Number of keys by which this range grows with each subsequent row: 0 for a prefix, 1 for the block's own
    /// segment.
    growth: usize,
    /// Index of the first visible panel.
    first_panel: usize,
    /// First score column of these keys.
    column: usize,
}

impl VisibleKeys<'_> {
    fn end(&self, row: usize) -> usize {
        self.first_end + self.growth * (row - self.rows.start)
    }

    /// Returns the number of score columns for rows up to `last`, rounded up to full panels.
    fn width(&self, last: usize) -> usize {
        (self.end(last).div_ceil(LANES) - self.first_panel) * LANES
    }

    fn tiles(&self) -> impl Iterator<Item = Range<usize>> {
        let end = self.rows.end;
        let height = self.kernels.tile_rows();
        self.rows.clone().step_by(height).map(move |top| top..end.min(top + height))
    }

    /// Multiplies queries by keys and stores the products in `scores`. The first `depth` words of each query contain
    /// two bf16 values each.
    ///
    /// # Shapes
    /// `queries [rows, row_words]`, `scores [rows, stride]`.
    fn compute_scores(
        &self,
        head: usize,
        (queries, row_words): (&[u32], usize),
        depth: usize,
        (scores, stride): (&mut [f32], usize),
    ) {
        let keys = &self.packed[head].keys[self.first_panel * depth * LANES..];
        for rows in self.tiles() {
            let words = &queries[rows.start * row_words..rows.end * row_words];
            let queries = RowWords { words, row_words, count: rows.len() };
            let count = self.width(rows.end - 1) / LANES;
            let keys = PairPanels { words: keys, stride: depth * LANES, lines: depth, count };
            let out = &mut scores[rows.start * stride + self.column..];
            self.kernels.multiply(&queries, &keys, (out, stride), false);
        }
    }

    /// Multiplies the softmax numerators by the values. Stores the result in `out`, or adds it to `out` if `adds` is
    /// set.
    ///
    /// # Shapes
    /// `scores [rows, stride]`, `out [rows, padded_dim]`.
    fn multiply_values(
        &self,
        head: usize,
        (scores, stride): (&[f32], usize),
        (out, padded_dim): (&mut [f32], usize),
        adds: bool,
        words: &mut Vec<u32>,
    ) {
        let values = &self.packed[head].values;
        let lines = values.len() / LANES / (padded_dim / LANES);
        for rows in self.tiles() {
            let width = self.width(rows.end - 1);
            words.clear();
            simd::in_widest!({
                for row in rows.clone() {
                    self.kernels.push_row(&scores[row * stride + self.column..][..width], words);
                }
            });
            let numerators = RowWords { words, row_words: self.kernels.row_words(width), count: rows.len() };
            let values = PairPanels {
                words: &values[self.first_panel * LANES / 2 * LANES..],
                stride: lines * LANES,
                lines: width / 2,
                count: padded_dim / LANES,
            };
            self.kernels.multiply(&numerators, &values, (&mut out[rows.start * padded_dim..], padded_dim), adds);
        }
    }
}

/// Computes attention for all segments, with both products in bf16.
///
/// # Shapes
/// `qkv [tokens, (H + 2K)·D]`, `rotated [tokens, (H + K)·D]`, result `[tokens, H·D]`.
pub(super) fn attention_in_bf16(
    kernels: Bf16Kernels,
    qkv: &[f32],
    rotated: &[f32],
    params: &AttentionParams<'_>,
    segments: Segments<'_>,
) -> Scratch {
    let (q_width, k_width) = params.widths();
    let stride = q_width + 2 * k_width;
    let packed = pack_segments(qkv, rotated, params, segments);
    let batch = PackedBatch { kernels, rotated, params, segments, packed: &packed };
    let mut out = take_scratch(qkv.len() / stride * q_width);
    let blocks = split_into_query_blocks(&mut out, q_width, segments, params.window);
    blocks.into_par_iter().for_each(|block| batch.attend(block));
    out
}

/// Packs the keys and values of all segments and key heads, as `[segment, head]`.
fn pack_segments(
    qkv: &[f32],
    rotated: &[f32],
    params: &AttentionParams<'_>,
    segments: Segments<'_>,
) -> Vec<PackedSegment> {
    let head_dim = params.head_dim;
    let (q_width, k_width) = params.widths();
    let stride = q_width + 2 * k_width;
    let rotated_stride = q_width + k_width;
    let pairs = (0..segments.rows.len() * params.kv_heads).into_par_iter();
    pairs
        .map(|pair| {
            let rows = segments.rows[pair / params.kv_heads].clone();
            let channel = pair % params.kv_heads * head_dim;
            if rows.is_empty() {
                return PackedSegment::default();
            }
            let keys = &rotated[rows.start * rotated_stride + q_width + channel..];
            let values = &qkv[rows.start * stride + q_width + k_width + channel..];
            PackedSegment::new([keys, values], [rotated_stride, stride], rows.len(), head_dim)
        })
        .collect()
}

/// Batch with packed keys and values.
struct PackedBatch<'a> {
    kernels: Bf16Kernels,
    /// Rotated queries and keys `[tokens, (H + K)·D]`.
    rotated: &'a [f32],
    params: &'a AttentionParams<'a>,
    segments: Segments<'a>,
    /// Packed keys and values as `[segment, head]`.
    packed: &'a [PackedSegment],
}

impl<'a> PackedBatch<'a> {
    /// Computes attention for one block of queries.
    fn attend(&self, block: QueryBlock<'_>) {
        let Self { kernels, params, .. } = *self;
        let head_dim = params.head_dim;
        let (q_width, _) = params.widths();
        let QueryBlock { out, first, starts, .. } = block;
        let rows = out.len() / q_width;
        let visible_keys = self.collect_visible_keys(first..first + rows, &starts);
        let stride =
            visible_keys.iter().map(|keys| keys.column + keys.width(keys.rows.end - 1)).max().unwrap_or_default();
        let mask = BlockMask { visible_keys: &visible_keys, starts: &starts, first, cap: params.cap };
        let depth = head_dim.div_ceil(2);
        let padded_dim = head_dim.next_multiple_of(LANES);
        let mut scores = take_scratch(rows * stride);
        let mut sums = take_scratch(rows * padded_dim);
        let row_words = kernels.row_words(head_dim);
        let mut queries = Vec::with_capacity(rows * row_words);
        let mut words = Vec::new();
        let mut row_sums = [0.0; QUERY_ROWS];
        for head in 0..params.query_heads {
            let kv_head = head * params.kv_heads / params.query_heads;
            self.pack_queries(head, first..first + rows, &mut queries);
            let started = profile::start_timer();
            visible_keys
                .iter()
                .for_each(|keys| keys.compute_scores(kv_head, (&queries, row_words), depth, (&mut scores, stride)));
            profile::stop_timer(started, 1);
            for keys in visible_keys.iter().filter(|keys| keys.growth > 0) {
                mask.replace_by_numerators(keys, (&mut scores, stride), &mut row_sums);
            }
            let started = profile::start_timer();
            for (index, keys) in visible_keys.iter().enumerate() {
                let adds = index > 0 && mask.prefix().is_some();
                keys.multiply_values(kv_head, (&scores, stride), (&mut sums, padded_dim), adds, &mut words);
            }
            profile::stop_timer(started, 1);
            simd::in_widest!({
                for ((row, sums), row_sum) in
                    out.chunks_exact_mut(q_width).zip(sums.chunks_exact(padded_dim)).zip(row_sums)
                {
                    let scale = 1.0 / row_sum;
                    let row = &mut row[head * head_dim..(head + 1) * head_dim];
                    row.iter_mut().zip(sums).for_each(|(x, sum)| *x = sum * scale);
                }
            });
        }
    }

    /// Returns the keys that a block of queries attends to: first those of the block's prefix, then those of its
    /// segments.
    fn collect_visible_keys(&self, block: Range<usize>, starts: &[FirstVisibleKeys]) -> Vec<VisibleKeys<'a>> {
        let Self { kernels, segments, .. } = *self;
        let first = block.start;
        let segment = segments.rows.partition_point(|segment| segment.end <= first);
        let mut visible_keys = Vec::new();
        if let Some(parent) = segments.parents[segment] {
            let first_panel = starts.iter().map(|start| start.prefix / LANES).min().unwrap_or_default();
            let first_end = segments.rows[parent].len();
            // Skip a prefix outside the window.
            if first_panel * LANES < first_end {
                let packed = self.packed_heads(parent);
                visible_keys.push(VisibleKeys {
                    kernels,
                    packed,
                    rows: 0..block.len(),
                    first_end,
                    growth: 0,
                    first_panel,
                    column: 0,
                });
            }
        }
        let column = visible_keys.first().map_or(0, |prefix| prefix.width(0));
        let later = segments.rows.iter().enumerate().skip(segment);
        let overlapping = later.take_while(|(_, rows_of_segment)| rows_of_segment.start < block.end);
        for (segment, rows_of_segment) in overlapping.filter(|(_, rows_of_segment)| !rows_of_segment.is_empty()) {
            let rows = rows_of_segment.start.max(first) - first..rows_of_segment.end.min(block.end) - first;
            let first_panel = (starts[rows.start].segment_start - rows_of_segment.start) / LANES;
            let first_end = first + rows.start + 1 - rows_of_segment.start;
            visible_keys.push(VisibleKeys {
                kernels,
                packed: self.packed_heads(segment),
                rows,
                first_end,
                growth: 1,
                first_panel,
                column,
            });
        }
        visible_keys
    }

    /// Returns the packed keys and values of a segment, by key head.
    fn packed_heads(&self, segment: usize) -> &'a [PackedSegment] {
        &self.packed[segment * self.params.kv_heads..(segment + 1) * self.params.kv_heads]
    }

    /// Replaces `queries` with the packed queries of a head in the given rows.
    #[inline]
    fn pack_queries(&self, head: usize, rows: Range<usize>, queries: &mut Vec<u32>) {
        let head_dim = self.params.head_dim;
        let (q_width, k_width) = self.params.widths();
        let stride = q_width + k_width;
        queries.clear();
        simd::in_widest!({
            for row in rows {
                self.kernels.push_row(&self.rotated[row * stride + head * head_dim..][..head_dim], queries);
            }
        });
    }
}

/// Mask for the scores of a block of queries.
struct BlockMask<'a> {
    visible_keys: &'a [VisibleKeys<'a>],
    /// First visible keys of each query.
    starts: &'a [FirstVisibleKeys],
    /// Batch row of the first query.
    first: usize,
    /// Soft cap on the scores.
    cap: Option<f32>,
}

impl BlockMask<'_> {
    /// Returns the keys of the prefix, if the block attends to any.
    fn prefix(&self) -> Option<&VisibleKeys<'_>> {
        self.visible_keys.first().filter(|keys| keys.growth == 0)
    }

    /// Replaces the scores of a segment's rows with softmax numerators, and writes the sum of each row to `row_sums`.
    ///
    /// # Shapes
    /// `scores [rows, stride]`.
    #[inline]
    fn replace_by_numerators(
        &self,
        keys: &VisibleKeys<'_>,
        (scores, stride): (&mut [f32], usize),
        row_sums: &mut [f32; QUERY_ROWS],
    ) {
        let Self { starts, first, cap, .. } = *self;
        let prefix = self.prefix();
        let column = keys.column;
        simd::in_widest!({
            for row in keys.rows.clone() {
                let scores = &mut scores[row * stride..(row + 1) * stride];
                let end = column + keys.end(row) - keys.first_panel * LANES;
                let (visible, masked) = scores.split_at_mut(end);
                if let Some(cap) = cap {
                    simd::soft_cap(visible, cap);
                }
                if let Some(prefix) = prefix {
                    let [start, end] =
                        [starts[row].prefix, prefix.end(row)].map(|key| key - prefix.first_panel * LANES);
                    visible[..start].fill(f32::NEG_INFINITY);
                    visible[end..column].fill(f32::NEG_INFINITY);
                }
                let count = first + row + 1 - starts[row].segment_start; // visible keys of the query's own segment
                let hidden = keys.end(row) - count - keys.first_panel * LANES;
                visible[column..column + hidden].fill(f32::NEG_INFINITY);
                row_sums[row] = simd::softmax_numerators(visible);
                masked.fill(0.0);
            }
        });
    }
}
