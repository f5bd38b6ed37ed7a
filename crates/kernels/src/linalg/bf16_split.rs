//! f32 weights as sums of one to three bf16 parts, for products on AMX tile registers.
//!
//! A number `x` is split into `bf16(x)`, the remainder rounded to bf16, and so on. One part is plain bf16, in the
//! layout of [`Bf16`]. Two parts keep 16 bits of the significand, and three parts keep all 24. A product of two numbers
//! is the sum of three or six products of parts, as in XLA's algorithms `BF16_BF16_F32_X3` and `BF16_BF16_F32_X6`.
//! Products below the rounding error are omitted. If an operand is not finite, the result can be NaN where f32 gives
//! infinity.

use super::amx::{self, Parts};
use super::bf16::{Bf16, Bf16Kernels};
use super::gemm::MatrixView;
use super::pairs::{PairPanels, RowWords, padded_stride, round_to_bf16, unpack_bf16_pair};
use super::panels::{LANES, PackedFormat, PanelPiece, PanelsOutput, TileOutput, pack_panel};
use super::simd;

/// Number of row elements that are multiplied in one step.
const STEP_ELEMENTS: usize = 32;
const STEP_PAIRS: usize = STEP_ELEMENTS / 2;

/// Marker type for f32 weights that are stored as sums of `PARTS` (1 to 3) bf16 numbers.
pub struct Bf16Split<const PARTS: usize>;

/// Rows packed as bf16 pairs: each word contains the same bf16 part of two consecutive values.
pub struct PairRows {
    words: Vec<u32>,
    row_words: usize,
    /// Number of words per row that are multiplied. The remaining words are padding, so that rows map to different
    /// cache sets.
    width: usize,
}

impl PairRows {
    /// Multiplies the first `height` rows by complete consecutive panels. Stores the products in `out`, or adds them to
    /// `out` if `out.adds` is set.
    ///
    /// # Shapes
    /// `panels [count, width, 32]`
    fn matmul(&self, height: usize, panels: &[u32], count: usize, out: PanelsOutput<'_>, parts: Parts) {
        let panels = PairPanels::consecutive(panels, self.width, count);
        let rows = RowWords { words: &self.words, row_words: self.row_words, count: height };
        amx::multiply(&rows, &panels, out, parts);
    }
}

impl<const PARTS: usize> Bf16Split<PARTS> {
    const PARTS: Parts = match PARTS {
        1 => Parts::One,
        2 => Parts::Two,
        3 => Parts::Three,
        _ => panic!("`PARTS` must be 1, 2 or 3"),
    };

    /// Splits up to 32 numbers of a row into words of each part. A word contains the same bf16 part of two consecutive
    /// numbers. Missing numbers count as zero.
    #[inline(always)]
    fn split_step(numbers: &[f32]) -> [[u32; STEP_PAIRS]; PARTS] {
        let mut rest = [0.0; STEP_ELEMENTS];
        rest[..numbers.len()].copy_from_slice(numbers);
        std::array::from_fn(|_| {
            let mut parts = [0; STEP_ELEMENTS];
            for (part, rest) in parts.iter_mut().zip(&mut rest) {
                *part = round_to_bf16(*rest);
                let value = f32::from_bits(*part);
                // The other parts of a number that is not finite are zero.
                *rest = if value.is_finite() { *rest - value } else { 0.0 };
            }
            std::array::from_fn(|pair| parts[2 * pair] >> 16 | parts[2 * pair + 1])
        })
    }

    /// Splits a row, and passes each word to `put` with its position.
    #[inline(always)]
    fn split(row: &[f32], mut put: impl FnMut(usize, u32)) {
        for (step, numbers) in row.chunks(STEP_ELEMENTS).enumerate() {
            for (part, words) in Self::split_step(numbers).into_iter().enumerate() {
                for (pair, word) in words.into_iter().take(numbers.len().div_ceil(2)).enumerate() {
                    put((step * PARTS + part) * STEP_PAIRS + pair, word);
                }
            }
        }
    }
}

/// Rounds rows to bf16. The words equal those of a split into one part, but are written contiguously, so that the loop
/// vectorizes.
fn pack_bf16_rows(x: MatrixView<'_, f32>, width: usize) -> PairRows {
    let row_words = Bf16Kernels::Amx.row_words(x.column_count());
    let padded_words = amx::padded_rows(x.row_count()) * row_words;
    let mut words = Vec::with_capacity(padded_words);
    simd::in_widest!({
        for row in 0..x.row_count() {
            Bf16Kernels::Amx.push_row(x.row(row), &mut words);
        }
    });
    words.resize(padded_words, 0);
    PairRows { words, row_words, width }
}

impl<const PARTS: usize> PackedFormat for Bf16Split<PARTS> {
    type Word = u32;
    type Rows<'x> = PairRows;

    fn panel_depth(inner: usize) -> usize {
        Self::PARTS.words(inner)
    }

    #[inline(always)]
    fn pack_column(row: &[f32], column: usize, panel: &mut [u32]) {
        if PARTS == 1 {
            return Bf16::pack_column(row, column, panel);
        }
        Self::split(row, |line, word| panel[line * LANES + column] = word);
    }

    fn pack_panel(columns: &[f32], inner: usize, panel: &mut [u32]) {
        pack_panel::<Self>(columns, inner, panel);
    }

    fn weight_at(panel: &[u32], k: usize, column: usize) -> f32 {
        // Add the smallest part first, so that the sum is rounded only once.
        let parts = (0..PARTS).rev().map(|part| {
            let line = (k / STEP_ELEMENTS * PARTS + part) * STEP_PAIRS + k % STEP_ELEMENTS / 2;
            unpack_bf16_pair(panel[line * LANES + column])[k % 2]
        });
        parts.sum()
    }

    fn pack_rows(x: MatrixView<'_, f32>) -> PairRows {
        let width = Self::panel_depth(x.column_count());
        if PARTS == 1 {
            return pack_bf16_rows(x, width);
        }
        let row_words = padded_stride(width);
        let mut words = vec![0; amx::padded_rows(x.row_count()) * row_words];
        simd::in_widest!({
            for (row, words) in words.chunks_exact_mut(row_words.max(1)).take(x.row_count()).enumerate() {
                let steps = x.row(row).chunks(STEP_ELEMENTS).zip(words.chunks_exact_mut(PARTS * STEP_PAIRS));
                for (numbers, words) in steps {
                    let parts = words.chunks_exact_mut(STEP_PAIRS).zip(Self::split_step(numbers));
                    parts.for_each(|(words, part)| words.copy_from_slice(&part));
                }
            }
        });
        PairRows { words, row_words, width }
    }

    const WAITS_FOR_MEMORY: bool = true;
    const JOINS_PANELS: bool = true;

    fn multiply(rows: &PairRows, height: usize, piece: PanelPiece<'_, u32>, mut out: TileOutput<'_>) {
        let adds = out.adds;
        let (numbers, stride) = out.slice();
        rows.matmul(height, piece.words, 1, PanelsOutput::row_major(numbers, stride, adds), Self::PARTS);
    }

    fn multiply_panels(rows: &PairRows, height: usize, panels: &[u32], count: usize, out: PanelsOutput<'_>) {
        rows.matmul(height, panels, count, out, Self::PARTS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::float32::F32;
    use crate::linalg::gemm::Update;
    use crate::linalg::panels::{Panels, matmul};

    fn noise(i: usize) -> f32 {
        (i * 7919 % 10_007) as f32 / 10_007.0 - 0.5
    }

    #[test]
    fn three_bf16_parts_are_exact_and_two_keep_sixteen_bits() {
        let numbers = (0..10_000).map(|i| noise(i) * 1e3).chain([0.0, -1.0, 1e30, -1e-30, std::f32::consts::PI]);
        /// Returns the sum of the parts of a number, from the smallest to the largest.
        fn sum_parts<const PARTS: usize>(x: f32) -> f32 {
            Bf16Split::<PARTS>::split_step(&[x]).iter().rev().map(|words| unpack_bf16_pair(words[0])[0]).sum()
        }
        for x in numbers {
            assert_eq!(sum_parts::<3>(x), x);
            assert!((sum_parts::<2>(x) - x).abs() <= x.abs() * 2.0f32.powi(-16), "{x}");
        }
    }

    #[test]
    fn split_bf16_panels_round_trip_to_rows() {
        let weights: Vec<f32> = (0..75 * 40).map(noise).collect();
        assert_eq!(Panels::<Bf16Split<3>>::from_rows(&weights, 75, 40).to_rows(), weights);
    }

    #[test]
    fn only_large_weights_are_multiplied_by_more_rows() {
        fn max_task_rows<K: PackedFormat>(inner: usize, outer: usize) -> usize {
            Panels::<K>::new(Panels::<K>::allocate(inner, outer), inner, outer).max_task_rows()
        }
        assert_eq!(max_task_rows::<Bf16Split<1>>(4096, 1024), 512);
        assert_eq!(max_task_rows::<Bf16Split<1>>(4096, 512), 256);
        assert_eq!(max_task_rows::<F32>(4096, 1024), 256);
    }

    #[test]
    fn one_bf16_part_packs_the_panels_of_plain_bf16() {
        for inner in [1, 31, 33, 75, 301] {
            let columns: Vec<f32> = (0..LANES * inner).map(noise).collect();
            let mut words = vec![0u32; Bf16Split::<1>::panel_depth(inner) * LANES];
            for (column, weights) in columns.chunks_exact(inner).enumerate() {
                Bf16Split::<1>::split(weights, |line, word| words[line * LANES + column] = word);
            }
            let mut plain = vec![0u32; Bf16::panel_depth(inner) * LANES];
            let mut one = vec![0u32; words.len()];
            Bf16::pack_panel(&columns, inner, &mut plain);
            Bf16Split::<1>::pack_panel(&columns, inner, &mut one);
            assert!(one == words && plain == words, "{inner}");
            let [plain, one] = [
                Panels::<Bf16>::from_rows(&columns, inner, LANES).words().to_vec(),
                Panels::<Bf16Split<1>>::from_rows(&columns, inner, LANES).words().to_vec(),
            ];
            assert_eq!(one, plain, "{inner}");
        }
    }

    #[test]
    fn one_bf16_part_packs_the_row_words_of_a_split() {
        for inner in [1, 31, 33, 75, 301, 2047] {
            let x: Vec<f32> = (0..3 * inner).map(noise).collect();
            let packed = Bf16Split::<1>::pack_rows(MatrixView::rows(&x, 3, inner));
            let mut words = vec![0u32; 3 * padded_stride(Bf16Split::<1>::panel_depth(inner))];
            for (row, words) in x.chunks_exact(inner).zip(words.chunks_exact_mut(packed.row_words)) {
                Bf16Split::<1>::split(row, |position, word| words[position] = word);
            }
            assert_eq!(packed.words, words, "{inner}");
        }
    }

    /// Returns the root mean square of the errors in a product, relative to the root mean square of `Σ |x·w|`.
    fn relative_error<K: PackedFormat>([rows, inner, outer]: [usize; 3]) -> f64 {
        let x: Vec<f32> = (0..rows * inner).map(noise).collect();
        let w: Vec<f32> = (0..inner * outer).map(|i| noise(i + 3)).collect();
        let mut out = vec![0.0; rows * outer];
        matmul(&mut out, Update::Replace, MatrixView::rows(&x, rows, inner), &Panels::<K>::from_rows(&w, inner, outer));
        let mut errors = 0.0;
        let mut sizes = 0.0;
        for row in 0..rows {
            for column in 0..outer {
                let terms = (0..inner).map(|k| f64::from(x[row * inner + k]) * f64::from(w[k * outer + column]));
                errors += (terms.clone().sum::<f64>() - f64::from(out[row * outer + column])).powi(2);
                sizes += terms.map(f64::abs).sum::<f64>().powi(2);
            }
        }
        (errors / sizes).sqrt()
    }

    #[test]
    fn six_products_match_f32_and_three_keep_sixteen_bits() {
        for shape in [[3, 64, 33], [19, 300, 70], [33, 2100, 40]] {
            let float = relative_error::<F32>(shape);
            let six = relative_error::<Bf16Split<3>>(shape);
            let three = relative_error::<Bf16Split<2>>(shape);
            assert!(six <= 2.0 * float, "{shape:?}: {six:e} and {float:e} in f32");
            assert!(three <= 2.0f64.powi(-16), "{shape:?}: {three:e}");
            assert!(three > six, "{shape:?}: {three:e} and {six:e}");
        }
    }

    #[test]
    fn bf16_split_row_is_independent_of_other_rows() {
        let [inner, outer] = [301, 70];
        let x: Vec<f32> = (0..37 * inner).map(noise).collect();
        let w: Vec<f32> = (0..inner * outer).map(|i| noise(i + 3)).collect();
        let panels = Panels::<Bf16Split<2>>::from_rows(&w, inner, outer);
        let first_rows = |rows: usize| {
            let mut out = vec![0.0; rows * outer];
            matmul(&mut out, Update::Replace, MatrixView::rows(&x[..rows * inner], rows, inner), &panels);
            out
        };
        let all = first_rows(37);
        assert!([1, 2, 16, 17, 36].into_iter().all(|rows| first_rows(rows) == all[..rows * outer]));
    }
}
