//! Matrix products with f32 weights in the [`super::panels`] layout.

use super::float32_tile::F32Tile;
use super::gemm::{MatrixView, l2_cache_bytes};
use super::panels::{PackedFormat, PanelPiece, TileOutput, pack_panel, piece_depth};

/// Marker type for f32 weights.
pub struct F32;

impl PackedFormat for F32 {
    type Word = f32;
    /// Unconverted rows. Each element is read once per panel, and stays in cache between panels.
    type Rows<'x> = MatrixView<'x, f32>;

    fn lanes() -> usize {
        F32Tile::best().lanes()
    }

    fn panel_depth(inner: usize) -> usize {
        inner
    }

    #[inline(always)]
    fn pack_column(row: &[f32], column: usize, panel: &mut [f32]) {
        panel.chunks_exact_mut(Self::lanes()).zip(row).for_each(|(line, &number)| line[column] = number);
    }

    fn pack_panel(columns: &[f32], inner: usize, panel: &mut [f32]) {
        pack_panel::<Self>(columns, inner, panel);
    }

    fn weight_at(panel: &[f32], k: usize, column: usize) -> f32 {
        panel[k * Self::lanes() + column]
    }

    fn pack_rows(x: MatrixView<'_, f32>) -> MatrixView<'_, f32> {
        x
    }

    /// Returns the length of one piece (up to 512 weights along `inner`) if the rows exceed half of the L2 cache but
    /// one piece of them fits, and `inner` otherwise. The other half of the cache is left for panels and sums.
    fn sweep_depth(height: usize, inner: usize) -> usize {
        let cache_bytes = l2_cache_bytes() / 2;
        if !fits_cache(inner, cache_bytes, height) && fits_cache(piece_depth(inner), cache_bytes, height) {
            piece_depth(inner)
        } else {
            inner
        }
    }

    #[inline]
    fn multiply(rows: &MatrixView<'_, f32>, height: usize, piece: PanelPiece<'_, f32>, out: TileOutput<'_>) {
        let (numbers, row_stride) = rows.elements();
        F32Tile::best().multiply(
            (&numbers[piece.first..], row_stride),
            height,
            &piece,
            piece_depth(rows.column_count()),
            out,
        );
    }
}

fn fits_cache(depth: usize, cache_bytes: usize, height: usize) -> bool {
    height * depth * size_of::<f32>() <= cache_bytes
}
#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::gemm::{MatrixViewMut, Update, gemm};
    use crate::linalg::panels::{Panels, matmul, matmul_few_rows};

    fn noise(i: usize) -> f32 {
        (i * 7919 % 10_007) as f32 / 10_007.0 - 0.5
    }

    /// `(rows, inner, outer)` shapes. The last two need several sweeps on processors with small and large caches,
    /// respectively.
    const SHAPES: [(usize, usize, usize); 9] = [
        (2, 3, 5),
        (3, 7, 65),
        (8, 64, 32),
        (13, 65, 70),
        (20, 300, 96),
        (67, 700, 130),
        (9, 1500, 200),
        (100, 2200, 70),
        (260, 2200, 70),
    ];

    #[test]
    fn some_test_shapes_need_several_sweeps() {
        assert!(count_sweeps(100) > 1 || count_sweeps(260) > 1, "no test shape needs several sweeps");
        assert_eq!(count_sweeps(8), 1);
    }

    fn count_sweeps(rows: usize) -> usize {
        2200usize.div_ceil(F32::sweep_depth(rows, 2200))
    }

    #[test]
    fn f32_product_is_bit_identical_to_the_gemm_crate() {
        for (rows, inner, outer) in SHAPES {
            let x: Vec<f32> = (0..rows * inner).map(noise).collect();
            let w: Vec<f32> = (0..inner * outer).map(|i| noise(i + 3)).collect();
            let panels = Panels::<F32>::from_rows(&w, inner, outer);
            assert_eq!(panels.to_rows(), w);
            for into in [Update::Replace, Update::Add] {
                let mut theirs = vec![0.25; rows * outer];
                let mut ours = theirs.clone();
                let mut few = theirs.clone();
                let x = MatrixView::rows(&x, rows, inner);
                gemm(MatrixViewMut::rows(&mut theirs, rows, outer), into, x, MatrixView::rows(&w, inner, outer));
                matmul(&mut ours, into, x, &panels);
                matmul_few_rows(&mut few, into, x, &panels);
                assert!(ours.iter().zip(&theirs).all(|(a, b)| a.to_bits() == b.to_bits()), "{rows} {inner} {outer}");
                assert_eq!(ours, few, "{rows} {inner} {outer}");
            }
        }
    }

    #[test]
    fn f32_rows_are_bit_identical_for_any_batch() {
        let inner = 1301;
        let outer = 70;
        let x: Vec<f32> = (0..37 * inner).map(noise).collect();
        let w: Vec<f32> = (0..inner * outer).map(|i| noise(i + 3)).collect();
        let panels = Panels::<F32>::from_rows(&w, inner, outer);
        let product = |rows: usize| {
            let mut out = vec![0.0; rows * outer];
            super::super::panels::matmul(
                &mut out,
                Update::Replace,
                MatrixView::rows(&x[..rows * inner], rows, inner),
                &panels,
            );
            out
        };
        let all = product(37);
        for rows in 1..37 {
            assert!(product(rows).iter().zip(&all).all(|(a, b)| a.to_bits() == b.to_bits()), "{rows} rows");
        }
    }
}
