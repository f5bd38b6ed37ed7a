//! Buffer for sums of a group of panels.

use std::ops::Range;
use std::ptr;

use super::BLOCK_ROWS;
use crate::linalg::panels::LANES;

/// Sums `[panels, rows, 32]`, with the rows padded to full blocks. Rows of the output can be far apart and then compete
/// for the same cache sets, so sums are collected here and copied at the end.
pub(super) struct SumBuffer {
    /// Storage with uninitialized elements, accessed through its capacity.
    numbers: Vec<f32>,
    /// Number of rows including padding.
    height: usize,
}

/// Destination of a product: pointer to the first row, and row stride.
pub(super) type Output = (*mut f32, usize);

impl SumBuffer {
    pub(super) fn new(panels: usize, rows: usize) -> Self {
        let height = rows.next_multiple_of(BLOCK_ROWS);
        Self { numbers: Vec::with_capacity(panels * height * LANES), height }
    }

    /// Returns a pointer to the sums of one panel, from the given row on.
    pub(super) fn at(&mut self, panel: usize, row: usize) -> *mut f32 {
        self.numbers.as_mut_ptr().wrapping_add((panel * self.height + row) * LANES)
    }

    /// Copies sums of the given rows from `out`, whose first column is that of the buffer's first panel. Rows are
    /// numbered as in the buffer.
    ///
    /// # Safety
    /// The buffer must have room for the panels and rows, and `out` must contain their rows and columns.
    pub(super) unsafe fn load(&mut self, (out, stride): Output, panels: Range<usize>, rows: Range<usize>) {
        for row in rows {
            for panel in panels.clone() {
                // SAFETY: the caller guarantees that both locations have 32 elements.
                unsafe { ptr::copy_nonoverlapping(out.add(row * stride + panel * LANES), self.at(panel, row), LANES) };
            }
        }
    }

    /// Copies sums of the given rows to `out`. See [`Self::load`].
    ///
    /// # Safety
    /// As for [`Self::load`]. The sums must be initialized.
    pub(super) unsafe fn store(&mut self, (out, stride): Output, panels: Range<usize>, rows: Range<usize>) {
        for row in rows {
            for panel in panels.clone() {
                // SAFETY: the caller guarantees that both locations have 32 elements.
                unsafe { ptr::copy_nonoverlapping(self.at(panel, row), out.add(row * stride + panel * LANES), LANES) };
            }
        }
    }
}
