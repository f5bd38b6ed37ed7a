//! Dense linear algebra on slices (re-exported from `ghostlab-kernels`), and conversion of solver errors.
//!
//! ```
//! use ghostlab_core::linalg::solve::NormalEquations;
//!
//! # fn main() -> ghostlab_core::error::Result<()> {
//! // y = 2·x₀ and 3·x₁ for two tokens and two channels, so M is diagonal.
//! let mut equations = NormalEquations::new(2);
//! equations.add(&[1.0, 0.0, 0.0, 1.0], &[2.0, 0.0, 0.0, 3.0]);
//! let solved = equations.solve(0.0)?;
//! assert!(solved.iter().zip([2.0, 0.0, 0.0, 3.0]).all(|(found, expected)| (found - expected).abs() < 1e-12));
//! # Ok(())
//! # }
//! ```

pub use ghostlab_kernels::linalg::*;

use crate::error::Error;

impl From<SolveError> for Error {
    fn from(error: SolveError) -> Self {
        match error {
            SolveError::NotFinite(matrix) => Self::job("values are not finite")
                .at(matrix)
                .expected("finite activations")
                .found("an infinite value or NaN"),
            SolveError::Singular { rows, channels, ridge } => Self::job("the normal equations are singular")
                .expected(format!("XᵀX + {ridge:e}·I positive definite"))
                .found(format_size(rows, channels))
                .hint("calibrate on more tokens than the backbone has channels"),
            SolveError::NoEigenvalues { rows, channels } => {
                Self::job("cannot compute the eigenvalues of the normal equations").found(format_size(rows, channels))
            }
            SolveError::NoSingularValues { rows, channels } => {
                Self::job("cannot compute the singular values of the activations").found(format_size(rows, channels))
            }
        }
    }
}

fn format_size(rows: usize, channels: usize) -> String {
    format!("{rows} rows of {channels} channels")
}

#[cfg(test)]
mod tests {
    use super::solve::NormalEquations;
    use super::*;

    #[test]
    fn singular_system_error_shows_its_size_and_a_hint() {
        let mut normal = NormalEquations::new(3);
        normal.add(&[1.0, 2.0, 3.0], &[0.0, 0.0, 0.0]);
        let text = Error::from(normal.solve(0.0).unwrap_err()).to_string();
        assert!(text.contains("1 rows of 3 channels") && text.contains("more tokens than"), "{text}");
    }

    #[test]
    fn nonfinite_activation_error_names_the_channel() {
        let mut normal = NormalEquations::new(2);
        normal.add(&[1.0, f64::NAN], &[0.0, 0.0]);
        let text = Error::from(normal.solve(0.0).unwrap_err()).to_string();
        assert!(text.contains("channel 1 of X") && text.contains("not finite"), "{text}");
    }
}
