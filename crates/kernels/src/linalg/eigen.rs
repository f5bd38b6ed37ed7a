//! Eigenvalues and eigenvectors of small symmetric matrices.

use faer::{MatRef, Side};

/// Eigenvalues in ascending order with their eigenvectors.
#[derive(Debug)]
pub struct SymmetricEigen {
    pub values: Vec<f64>,
    /// Eigenvectors `[n, n]`, row-major. Column `j` belongs to `values[j]`.
    pub vectors: Vec<f64>,
}

/// Decomposes a symmetric matrix. Only the lower triangle is read. Returns `None` if the iteration does not converge or
/// an element is not finite.
///
/// # Shapes
/// `matrix [order, order]`, row-major.
pub fn symmetric_eigen(matrix: &[f64], order: usize) -> Option<SymmetricEigen> {
    if !matrix.iter().all(|v| v.is_finite()) {
        return None;
    }
    let view = MatRef::from_row_major_slice(matrix, order, order);
    let eigen = view.self_adjoint_eigen(Side::Lower).ok()?;
    let vectors = eigen.U();
    Some(SymmetricEigen {
        values: eigen.S().column_vector().iter().copied().collect(),
        vectors: (0..order * order).map(|index| vectors[(index / order, index % order)]).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eigenvectors_reproduce_the_matrix() {
        // Eigenvalues 1, 1 and 4.
        let matrix = [2.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 2.0];
        let SymmetricEigen { values, vectors } = symmetric_eigen(&matrix, 3).unwrap();
        assert!(values.iter().zip([1.0, 1.0, 4.0]).all(|(found, expected)| (found - expected).abs() < 1e-12));
        for i in 0..3 {
            for j in 0..3 {
                let sum: f64 = (0..3).map(|k| vectors[i * 3 + k] * values[k] * vectors[j * 3 + k]).sum();
                assert!((sum - matrix[i * 3 + j]).abs() < 1e-12);
            }
        }
        assert!(symmetric_eigen(&[f64::NAN], 1).is_none());
    }
}
