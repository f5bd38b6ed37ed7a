//! bf16 weights for products on AMX tile registers.

use super::amx::{self, Parts};
use super::bf16::{Bf16, Bf16Kernels};
use super::gemm::MatrixView;
use super::pairs::{PairPanels, RowWords};
use super::panels::{PackedFormat, PanelPiece, TileOutput};
use super::simd;

/// Marker type for bf16 weights with the layout of [`Bf16`], multiplied on tile registers.
pub struct Bf16Amx;

/// Rows packed as bf16 pairs: each word contains two consecutive values. If values are split into several bf16 parts
/// (see `bf16_split`), a word contains the same part of both values.
pub struct PairRows {
    pub(super) words: Vec<u32>,
    pub(super) row_words: usize,
    /// Number of words per row that are multiplied. The remaining words are padding, so that rows map to different
    /// cache sets.
    pub(super) width: usize,
}

impl PairRows {
    /// Multiplies the first `height` rows by complete consecutive panels. Stores the products in `out`, or adds them to
    /// `out` if `adds` is set.
    ///
    /// # Shapes
    /// `panels [count, width, 32]`, `out [height, count * 32]` with the given row stride.
    pub(super) fn matmul(
        &self,
        height: usize,
        panels: &[u32],
        count: usize,
        out: (&mut [f32], usize),
        adds: bool,
        parts: Parts,
    ) {
        let panels = PairPanels::consecutive(panels, self.width, count);
        let rows = RowWords { words: &self.words, row_words: self.row_words, count: height };
        amx::multiply(&rows, &panels, out, adds, parts);
    }
}

impl PackedFormat for Bf16Amx {
    type Word = u32;
    type Rows<'x> = PairRows;

    fn panel_depth(inner: usize) -> usize {
        Bf16::panel_depth(inner)
    }

    #[inline(always)]
    fn pack_column(row: &[f32], column: usize, panel: &mut [u32]) {
        Bf16::pack_column(row, column, panel);
    }

    fn pack_panel(columns: &[f32], inner: usize, panel: &mut [u32]) {
        Bf16::pack_panel(columns, inner, panel);
    }

    fn weight_at(panel: &[u32], k: usize, column: usize) -> f32 {
        Bf16::weight_at(panel, k, column)
    }

    fn pack_rows(x: MatrixView<'_, f32>) -> PairRows {
        let kernels = Bf16Kernels::Amx;
        let width = Self::panel_depth(x.column_count());
        let row_words = kernels.row_words(x.column_count());
        let mut words = Vec::with_capacity(x.row_count() * row_words);
        simd::in_widest!({
            for row in 0..x.row_count() {
                kernels.push_row(x.row(row), &mut words);
            }
        });
        PairRows { words, row_words, width }
    }

    const JOINS_PANELS: bool = true;

    fn multiply(rows: &PairRows, height: usize, piece: PanelPiece<'_, u32>, mut out: TileOutput<'_>) {
        let adds = out.adds;
        rows.matmul(height, piece.words, 1, out.slice(), adds, Parts::One);
    }

    fn multiply_panels(
        rows: &PairRows,
        height: usize,
        panels: &[u32],
        count: usize,
        out: (&mut [f32], usize),
        adds: bool,
    ) {
        rows.matmul(height, panels, count, out, adds, Parts::One);
    }
}
