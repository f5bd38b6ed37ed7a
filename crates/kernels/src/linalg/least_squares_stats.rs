//! Statistics of normal equations: the error of a linear map, the best low-rank map, and canonical correlations.

use faer::{MatRef, Side};

use super::gemm::{MatrixView, MatrixViewMut, Update, gemm_parallel};
use super::solve::NormalEquations;
use super::solve_error::Result;
use super::transpose::transpose;

/// Low-rank linear map as two row-major factors, `down [C, r]` and `up [r, C]`.
#[derive(Debug)]
pub struct LowRankFactors {
    pub down: Vec<f64>,
    pub up: Vec<f64>,
    /// Fraction of the squared norm of the full map's output that the low-rank map keeps, `‖X·M_r‖² / ‖X·M‖²` including
    /// the ridge.
    pub fraction: f64,
}

impl NormalEquations {
    /// Adds the sums of another system with the same number of channels.
    pub fn merge(&mut self, other: &Self) {
        self.add_sums(&other.gram, &other.cross, other.rows);
        self.source_squared_norm += other.source_squared_norm;
    }

    /// Returns the mean eigenvalue of `XᵀX`, i.e. its trace divided by `C`.
    pub fn mean_eigenvalue(&self) -> f64 {
        self.gram.iter().step_by(self.channels + 1).sum::<f64>() / self.channels as f64
    }

    /// Computes `‖X·M − Y‖² − ‖Y‖² = tr(MᵀXᵀX·M) − 2·tr(MᵀXᵀY)`. Lower is better.
    ///
    /// # Shapes
    /// `map [C, C]`, row-major.
    pub fn loss_change(&self, map: &[f64]) -> f64 {
        let c = self.channels;
        let mut image = vec![0.0; c * c]; // XᵀX·M
        // Mirror the upper triangle, because `self.gram` does not store the lower one.
        let gram = (0..c * c)
            .map(|index| self.gram[(index / c).min(index % c) * c + (index / c).max(index % c)])
            .collect::<Vec<f64>>();
        let view = MatrixView::rows(map, c, c);
        gemm_parallel(MatrixViewMut::rows(&mut image, c, c), Update::Replace, MatrixView::rows(&gram, c, c), view);
        let square: f64 = map.iter().zip(&image).map(|(m, g)| m * g).sum();
        square - 2.0 * (0..c).map(|i| (0..c).map(|j| map[i * c + j] * self.cross[j * c + i]).sum::<f64>()).sum::<f64>()
    }

    /// Computes the linear map of rank `rank` that best approximates the solution `M = (XᵀX + λI)⁻¹XᵀY`.
    ///
    /// With `G = XᵀX + λI = L·Lᵀ`, the ridge loss of any map `N` is `tr((N − M)ᵀG(N − M)) = ‖Lᵀ(N − M)‖²` plus a
    /// constant. By Eckart and Young, the best `LᵀN` is `LᵀM` truncated to its largest singular values. This is
    /// `LᵀM·V·Vᵀ` with the first right singular vectors `V [C, r]`, so `N = (M·V)·Vᵀ`. `V` are eigenvectors of
    /// `(LᵀM)ᵀLᵀM = MᵀG·M = MᵀXᵀY`, so no factorization of `G` is needed.
    ///
    /// # Errors
    /// Fails if the eigendecomposition does not converge.
    pub fn low_rank_approximation(&self, map: &[f64], rank: usize) -> Result<LowRankFactors> {
        let c = self.channels;
        let mut common = vec![0.0; c * c]; // YᵀX·M, symmetric within rounding
        let view = MatrixView::rows(map, c, c);
        gemm_parallel(
            MatrixViewMut::rows(&mut common, c, c),
            Update::Replace,
            MatrixView::rows(&self.cross, c, c),
            view,
        );
        let eigen = MatRef::from_column_major_slice(&common, c, c)
            .self_adjoint_eigen(Side::Lower)
            .map_err(|_| self.eigenvalue_error())?;
        let values = eigen.S().column_vector();
        let vectors = eigen.U();
        // Eigenvalues are ascending, so the largest are last.
        let retained = vectors.subcols(c - rank, rank); // [C, r]
        let up: Vec<f64> = (0..rank).flat_map(|r| (0..c).map(move |i| (r, i))).map(|(r, i)| retained[(i, r)]).collect();
        let mut down = vec![0.0; c * rank];
        let right = MatrixView::rows(&up, rank, c).t();
        gemm_parallel(MatrixViewMut::rows(&mut down, c, rank), Update::Replace, view, right);
        let fraction =
            sum_positive(&mut values.iter().skip(c - rank).copied()) / sum_positive(&mut values.iter().copied());
        Ok(LowRankFactors { down, up, fraction })
    }

    /// Computes the sum of squared canonical correlations of `X` and `Y`, which must both have mean zero. `gram_y` is
    /// the upper triangle of `YᵀY`. `source_squared_norm` is the squared norm of the f32 values from which `Y` was
    /// computed.
    ///
    /// The correlations are the singular values of `(XᵀX)^(−½)·XᵀY·(YᵀY)^(−½)`, so the sum of their squares is
    /// `tr((XᵀX)⁺XᵀY·(YᵀY)⁺YᵀX)`, the trace of the linear map from `X` to `Y` times the map from `Y` to `X`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::solve_minimum_norm`].
    pub fn squared_canonical_correlations(&self, gram_y: Vec<f64>, source_squared_norm: f64) -> Result<f64> {
        let c = self.channels;
        let mut transposed = vec![0.0; c * c];
        transpose(&mut transposed, c, 0, &self.cross, c);
        let reversed = Self { channels: c, gram: gram_y, cross: transposed, rows: self.rows, source_squared_norm };
        let x_to_y = self.solve_unregularized()?;
        let y_to_x = reversed.solve_unregularized()?;
        Ok((0..c).map(|i| (0..c).map(|j| x_to_y[i * c + j] * y_to_x[j * c + i]).sum::<f64>()).sum())
    }

    /// Computes the solution without a ridge, which has minimum norm if the system is singular.
    fn solve_unregularized(&self) -> Result<Vec<f64>> {
        if self.spectrum()?.rank == self.channels
            && let Ok(solution) = self.solve(0.0)
        {
            return Ok(solution);
        }
        Ok(self.solve_minimum_norm()?.solution)
    }
}

fn sum_positive(values: &mut dyn Iterator<Item = f64>) -> f64 {
    values.map(|v| v.max(0.0)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equations(channels: usize, x: &[f64], y: &[f64]) -> NormalEquations {
        let mut normal = NormalEquations::new(channels);
        normal.add(x, y);
        normal
    }

    #[test]
    fn loss_change_is_the_squared_error_relative_to_no_map() {
        let x = [1.0, 2.0, 0.0, 1.0];
        let y = [1.0, 3.0, 2.0, 0.0];
        let map = [1.0, 0.0, 2.0, 1.0];
        // X·M = (5, 2), (2, 1): errors 4, −1, 0, 1, sum of squares 18, ‖Y‖² = 14.
        assert!((equations(2, &x, &y).loss_change(&map) - 4.0).abs() < 1e-12);
    }

    #[test]
    fn low_rank_map_keeps_the_largest_outputs() {
        // XᵀX = diag(16, 1) and M = diag(1, 3). The first channel contributes outputs of size 4, the second of size 3.
        let normal = equations(2, &[4.0, 0.0, 0.0, 1.0], &[4.0, 0.0, 0.0, 3.0]);
        let map = normal.solve(0.0).unwrap();
        let factors = normal.low_rank_approximation(&map, 1).unwrap();
        let product: Vec<f64> = (0..4).map(|index| factors.down[index / 2] * factors.up[index % 2]).collect();
        for (found, expected) in product.iter().zip([1.0, 0.0, 0.0, 0.0]) {
            assert!((found - expected).abs() < 1e-12, "{product:?}");
        }
        assert!((factors.fraction - 16.0 / 25.0).abs() < 1e-12, "{}", factors.fraction);
        let full = normal.low_rank_approximation(&map, 2).unwrap();
        for (i, expected) in [1.0, 3.0].into_iter().enumerate() {
            let product: f64 = (0..2).map(|r| full.down[i * 2 + r] * full.up[r * 2 + i]).sum();
            assert!((product - expected).abs() < 1e-12, "{product}");
        }
        assert!(full.fraction > 1.0 - 1e-12, "{}", full.fraction);
    }

    #[test]
    fn merged_statistics_match_the_statistics_of_all_rows() {
        let x = [1.0, 2.0, 0.5, -1.0, 3.0, 1.0];
        let y = [1.0, 0.0, 2.0, 2.0, -1.0, 1.0];
        let mut parts = equations(2, &x[..2], &y[..2]);
        parts.merge(&equations(2, &x[2..], &y[2..]));
        let all = equations(2, &x, &y);
        assert_eq!(parts.rows(), 3);
        assert_eq!(parts.solve(0.1).unwrap(), all.solve(0.1).unwrap());
        assert!((all.mean_eigenvalue() - (1.0 + 4.0 + 0.25 + 1.0 + 9.0 + 1.0) / 2.0).abs() < 1e-12);
    }

    /// The sample columns are combinations of three orthogonal patterns with mean zero.
    #[test]
    fn squared_canonical_correlations_match_hand_computed_sums() {
        let a = [1.0, 1.0, -1.0, -1.0];
        let b = [1.0, -1.0, 1.0, -1.0];
        let c = [1.0, -1.0, -1.0, 1.0];
        let x = sample_rows([&|t| 5.0 * a[t], &|t| a[t] - 2.0 * b[t]]);
        for (y, expected) in [
            // Equal spaces (sum 2), correlations of 1 and 3/5 (sum 1 + 9/25), and an orthogonal pattern with a
            // constant-zero channel (sum 0).
            (sample_rows([&|t| b[t], &|t| 7.0 * a[t]]), 2.0),
            (sample_rows([&|t| a[t], &|t| 3.0 * b[t] + 4.0 * c[t]]), 1.0 + 9.0 / 25.0),
            (sample_rows([&|t| c[t], &|_| 0.0]), 0.0),
        ] {
            let mut gram = vec![0.0; 4];
            super::super::gemm::gram_parallel(&mut gram, &y, 2);
            let found = equations(2, &x, &y).squared_canonical_correlations(gram, 0.0).unwrap();
            assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        }
    }

    fn sample_rows(channels: [&dyn Fn(usize) -> f64; 2]) -> Vec<f64> {
        (0..4).flat_map(|t| channels.map(|f| f(t))).collect::<Vec<f64>>()
    }
}
