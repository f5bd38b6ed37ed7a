//! Pairs of bf16 in one word, the operands of products in bf16: rows, panels, and the conversion of numbers.

use super::panels::LANES;

/// Rows that [`Bf16Kernels::push_row`](super::bf16::Bf16Kernels::push_row) wrote, one after the other.
pub struct RowWords<'a> {
    pub words: &'a [u32],
    pub row_words: usize,
    pub count: usize,
}

/// Some lines of several panels of pairs: those of panel `p` begin at word `p * stride`.
pub struct PairPanels<'a> {
    pub words: &'a [u32],
    pub stride: usize,
    pub lines: usize,
    pub count: usize,
}

impl<'a> PairPanels<'a> {
    /// Full panels of `lines` lines.
    pub(super) fn consecutive(words: &'a [u32], lines: usize, count: usize) -> Self {
        Self { words, stride: lines * LANES, lines, count }
    }
}

/// Returns the stride of rows of `words` words. Rows a multiple of 4 KiB apart would share few sets of a cache.
#[inline]
pub(super) fn spread(words: usize) -> usize {
    if words.is_multiple_of(1024) { words + 16 } else { words }
}

/// The nearest bf16 in the upper half of a word, the even one of two as near; NaN stays NaN.
#[inline(always)]
pub(super) fn rounded(x: f32) -> u32 {
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    (if x.is_nan() { bits | 0x40_0000 } else { nearest }) & 0xffff_0000
}

/// Packs two consecutive numbers along `inner` as bf16 in one word.
#[inline(always)]
pub fn pair(first: f32, second: f32) -> u32 {
    rounded(first) >> 16 | rounded(second)
}

/// Both numbers of a pair.
#[inline(always)]
pub(super) fn halves(word: u32) -> [f32; 2] {
    [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)]
}

/// Appends the pairs of a row. A zero ends the last pair of an odd row.
#[inline(always)]
pub(super) fn push_pairs(row: &[f32], words: &mut Vec<u32>) {
    let (pairs, rest) = row.as_chunks::<2>();
    words.extend(pairs.iter().map(|&[first, second]| pair(first, second)));
    words.extend(rest.iter().map(|&last| pair(last, 0.0)));
}
