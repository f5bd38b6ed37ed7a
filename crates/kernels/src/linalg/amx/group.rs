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
    /// Whether each panel of the output is contiguous and has the padding rows of the left operand.
    pub(super) has_padding_rows: bool,
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
        let mut buffer = SumBuffer::new(BLOCK_ROWS, 1);
        let buffer = buffer.location();
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
                    let out = self.out.skip(row, panel);
                    if height >= self.tiles.rows() {
                        self.multiply_block(&pass, row, out, self.continues, out.at(0, 0));
                        continue;
                    }
                    if self.continues {
                        buffer.copy_from(out, height, 1);
                    }
                    self.multiply_block(&pass, row, buffer, self.continues, buffer.at(0, 0));
                    out.copy_from(buffer, height, 1);
                }
            }
        }
    }

    /// Computes the product in several passes along the inner dimension for each group of panels. Between passes, sums
    /// stay in the output if its panels are contiguous, and in a buffer otherwise.
    ///
    /// # Safety
    /// See [`Self::multiply`].
    unsafe fn multiply_in_passes(&self) {
        let step = TILE_PAIRS * self.tiles.parts().count();
        let height = self.group.len();
        let max_panels = (MAX_GROUP_SUMS / (height * LANES)).max(1);
        let group_panels = self.panels.count.div_ceil(self.panels.count.div_ceil(max_panels));
        let mut buffer = if self.has_padding_rows { None } else { Some(SumBuffer::new(height, group_panels)) };
        for first in (0..self.panels.count).step_by(group_panels) {
            let end = self.panels.count.min(first + group_panels);
            let out = self.out.skip(self.group.start, first);
            let sums = buffer.as_mut().map_or(out, SumBuffer::location);
            if self.continues && buffer.is_some() {
                // SAFETY: the caller guarantees that the rows and panels lie inside the output. The buffer has room for
                // their sums.
                unsafe { sums.copy_from(out, height, end - first) };
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
                        let next_sums = match row + BLOCK_ROWS < height {
                            true => sums.at(row + BLOCK_ROWS, panel - first),
                            false => sums.at(0, panel + 1 - first),
                        };
                        let sums = sums.skip(row, panel - first);
                        // SAFETY: as above. The padding rows of the last block lie inside the sums.
                        unsafe { self.multiply_block(&pass, self.group.start + row, sums, continues, next_sums) };
                    }
                }
            }
            if buffer.is_some() {
                // SAFETY: as above, and the passes wrote all sums.
                unsafe { out.copy_from(sums, height, end - first) };
            }
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
        sums: Output,
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
                sums: sums.at(0, 0),
                stride: sums.row_stride,
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
