//! Weight matrices packed once into the layout that the kernels read, for repeated products.
//!
//! A panel contains up to 32 columns of the weights. A line of a panel contains one word from each column.
//!
//! A product of unpacked matrices repacks the weights for each block of rows, which takes a fifth of the product's
//! time. Results in f32 are bitwise equal to those of [`super::gemm`]. Both split the inner dimension `inner` into
//! pieces of up to 512 products, sum each piece from zero with fused multiply-adds, and then add up the sums of the
//! pieces.

use std::ops::Range;

use bytemuck::Pod;
use rayon::prelude::*;

use super::aligned::AlignedArray;
use super::gemm::{MatrixView, Update, profile};
use super::simd;

/// Maximum number of columns in a panel (two registers of 16).
pub const LANES: usize = 32;
/// Maximum number of rows in a tile of most kernels with 16-lane registers. With two registers of sums per row, enough
/// registers remain for the panel.
pub const ROWS: usize = 8;
/// Maximum number of products along `inner` that are summed in one piece.
const MAX_PIECE_DEPTH: usize = 512;
/// Maximum number of rows per task for most weights.
pub const TASK_ROWS: usize = 256;
/// Minimum size of weights for which tasks with more rows are faster.
const LARGE_WEIGHT_BYTES: usize = 8 << 20;
/// Maximum number of operations in a product that is not distributed over threads.
const MAX_SERIAL_OPERATIONS: usize = 1 << 21;

/// Calls the kernel instance for the given number of rows, which must be one of the listed numbers.
macro_rules! by_rows {
    ($rows:expr, [$($number:literal)+], $kernel:tt, $arguments:tt) => {
        match $rows {
            $($number => by_rows!(@ $kernel, $number, $arguments),)+
            rows => unreachable!("unsupported tile of {rows} rows"),
        }
    };
    (@ ($($kernel:ident)::+), $number:literal, ($($argument:expr),+)) => {
        $($kernel)::+::<$number>($($argument),+)
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use by_rows;

/// Splits rows into tiles of nearly equal size, with at most `max_rows` rows each.
#[cfg(target_arch = "x86_64")]
pub(super) fn tiles(rows: usize, max_rows: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let tiles = rows.div_ceil(max_rows);
    (0..tiles).map(move |tile| rows * tile / tiles..rows * (tile + 1) / tiles)
}

/// Destination for the sums of one panel: rows of `columns` elements with stride `stride`.
pub struct TileOutput<'a> {
    numbers: &'a mut [f32],
    columns: usize,
    stride: usize,
    /// Whether to add the sums to the destination.
    pub(super) adds: bool,
}

impl<'a> TileOutput<'a> {
    pub(super) fn new(numbers: &'a mut [f32], [columns, stride]: [usize; 2], adds: bool) -> Self {
        Self { numbers, columns, stride, adds }
    }

    /// Returns all elements and the row stride.
    pub(super) fn slice(&mut self) -> (&mut [f32], usize) {
        (&mut *self.numbers, self.stride)
    }

    /// Returns a pointer to the first row, and the row stride.
    ///
    /// # Panics
    /// Panics if there are too few rows or the number of columns differs.
    pub(super) fn rows(&mut self, rows: usize, columns: usize) -> (*mut f32, usize) {
        let fits = rows == 0 || (rows - 1) * self.stride + columns <= self.numbers.len();
        assert!(columns == self.columns && columns <= self.stride && fits, "rows exceed their slice");
        (self.numbers.as_mut_ptr(), self.stride)
    }

    /// Stores the sums of one row, or adds them if `adds` is set.
    pub(super) fn store_row(&mut self, row: usize, sums: &[f32]) {
        let out = &mut self.numbers[row * self.stride..][..self.columns];
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = if self.adds { *out + sum } else { *sum });
    }
}

/// Destination for the sums of consecutive panels.
pub struct PanelsOutput<'a> {
    pub numbers: &'a mut [f32],
    pub row_stride: usize,
    /// Distance between the first columns of consecutive panels.
    pub panel_stride: usize,
    /// Whether to add the sums to the destination.
    pub adds: bool,
}

impl<'a> PanelsOutput<'a> {
    /// Creates a destination `[rows, panels * 32]` with the given row stride.
    pub fn row_major(numbers: &'a mut [f32], row_stride: usize, adds: bool) -> Self {
        Self { numbers, row_stride, panel_stride: LANES, adds }
    }

    /// Returns whether each panel is contiguous, with room for the given number of rows.
    pub(super) fn is_panel_major(&self, rows: usize, panels: usize) -> bool {
        let panel = rows * LANES;
        let room = if panels == 1 { panel } else { self.panel_stride };
        self.row_stride == LANES && panel <= room && (panels - 1) * self.panel_stride + panel <= self.numbers.len()
    }

    /// Returns the elements of one row, from the first column of a panel on.
    pub(super) fn at(&mut self, row: usize, panel: usize) -> &mut [f32] {
        &mut self.numbers[row * self.row_stride + panel * self.panel_stride..]
    }
}

/// Storage type of weights, with its matrix multiplication kernels.
pub trait PackedFormat: Sized {
    /// Unit of storage, which contains one or more weights of the same column.
    type Word: Pod + Send + Sync;
    /// Left operand, converted to the format of the kernel.
    type Rows<'x>: Sync;

    /// Returns the number of columns in a panel, which is at most 32. The number depends on the vector registers of
    /// this CPU.
    fn lanes() -> usize {
        LANES
    }

    /// Returns the number of words in a panel column of `inner` weights.
    fn panel_depth(inner: usize) -> usize;

    /// Packs consecutive weights along `inner` into one column of a panel. The first weight must be the first of its
    /// word.
    ///
    /// # Shapes
    /// `row [up to inner]`, `panel [panel_depth(row.len()), lanes]`.
    fn pack_column(row: &[f32], column: usize, panel: &mut [Self::Word]);

    /// Packs columns `[up to lanes, inner]` into one panel.
    fn pack_panel(columns: &[f32], inner: usize, panel: &mut [Self::Word]);

    /// Returns weight `k` of a column.
    fn weight_at(panel: &[Self::Word], k: usize, column: usize) -> f32;

    fn pack_rows(x: MatrixView<'_, f32>) -> Self::Rows<'_>;

    /// Whether the kernel multiplies large weights by 256 rows in less time than a core reads the weights from memory.
    const WAITS_FOR_MEMORY: bool = false;

    /// Whether the kernel processes consecutive panels together ([`Self::multiply_panels`]).
    const JOINS_PANELS: bool = false;

    /// Returns the number of weights along `inner` per sweep. A sweep multiplies these columns of the rows by all
    /// panels, so that only these columns must stay in cache. The default is a single sweep. Results do not depend on
    /// this number.
    fn sweep_depth(height: usize, inner: usize) -> usize {
        let _ = height;
        inner
    }

    /// Multiplies all `height` rows by a piece of a panel. Stores the products in `out`, or adds them if `out.adds` is
    /// set.
    fn multiply(rows: &Self::Rows<'_>, height: usize, piece: PanelPiece<'_, Self::Word>, out: TileOutput<'_>);

    /// Multiplies all `height` rows by consecutive complete panels. Stores the products in `out`, or adds them if
    /// `out.adds` is set.
    ///
    /// # Shapes
    /// `panels [count, depth, lanes]`
    #[inline]
    fn multiply_panels(
        rows: &Self::Rows<'_>,
        height: usize,
        panels: &[Self::Word],
        count: usize,
        mut out: PanelsOutput<'_>,
    ) {
        let layout = [Self::lanes(), out.row_stride];
        let adds = out.adds;
        for (index, words) in panels.chunks_exact(panels.len() / count.max(1)).enumerate() {
            let piece = PanelPiece { first: 0, words, next: &[] };
            Self::multiply(rows, height, piece, TileOutput::new(out.at(0, index), layout, adds));
        }
    }
}

/// Lines of a panel that are multiplied in one sweep ([`PackedFormat::sweep_depth`]).
pub struct PanelPiece<'a, W> {
    /// Index along `inner` of the first line.
    pub(super) first: usize,
    pub(super) words: &'a [W],
    /// Next piece, for prefetching. Empty after the last piece.
    pub(super) next: &'a [W],
}

/// Weights `[inner, outer]` packed as `[outer / lanes, panel_depth(inner), lanes]`. The last panel is padded with
/// zeros.
pub struct Panels<K: PackedFormat> {
    words: AlignedArray<K::Word>,
    inner: usize,
    outer: usize,
}

impl<K: PackedFormat> Panels<K> {
    /// Returns the number of words in one panel.
    pub fn panel_words(inner: usize) -> usize {
        K::panel_depth(inner) * K::lanes()
    }

    /// Allocates the words of all panels, initialized with zeros.
    pub fn allocate(inner: usize, outer: usize) -> AlignedArray<K::Word> {
        AlignedArray::zeroed(Self::panel_words(inner) * outer.div_ceil(K::lanes()))
    }

    /// Wraps packed panels.
    ///
    /// # Panics
    /// Panics if the length differs from that of [`Self::allocate`].
    pub fn new(words: AlignedArray<K::Word>, inner: usize, outer: usize) -> Self {
        assert!(
            words.len() == Self::panel_words(inner) * outer.div_ceil(K::lanes()),
            "wrong panel size for the matrix"
        );
        Self { words, inner, outer }
    }

    /// Packs rows `[inner, outer]`.
    pub fn from_rows(rows: &[f32], inner: usize, outer: usize) -> Self {
        let mut words = Self::allocate(inner, outer);
        for (panel, words) in words.chunks_exact_mut(Self::panel_words(inner).max(1)).enumerate() {
            for column in panel * K::lanes()..outer.min((panel + 1) * K::lanes()) {
                let numbers: Vec<f32> = rows.iter().skip(column).step_by(outer).copied().collect();
                K::pack_column(&numbers, column % K::lanes(), words);
            }
        }
        Self::new(words, inner, outer)
    }

    /// Unpacks to rows `[inner, outer]`.
    pub fn to_rows(&self) -> Vec<f32> {
        (0..self.inner)
            .flat_map(|k| {
                (0..self.outer).map(move |column| {
                    let panel = &self.words[column / K::lanes() * Self::panel_words(self.inner)..];
                    K::weight_at(panel, k, column % K::lanes())
                })
            })
            .collect()
    }

    /// Computes `Σ factor·matrix`, summed in f64 in the given order. Starts new threads instead of using rayon's pool,
    /// so that callers may hold locks.
    ///
    /// # Panics
    /// Panics if the shapes differ or there are no matrices.
    pub fn weighted_sum(matrices: &[(f64, &Self)]) -> Self {
        let [inner, outer] = [matrices[0].1.inner, matrices[0].1.outer];
        assert!(matrices.iter().all(|(_, matrix)| [matrix.inner, matrix.outer] == [inner, outer]), "shapes differ");
        let mut words = Self::allocate(inner, outer);
        let size = Self::panel_words(inner).max(1);
        let panels_per_thread = outer.div_ceil(K::lanes()).div_ceil(rayon::current_num_threads()).max(1);
        std::thread::scope(|scope| {
            for (thread, words) in words.chunks_mut(panels_per_thread * size).enumerate() {
                scope.spawn(move || {
                    for (index, words) in words.chunks_exact_mut(size).enumerate() {
                        let panel = thread * panels_per_thread + index;
                        for column in 0..K::lanes().min(outer - panel * K::lanes()) {
                            K::pack_column(&Self::weighted_column(matrices, panel, column), column, words);
                        }
                    }
                });
            }
        });
        Self::new(words, inner, outer)
    }

    /// Computes `Σ factor·matrix` for one column of a panel.
    fn weighted_column(matrices: &[(f64, &Self)], panel: usize, column: usize) -> Vec<f32> {
        let first = panel * Self::panel_words(matrices[0].1.inner);
        let number = |k: usize| {
            let terms = matrices
                .iter()
                .map(|(factor, matrix)| factor * f64::from(K::weight_at(&matrix.words[first..], k, column)));
            terms.sum::<f64>() as f32
        };
        (0..matrices[0].1.inner).map(number).collect()
    }

    #[cfg(test)]
    pub(super) fn words(&self) -> &[K::Word] {
        &self.words
    }

    pub fn outer(&self) -> usize {
        self.outer
    }

    /// Returns the maximum number of rows per task. More rows read the weights less often, but need more cache for
    /// intermediate results. Results do not depend on this number.
    pub fn max_task_rows(&self) -> usize {
        let waits_for_memory = K::WAITS_FOR_MEMORY && size_of_val(&*self.words) >= LARGE_WEIGHT_BYTES;
        if waits_for_memory { 2 * TASK_ROWS } else { TASK_ROWS }
    }

    /// Returns the lines of a panel for at most `count` weights along `inner`, starting at `first`. The slice is empty
    /// if `first` is past the end.
    fn piece(&self, panel: usize, first: usize, count: usize) -> &[K::Word] {
        let words = Self::panel_words(self.inner);
        let [start, end] = [first, first + count].map(|weights| K::panel_depth(weights.min(self.inner)) * K::lanes());
        &self.words[panel * words..][start..end]
    }
}

/// Implements [`PackedFormat::pack_panel`].
pub(super) fn pack_panel<K: PackedFormat>(columns: &[f32], inner: usize, panel: &mut [K::Word]) {
    // Number of weights along `inner` per pass. Their panel lines stay in L1 until all columns are filled.
    const PASS_WEIGHTS: usize = 64;
    simd::in_widest!({
        for (piece, panel) in panel.chunks_mut(K::panel_depth(PASS_WEIGHTS) * K::lanes()).enumerate() {
            let numbers = piece * PASS_WEIGHTS..inner.min((piece + 1) * PASS_WEIGHTS);
            for (column, row) in columns.chunks_exact(inner.max(1)).enumerate() {
                K::pack_column(&row[numbers.clone()], column, panel);
            }
        }
    });
}

/// Computes `destination ← x·W` or `destination ← destination + x·W` on the calling thread. The result of a row does
/// not depend on other rows.
///
/// # Shapes
/// `x [rows, inner]`, `weights [inner, outer]`, `destination [rows, outer]`.
///
/// # Panics
/// Panics if the shapes do not match.
pub fn matmul<K: PackedFormat>(destination: &mut [f32], into: Update, x: MatrixView<'_, f32>, weights: &Panels<K>) {
    assert!(destination.len() == x.row_count() * weights.outer, "shape mismatch in a matrix product");
    let started = profile::start_timer();
    let rows = K::pack_rows(x);
    let height = x.row_count();
    assert!(x.column_count() == weights.inner, "shape mismatch in a matrix product");
    matmul_columns(destination, into, &rows, height, weights, 0..weights.outer);
    profile::stop_timer(started, 1);
}

/// Computes [`matmul`] for a few rows, with the columns distributed over rayon threads.
pub fn matmul_few_rows<K: PackedFormat>(
    destination: &mut [f32],
    into: Update,
    x: MatrixView<'_, f32>,
    weights: &Panels<K>,
) {
    let outer = weights.outer;
    let threads = rayon::current_num_threads();
    if threads == 1 || 2 * x.row_count() * x.column_count() * outer < MAX_SERIAL_OPERATIONS {
        return matmul(destination, into, x, weights);
    }
    assert!(
        destination.len() == x.row_count() * outer && x.column_count() == weights.inner,
        "shape mismatch in a matrix product"
    );
    let rows = K::pack_rows(x);
    let height = x.row_count();
    let width = outer.div_ceil(K::lanes()).div_ceil(threads) * K::lanes();
    let starts: Vec<usize> = (0..outer).step_by(width).collect();
    let parts: Vec<Vec<f32>> = starts
        .par_iter()
        .map(|&first| {
            let started = profile::start_timer();
            let range = first..outer.min(first + width);
            let mut part = match into {
                Update::Replace => vec![0.0; height * range.len()],
                Update::Add => destination.chunks_exact(outer).flat_map(|row| &row[range.clone()]).copied().collect(),
            };
            matmul_columns(&mut part, into, &rows, height, weights, range);
            profile::stop_timer(started, 1);
            part
        })
        .collect();
    for (first, part) in starts.into_iter().zip(parts) {
        let width = part.len() / height.max(1);
        for (row, part) in destination.chunks_exact_mut(outer).zip(part.chunks_exact(width.max(1))) {
            row[first..first + width].copy_from_slice(part);
        }
    }
}

/// Computes the columns `range` of a product, and stores them in `destination` or adds them to it.
///
/// # Shapes
/// `rows [height, inner]`, `destination [height, range.len()]`.
///
/// # Panics
/// Panics if the range does not start at a panel, or the length of `destination` is not `height * range.len()`.
pub fn matmul_columns<K: PackedFormat>(
    destination: &mut [f32],
    into: Update,
    rows: &K::Rows<'_>,
    height: usize,
    weights: &Panels<K>,
    range: Range<usize>,
) {
    let lanes = K::lanes();
    let width = range.len();
    assert!(range.start.is_multiple_of(lanes) && range.end <= weights.outer && destination.len() == height * width);
    if height == 0 {
        return;
    }
    let first = range.start / lanes;
    let panels = width / lanes;
    let adds = into == Update::Add;
    let out = PanelsOutput { numbers: destination, row_stride: width, panel_stride: lanes, adds };
    multiply_panels(rows, height, weights, first..first + panels, out);
    let rest = width % lanes;
    if rest == 0 {
        return;
    }
    // The last panel is wider than the remaining columns, so multiply into a temporary tile.
    let start = panels * lanes;
    let mut tile = vec![0.0; height * lanes];
    for (row, tile) in destination.chunks_exact(width).zip(tile.chunks_exact_mut(lanes)) {
        tile[..rest].copy_from_slice(&row[start..]);
    }
    let out = PanelsOutput { numbers: &mut tile, row_stride: lanes, panel_stride: lanes, adds };
    multiply_panels(rows, height, weights, first + panels..first + panels + 1, out);
    for (row, tile) in destination.chunks_exact_mut(width).zip(tile.chunks_exact(lanes)) {
        row[start..].copy_from_slice(&tile[..rest]);
    }
}

/// Computes the columns of the given panels, and stores them in `out` or adds them if `out.adds` is set.
///
/// # Shapes
/// `rows [height, inner]`
pub(super) fn multiply_panels<K: PackedFormat>(
    rows: &K::Rows<'_>,
    height: usize,
    weights: &Panels<K>,
    panels: Range<usize>,
    mut out: PanelsOutput<'_>,
) {
    if K::JOINS_PANELS {
        let words = Panels::<K>::panel_words(weights.inner);
        let words = &weights.words[panels.start * words..panels.end * words];
        return K::multiply_panels(rows, height, words, panels.len(), out);
    }
    let layout = [K::lanes(), out.row_stride];
    let sweep = K::sweep_depth(height, weights.inner).max(1);
    for first in (0..weights.inner.max(1)).step_by(sweep) {
        let adds = out.adds || first > 0;
        for panel in panels.clone() {
            let piece = PanelPiece {
                first,
                words: weights.piece(panel, first, sweep),
                next: match panel + 1 < panels.end {
                    true => weights.piece(panel + 1, first, sweep),
                    false => weights.piece(panels.start, first + sweep, sweep),
                },
            };
            K::multiply(rows, height, piece, TileOutput::new(out.at(0, panel - panels.start), layout, adds));
        }
    }
}

/// Returns the length of all pieces along `inner` except the last, which may be shorter.
pub(super) fn piece_depth(inner: usize) -> usize {
    inner.div_ceil(inner.div_ceil(MAX_PIECE_DEPTH).max(1)).max(1)
}
