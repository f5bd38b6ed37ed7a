//! Normal equations in f64: accumulated block by block, solved by Cholesky.

use faer::linalg::solvers::Solve;
use faer::{Mat, MatRef, Side};

use super::gemm::{Into, View, ViewMut, gemm_parallel};
use crate::error::{Error, Result};

/// Running sums `XᵀX` and `XᵀY` over rows.
pub struct Normal {
    channels: usize,
    gram: Vec<f64>,  // [C, C]
    cross: Vec<f64>, // [C, C]
    rows: usize,
}

impl Normal {
    pub fn new(channels: usize) -> Self {
        Self { channels, gram: vec![0.0; channels * channels], cross: vec![0.0; channels * channels], rows: 0 }
    }

    /// Adds rows.
    ///
    /// # Shapes
    /// `x`, `y [rows, C]`.
    pub fn add(&mut self, x: &[f64], y: &[f64]) {
        let (c, rows) = (self.channels, x.len() / self.channels);
        let (x, y) = (View::rows(x, rows, c), View::rows(y, rows, c));
        gemm_parallel(ViewMut::rows(&mut self.gram, c, c), Into::Add, x.t(), x);
        gemm_parallel(ViewMut::rows(&mut self.cross, c, c), Into::Add, x.t(), y);
        self.rows += rows;
    }

    /// The number of rows added.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// `M` with `(XᵀX + ridge·I)·M = XᵀY`, `[C, C]` row-major.
    ///
    /// # Errors
    /// `XᵀX + ridge·I` is not positive definite in f64: too few rows, dead or equal channels.
    pub fn solve(&self, ridge: f64) -> Result<Vec<f64>> {
        let c = self.channels;
        let mut gram = MatRef::from_row_major_slice(&self.gram, c, c).to_owned();
        for i in 0..c {
            gram[(i, i)] += ridge;
        }
        let factor = gram.llt(Side::Lower).map_err(|_| {
            Error::job("the normal equations are singular")
                .expected(format!("XᵀX + {ridge:e}·I positive definite"))
                .found(format!("{} rows of {c} channels", self.rows))
                .hint("calibrate on more tokens than the backbone has channels")
        })?;
        let solution: Mat<f64> = factor.solve(MatRef::from_row_major_slice(&self.cross, c, c));
        Ok((0..c).flat_map(|i| (0..c).map(move |j| (i, j))).map(|at| solution[at]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_map_is_found_again() {
        let map = [2.0, -1.0, 0.5, 3.0]; // [2, 2]
        let x: Vec<f64> = (0..20).map(|i| f64::from(i * i % 7) - 3.0).collect(); // [10, 2]
        let y: Vec<f64> =
            x.chunks(2).flat_map(|r| [r[0] * map[0] + r[1] * map[2], r[0] * map[1] + r[1] * map[3]]).collect();
        let mut normal = Normal::new(2);
        normal.add(&x[..8], &y[..8]);
        normal.add(&x[8..], &y[8..]);
        let found = normal.solve(0.0).unwrap();
        assert!(found.iter().zip(map).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
    }

    #[test]
    fn a_singular_system_is_an_error_that_counts_its_rows() {
        let mut normal = Normal::new(3);
        normal.add(&[1.0, 2.0, 3.0], &[0.0, 0.0, 0.0]);
        let text = normal.solve(0.0).unwrap_err().to_string();
        assert!(text.contains("1 rows of 3 channels"), "{text}");
    }
}
