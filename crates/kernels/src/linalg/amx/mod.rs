//! bf16 products on the tile registers of Intel AMX.
//!
//! Rows of bf16 pairs serve as left operands without conversion. A panel `[lines, 32]` contains two right operands side
//! by side. The processor sums in its own order (see `model.rs`), so results differ from [`super::bf16`] in the last bits.
//! The result of a row does not depend on other rows, their number, or the blocking. Even a single row is multiplied on
//! tile registers, because vector instructions would round a row differently in decoding than in scoring.

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod emulator;
#[cfg(target_arch = "x86_64")]
mod group;
mod model;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod probe;
mod status;
#[cfg(target_arch = "x86_64")]
mod sums;
#[cfg(target_arch = "x86_64")]
mod tile;

pub use status::{AmxStatus, status};

use super::pairs::{PairPanels, RowWords};
use super::panels::{LANES, PanelsOutput};
#[cfg(target_arch = "x86_64")]
use group::GroupProduct;
#[cfg(target_arch = "x86_64")]
use sums::Output;

const TILE_ROWS: usize = 16;
/// Number of pairs in a row of a left tile register, and number of rows of a right tile register.
const TILE_PAIRS: usize = 16;
/// Number of rows per block, which fills two left tiles.
pub const BLOCK_ROWS: usize = 2 * TILE_ROWS;

/// Returns the number of packed rows for a product of `rows` rows. Padding completes the last block, so that it is
/// multiplied together with the others. A single block is not padded.
pub(super) const fn padded_rows(rows: usize) -> usize {
    if rows > BLOCK_ROWS { rows.next_multiple_of(BLOCK_ROWS) } else { rows }
}

/// Returns the distance between consecutive panels of sums, including padding rows. It is an odd number of rows, so that
/// the panels of a row use different cache sets.
pub(super) const fn panel_stride(rows: usize, lanes: usize) -> usize {
    (padded_rows(rows) | 1) * lanes
}

/// Number of bf16 parts whose sum represents an f32 number.
///
/// Words of a row and lines of a panel are ordered by step (16 pairs of numbers), then by part. Rows and panels with
/// several parts are padded to full steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parts {
    One,
    Two,
    Three,
}

impl Parts {
    pub(super) const fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Three => 3,
        }
    }

    /// Returns the pairs `(part of rows, part of weights)` that are multiplied in each step, in order. Products of two
    /// small parts are omitted, because they are below the rounding error of the sum.
    const fn products(self) -> &'static [(usize, usize)] {
        match self {
            Self::One => &[(0, 0)],
            Self::Two => &[(0, 1), (0, 0), (1, 0)],
            Self::Three => &[(0, 2), (0, 1), (1, 1), (1, 0), (2, 0), (0, 0)],
        }
    }

    /// Returns the number of words in a row of `inner` elements.
    pub(super) const fn words(self, inner: usize) -> usize {
        match self {
            Self::One => inner.div_ceil(2),
            _ => inner.div_ceil(2 * TILE_PAIRS) * TILE_PAIRS * self.count(),
        }
    }
}

/// Computes `out ← rows·panels`, or `out ← out + rows·panels` if `out.adds` is set. Without AMX, a slow scalar model
/// computes bitwise equal results.
///
/// # Shapes
/// `rows [count, lines]` pairs, `panels [panels, lines, 32]` pairs.
///
/// # Panics
/// Panics if a slice is too short for its shape, or if `lines` is not padded as `parts` requires.
pub(super) fn multiply(rows: &RowWords<'_>, panels: &PairPanels<'_>, out: PanelsOutput<'_>, parts: Parts) {
    if rows.count == 0 || panels.count == 0 {
        return;
    }
    assert_shapes(rows, panels, &out);
    assert!(
        parts == Parts::One || panels.lines.is_multiple_of(TILE_PAIRS * parts.count()),
        "panel lines are not padded to full steps"
    );
    #[cfg(target_arch = "x86_64")]
    if status() == AmxStatus::Ready {
        // SAFETY: the shapes were checked above, and AMX is usable.
        unsafe { multiply_on_tiles(rows, panels, out, parts) };
        return;
    }
    model::multiply(rows, panels, out, parts);
}

fn assert_shapes(rows: &RowWords<'_>, panels: &PairPanels<'_>, out: &PanelsOutput<'_>) {
    let end = (rows.count - 1) * out.row_stride + (panels.count - 1) * out.panel_stride + LANES;
    assert!(panels.lines <= rows.row_words && (rows.count - 1) * rows.row_words + panels.lines <= rows.words.len());
    assert!((panels.count - 1) * panels.stride + panels.lines * LANES <= panels.words.len());
    assert!(LANES <= out.row_stride && LANES <= out.panel_stride && end <= out.numbers.len());
}

/// Computes [`multiply`] on tile registers. Steps of 16 pairs are summed in order, with any shorter step last.
///
/// # Safety
/// The processor must have AMX-TILE and AMX-BF16, the process must have permission to use them, and the shapes must be
/// those of [`multiply`], with at least one row and panel.
#[cfg(target_arch = "x86_64")]
unsafe fn multiply_on_tiles(rows: &RowWords<'_>, panels: &PairPanels<'_>, mut out: PanelsOutput<'_>, parts: Parts) {
    if panels.lines == 0 && !out.adds {
        for row in 0..rows.count {
            (0..panels.count).for_each(|panel| out.at(row, panel)[..LANES].fill(0.0));
        }
        return;
    }
    let has_padding_rows = out.is_panel_major(padded_rows(rows.count), panels.count);
    let adds = out.adds;
    let out = Output::from(out);
    let step = TILE_PAIRS * parts.count();
    let full_lines = panels.lines / step * step;
    // Without padding, the rows of a partial block are multiplied separately.
    let is_padded = rows.count > BLOCK_ROWS && rows.words.len() >= padded_rows(rows.count) * rows.row_words;
    let full_blocks = if is_padded { rows.count } else { rows.count / BLOCK_ROWS * BLOCK_ROWS };
    let rest = panels.lines - full_lines;
    for (lines, pairs) in [(0..full_lines, TILE_PAIRS), (full_lines..panels.lines, rest)] {
        for group in [0..full_blocks, full_blocks..rows.count] {
            if lines.is_empty() || group.is_empty() {
                continue;
            }
            let shape = tile::Shape::new(group.len().min(BLOCK_ROWS), pairs, parts);
            // SAFETY: the caller guarantees that AMX is usable. `group` and `lines` lie inside the operands, and a
            // partial block after full ones is padded.
            unsafe {
                tile::with_tiles(shape, |tiles| {
                    let continues = adds || lines.start > 0;
                    let lines = lines.clone();
                    GroupProduct { tiles, rows, panels, out, has_padding_rows, group, lines, continues }.multiply();
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::bf16_split::Bf16Split;
    use crate::linalg::gemm::{MatrixView, Update};
    use crate::linalg::panels::{Panels, matmul};

    #[derive(Debug, Clone, Copy)]
    enum Numbers {
        /// Numbers with magnitudes between 0.125 and 2.
        Normal,
        /// A mix of zeros, denormals, infinities, NaN and normal numbers.
        Special,
        /// Numbers whose products and sums are denormal or barely normal.
        Tiny,
    }

    fn random_pairs(count: usize, seed: usize, numbers: Numbers) -> Vec<u32> {
        (0..count).map(|i| random_bf16(2 * i, seed, numbers) | random_bf16(2 * i + 1, seed, numbers) << 16).collect()
    }

    fn random_bf16(i: usize, seed: usize, numbers: Numbers) -> u32 {
        let hash = (i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let bits = (hash >> 9) as u32;
        match (numbers, hash % 509) {
            (Numbers::Special, 0) => 0x7f80,
            (Numbers::Special, 1) => 0xff80,
            (Numbers::Special, 2) => 0x7fc1,
            (Numbers::Special, 3..6) => bits & 0x807f,
            (Numbers::Special, 6..20) => bits & 0x9fff,
            (Numbers::Tiny, _) => (60 + (bits >> 16) % 7) << 7 | bits & 0x807f,
            _ => 0x3e00 | bits & 0x81ff,
        }
    }

    fn assert_same(ours: &[f32], expected: &[f32], case: &str) {
        for (index, (a, b)) in ours.iter().zip(expected).enumerate() {
            assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{case}, number {index}: {a:e} and {b:e}");
        }
    }

    /// Shapes of test products: `[rows, lines, panels]`.
    const SHAPES: [[usize; 3]; 16] = [
        [1, 1, 1],
        [1, 16, 1],
        [2, 17, 2],
        [7, 15, 1],
        [8, 32, 3],
        [15, 31, 1],
        [16, 16, 2],
        [17, 48, 1],
        [31, 33, 2],
        [32, 64, 1],
        [33, 5, 1],
        [47, 80, 2],
        [48, 16, 1],
        [64, 272, 1],
        [65, 300, 2],
        [3, 1061, 2],
    ];

    const PARTS: [Parts; 3] = [Parts::One, Parts::Two, Parts::Three];

    /// Compares products on real or emulated tile registers with the scalar model.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[test]
    fn tiled_product_matches_the_scalar_model() {
        if status() != AmxStatus::Ready {
            emulator::install();
        }
        for ([rows, lines, count], parts) in SHAPES.into_iter().flat_map(|shape| PARTS.map(|parts| (shape, parts))) {
            // If numbers are split into several bf16 parts, each part of a row is padded to whole tiles.
            let lines = if parts == Parts::One { lines } else { parts.words(2 * lines) };
            let kinds = [Numbers::Normal, Numbers::Special, Numbers::Tiny];
            for (adds, numbers) in kinds.into_iter().flat_map(|kind| [(false, kind), (true, kind)]) {
                // Use larger strides than the operands need, to detect code that ignores the strides.
                let row_words = lines + 3;
                let panel_words = (lines + 2) * LANES;
                let stride = count * LANES + 5;
                let left = random_pairs(padded_rows(rows) * row_words, 1, numbers);
                let right = random_pairs(count * panel_words, 2, numbers);
                let panels = PairPanels { words: &right, stride: panel_words, lines, count };
                let scale = if matches!(numbers, Numbers::Tiny) { f32::MIN_POSITIVE } else { 1.0 };
                let start: Vec<f32> = (0..rows * stride).map(|i| ((i % 23) as f32 - 11.0) * scale).collect();
                let mut expected = start.clone();
                let unpadded = RowWords { words: &left[..rows * row_words], row_words, count: rows };
                model::multiply(&unpadded, &panels, PanelsOutput::row_major(&mut expected, stride, adds), parts);
                // Padding rows must not change the result.
                for rows in [unpadded, RowWords { words: &left, row_words, count: rows }] {
                    let mut ours = start.clone();
                    // SAFETY: tile registers are available or emulated, and the slices have these shapes.
                    unsafe {
                        multiply_on_tiles(&rows, &panels, PanelsOutput::row_major(&mut ours, stride, adds), parts);
                    };
                    let padding = rows.words.len() - rows.count * row_words;
                    let shape = [rows.count, lines, count];
                    let case = format!("{shape:?}, {parts:?}, {padding} padding words, adds {adds}, {numbers:?}");
                    assert_same(&ours, &expected, &case);
                }
            }
        }
    }

    /// Compares a product with more panels than one group and more lines than one pass with the scalar model.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[test]
    fn product_of_several_groups_matches_the_scalar_model() {
        if status() != AmxStatus::Ready {
            emulator::install();
        }
        let [rows, lines, count] = [65, 360, 130];
        let left = random_pairs(padded_rows(rows) * lines, 1, Numbers::Normal);
        let right = random_pairs(count * lines * LANES, 2, Numbers::Normal);
        let panels = PairPanels::consecutive(&right, lines, count);
        let rows = RowWords { words: &left, row_words: lines, count: rows };
        let stride = count * LANES;
        let panel_stride = (padded_rows(rows.count) + 1) * LANES;
        for adds in [false, true] {
            let mut expected = vec![0.25; rows.count * stride];
            model::multiply(&rows, &panels, PanelsOutput::row_major(&mut expected, stride, adds), Parts::One);
            let mut ours = vec![0.25; rows.count * stride];
            let out = PanelsOutput::row_major(&mut ours, stride, adds);
            // SAFETY: tile registers are available or emulated, and the slices have these shapes.
            unsafe { multiply_on_tiles(&rows, &panels, out, Parts::One) };
            assert_same(&ours, &expected, "130 panels, stored by row");
            let mut ours = vec![0.25; count * panel_stride];
            let out = PanelsOutput { numbers: &mut ours, row_stride: LANES, panel_stride, adds };
            // SAFETY: as above.
            unsafe { multiply_on_tiles(&rows, &panels, out, Parts::One) };
            for (row, expected) in expected.chunks_exact(stride).enumerate() {
                for (panel, expected) in ours.chunks_exact(panel_stride).zip(expected.chunks_exact(LANES)) {
                    assert_same(&panel[row * LANES..][..LANES], expected, "130 panels, stored by panel");
                }
            }
        }
    }

    #[test]
    fn amx_product_approximates_f64_sums_of_bf16_values() {
        let rows = 19;
        let inner = 301;
        let outer = 70;
        let x: Vec<f32> = (0..rows * inner).map(noise).collect();
        let w: Vec<f32> = (0..inner * outer).map(|i| noise(i + 3)).collect();
        let panels = Panels::<Bf16Split<1>>::from_rows(&w, inner, outer);
        let mut out = vec![0.25; rows * outer];
        matmul(&mut out, Update::Add, MatrixView::rows(&x, rows, inner), &panels);
        for row in 0..rows {
            for column in 0..outer {
                let terms =
                    (0..inner).map(|k| round_to_bf16(x[row * inner + k]) * round_to_bf16(w[k * outer + column]));
                let sum = 0.25 + terms.sum::<f64>();
                let ours = f64::from(out[row * outer + column]);
                assert!((ours - sum).abs() < 2e-5, "{row}, {column}: {ours} and {sum}");
            }
        }
    }

    fn noise(i: usize) -> f32 {
        (i * 7919 % 10_007) as f32 / 10_007.0 - 0.5
    }

    fn round_to_bf16(x: f32) -> f64 {
        half::bf16::from_f32(x).to_f64()
    }

    #[test]
    fn amx_product_with_fewer_columns_than_a_panel_is_computed() {
        let [rows, inner, outer] = [3, 2100, 20];
        let x: Vec<f32> = (0..rows * inner).map(noise).collect();
        let w: Vec<f32> = (0..inner * outer).map(|i| noise(i + 3)).collect();
        // The columns of a product do not depend on other columns.
        let wide: Vec<f32> =
            w.chunks_exact(outer).flat_map(|row| row.iter().copied().chain([0.0; LANES - 20])).collect();
        let product = |weights: &[f32], outer: usize| {
            let mut out = vec![0.0; rows * outer];
            let panels = Panels::<Bf16Split<1>>::from_rows(weights, inner, outer);
            matmul(&mut out, Update::Replace, MatrixView::rows(&x, rows, inner), &panels);
            out
        };
        let expected = product(&wide, LANES);
        for (ours, expected) in product(&w, outer).chunks_exact(outer).zip(expected.chunks_exact(LANES)) {
            assert_same(ours, &expected[..outer], "20 columns");
        }
    }

    #[test]
    fn amx_product_row_is_independent_of_other_rows() {
        let inner = 301;
        let outer = 70;
        let x: Vec<f32> = (0..37 * inner).map(noise).collect();
        let w: Vec<f32> = (0..inner * outer).map(|i| noise(i + 3)).collect();
        let panels = Panels::<Bf16Split<1>>::from_rows(&w, inner, outer);
        let product = |rows: usize| {
            let mut out = vec![0.0; rows * outer];
            let x = MatrixView::rows(&x[..rows * inner], rows, inner);
            matmul(&mut out, Update::Replace, x, &panels);
            out
        };
        let all = product(37);
        for rows in 1..37 {
            assert_same(&product(rows), &all[..rows * outer], &format!("{rows} rows"));
        }
    }
}
