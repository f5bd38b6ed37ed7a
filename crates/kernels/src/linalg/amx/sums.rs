//! Sums of a product in memory.

use std::ptr;

use super::panel_stride;
use crate::linalg::panels::{LANES, PanelsOutput};

/// Location of the sums of a product. See [`PanelsOutput`].
#[derive(Clone, Copy)]
pub(super) struct Output {
    start: *mut f32,
    pub(super) row_stride: usize,
    panel_stride: usize,
}

impl From<PanelsOutput<'_>> for Output {
    fn from(out: PanelsOutput<'_>) -> Self {
        Self { start: out.numbers.as_mut_ptr(), row_stride: out.row_stride, panel_stride: out.panel_stride }
    }
}

impl Output {
    /// Returns a pointer to the 32 sums of a row and a panel.
    pub(super) fn at(self, row: usize, panel: usize) -> *mut f32 {
        self.start.wrapping_add(row * self.row_stride + panel * self.panel_stride)
    }

    /// Returns the location of the sums from the given row and panel on.
    pub(super) fn skip(self, row: usize, panel: usize) -> Self {
        Self { start: self.at(row, panel), ..self }
    }

    /// Copies the sums of the first rows and panels from another location.
    ///
    /// # Safety
    /// Both locations must be valid for these rows and panels and must not overlap.
    pub(super) unsafe fn copy_from(self, source: Self, rows: usize, panels: usize) {
        for row in 0..rows {
            for panel in 0..panels {
                // SAFETY: the caller guarantees that both locations have 32 elements.
                unsafe { ptr::copy_nonoverlapping(source.at(row, panel), self.at(row, panel), LANES) };
            }
        }
    }
}

/// Buffer `[panels, rows, 32]` for sums, with the rows padded to full blocks. Rows of the output can be far apart and
/// then compete for the same cache sets, so sums are collected here and copied at the end.
pub(super) struct SumBuffer {
    /// Storage with uninitialized elements, accessed through its capacity.
    numbers: Vec<f32>,
    panel_stride: usize,
}

impl SumBuffer {
    pub(super) fn new(rows: usize, panels: usize) -> Self {
        let panel_stride = panel_stride(rows, LANES);
        Self { numbers: Vec::with_capacity(panels * panel_stride), panel_stride }
    }

    pub(super) fn location(&mut self) -> Output {
        Output { start: self.numbers.as_mut_ptr(), row_stride: LANES, panel_stride: self.panel_stride }
    }
}
