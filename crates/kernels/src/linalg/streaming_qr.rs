//! Streaming least squares by QR decomposition. Unlike the normal equations, it does not square the condition number of
//! `X`.
//!
//! Only `R [C, C]` and `Z = QᵀY [C, C]` of the previous rows are kept. A block of new rows is appended below them and
//! rotated in, one panel of channels at a time. The reflections of a panel modify only the panel's rows of `R` and the
//! new rows, so the zeros below the diagonal of `R` cost no work.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::householder::{
    apply_block_householder_transpose_on_the_left_in_place_scratch as apply_scratch,
    apply_block_householder_transpose_on_the_left_in_place_with_conj as apply_transposed,
};
use faer::linalg::matmul::matmul;
use faer::linalg::qr::no_pivoting::factor::{qr_in_place, qr_in_place_scratch};
use faer::{Accum, Conj, Mat, MatMut, MatRef, Spec};
use rayon::prelude::*;

use super::solve::{all_threads, not_finite_error, require_finite};
use super::solve_error::{Result, SolveError};
use super::transpose::transpose;

/// Number of channels per panel. The reflections of a panel are applied to the other columns in one matrix product,
/// which has this inner dimension.
const PANEL_CHANNELS: usize = 128;
/// Bounds on the number of rows that are collected before they are rotated in. Within these bounds, a block has as many
/// rows as channels. Larger blocks are hardly faster. The upper bound keeps the working memory below that of `R` and
/// `Z` for large `C`.
const BLOCK_ROWS: std::ops::RangeInclusive<usize> = 256..=2048;

/// Running `R` and `QᵀY` of the QR decomposition of `X [rows, C]`.
pub struct StreamingQr {
    channels: usize,
    /// Number of pending rows that are rotated in at once.
    block: usize,
    /// `[R | Z] [C, 2C]`, column-major, with zeros below the diagonal of `R`.
    r_and_z: Vec<f64>,
    /// `[X | Y] [PANEL_CHANNELS + block, 2C]`, column-major: space for the kept rows of one panel, then the pending
    /// rows.
    workspace: Vec<f64>,
    pending_rows: usize,
    rows: usize,
}

/// Least-squares solution from the singular value decomposition of `X`.
#[derive(Debug)]
pub struct SvdSolution {
    /// `M [C, C]`, row-major. It has the minimum Frobenius norm among the minimizers of `‖X·M − Y‖` within the kept
    /// singular values.
    pub solution: Vec<f64>,
    /// Number of singular values kept.
    pub rank: usize,
    /// `σ₁ / σ_C` of `X`, including dropped values. Infinite if `σ_C` is zero within rounding, `C·ε·σ₁`.
    pub condition: f64,
}

impl StreamingQr {
    pub fn new(channels: usize) -> Self {
        let block = channels.clamp(*BLOCK_ROWS.start(), *BLOCK_ROWS.end());
        Self {
            channels,
            block,
            r_and_z: vec![0.0; channels * 2 * channels],
            workspace: vec![0.0; (PANEL_CHANNELS + block) * 2 * channels],
            pending_rows: 0,
            rows: 0,
        }
    }

    /// Adds rows `x` with right-hand sides `y`, in constant memory.
    ///
    /// # Shapes
    /// `x`, `y [rows, C]`.
    pub fn add(&mut self, x: &[f64], y: &[f64]) {
        let c = self.channels;
        assert!(
            x.len().is_multiple_of(c) && y.len() == x.len(),
            "`x` ({} elements) and `y` ({}) must have equally many rows of {c} channels",
            x.len(),
            y.len()
        );
        let mut x = x;
        let mut y = y;
        while !x.is_empty() {
            let stride = PANEL_CHANNELS + self.block;
            let take = (self.block - self.pending_rows).min(x.len() / c);
            let (work_x, work_y) = self.workspace.split_at_mut(stride * c);
            transpose(work_x, stride, PANEL_CHANNELS + self.pending_rows, &x[..take * c], c);
            transpose(work_y, stride, PANEL_CHANNELS + self.pending_rows, &y[..take * c], c);
            (x, y) = (&x[take * c..], &y[take * c..]);
            self.pending_rows += take;
            self.rows += take;
            if self.pending_rows == self.block {
                self.absorb_pending();
            }
        }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Computes `M = V·Σ⁺·Uᵀ·Z` with `R = U·Σ·Vᵀ`, dropping singular values `σ ≤ cutoff·σ₁`. More rows may be added
    /// later.
    ///
    /// A cutoff below `C·ε` is raised to `C·ε`, the rounding error. With fewer rows than channels, returns the
    /// minimum-norm solution.
    ///
    /// # Errors
    /// Fails if any value is not finite or the decomposition does not converge.
    pub fn solve(&mut self, cutoff: f64) -> Result<SvdSolution> {
        let c = self.channels;
        self.absorb_pending();
        let (r, z) = self.r_and_z.split_at(c * c);
        if r.par_iter().any(|v| !v.is_finite()) {
            return Err(not_finite_error("X of the least-squares system"));
        }
        let svd = MatRef::from_column_major_slice(r, c, c)
            .thin_svd()
            .map_err(|_| SolveError::NoSingularValues { rows: self.rows, channels: c })?;
        let values = svd.S().column_vector(); // descending
        let rounding = c as f64 * f64::EPSILON;
        let smallest = cutoff.max(rounding) * values[0];
        let rank = values.iter().filter(|&&value| value > smallest).count();
        let singular = values[c - 1] <= rounding * values[0];
        let condition = if singular { f64::INFINITY } else { values[0] / values[c - 1] };
        let z = MatRef::from_column_major_slice(z, c, c);
        let mut coefficients: Mat<f64> = svd.U().subcols(0, rank).transpose() * z; // [rank, C]
        for column in coefficients.col_iter_mut() {
            column.iter_mut().zip(values.iter()).for_each(|(v, value)| *v /= value);
        }
        let mut solution = vec![0.0; c * c];
        let destination = MatMut::from_row_major_slice_mut(&mut solution, c, c);
        matmul(destination, Accum::Replace, svd.V().subcols(0, rank), &coefficients, 1.0, all_threads());
        Ok(SvdSolution { solution: require_finite(solution)?, rank, condition })
    }

    /// Rotates the pending rows into `R` and `Z`.
    fn absorb_pending(&mut self) {
        if self.pending_rows == 0 {
            return;
        }
        let c = self.channels;
        let stride = PANEL_CHANNELS + self.block;
        for first in (0..c).step_by(PANEL_CHANNELS) {
            let width = PANEL_CHANNELS.min(c - first);
            let top = PANEL_CHANNELS - width..PANEL_CHANNELS;
            // Copy the panel's rows of [R | Z], starting at its first column, into the space above the pending rows.
            let columns = self.workspace[first * stride..].par_chunks_exact_mut(stride);
            columns.zip(self.r_and_z[first * c..].par_chunks_exact(c)).for_each(|(work, kept)| {
                work[top.clone()].copy_from_slice(&kept[first..first + width]);
            });
            let height = width + self.pending_rows;
            let work = &mut self.workspace[first * stride + top.start..];
            let work = MatMut::from_column_major_slice_with_stride_mut(work, height, 2 * c - first, stride);
            let (mut panel, rest) = work.split_at_col_mut(width); // [height, width], [height, 2C − first − width]
            apply_householder(panel.as_mut(), rest);
            let columns = self.workspace[first * stride..].par_chunks_exact(stride);
            self.r_and_z[first * c..].par_chunks_exact_mut(c).zip(columns).enumerate().for_each(
                |(column, (kept, work))| {
                    // Skip the elements below the panel's diagonal, which contain its reflections.
                    let high = width.min(column + 1);
                    kept[first..first + high].copy_from_slice(&work[top.start..top.start + high]);
                },
            );
        }
        self.pending_rows = 0;
    }
}

/// Triangularizes `panel [height, width]`, `height > width`, by Householder reflections, and applies them to
/// `rest [height, ..]`.
fn apply_householder(mut panel: MatMut<'_, f64>, rest: MatMut<'_, f64>) {
    let (height, width) = panel.shape();
    let mut coefficients = Mat::zeros(width, width);
    let scratch = qr_in_place_scratch::<f64>(height, width, width, all_threads(), Spec::default());
    let scratch = scratch.or(apply_scratch::<f64>(height, width, rest.ncols()));
    let mut memory = MemBuffer::new(scratch);
    let stack = MemStack::new(&mut memory);
    qr_in_place(panel.as_mut(), coefficients.as_mut(), all_threads(), stack, Spec::default());
    apply_transposed(panel.as_ref(), coefficients.as_ref(), Conj::No, rest, all_threads(), stack);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::solve::NormalEquations;

    /// Returns deterministic numbers between −1 and 1.
    fn random(count: usize, seed: u64) -> Vec<f64> {
        let mut state = seed;
        let mut numbers = Vec::with_capacity(count);
        for _ in 0..count {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            numbers.push((state >> 33) as f64 / f64::from(1 << 30) - 1.0);
        }
        numbers
    }

    /// Computes `a [rows, inner] · b [inner, columns]`.
    fn product(a: &[f64], b: &[f64], inner: usize, columns: usize) -> Vec<f64> {
        a.chunks(inner)
            .flat_map(|row| {
                (0..columns).map(move |j| row.iter().enumerate().map(|(i, v)| v * b[i * columns + j]).sum())
            })
            .collect()
    }

    fn difference(a: &[f64], b: &[f64]) -> f64 {
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    }

    fn norm(values: &[f64]) -> f64 {
        values.iter().map(|v| v * v).sum::<f64>().sqrt()
    }

    /// Solves the system by QR and accumulates its normal equations, from the same blocks of rows.
    fn solve_both_ways(x: &[f64], y: &[f64], c: usize) -> (SvdSolution, NormalEquations) {
        let mut tall = StreamingQr::new(c);
        let mut normal = NormalEquations::new(c);
        for (x, y) in x.chunks(c * 97).zip(y.chunks(c * 97)) {
            tall.add(x, y);
            normal.add(x, y);
        }
        assert_eq!((tall.rows(), normal.rows()), (x.len() / c, x.len() / c));
        (tall.solve(1e-6).unwrap(), normal)
    }

    #[test]
    fn streaming_qr_recovers_a_known_map() {
        for (c, rows) in [(1, 5), (3, 3), (PANEL_CHANNELS, 700), (PANEL_CHANNELS + 22, 1000), (300, 300)] {
            let x = random(rows * c, 1);
            let map = random(c * c, 2);
            let (svd, _) = solve_both_ways(&x, &product(&x, &map, c, c), c);
            assert_eq!(svd.rank, c);
            let error = difference(&svd.solution, &map);
            assert!(error < 1e-9 * svd.condition, "{rows} rows of {c} channels: {error:e}");
        }
    }

    #[test]
    fn qr_and_normal_equations_agree_at_full_rank() {
        for (c, rows) in [(2, 40), (64, 500), (PANEL_CHANNELS + 40, 900)] {
            let x = random(rows * c, 3);
            let y = random(rows * c, 4);
            let (svd, normal) = solve_both_ways(&x, &y, c);
            let solved = normal.solve(0.0).unwrap();
            let minimum = normal.solve_minimum_norm().unwrap();
            assert_eq!((svd.rank, minimum.rank), (c, c));
            assert!(difference(&svd.solution, &solved) < 1e-11, "{c}: Cholesky");
            assert!(difference(&svd.solution, &minimum.solution) < 1e-11, "{c}: eigenvalues");
            let spectrum = normal.spectrum().unwrap();
            assert!(spectrum.rank == c && (spectrum.condition / svd.condition - 1.0).abs() < 1e-9, "{spectrum:?}");
        }
    }

    /// Asserts that both solvers find the minimum-norm solution and the given rank. The solution must be orthogonal to
    /// the `blind` directions, like all rows of `X`.
    fn assert_minimum_norm(x: &[f64], y: &[f64], c: usize, rank: usize, blind: &[Vec<f64>]) {
        let (svd, normal) = solve_both_ways(x, y, c);
        let minimum = normal.solve_minimum_norm().unwrap();
        assert!(normal.solve(0.0).is_err() || normal.spectrum().unwrap().rank < c);
        assert_eq!((svd.rank, minimum.rank, normal.spectrum().unwrap().rank), (rank, rank, rank));
        assert!(svd.condition > 1e12 && normal.spectrum().unwrap().condition.is_infinite(), "{}", svd.condition);
        for (name, solution) in [("svd", &svd.solution), ("eigenvalues", &minimum.solution)] {
            let scale = norm(solution);
            for direction in blind {
                let along = norm(&product(direction, solution, c, c));
                assert!(along <= 1e-8 * scale, "{name}: {along:e} of {scale:e} along a direction where X is zero");
            }
            // The normal equations hold: XᵀX·M = XᵀY.
            let mut residual = product(x, solution, c, c);
            residual.iter_mut().zip(y).for_each(|(r, y)| *r -= y);
            let mut columns = vec![0.0; x.len()];
            transpose(&mut columns, x.len() / c, 0, x, c);
            let gradient = norm(&product(&columns, &residual, x.len() / c, c));
            assert!(gradient <= 1e-7 * norm(x) * norm(y), "{name}: gradient {gradient:e}");
        }
        assert!(difference(&svd.solution, &minimum.solution) < 1e-7 * norm(&svd.solution));
    }

    #[test]
    fn underdetermined_system_yields_minimum_norm_solution() {
        for (c, rows) in [(5, 2), (64, 30), (PANEL_CHANNELS + 30, PANEL_CHANNELS + 10)] {
            let x = random(rows * c, 5);
            let y = random(rows * c, 6);
            // A direction orthogonal to all rows: a random vector minus its projection onto the row space.
            let mut tall = StreamingQr::new(c);
            let mut blind = random(c, 7);
            let mut columns = vec![0.0; c * c];
            for (i, row) in x.chunks(c).enumerate() {
                columns[i * c..(i + 1) * c].copy_from_slice(row);
            }
            let projector = {
                tall.add(&columns, &columns);
                tall.solve(1e-9).unwrap().solution // X⁺X
            };
            let seen = product(&blind, &projector, c, c);
            blind.iter_mut().zip(seen).for_each(|(b, s)| *b -= s);
            assert!(norm(&blind) > 0.1);
            assert_minimum_norm(&x, &y, c, rows, &[blind]);
        }
    }

    #[test]
    fn zero_and_duplicate_channels_yield_minimum_norm_solution() {
        let c = PANEL_CHANNELS + 50;
        let rows = 700;
        for (silent, doubled) in [
            (0, (3, 4)),
            (5, (1, c - 1)),
            (c - 1, (PANEL_CHANNELS - 1, PANEL_CHANNELS)),
            (PANEL_CHANNELS, (0, PANEL_CHANNELS + 1)),
        ] {
            let mut x = random(rows * c, 8);
            let y = random(rows * c, 9);
            for row in x.chunks_exact_mut(c) {
                row[silent] = 0.0;
                row[doubled.1] = row[doubled.0];
            }
            let blind = [unit_row(silent, None, c), unit_row(doubled.0, Some(doubled.1), c)];
            assert_minimum_norm(&x, &y, c, c - 2, &blind);
        }
    }

    fn unit_row(channel: usize, opposite: Option<usize>, c: usize) -> Vec<f64> {
        (0..c)
            .map(|i| {
                if i == channel {
                    1.0
                } else if Some(i) == opposite {
                    -1.0
                } else {
                    0.0
                }
            })
            .collect()
    }

    #[test]
    fn singular_values_up_to_the_cutoff_are_dropped() {
        // X = diag(1, 1e-3, 1e-7). The singular values are the diagonal, and each channel is solved separately.
        let x = [1.0, 0.0, 0.0, 0.0, 1e-3, 0.0, 0.0, 0.0, 1e-7];
        for (cutoff, rank) in [(1e-6, 2), (1e-2, 1), (0.0, 3)] {
            let mut tall = StreamingQr::new(3);
            tall.add(&x, &x);
            let svd = tall.solve(cutoff).unwrap();
            assert!(svd.rank == rank && (svd.condition / 1e7 - 1.0).abs() < 1e-6, "{svd:?}");
            let expected: Vec<f64> =
                (0..9).map(|index| if index % 4 == 0 && index / 4 < rank { 1.0 } else { 0.0 }).collect();
            assert!(difference(&svd.solution, &expected) < 1e-9, "{svd:?}");
        }
    }

    #[test]
    fn rows_can_be_added_after_solving() {
        let x = random(20 * 4, 10);
        let y = random(20 * 4, 11);
        let mut all = StreamingQr::new(4);
        let mut parts = StreamingQr::new(4);
        all.add(&x, &y);
        parts.add(&x[..40], &y[..40]);
        parts.solve(0.0).unwrap();
        parts.add(&x[40..], &y[40..]);
        assert!(difference(&all.solve(0.0).unwrap().solution, &parts.solve(0.0).unwrap().solution) < 1e-12);
    }

    #[test]
    fn zero_rows_have_rank_zero_and_a_zero_solution() {
        let mut tall = StreamingQr::new(2);
        assert_eq!(tall.solve(0.0).unwrap().rank, 0);
        tall.add(&[0.0; 6], &[1.0; 6]);
        let svd = tall.solve(0.0).unwrap();
        assert_eq!((svd.rank, svd.solution), (0, vec![0.0; 4]));
        let mut normal = NormalEquations::new(2);
        normal.add(&[0.0; 6], &[1.0; 6]);
        assert_eq!(normal.solve_minimum_norm().unwrap().solution, [0.0; 4]);
    }

    #[test]
    fn nonfinite_values_are_rejected() {
        for (x, y) in [(f64::NAN, 1.0), (1.0, f64::INFINITY)] {
            let mut tall = StreamingQr::new(2);
            tall.add(&[x, 0.0, 2.0, 1.0, 3.0, 7.0], &[y; 6]);
            assert!(tall.solve(0.0).is_err());
        }
    }
}
