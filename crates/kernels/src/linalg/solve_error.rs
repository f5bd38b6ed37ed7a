//! Errors from linear solvers.

/// Reason why a linear system could not be solved.
#[derive(Debug, Clone, PartialEq)]
pub enum SolveError {
    /// The value at the given location is infinite or NaN.
    NotFinite(String),
    /// `XᵀX + ridge·I` is not positive definite in f64.
    Singular {
        rows: usize,
        channels: usize,
        ridge: f64,
    },
    NoEigenvalues {
        rows: usize,
        channels: usize,
    },
    NoSingularValues {
        rows: usize,
        channels: usize,
    },
}

pub(super) type Result<T> = std::result::Result<T, SolveError>;
