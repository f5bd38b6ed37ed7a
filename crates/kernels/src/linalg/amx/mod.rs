//! bf16 products on the tile registers of Intel AMX.
//!
//! Rows of pairs serve as left operands without conversion, and a panel `[width, 32]` is two adjacent right operands.
//! The processor sums in its own order ([`model`]), so results differ from [`super::bf16`] in the last bits. The result
//! of a row does not depend on other rows, their number, or the blocking. Therefore, few rows also use tile registers:
//! vector instructions would give a decoded token different bits than a scored token.

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod emulator;
mod model;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod probe;
mod status;
#[cfg(target_arch = "x86_64")]
mod tile;

#[cfg(target_arch = "x86_64")]
use std::ops::Range;

pub use status::{AmxStatus, status};

use super::pairs::{PairPanels, RowWords};
use super::panels::LANES;

const TILE_ROWS: usize = 16;
/// Pairs per row of a left tile register, and rows of a right one.
const TILE_PAIRS: usize = 16;
/// Number of rows multiplied together, i.e. two left tiles.
pub const BLOCK_ROWS: usize = 2 * TILE_ROWS;
/// Number of pairs along `inner` whose part of a panel (32 KiB) stays in a 48 KiB L1 cache for all rows.
#[cfg(target_arch = "x86_64")]
const NEAR_PAIRS: usize = 256;
/// Number of pairs along `inner` whose part of a row group (1 MiB for 256 rows) stays in a 2 MiB L2 cache for all
/// panels.
#[cfg(target_arch = "x86_64")]
const MIDDLE_PAIRS: usize = 1024;

/// Computes `out ← rows·panels`, or `out ← out + rows·panels` if `adds`. Without AMX, the slow scalar model computes
/// the same bits. Panics if shapes do not match.
///
/// # Shapes
/// `rows [count, lines]` pairs, `panels [panels, lines, 32]` pairs, `out [count, panels * 32]` with row stride
/// `stride`.
pub(super) fn product(rows: &RowWords<'_>, panels: &PairPanels<'_>, (out, stride): (&mut [f32], usize), adds: bool) {
    assert_shapes(rows, panels, (out.len(), stride));
    #[cfg(target_arch = "x86_64")]
    if status() == AmxStatus::Ready {
        // SAFETY: the shapes were checked above, and AMX is usable.
        unsafe { tiled_product(rows, panels, (out, stride), adds) };
        return;
    }
    model::product(rows, panels, (out, stride), adds);
}

fn assert_shapes(rows: &RowWords<'_>, panels: &PairPanels<'_>, (length, stride): (usize, usize)) {
    if rows.count == 0 || panels.count == 0 {
        return;
    }
    let columns = panels.count * LANES;
    assert!(panels.lines <= rows.row_words && (rows.count - 1) * rows.row_words + panels.lines <= rows.words.len());
    assert!((panels.count - 1) * panels.stride + panels.lines * LANES <= panels.words.len());
    assert!(columns <= stride && (rows.count - 1) * stride + columns <= length);
}

/// Computes [`product`] on tile registers. Steps of 16 pairs are summed in order, a shorter step last.
///
/// # Safety
/// The processor must have AMX-TILE and AMX-BF16, the process must have permission to use them, and the shapes must be
/// those of [`product`].
#[cfg(target_arch = "x86_64")]
unsafe fn tiled_product(rows: &RowWords<'_>, panels: &PairPanels<'_>, (out, stride): (&mut [f32], usize), adds: bool) {
    if panels.lines == 0 && !adds {
        out.chunks_mut(stride).take(rows.count).for_each(|row| row[..panels.count * LANES].fill(0.0));
        return;
    }
    let out = (out.as_mut_ptr(), stride);
    let full_lines = panels.lines / TILE_PAIRS * TILE_PAIRS;
    let full_blocks = rows.count / BLOCK_ROWS * BLOCK_ROWS;
    for (lines, pairs) in [(0..full_lines, TILE_PAIRS), (full_lines..panels.lines, panels.lines - full_lines)] {
        for group in [0..full_blocks, full_blocks..rows.count] {
            if lines.is_empty() || group.is_empty() {
                continue;
            }
            let shape = tile::Shape::new(group.len().min(BLOCK_ROWS), pairs);
            // SAFETY: the caller guarantees usable AMX. `group` and `lines` lie inside the operands.
            unsafe {
                tile::configured(shape, |tiles| multiply_group(tiles, rows, panels, out, &group, &lines, adds));
            }
        }
    }
}

/// Multiplies a group of rows, whose blocks all have the configured shape, by lines of all panels.
///
/// # Safety
/// See [`tiled_product`]. `group` and `lines` must lie inside the operands.
#[cfg(target_arch = "x86_64")]
unsafe fn multiply_group(
    tiles: &tile::Tiles,
    rows: &RowWords<'_>,
    panels: &PairPanels<'_>,
    (out, stride): (*mut f32, usize),
    group: &Range<usize>,
    lines: &Range<usize>,
    adds: bool,
) {
    for middle in pieces(lines, MIDDLE_PAIRS) {
        for panel in 0..panels.count {
            for near in pieces(&middle, NEAR_PAIRS) {
                for row in group.clone().step_by(BLOCK_ROWS) {
                    // SAFETY: the caller guarantees usable AMX, and that `group` and `lines` lie inside the operands.
                    unsafe {
                        let left = rows.words.as_ptr().add(row * rows.row_words + near.start);
                        let right = panels.words.as_ptr().add(panel * panels.stride + near.start * LANES);
                        let sums = out.add(row * stride + panel * LANES);
                        let steps = near.len().div_ceil(TILE_PAIRS);
                        tiles.multiply((left, rows.row_words), right, steps, (sums, stride), adds || near.start > 0);
                    }
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn pieces(range: &Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = range.end;
    range.clone().step_by(length).map(move |start| start..end.min(start + length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::bf16_amx::Bf16Amx;
    use crate::linalg::gemm::{MatrixView, Update};
    use crate::linalg::panels::{Panels, product as panel_product};

    #[derive(Debug, Clone, Copy)]
    enum Numbers {
        /// Numbers near 1.
        Normal,
        /// A mix of zeros, denormals, infinities, NaN and normal numbers.
        Special,
        /// Numbers whose products and sums are denormal or barely normal.
        Tiny,
    }

    fn words(count: usize, seed: usize, numbers: Numbers) -> Vec<u32> {
        (0..count).map(|i| half(2 * i, seed, numbers) | half(2 * i + 1, seed, numbers) << 16).collect()
    }

    fn half(i: usize, seed: usize, numbers: Numbers) -> u32 {
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

    /// `[rows, lines, panels]`
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

    /// Compares products on real or emulated tile registers with the scalar model.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[test]
    fn tiled_product_equals_the_scalar_model() {
        if status() != AmxStatus::Ready {
            emulator::install();
        }
        for [rows, lines, count] in SHAPES {
            let kinds = [Numbers::Normal, Numbers::Special, Numbers::Tiny];
            for (adds, numbers) in kinds.into_iter().flat_map(|kind| [(false, kind), (true, kind)]) {
                // Use larger strides than the operands need.
                let row_words = lines + 3;
                let panel_words = (lines + 2) * LANES;
                let stride = count * LANES + 5;
                let left = words(rows * row_words, 1, numbers);
                let right = words(count * panel_words, 2, numbers);
                let rows = RowWords { words: &left, row_words, count: rows };
                let panels = PairPanels { words: &right, stride: panel_words, lines, count };
                let scale = if matches!(numbers, Numbers::Tiny) { f32::MIN_POSITIVE } else { 1.0 };
                let start = (0..rows.count * stride).map(|i| ((i % 23) as f32 - 11.0) * scale);
                let mut expected: Vec<f32> = start.collect();
                let mut ours = expected.clone();
                // SAFETY: tile registers are available or emulated, and the slices have these shapes.
                unsafe { tiled_product(&rows, &panels, (&mut ours, stride), adds) };
                model::product(&rows, &panels, (&mut expected, stride), adds);
                let case = format!("[{}, {lines}, {count}], adds {adds}, {numbers:?}", rows.count);
                assert_same(&ours, &expected, &case);
            }
        }
    }

    #[test]
    fn product_is_near_the_exact_sums_of_rounded_numbers() {
        let rows = 19;
        let inner = 301;
        let outer = 70;
        let x: Vec<f32> = (0..rows * inner).map(noise).collect();
        let w: Vec<f32> = (0..inner * outer).map(|i| noise(i + 3)).collect();
        let panels = Panels::<Bf16Amx>::of_rows(&w, inner, outer);
        let mut out = vec![0.25; rows * outer];
        panel_product(&mut out, Update::Add, MatrixView::rows(&x, rows, inner), &panels);
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
    fn row_does_not_depend_on_its_neighbours() {
        let inner = 301;
        let outer = 70;
        let x: Vec<f32> = (0..37 * inner).map(noise).collect();
        let w: Vec<f32> = (0..inner * outer).map(|i| noise(i + 3)).collect();
        let panels = Panels::<Bf16Amx>::of_rows(&w, inner, outer);
        let product = |rows: usize| {
            let mut out = vec![0.0; rows * outer];
            let x = MatrixView::rows(&x[..rows * inner], rows, inner);
            panel_product(&mut out, Update::Replace, x, &panels);
            out
        };
        let all = product(37);
        for rows in 1..37 {
            assert_same(&product(rows), &all[..rows * outer], &format!("{rows} rows"));
        }
    }
}
