//! Normal equations in f64, accumulated block by block. They are solved by Cholesky factorization, or by
//! eigendecomposition if they are singular.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt;
use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par, Side, Spec};
use rayon::prelude::*;

use super::gemm::{MatrixView, MatrixViewMut, Update, gemm_parallel, gram_parallel};
use super::solve_error::{Result, SolveError};
use super::spectrum::{self, Spectrum, dot};
use super::transpose::transpose;

/// Number of f32 rows per block that is converted to f64: large enough for full speed, small enough to need little
/// memory.
const CONVERTED_ROWS: usize = 1024;
/// Maximum order for which all eigenvalues are always computed, which takes less than a second. For larger systems,
/// only the extreme eigenvalues are computed if they suffice.
const MAX_FULL_ORDER: usize = 512;

/// Running sums `XᵀX` and `XᵀY` over rows.
pub struct NormalEquations {
    pub(super) channels: usize,
    /// Upper triangle of `XᵀX [C, C]`, row-major. Elements below the diagonal are unspecified.
    pub(super) gram: Vec<f64>,
    /// `YᵀX [C, C]`, i.e. `XᵀY` in column-major order, which is fast for triangular solves.
    pub(super) cross: Vec<f64>,
    pub(super) rows: usize,
    /// Squared norm of the f32 values from which `X` was computed, or 0 if `X` itself consists of f32 values.
    pub(super) source_squared_norm: f64,
}

/// Minimum-norm solution of a system that may be singular.
#[derive(Debug)]
pub struct MinimumNormSolution {
    /// `M [C, C]`, row-major.
    pub solution: Vec<f64>,
    /// Rank of `X`, i.e. the number of eigenvalues of `XᵀX` that were kept.
    pub rank: usize,
}

/// Cholesky factorization `XᵀX + ridge·I = L·Lᵀ`. The solution and the spectrum can be computed from the same
/// factorization.
pub struct CholeskyFactor<'a> {
    normal: &'a NormalEquations,
    ridge: f64,
    /// `L [C, C]`, column-major. Elements above the diagonal are unspecified.
    lower: Vec<f64>,
}

impl NormalEquations {
    pub fn new(channels: usize) -> Self {
        Self {
            channels,
            gram: vec![0.0; channels * channels],
            cross: vec![0.0; channels * channels],
            rows: 0,
            source_squared_norm: 0.0,
        }
    }

    /// Declares that `X` was computed from f32 numbers with this squared norm, for example as hidden states minus their
    /// mean. Directions of `X` below the rounding error of these numbers are ignored.
    pub fn set_source_squared_norm(&mut self, squared_norm: f64) {
        self.source_squared_norm = squared_norm;
    }

    /// Returns the cutoff up to which an eigenvalue counts as zero. `greatest` is the largest eigenvalue.
    fn rank_cutoff(&self, greatest: f64) -> f64 {
        let trace: f64 = self.gram.iter().step_by(self.channels + 1).sum();
        spectrum::rank_cutoff(self.channels, greatest, trace.max(self.source_squared_norm))
    }

    /// Adds rows `x` with right-hand sides `y`.
    ///
    /// # Shapes
    /// `x`, `y [rows, C]`.
    pub fn add(&mut self, x: &[f64], y: &[f64]) {
        let c = self.channels;
        let rows = x.len() / self.channels;
        assert!(
            x.len() == rows * c && y.len() == x.len(),
            "`x` ({} elements) and `y` ({}) must have equally many rows of {c} channels",
            x.len(),
            y.len()
        );
        gram_parallel(&mut self.gram, x, c);
        gemm_parallel(
            MatrixViewMut::rows(&mut self.cross, c, c),
            Update::Add,
            MatrixView::rows(y, rows, c).t(),
            MatrixView::rows(x, rows, c),
        );
        self.rows += rows;
    }

    /// Adds rows `x` with right-hand sides `y − x`, which are computed in f64.
    ///
    /// # Shapes
    /// `x`, `y [rows, C]`.
    pub fn add_difference(&mut self, x: &[f32], y: &[f32]) {
        let chunk = CONVERTED_ROWS * self.channels;
        let mut converted = (vec![0.0f64; chunk.min(x.len())], vec![0.0f64; chunk.min(x.len())]);
        for (x, y) in x.chunks(chunk).zip(y.chunks(chunk)) {
            let wide_x = &mut converted.0[..x.len()];
            let difference = &mut converted.1[..x.len()];
            let pieces = wide_x.par_chunks_mut(CONVERTED_ROWS).zip(difference.par_chunks_mut(CONVERTED_ROWS));
            pieces.zip(x.par_chunks(CONVERTED_ROWS).zip(y.par_chunks(CONVERTED_ROWS))).for_each(
                |((wide_x, difference), (x, y))| {
                    for (((wide_x, difference), &x), &y) in wide_x.iter_mut().zip(difference).zip(x).zip(y) {
                        *wide_x = f64::from(x);
                        *difference = f64::from(y) - f64::from(x);
                    }
                },
            );
            self.add(wide_x, difference);
        }
    }

    /// Adds sums over `rows` rows that were computed elsewhere.
    ///
    /// # Shapes
    /// `gram = XᵀX [C, C]` (only the upper triangle is read), `cross = YᵀX [C, C]`.
    pub fn add_sums(&mut self, gram: &[f64], cross: &[f64], rows: usize) {
        assert!(
            gram.len() == self.gram.len() && cross.len() == self.cross.len(),
            "channel count mismatch between sums"
        );
        self.gram.iter_mut().zip(gram).for_each(|(sum, v)| *sum += v);
        self.cross.iter_mut().zip(cross).for_each(|(sum, v)| *sum += v);
        self.rows += rows;
    }

    /// Returns the number of channels `C`.
    pub fn channels(&self) -> usize {
        self.channels
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Solves `(XᵀX + ridge·I)·M = XᵀY` for `M`, `[C, C]` row-major.
    ///
    /// # Errors
    /// Fails in the same cases as [`NormalEquations::factor`] and [`CholeskyFactor::solve`].
    pub fn solve(&self, ridge: f64) -> Result<Vec<f64>> {
        self.factor(ridge)?.solve()
    }

    /// Computes the Cholesky factor of `XᵀX + ridge·I`.
    ///
    /// # Errors
    /// Fails if values are not finite or if the matrix is not positive definite in f64. Typical causes are too few rows
    /// and dead or duplicate channels.
    pub fn factor(&self, ridge: f64) -> Result<CholeskyFactor<'_>> {
        let c = self.channels;
        self.check_finite()?;
        // A row-major upper triangle of a symmetric matrix is also its column-major lower triangle.
        let mut lower = self.gram.clone();
        lower.iter_mut().step_by(c + 1).for_each(|v| *v += ridge);
        let mut memory =
            MemBuffer::new(llt::factor::cholesky_in_place_scratch::<f64>(c, all_threads(), Spec::default()));
        llt::factor::cholesky_in_place(
            MatMut::from_column_major_slice_mut(&mut lower, c, c),
            llt::factor::LltRegularization::default(),
            all_threads(),
            MemStack::new(&mut memory),
            Spec::default(),
        )
        .map_err(|_| SolveError::Singular { rows: self.rows, channels: c, ridge })?;
        Ok(CholeskyFactor { normal: self, ridge, lower })
    }

    /// Computes the `M` of minimum Frobenius norm that minimizes `‖X·M − Y‖`, i.e. the pseudo-inverse of `XᵀX` times
    /// `XᵀY`.
    ///
    /// Eigenvalues of `XᵀX` that may be rounding errors are dropped. They are the squares of the singular values `σ` of
    /// `X`. Summation in f64 loses singular values below 1.2e-7·σ₁ (up to C = 64) to 9.5e-7·σ₁ (C = 4096). If `X`
    /// derives from f32 numbers, values below 4.8e-7 of their total norm are lost too
    /// ([`NormalEquations::set_source_squared_norm`]).
    ///
    /// # Errors
    /// Fails if the sums are not finite or the eigendecomposition does not converge.
    pub fn solve_minimum_norm(&self) -> Result<MinimumNormSolution> {
        let c = self.channels;
        self.check_finite()?;
        let eigen = self.gram_view().self_adjoint_eigen(Side::Lower).map_err(|_| self.eigenvalue_error())?;
        let values = eigen.S().column_vector();
        let vectors = eigen.U();
        let cutoff = self.rank_cutoff(values[c - 1]);
        let rank = values.iter().filter(|&&value| value > cutoff).count();
        // Eigenvalues are ascending, so the kept ones are last. M = U·Λ⁻¹·Uᵀ·(XᵀY).
        let retained = vectors.subcols(c - rank, rank); // [C, rank]
        let mut coefficients = retained.transpose() * MatRef::from_column_major_slice(&self.cross, c, c); // [rank, C]
        for column in coefficients.col_iter_mut() {
            column.iter_mut().zip(values.iter().skip(c - rank)).for_each(|(v, value)| *v /= value);
        }
        let mut solution = vec![0.0; c * c];
        let destination = MatMut::from_row_major_slice_mut(&mut solution, c, c);
        matmul(destination, Accum::Replace, retained, &coefficients, 1.0, all_threads());
        Ok(MinimumNormSolution { solution: require_finite(solution)?, rank })
    }

    /// Computes the rank and condition number of `X`.
    ///
    /// Above a condition number of 8e6 (up to C = 64) to 1e6 (C = 4096), the smallest squares are lost to rounding, and
    /// `X` appears rank-deficient ([`NormalEquations::solve_minimum_norm`]). Below this limit, the relative error of
    /// the condition number is about 1e-16 times its square. For C > 512, only the extreme eigenvalues are computed,
    /// which usually adds a relative error of 1e-4. At C = 4096, the mean error is below 0.3 %. If these eigenvalues
    /// indicate a singular matrix, all eigenvalues are computed, which takes many times longer.
    ///
    /// # Errors
    /// Fails in the same cases as [`NormalEquations::solve_minimum_norm`].
    pub fn spectrum(&self) -> Result<Spectrum> {
        self.check_finite()?;
        if self.channels > MAX_FULL_ORDER
            && let Ok(factor) = self.factor(0.0)
        {
            return factor.spectrum();
        }
        self.compute_full_spectrum()
    }

    fn compute_full_spectrum(&self) -> Result<Spectrum> {
        let values = self.gram_view().self_adjoint_eigenvalues(Side::Lower).map_err(|_| self.eigenvalue_error())?;
        let cutoff = self.rank_cutoff(values.last().copied().unwrap_or(0.0));
        Ok(Spectrum::from_squares(&values, cutoff))
    }

    /// Returns a view of `XᵀX`. Only its lower triangle is valid.
    pub(super) fn gram_view(&self) -> MatRef<'_, f64> {
        MatRef::from_column_major_slice(&self.gram, self.channels, self.channels)
    }

    /// Checks that the diagonal of `XᵀX` is finite. Any nonfinite value of `X` makes a diagonal element nonfinite.
    fn check_finite(&self) -> Result<()> {
        match self.gram.iter().step_by(self.channels + 1).position(|v| !v.is_finite()) {
            Some(channel) => Err(not_finite_error(&format!("channel {channel} of X"))),
            None => Ok(()),
        }
    }

    pub(super) fn eigenvalue_error(&self) -> SolveError {
        SolveError::NoEigenvalues { rows: self.rows, channels: self.channels }
    }
}

impl CholeskyFactor<'_> {
    /// Solves `(XᵀX + ridge·I)·M = XᵀY` for `M`, `[C, C]` row-major.
    ///
    /// # Errors
    /// Fails if the solution is not finite.
    pub fn solve(&self) -> Result<Vec<f64>> {
        let c = self.normal.channels;
        let mut columns = self.normal.cross.clone(); // the columns of XᵀY, then of M
        llt::solve::solve_in_place(
            MatRef::from_column_major_slice(&self.lower, c, c),
            MatMut::from_column_major_slice_mut(&mut columns, c, c),
            all_threads(),
            MemStack::new(&mut MemBuffer::new(llt::solve::solve_in_place_scratch::<f64>(c, c, all_threads()))),
        );
        let mut solution = vec![0.0; c * c];
        transpose(&mut solution, c, 0, &columns, c);
        require_finite(solution)
    }

    /// Computes [`NormalEquations::spectrum`] with this factorization.
    ///
    /// # Errors
    /// Fails in the same cases as [`NormalEquations::solve_minimum_norm`].
    pub fn spectrum(&self) -> Result<Spectrum> {
        let c = self.normal.channels;
        if c <= MAX_FULL_ORDER {
            return self.normal.compute_full_spectrum();
        }
        let greatest = spectrum::largest_eigenvalue(c, |x, y| self.multiply(x, y)) - self.ridge;
        let smallest = 1.0 / spectrum::largest_eigenvalue(c, |x, y| self.solve_vector(x, y)) - self.ridge;
        if smallest > self.normal.rank_cutoff(greatest) && smallest > self.ridge {
            return Ok(Spectrum { rank: c, condition: (greatest / smallest).sqrt() });
        }
        // A ridge above the smallest eigenvalue hides this eigenvalue. Without the ridge, it may be above the rounding
        // error.
        if self.ridge > 0.0 { self.normal.spectrum() } else { self.normal.compute_full_spectrum() }
    }

    /// Returns column `j` of `L`, starting at the diagonal element, `[C − j]`.
    fn column(&self, j: usize) -> &[f64] {
        let c = self.normal.channels;
        &self.lower[j * c + j..(j + 1) * c]
    }

    /// Computes `y ← L·Lᵀ·x`.
    fn multiply(&self, x: &[f64], y: &mut [f64]) {
        y.fill(0.0);
        for j in 0..x.len() {
            let column = self.column(j);
            let along = dot(column, &x[j..]);
            y[j..].iter_mut().zip(column).for_each(|(y, l)| *y += along * l);
        }
    }

    /// Computes `y ← (L·Lᵀ)⁻¹·x`.
    fn solve_vector(&self, x: &[f64], y: &mut [f64]) {
        y.copy_from_slice(x);
        for j in 0..x.len() {
            let column = self.column(j);
            y[j] /= column[0];
            let found = y[j];
            y[j + 1..].iter_mut().zip(&column[1..]).for_each(|(y, l)| *y -= found * l);
        }
        for j in (0..x.len()).rev() {
            let column = self.column(j);
            y[j] = (y[j] - dot(&column[1..], &y[j + 1..])) / column[0];
        }
    }
}

/// Returns the solution if it is finite, which implies that `Y` is finite.
pub(super) fn require_finite(solution: Vec<f64>) -> Result<Vec<f64>> {
    if solution.par_iter().all(|v| v.is_finite()) {
        return Ok(solution);
    }
    Err(not_finite_error("the least-squares solution"))
}

pub(super) fn not_finite_error(matrix: &str) -> SolveError {
    SolveError::NotFinite(matrix.to_owned())
}

/// Returns the faer setting that uses all rayon threads.
pub(super) fn all_threads() -> Par {
    Par::rayon(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_equations_recover_a_known_map() {
        let map = [2.0, -1.0, 0.5, 3.0]; // [2, 2]
        let x: Vec<f64> = (0..20).map(|i| f64::from(i * i % 7) - 3.0).collect(); // [10, 2]
        let y: Vec<f64> =
            x.chunks(2).flat_map(|r| [r[0] * map[0] + r[1] * map[2], r[0] * map[1] + r[1] * map[3]]).collect();
        let mut normal = NormalEquations::new(2);
        normal.add(&x[..8], &y[..8]);
        normal.add(&x[8..], &y[8..]);
        let found = normal.solve(0.0).unwrap();
        assert!(found.iter().zip(map).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
        assert_eq!(normal.rows(), 10);
    }

    #[test]
    fn f32_rows_yield_the_same_solution_as_f64_rows() {
        let x: Vec<f32> = (0..3 * 2500).map(|i| (i as f32 * 0.7).sin()).collect(); // [2500, 3]
        let y: Vec<f32> = x.iter().map(|v| v * 1.5 + 1e-5).collect();
        let difference: Vec<f64> = to_f64(&y).iter().zip(to_f64(&x)).map(|(y, x)| y - x).collect();
        let mut one = NormalEquations::new(3);
        let mut other = NormalEquations::new(3);
        one.add_difference(&x, &y);
        other.add(&to_f64(&x), &difference);
        assert_eq!(one.rows(), 2500);
        for (a, b) in one.solve(0.0).unwrap().iter().zip(other.solve(0.0).unwrap()) {
            assert!((a - b).abs() < 1e-12, "{a} {b}");
        }
    }

    fn to_f64(v: &[f32]) -> Vec<f64> {
        v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>()
    }

    #[test]
    fn singular_system_error_states_rows_channels_and_ridge() {
        let mut normal = NormalEquations::new(3);
        normal.add(&[1.0, 2.0, 3.0], &[0.0, 0.0, 0.0]);
        let expected = SolveError::Singular { rows: 1, channels: 3, ridge: 0.0 };
        assert_eq!(normal.solve(0.0).unwrap_err(), expected);
    }

    #[test]
    fn nonfinite_values_fail_in_every_solver() {
        for (x, y) in [(f64::NAN, 1.0), (1.0, f64::INFINITY)] {
            let mut normal = NormalEquations::new(2);
            normal.add(&[x, 0.0, 2.0, 1.0, 3.0, 7.0], &[y; 6]);
            assert!(normal.solve(0.0).is_err());
            assert!(normal.solve_minimum_norm().is_err());
        }
    }

    #[test]
    fn condition_number_is_ratio_of_extreme_eigenvalues() {
        // One block of random rows, with channel scales from 1 to 1e-4.
        let c = MAX_FULL_ORDER + 40;
        let mut state = 7u64;
        let x: Vec<f64> = (0..2 * c * c)
            .map(|index| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 33) as f64 / f64::from(1 << 31) - 0.5) * 10f64.powf(-4.0 * (index % c) as f64 / c as f64)
            })
            .collect();
        let mut normal = NormalEquations::new(c);
        normal.add(&x, &x);
        let full = normal.compute_full_spectrum().unwrap();
        let quick = normal.spectrum().unwrap();
        assert!((quick.rank, full.rank) == (c, c) && full.condition > 1e4);
        assert!((quick.condition / full.condition - 1.0).abs() < 1e-3, "{quick:?} {full:?}");
        // The ridge does not affect the result, whether it is below or above the smallest eigenvalue.
        for ridge in [1e-9, 1e-3] {
            let with_ridge = normal.factor(ridge).unwrap().spectrum().unwrap();
            assert!((with_ridge.condition / full.condition - 1.0).abs() < 1e-3, "{ridge:e}: {with_ridge:?} {full:?}");
        }
    }
}
