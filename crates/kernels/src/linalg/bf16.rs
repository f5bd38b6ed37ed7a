//! Products with bf16 weights. Rows and weights are rounded to bf16, and their products are summed in f32.
//!
//! A `u32` word of weights contains the bf16 values `2k` and `2k + 1` along the input dimension `inner`. This is the
//! operand format of `VDPBF16PS`. A product of two bf16 numbers is exact in f32, and every portable kernel adds the
//! product of `2k + 1` before that of `2k`. Results are therefore bitwise equal on all processors, except for denormal
//! numbers (below 1.2e-38), which `VDPBF16PS` treats as zero.

use super::amx;
use super::bf16_tile::Bf16Tile;
use super::gemm::MatrixView;
pub use super::pairs::{PairPanels, RowWords, pack_bf16_pair};
use super::pairs::{padded_stride, push_bf16_pairs, unpack_bf16_pair};
use super::panels::{LANES, PackedFormat, PanelPiece, PanelsOutput, ROWS, TileOutput, pack_panel};
use super::simd;

/// Marker type for bf16 weights, stored as one pair per word.
pub struct Bf16;

/// Left operand in the bf16 format of this processor's fastest kernel.
pub struct Bf16Rows {
    words: Vec<u32>,
    row_words: usize,
}

impl PackedFormat for Bf16 {
    type Word = u32;
    type Rows<'x> = Bf16Rows;

    /// Returns the number of pairs. If `inner` is odd, the last pair is padded with a zero.
    fn panel_depth(inner: usize) -> usize {
        inner.div_ceil(2)
    }

    #[inline(always)]
    fn pack_column(row: &[f32], column: usize, panel: &mut [u32]) {
        for (line, pair_values) in panel.chunks_exact_mut(LANES).zip(row.chunks(2)) {
            line[column] = pack_bf16_pair(pair_values[0], pair_values.get(1).copied().unwrap_or(0.0));
        }
    }

    fn pack_panel(columns: &[f32], inner: usize, panel: &mut [u32]) {
        pack_panel::<Self>(columns, inner, panel);
    }

    fn weight_at(panel: &[u32], k: usize, column: usize) -> f32 {
        unpack_bf16_pair(panel[k / 2 * LANES + column])[k % 2]
    }

    fn pack_rows(x: MatrixView<'_, f32>) -> Bf16Rows {
        let tile = Bf16Tile::best();
        let row_words = tile.row_words(x.column_count());
        let mut words = Vec::with_capacity(x.row_count() * row_words);
        // Use a plain loop, because the closure of an iterator adapter would not be compiled for the widest instruction
        // set.
        simd::in_widest!({
            for row in 0..x.row_count() {
                tile.push_row(x.row(row), &mut words);
            }
        });
        Bf16Rows { words, row_words }
    }

    #[inline]
    fn multiply(rows: &Bf16Rows, height: usize, piece: PanelPiece<'_, u32>, out: TileOutput<'_>) {
        Bf16Tile::best().multiply((&rows.words, rows.row_words), piece.words, height, out);
    }
}

/// Family of bf16 kernels. Within a family, results are bitwise equal on all processors that support it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bf16Kernels {
    /// Vector instructions or scalar loops, on any processor.
    Portable,
    /// Intel AMX tile registers.
    Amx,
}

impl Bf16Kernels {
    /// Returns the number of words in a row of `inner` elements.
    pub fn row_words(self, inner: usize) -> usize {
        match self {
            Self::Portable => Bf16Tile::best().row_words(inner),
            Self::Amx => padded_stride(inner.div_ceil(2)),
        }
    }

    #[inline(always)]
    pub fn push_row(self, row: &[f32], words: &mut Vec<u32>) {
        match self {
            Self::Portable => Bf16Tile::best().push_row(row, words),
            Self::Amx => {
                let end = words.len() + self.row_words(row.len());
                push_bf16_pairs(row, words);
                words.resize(end, 0);
            }
        }
    }

    /// Returns the maximum number of rows per tile of the kernel.
    pub fn tile_rows(self) -> usize {
        match self {
            Self::Portable => ROWS,
            Self::Amx => amx::BLOCK_ROWS,
        }
    }

    /// Multiplies rows by panels. Stores the products in `out`, which is a slice and its row stride, or adds them to
    /// `out` if `adds` is set.
    ///
    /// # Shapes
    /// `rows [count, lines]` pairs, `panels [panels, lines, 32]` pairs, `out [count, panels * 32]`.
    ///
    /// # Panics
    /// Panics if a slice is too short for its shape.
    pub fn multiply(self, rows: &RowWords<'_>, panels: &PairPanels<'_>, out: (&mut [f32], usize), adds: bool) {
        if self == Self::Amx {
            let (numbers, stride) = out;
            return amx::multiply(rows, panels, PanelsOutput::row_major(numbers, stride, adds), amx::Parts::One);
        }
        let (tile, (out, stride)) = (Bf16Tile::best(), out);
        for panel in 0..panels.count {
            let words = &panels.words[panel * panels.stride..][..panels.lines * LANES];
            let out = TileOutput::new(&mut out[panel * LANES..], [LANES, stride], adds);
            tile.multiply((rows.words, rows.row_words), words, rows.count, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::linalg::gemm::Update;
    use crate::linalg::pairs::round_to_bf16;
    use crate::linalg::panels::{Panels, matmul};

    fn noise(i: usize) -> f32 {
        (i * 7919 % 10_007) as f32 / 10_007.0 - 0.5
    }

    fn panels(weights: &[f32], inner: usize, outer: usize) -> Panels<Bf16> {
        Panels::from_rows(weights, inner, outer)
    }

    #[test]
    fn bf16_rounding_matches_the_half_crate() {
        let ends = [0.0, -0.0, 1.0, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, 1.003_906_3, 1.011_718_8];
        let many = (0..100_000).map(|i| noise(i) * 1e3);
        for x in ends.into_iter().chain(many) {
            assert_eq!(round_to_bf16(x) >> 16, u32::from(bf16::from_f32(x).to_bits()), "{x}");
        }
        assert!(f32::from_bits(round_to_bf16(f32::from_bits(0x7fff_ffff))).is_nan());
    }

    #[test]
    fn bf16_product_matches_f64_sums_for_any_shape() {
        for (rows, inner, outer) in [(1, 1, 1), (3, 7, 5), (8, 64, 32), (13, 65, 70), (20, 300, 96)] {
            let x: Vec<f32> = (0..rows * inner).map(noise).collect();
            let w: Vec<f32> = (0..inner * outer).map(|i| noise(i + 3)).collect();
            let mut out = vec![0.25; rows * outer];
            let matrix = panels(&w, inner, outer);
            matmul(&mut out, Update::Add, MatrixView::rows(&x, rows, inner), &matrix);
            let mut again = vec![7.0; rows * outer];
            matmul(&mut again, Update::Replace, MatrixView::rows(&x, rows, inner), &matrix);
            for i in 0..rows {
                for j in 0..outer {
                    let sum: f64 = (0..inner)
                        .map(|k| reference_rounding(x[i * inner + k]) * reference_rounding(w[k * outer + j]))
                        .sum();
                    let added = out[i * outer + j];
                    let replaced = again[i * outer + j];
                    assert!((f64::from(replaced) - sum).abs() < 1e-5, "[{rows}, {inner}, {outer}] at {i}, {j}");
                    assert_eq!(added, 0.25 + replaced);
                }
            }
        }
    }

    fn reference_rounding(x: f32) -> f64 {
        bf16::from_f32(x).to_f64()
    }

    #[test]
    fn bf16_rows_are_bit_identical_for_any_batch_and_cpu() {
        let inner = 301;
        let outer = 70;
        let x: Vec<f32> = (0..37 * inner).map(noise).collect();
        let w: Vec<f32> = (0..inner * outer).map(|i| noise(i + 3)).collect();
        let matrix = panels(&w, inner, outer);
        let multiply_rows = |rows: usize| {
            let mut out = vec![0.0; rows * outer];
            matmul(&mut out, Update::Replace, MatrixView::rows(&x[..rows * inner], rows, inner), &matrix);
            out
        };
        let all = multiply_rows(37);
        for rows in 1..37 {
            assert!(multiply_rows(rows).iter().zip(&all).all(|(a, b)| a.to_bits() == b.to_bits()), "{rows} rows");
        }
        let panel = &matrix.words()[..Bf16::panel_depth(inner) * LANES];
        for (rows, adds) in (1..=27).flat_map(|rows| [(rows, false), (rows, true)]) {
            let sums = |tile: Bf16Tile| {
                let mut words = Vec::new();
                x.chunks_exact(inner).take(rows).for_each(|row| tile.push_row(row, &mut words));
                let mut sums = vec![0.5f32; LANES * rows];
                let out = TileOutput::new(&mut sums, [LANES; 2], adds);
                tile.multiply((&words, tile.row_words(inner)), panel, rows, out);
                sums.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            for tile in Bf16Tile::supported() {
                assert_eq!(sums(tile), sums(Bf16Tile::Plain), "{tile:?}, {rows} rows");
            }
        }
    }
}
