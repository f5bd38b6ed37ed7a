//! Packed bf16 pairs, the operands of bf16 products: rows, panels and conversions.

use super::panels::LANES;

/// Consecutive rows written by [`Bf16Kernels::push_row`](super::bf16::Bf16Kernels::push_row).
pub struct RowWords<'a> {
    pub words: &'a [u32],
    /// Row stride in words.
    pub row_words: usize,
    /// Number of rows.
    pub count: usize,
}

/// Lines of several panels of pairs. The lines of panel `p` start at word `p * stride`.
pub struct PairPanels<'a> {
    pub words: &'a [u32],
    pub stride: usize,
    /// Number of lines per panel.
    pub lines: usize,
    /// Number of panels.
    pub count: usize,
}

impl<'a> PairPanels<'a> {
    /// Creates a view of complete consecutive panels of `lines` lines.
    pub(super) fn consecutive(words: &'a [u32], lines: usize, count: usize) -> Self {
        Self { words, stride: lines * LANES, lines, count }
    }
}

/// Returns the stride, in words, for rows of `words` words. The stride is never a multiple of 4 KiB, because all rows
/// would then map to the same cache sets.
#[inline]
pub(super) fn padded_stride(words: usize) -> usize {
    if words.is_multiple_of(1024) { words + 16 } else { words }
}

/// Rounds to the nearest bf16, with ties to even. The result is in the upper half of the word. NaN stays NaN.
#[inline(always)]
pub(super) fn round_to_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    (if x.is_nan() { bits | 0x40_0000 } else { nearest }) & 0xffff_0000
}

/// Packs two consecutive numbers along `inner` as bf16 in one word.
#[inline(always)]
pub fn pack_bf16_pair(first: f32, second: f32) -> u32 {
    round_to_bf16(first) >> 16 | round_to_bf16(second)
}

/// Unpacks both numbers of a pair.
#[inline(always)]
pub(super) fn unpack_bf16_pair(word: u32) -> [f32; 2] {
    [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)]
}

/// Appends the pairs of a row. A row of odd length is padded with a zero.
#[inline(always)]
pub(super) fn push_bf16_pairs(row: &[f32], words: &mut Vec<u32>) {
    let (pairs, rest) = row.as_chunks::<2>();
    words.extend(pairs.iter().map(|&[first, second]| pack_bf16_pair(first, second)));
    words.extend(rest.iter().map(|&last| pack_bf16_pair(last, 0.0)));
}
