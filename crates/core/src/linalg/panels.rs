//! Weights that stay while many rows are multiplied with them, laid out once as the kernels read them.
//!
//! A product that is given its matrices plain has to bring them into such a form each time, for each block of rows: a fifth of
//! its time. The sums are those of [`super::gemm`], to the bit: along `inner` in pieces of about 512 numbers, each summed
//! from zero by fused additions, and the pieces added.

use std::ops::Range;

use rayon::prelude::*;

use super::gemm::{MatrixView, Update, profile};
use super::simd;

/// Columns of a panel: two registers of 16.
pub(crate) const LANES: usize = 32;
/// Rows of a tile: with two registers of sums each they leave room for the panel's.
pub(crate) const ROWS: usize = 8;
/// Numbers along `inner` that are summed at once, at most.
const PIECE: usize = 512;
/// Operations of a product that is too small to be divided among threads.
const SMALL: usize = 1 << 21;

/// A kernel that is compiled for each number of rows that a tile may have, 1 to 8.
macro_rules! by_rows {
    ($rows:expr, $($kernel:ident)::+($($argument:expr),+)) => {
        match $rows {
            1 => $($kernel)::+::<1>($($argument),+),
            2 => $($kernel)::+::<2>($($argument),+),
            3 => $($kernel)::+::<3>($($argument),+),
            4 => $($kernel)::+::<4>($($argument),+),
            5 => $($kernel)::+::<5>($($argument),+),
            6 => $($kernel)::+::<6>($($argument),+),
            7 => $($kernel)::+::<7>($($argument),+),
            _ => $($kernel)::+::<8>($($argument),+),
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use by_rows;

/// Where the sums of a tile go, or are added: 32 columns of up to 8 rows whose starts lie `stride` apart.
pub(crate) struct TileOut<'a> {
    numbers: &'a mut [f32],
    stride: usize,
    /// Whether they are added to what stands there.
    pub(super) adds: bool,
}

impl<'a> TileOut<'a> {
    pub(super) fn new(numbers: &'a mut [f32], stride: usize, adds: bool) -> Self {
        Self { numbers, stride, adds }
    }

    /// The place of the first, and how far the rows are apart. Fewer than so many rows are a programming error and panic.
    pub(super) fn rows(&mut self, rows: usize) -> (*mut f32, usize) {
        let fits = rows == 0 || (rows - 1) * self.stride + LANES <= self.numbers.len();
        assert!(rows <= ROWS && LANES <= self.stride && fits, "a tile reaches past its slice");
        (self.numbers.as_mut_ptr(), self.stride)
    }

    /// The sums of one row, on any processor.
    pub(super) fn put(&mut self, row: usize, sums: &[f32; LANES]) {
        let out = &mut self.numbers[row * self.stride..][..LANES];
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = if self.adds { *out + sum } else { *sum });
    }
}

/// What weights are in, and how they are multiplied.
pub(crate) trait Kind: Sized {
    /// A number, or several that are multiplied at once.
    type Word: Copy + Default + Send + Sync;
    /// Rows, ready to be multiplied.
    type Rows<'x>: Sync;

    /// Words along `inner`.
    fn depth(inner: usize) -> usize;

    /// Numbers of a row of weights, from the first one of a word on, to one column of a panel.
    ///
    /// # Shapes
    /// `row [.. inner]`, `panel [depth of row, 32]`.
    fn lay(row: &[f32], column: usize, panel: &mut [Self::Word]);

    /// A number of a column.
    fn number(panel: &[Self::Word], k: usize, column: usize) -> f32;

    fn rows(x: MatrixView<'_, f32>) -> Self::Rows<'_>;

    /// Up to 8 rows, a `block` of them, with one panel.
    fn multiply(rows: &Self::Rows<'_>, block: Range<usize>, panel: &[Self::Word], out: TileOut<'_>);
}

/// Weights `[inner, outer]` in panels of 32 columns: `[outer / 32, depth of inner, 32]`. The last panel is filled up with
/// zeros.
pub(crate) struct Panels<K: Kind> {
    words: Vec<K::Word>,
    inner: usize,
    outer: usize,
}

impl<K: Kind> Panels<K> {
    /// Words of one panel.
    pub(crate) fn panel(inner: usize) -> usize {
        K::depth(inner) * LANES
    }

    /// Words of all panels.
    pub(crate) fn length(inner: usize, outer: usize) -> usize {
        Self::panel(inner) * outer.div_ceil(LANES)
    }

    /// Takes panels over. Another length than [`Self::length`] is a programming error and panics.
    pub(crate) fn new(words: Vec<K::Word>, inner: usize, outer: usize) -> Self {
        assert!(words.len() == Self::length(inner, outer), "panels of another matrix");
        Self { words, inner, outer }
    }

    /// Of rows `[inner, outer]`.
    pub(crate) fn of_rows(rows: &[f32], inner: usize, outer: usize) -> Self {
        let mut words = vec![K::Word::default(); Self::length(inner, outer)];
        for (panel, words) in words.chunks_exact_mut(Self::panel(inner).max(1)).enumerate() {
            for column in panel * LANES..outer.min((panel + 1) * LANES) {
                let numbers: Vec<f32> = rows.iter().skip(column).step_by(outer).copied().collect();
                K::lay(&numbers, column % LANES, words);
            }
        }
        Self::new(words, inner, outer)
    }

    /// `[inner, outer]`
    pub(crate) fn to_rows(&self) -> Vec<f32> {
        let of = |k: usize, column: usize| {
            let panel = &self.words[column / LANES * Self::panel(self.inner)..];
            K::number(panel, k, column % LANES)
        };
        (0..self.inner).flat_map(|k| (0..self.outer).map(move |column| of(k, column))).collect()
    }

    #[cfg(test)]
    pub(super) fn words(&self) -> &[K::Word] {
        &self.words
    }

    pub(crate) fn outer(&self) -> usize {
        self.outer
    }
}

/// Up to 32 columns `[columns, inner]` as one panel.
pub(crate) fn lay_panel<K: Kind>(columns: &[f32], inner: usize, panel: &mut [K::Word]) {
    // So many lines of the panel stay in the nearest cache until all columns are in them.
    const NEAR: usize = 64;
    simd::in_widest!({
        for (piece, panel) in panel.chunks_mut(K::depth(NEAR) * LANES).enumerate() {
            let numbers = piece * NEAR..inner.min((piece + 1) * NEAR);
            for (column, row) in columns.chunks_exact(inner.max(1)).enumerate() {
                K::lay(&row[numbers.clone()], column, panel);
            }
        }
    });
}

/// `destination ← x·W` or `destination ← destination + x·W`, on the calling thread. A row's result depends on no other row.
///
/// # Shapes
/// `x [rows, inner]`, `weights [inner, outer]`, `destination [rows, outer]`; others are a programming error and panic.
pub(crate) fn product<K: Kind>(destination: &mut [f32], into: Update, x: MatrixView<'_, f32>, weights: &Panels<K>) {
    assert!(destination.len() == x.height() * weights.outer, "a product of unlike shapes");
    let started = profile::start();
    let (rows, height) = (K::rows(x), x.height());
    assert!(x.width() == weights.inner, "a product of unlike shapes");
    columns(destination, into, &rows, height, weights, 0..weights.outer);
    profile::stop(started, 1);
}

/// The same of a few rows: their columns are divided among rayon's threads.
pub(crate) fn product_of_few<K: Kind>(
    destination: &mut [f32],
    into: Update,
    x: MatrixView<'_, f32>,
    weights: &Panels<K>,
) {
    let (outer, threads) = (weights.outer, rayon::current_num_threads());
    if threads == 1 || 2 * x.height() * x.width() * outer < SMALL {
        return product(destination, into, x, weights);
    }
    assert!(destination.len() == x.height() * outer && x.width() == weights.inner, "a product of unlike shapes");
    let (rows, height) = (K::rows(x), x.height());
    let width = outer.div_ceil(LANES).div_ceil(threads) * LANES;
    let starts: Vec<usize> = (0..outer).step_by(width).collect();
    let parts: Vec<Vec<f32>> = starts
        .par_iter()
        .map(|&first| {
            let (started, range) = (profile::start(), first..outer.min(first + width));
            let mut part = match into {
                Update::Replace => vec![0.0; height * range.len()],
                Update::Add => destination.chunks_exact(outer).flat_map(|row| &row[range.clone()]).copied().collect(),
            };
            columns(&mut part, into, &rows, height, weights, range);
            profile::stop(started, 1);
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

/// Some columns of a product, from the first one of a panel on.
///
/// # Shapes
/// `rows [height, inner]`, `destination [height, range]`.
pub(crate) fn columns<K: Kind>(
    destination: &mut [f32],
    into: Update,
    rows: &K::Rows<'_>,
    height: usize,
    weights: &Panels<K>,
    range: Range<usize>,
) {
    let width = range.len();
    assert!(range.start.is_multiple_of(LANES) && range.end <= weights.outer && destination.len() == height * width);
    let adds = into == Update::Add;
    let words = Panels::<K>::panel(weights.inner);
    for first in range.clone().step_by(LANES) {
        let panel = &weights.words[first / LANES * words..][..words];
        let (at, wide) = (first - range.start, LANES.min(range.end - first));
        for top in (0..height).step_by(ROWS) {
            let block = top..height.min(top + ROWS);
            let out = &mut destination[top * width..block.end * width];
            if wide == LANES {
                K::multiply(rows, block, panel, TileOut::new(&mut out[at..], width, adds));
                continue;
            }
            // The last panel is wider than what is left.
            let mut whole = [[0.0; LANES]; ROWS];
            for (row, whole) in out.chunks_exact(width).zip(&mut whole) {
                whole[..wide].copy_from_slice(&row[at..at + wide]);
            }
            K::multiply(rows, block, panel, TileOut::new(whole.as_flattened_mut(), LANES, adds));
            for (row, whole) in out.chunks_exact_mut(width).zip(&whole) {
                row[at..at + wide].copy_from_slice(&whole[..wide]);
            }
        }
    }
}

/// Numbers of a piece along `inner`: pieces are alike but for the last.
pub(super) fn piece(inner: usize) -> usize {
    inner.div_ceil(inner.div_ceil(PIECE).max(1)).max(1)
}
