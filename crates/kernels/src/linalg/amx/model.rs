//! Scalar model of the arithmetic of `TDPBF16PS`.
//!
//! In each step of up to 16 pairs, the products of the first numbers of the pairs are summed from zero with fused
//! multiply-adds, and so are the products of the second numbers. Then both sums are added, and their sum is added to
//! the accumulator. Each operation rounds to nearest even and treats denormal operands and results as zero. Source:
//! Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS.

use super::{Parts, TILE_PAIRS};
use crate::linalg::pairs::{PairPanels, RowWords, unpack_bf16_pair};
use crate::linalg::panels::{LANES, PanelsOutput};

/// Computes [`super::multiply`] on any processor.
pub(super) fn multiply(rows: &RowWords<'_>, panels: &PairPanels<'_>, out: PanelsOutput<'_>, parts: Parts) {
    let PanelsOutput { numbers, row_stride, panel_stride, adds } = out;
    let step = TILE_PAIRS * parts.count();
    for index in 0..rows.count {
        let row = &rows.words[index * rows.row_words..][..panels.lines];
        for panel in 0..panels.count {
            let panel_words = &panels.words[panel * panels.stride..][..panels.lines * LANES];
            let sums = &mut numbers[index * row_stride + panel * panel_stride..][..LANES];
            if !adds {
                sums.fill(0.0);
            }
            for (words, weights) in row.chunks(step).zip(panel_words.chunks(step * LANES)) {
                let pairs = words.len() / parts.count();
                for &(left, right) in parts.products() {
                    let words = &words[left * pairs..][..pairs];
                    let weights = &weights[right * pairs * LANES..][..pairs * LANES];
                    for (column, sum) in sums.iter_mut().enumerate() {
                        let column = weights.iter().skip(column).step_by(LANES);
                        *sum = accumulate(*sum, words.iter().copied().zip(column.copied()));
                    }
                }
            }
        }
    }
}

/// Adds the products of at most 16 pairs to an accumulator.
fn accumulate(sum: f32, pairs: impl Iterator<Item = (u32, u32)>) -> f32 {
    let mut parts = [0.0f32; 2];
    for (left, right) in pairs {
        let products = unpack_bf16_pair(left).into_iter().zip(unpack_bf16_pair(right));
        for (part, (left, right)) in parts.iter_mut().zip(products) {
            *part = flush_denormal(flush_denormal(left).mul_add(flush_denormal(right), *part));
        }
    }
    flush_denormal(flush_denormal(sum) + flush_denormal(parts[0] + parts[1]))
}

/// Replaces a denormal with a zero of the same sign.
fn flush_denormal(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack_bf16_pair(first: f32, second: f32) -> u32 {
        first.to_bits() >> 16 | second.to_bits() & 0xffff_0000
    }

    #[test]
    fn even_and_odd_products_are_summed_separately() {
        // 2^24 + 1 rounds to 2^24, so a single running sum would lose both ones.
        let large = 16_777_216.0;
        let one = 1.0;
        let pairs = [
            (pack_bf16_pair(large, one), pack_bf16_pair(1.0, 1.0)),
            (pack_bf16_pair(-large, one), pack_bf16_pair(1.0, 1.0)),
        ];
        assert_eq!(accumulate(0.5, pairs.into_iter()), 2.5);
    }

    #[test]
    fn denormals_count_as_zero() {
        let tiny = f32::MIN_POSITIVE;
        let denormal = f32::from_bits(0x0040_0000);
        for (case, sum, left, right, expected) in [
            ("operand", 0.0, denormal, 1e30, 0.0),
            ("product", 0.0, tiny, 0.5, 0.0),
            ("accumulator", denormal, 0.0, 0.0, 0.0),
            ("sum", -tiny, tiny, 1.5, 0.0),
            ("normal", 0.0, tiny, 1.0, tiny),
        ] {
            let pairs = [(pack_bf16_pair(left, 0.0), pack_bf16_pair(right, 0.0))];
            assert_eq!(accumulate(sum, pairs.into_iter()), expected, "{case}");
        }
    }
}
