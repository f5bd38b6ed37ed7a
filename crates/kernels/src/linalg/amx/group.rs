//! Blocking of a product for the caches.

use std::ops::Range;

use super::sums::{Output, SumBuffer};
use super::tile::{BlockProduct, PREFETCHED_WORDS, Tiles};
use super::{BLOCK_ROWS, TILE_PAIRS};
use crate::linalg::pairs::{PairPanels, RowWords};
use crate::linalg::panels::LANES;

/// Number of words per row in one pass over a group of panels. The lines of a panel in a pass (32 KiB) stay in a 48 KiB
/// L1 cache for all rows.
const PASS_WORDS: usize = 256;
/// Maximum number of words per row that are multiplied in a single pass. A few evicted lines cost less than a second
/// pass.
const MAX_SINGLE_PASS_WORDS: usize = 352;
/// Maximum number of sums of a group of panels (1 MiB). For 512 rows, they fit into a 2 MiB L2 cache together with the
/// words of a pass (512 KiB).
const MAX_GROUP_SUMS: usize = 1 << 18;

/// Product of a group of rows and lines of all panels. All blocks of rows have the configured shape.
pub(super) struct GroupProduct<'a> {
    pub(super) tiles: &'a Tiles,
    pub(super) rows: &'a RowWords<'a>,
    pub(super) panels: &'a PairPanels<'a>,
    /// Output of all rows and panels.
    pub(super) out: Output,
    pub(super) group: Range<usize>,
    pub(super) lines: Range<usize>,
    /// Whether to add to the output. Otherwise, the sums start at zero.
    pub(super) continues: bool,
}

impl GroupProduct<'_> {
    /// Computes the product.
    ///
    /// # Safety
    /// The processor must have AMX-BF16. `group` and `lines` must lie inside the operands. If the last block has fewer
    /// rows than configured, the left operand must have padding rows.
    pub(super) unsafe fn multiply(&self) {
        // SAFETY: the caller guarantees the same.
        unsafe {
            match self.lines.len() <= MAX_SINGLE_PASS_WORDS {
                true => self.multiply_in_one_pass(),
                false => self.multiply_in_passes(),
            }
        }
    }

    /// Computes the product directly in the output. Only the sums of a partial block are buffered, for its padding rows.
    ///
    /// # Safety
    /// See [`Self::multiply`].
    unsafe fn multiply_in_one_pass(&self) {
        let mut buffer = SumBuffer::new(1, BLOCK_ROWS);
        for panel in 0..self.panels.count {
            let pass = PanelPass {
                right: self.words_at(panel, self.lines.start),
                next: self.words_at(panel + 1, self.lines.start),
                lines: self.lines.clone(),
            };
            for row in self.group.clone().step_by(BLOCK_ROWS) {
                let height = self.group.end - row;
                // SAFETY: the caller guarantees that AMX is usable and that the rows and lines lie inside the operands.
                unsafe {
                    let out = self.output_at(row, panel);
                    if height >= self.tiles.rows() {
                        self.multiply_block(&pass, row, out, self.continues, out.0);
                        continue;
                    }
                    if self.continues {
                        buffer.load(out, 0..1, 0..height);
                    }
                    let sums = (buffer.at(0, 0), LANES);
                    self.multiply_block(&pass, row, sums, self.continues, sums.0);
                    buffer.store(out, 0..1, 0..height);
                }
            }
        }
    }

    /// Computes the product in several passes along the inner dimension for each group of panels. Between passes, sums
    /// stay in a buffer.
    ///
    /// # Safety
    /// See [`Self::multiply`].
    unsafe fn multiply_in_passes(&self) {
        let step = TILE_PAIRS * self.tiles.parts().count();
        let height = self.group.len();
        let max_panels = (MAX_GROUP_SUMS / (height * LANES)).max(1);
        let group_panels = self.panels.count.div_ceil(self.panels.count.div_ceil(max_panels));
        let mut buffer = SumBuffer::new(group_panels, height);
        for first in (0..self.panels.count).step_by(group_panels) {
            let end = self.panels.count.min(first + group_panels);
            // SAFETY: the caller guarantees that the rows and panels lie inside the operands.
            let out = unsafe { self.output_at(self.group.start, first) };
            if self.continues {
                // SAFETY: as above, and the buffer has room for the sums of these panels and rows.
                unsafe { buffer.load(out, 0..end - first, 0..height) };
            }
            for lines in split_range(&self.lines, PASS_WORDS / step * step) {
                let continues = self.continues || lines.start > self.lines.start;
                for panel in first..end {
                    let next = match panel + 1 < end || lines.end == self.lines.end {
                        true => self.words_at(panel + 1, lines.start),
                        false => self.words_at(first, lines.end),
                    };
                    let pass = PanelPass { right: self.words_at(panel, lines.start), next, lines: lines.clone() };
                    for row in (0..height).step_by(BLOCK_ROWS) {
                        let sums = (buffer.at(panel - first, row), LANES);
                        let next_sums = buffer.at(panel - first, row + BLOCK_ROWS);
                        // SAFETY: as above.
                        unsafe { self.multiply_block(&pass, self.group.start + row, sums, continues, next_sums) };
                    }
                }
            }
            // SAFETY: as above, and the passes wrote all sums.
            unsafe { buffer.store(out, 0..end - first, 0..height) };
        }
    }

    /// Multiplies the block that starts at `row` by lines of a panel, and prefetches the sums at `next_sums`.
    ///
    /// # Safety
    /// See [`Tiles::multiply`].
    #[inline(always)]
    unsafe fn multiply_block(
        &self,
        pass: &PanelPass,
        row: usize,
        (sums, stride): Output,
        continues: bool,
        next_sums: *const f32,
    ) {
        let parts = self.tiles.parts().count();
        let steps = pass.lines.len().div_ceil(TILE_PAIRS * parts);
        let prefetched = (row - self.group.start) / BLOCK_ROWS * steps * PREFETCHED_WORDS * parts;
        let ahead = match prefetched < pass.lines.len() * LANES {
            true => pass.next.wrapping_add(prefetched),
            false => pass.right,
        };
        let first_word = row * self.rows.row_words + pass.lines.start;
        // SAFETY: the caller guarantees that AMX is usable and that the rows and lines lie inside the operands.
        unsafe {
            let left = (self.rows.words.as_ptr().add(first_word), self.rows.row_words);
            self.tiles.multiply(BlockProduct {
                left,
                right: pass.right,
                steps,
                sums,
                stride,
                continues,
                ahead,
                next_sums,
            });
        }
    }

    /// Returns a pointer to a line of a panel.
    fn words_at(&self, panel: usize, line: usize) -> *const u32 {
        self.panels.words.as_ptr().wrapping_add(panel * self.panels.stride + line * LANES)
    }

    /// Returns the output of one panel, from the given row on.
    ///
    /// # Safety
    /// The row and the panel must lie inside the output.
    unsafe fn output_at(&self, row: usize, panel: usize) -> Output {
        let (out, stride) = self.out;
        // SAFETY: the caller guarantees that the location lies inside the output.
        (unsafe { out.add(row * stride + panel * LANES) }, stride)
    }
}

/// Lines of one panel in one pass.
struct PanelPass {
    right: *const u32,
    /// First word of the lines that are multiplied next, for prefetching.
    next: *const u32,
    lines: Range<usize>,
}

fn split_range(range: &Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = range.end;
    range.clone().step_by(length).map(move |start| start..end.min(start + length))
}
