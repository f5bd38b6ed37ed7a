//! Products stored panel by panel, for results that are read once, row by row.

use std::ops::Range;

use super::amx::panel_stride;
use super::gemm::profile;
use super::panels::{PackedFormat, Panels, PanelsOutput, multiply_panels};
use crate::scratch::{Scratch, take_scratch};

/// Columns of a product, stored as `[panels, rows, lanes]`. Kernels write this order faster than rows, because the sums
/// of a panel are contiguous.
pub struct PanelProduct {
    numbers: Scratch,
    rows: usize,
    lanes: usize,
    panel_stride: usize,
}

impl PanelProduct {
    /// Creates storage for products of the given number of rows with up to `columns` columns.
    pub fn new<K: PackedFormat>(rows: usize, columns: usize) -> Self {
        let lanes = K::lanes();
        let panel_stride = panel_stride(rows, lanes);
        Self { numbers: take_scratch(columns.div_ceil(lanes) * panel_stride), rows, lanes, panel_stride }
    }

    /// Computes the columns `range` of a product.
    ///
    /// # Panics
    /// Panics if the range does not start at a panel or has too many columns.
    pub fn multiply<K: PackedFormat>(&mut self, rows: &K::Rows<'_>, weights: &Panels<K>, range: Range<usize>) {
        assert!(range.start.is_multiple_of(self.lanes) && range.end <= weights.outer() && self.lanes == K::lanes());
        let panels = range.start / self.lanes..range.end.div_ceil(self.lanes);
        let numbers = &mut self.numbers[..panels.len() * self.panel_stride];
        let out = PanelsOutput { numbers, row_stride: self.lanes, panel_stride: self.panel_stride, adds: false };
        let started = profile::start_timer();
        multiply_panels(rows, self.rows, weights, panels, out);
        profile::stop_timer(started, 1);
    }

    /// Returns the elements of a row, panel by panel.
    #[inline(always)]
    pub fn row(&self, row: usize) -> impl Iterator<Item = &[f32]> {
        let columns = row * self.lanes..(row + 1) * self.lanes;
        self.numbers.chunks_exact(self.panel_stride).map(move |panel| &panel[columns.clone()])
    }

    /// Returns the elements of a row, panel by panel.
    #[inline(always)]
    pub fn row_mut(&mut self, row: usize) -> impl Iterator<Item = &mut [f32]> {
        let columns = row * self.lanes..(row + 1) * self.lanes;
        self.numbers.chunks_exact_mut(self.panel_stride).map(move |panel| &mut panel[columns.clone()])
    }

    /// Copies the first elements of a row to `out`.
    #[inline(always)]
    pub fn copy_row(&self, row: usize, out: &mut [f32]) {
        for (out, panel) in out.chunks_mut(self.lanes).zip(self.row(row)) {
            out.copy_from_slice(&panel[..out.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::bf16::Bf16;
    use crate::linalg::bf16_split::Bf16Split;
    use crate::linalg::float32::F32;
    use crate::linalg::gemm::{MatrixView, Update};
    use crate::linalg::panels::matmul;

    fn noise(i: usize) -> f32 {
        (i * 7919 % 10_007) as f32 / 10_007.0 - 0.5
    }

    /// Compares the columns from `first` on with those of a product stored by row.
    fn assert_equal_to_rows<K: PackedFormat>([height, inner, outer]: [usize; 3], first: usize) {
        let x: Vec<f32> = (0..height * inner).map(noise).collect();
        let weights: Vec<f32> = (0..inner * outer).map(|i| noise(i + 3)).collect();
        let weights = Panels::<K>::from_rows(&weights, inner, outer);
        let x = MatrixView::rows(&x, height, inner);
        let mut expected = vec![0.0; height * outer];
        matmul(&mut expected, Update::Replace, x, &weights);
        let mut product = PanelProduct::new::<K>(height, outer);
        product.multiply(&K::pack_rows(x), &weights, first..outer);
        let mut row = vec![0.0; outer - first];
        for (index, expected) in expected.chunks_exact(outer).enumerate() {
            product.copy_row(index, &mut row);
            assert_eq!(row, expected[first..], "row {index} of {height}, {inner} inputs");
        }
    }

    #[test]
    fn panel_product_equals_a_product_by_row() {
        for shape in [[1, 70, 33], [37, 301, 70], [67, 1500, 130]] {
            for first in [0, 32] {
                assert_equal_to_rows::<F32>(shape, first);
                assert_equal_to_rows::<Bf16>(shape, first);
                assert_equal_to_rows::<Bf16Split<1>>(shape, first);
                assert_equal_to_rows::<Bf16Split<2>>(shape, first);
            }
        }
    }
}
