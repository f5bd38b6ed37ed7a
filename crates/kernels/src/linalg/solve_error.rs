//! Errors of linear solvers.

/// Reason why a linear system has no solution.
#[derive(Debug, Clone, PartialEq)]
pub enum Unsolved {
    /// A value is infinite or NaN, at the given location.
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

pub(super) type Result<T> = std::result::Result<T, Unsolved>;
