//! Rank and condition number of a matrix, computed from its Gram matrix.

use faer::Mat;

/// Maximum number of Lanczos steps. From a random start, the mean relative error of an extreme eigenvalue after `k`
/// steps is below `0.103·(ln(C·(k − 1)⁴) / (k − 1))²` for any spectrum (Kuczyński and Woźniakowski 1992). At C = 4096
/// this is below 0.6 %, and half that for the condition number.
const MAX_LANCZOS_STEPS: usize = 120;
/// Number of steps between convergence tests.
const CONVERGENCE_TEST_STEPS: usize = 6;
/// Relative residual at which an eigenvalue counts as converged. The relative error of the eigenvalue is at most this
/// value, and usually about its square.
const RESIDUAL_TOLERANCE: f64 = 1e-4;

/// Assumed rounding error of a layer's f32 result, in units in the last place.
const F32_ROUNDING_ULPS: f64 = 4.0;

/// Rank and condition number of a matrix `X [rows, C]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spectrum {
    /// Number of singular values that are not zero within rounding.
    pub rank: usize,
    /// `σ₁ / σ_C`. Infinite if the rank is below `C`.
    pub condition: f64,
}

impl Spectrum {
    /// Builds a spectrum from the ascending eigenvalues of `XᵀX`, which are the squared singular values of `X`.
    /// Eigenvalues up to `cutoff` count as zero.
    pub(super) fn from_squares(ascending: &[f64], cutoff: f64) -> Self {
        let (Some(&smallest), Some(&greatest)) = (ascending.first(), ascending.last()) else {
            return Self { rank: 0, condition: f64::INFINITY };
        };
        let rank = ascending.iter().filter(|&&square| square > cutoff).count();
        let condition = if rank == ascending.len() { (greatest / smallest).sqrt() } else { f64::INFINITY };
        Self { rank, condition }
    }
}

/// Returns the largest eigenvalue of `XᵀX [C, C]` that may be a rounding error of the sums or of their terms.
/// `source_squared_norm` is the squared norm of the f32 numbers from which `X` was computed.
///
/// The sums are rounded in f64 relative to `λ₁`, so a singular value below √(C·ε)·σ₁ is lost: 1.2e-7·σ₁ up to C = 64,
/// 9.5e-7·σ₁ at C = 4096. To resolve smaller singular values, factor `X` itself
/// ([`StreamingQr`](super::streaming_qr::StreamingQr)). The terms were computed in f32, so directions below the total
/// of all their rounding errors are indistinguishable from zero. If `X` is a small difference of large numbers (hidden
/// states minus their mean), this second bound dominates.
pub(super) fn rank_cutoff(channels: usize, greatest: f64, source_squared_norm: f64) -> f64 {
    let rounding = F32_ROUNDING_ULPS * f64::from(f32::EPSILON);
    (channels.max(64) as f64 * f64::EPSILON * greatest).max(rounding * rounding * source_squared_norm)
}

/// Computes the largest eigenvalue of a positive semi-definite operator `[order, order]` from matrix-vector products.
/// `apply(x, y)` writes `y ← A·x`.
///
/// Uses Lanczos with full reorthogonalization, which prevents spurious copies of eigenvalues. The result is
/// deterministic.
pub(super) fn largest_eigenvalue(order: usize, mut apply: impl FnMut(&[f64], &mut [f64])) -> f64 {
    let mut basis: Vec<Vec<f64>> = vec![start_vector(order)];
    let (mut diagonal, mut off_diagonal): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    let mut next = vec![0.0; order];
    loop {
        let steps = basis.len();
        apply(&basis[steps - 1], &mut next);
        diagonal.push(dot(&basis[steps - 1], &next));
        // Two passes suffice: after the first pass, the component along the basis is only rounding error.
        for _ in 0..2 {
            for v in &basis {
                let along = dot(v, &next);
                next.iter_mut().zip(v).for_each(|(n, v)| *n -= along * v);
            }
        }
        let norm = dot(&next, &next).sqrt();
        let last = steps == MAX_LANCZOS_STEPS.min(order);
        if last || steps.is_multiple_of(CONVERGENCE_TEST_STEPS) {
            let (value, end) = largest_tridiagonal_eigenvalue(&diagonal, &off_diagonal);
            if last || norm * end.abs() <= RESIDUAL_TOLERANCE * value {
                return value;
            }
        }
        if norm == 0.0 || !norm.is_finite() {
            // The Krylov space of the start vector is exhausted.
            return largest_tridiagonal_eigenvalue(&diagonal, &off_diagonal).0;
        }
        off_diagonal.push(norm);
        basis.push(next.iter().map(|n| n / norm).collect());
    }
}

/// Computes the largest eigenvalue of a symmetric tridiagonal matrix and the last element of its unit eigenvector. NaN
/// inputs give NaN.
fn largest_tridiagonal_eigenvalue(diagonal: &[f64], off_diagonal: &[f64]) -> (f64, f64) {
    let order = diagonal.len();
    let matrix = Mat::from_fn(order, order, |i, j| match i.abs_diff(j) {
        0 => diagonal[i],
        1 => off_diagonal[i.min(j)],
        _ => 0.0,
    });
    let Ok(found) = matrix.self_adjoint_eigen(faer::Side::Lower) else { return (f64::NAN, 0.0) };
    (found.S()[order - 1], found.U()[(order - 1, order - 1)])
}

/// Returns a fixed pseudo-random unit vector (SplitMix64).
fn start_vector(order: usize) -> Vec<f64> {
    let mut state = 0u64;
    let mut vector: Vec<f64> = std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64 - 0.5
    })
    .take(order)
    .collect();
    let norm = dot(&vector, &vector).sqrt();
    vector.iter_mut().for_each(|v| *v /= norm);
    vector
}

/// Computes a dot product in eight partial sums, which fill a vector register.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut parts = [0.0; 8];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    for (a, b) in a.iter().zip(b) {
        for (part, (a, b)) in parts.iter_mut().zip(a.iter().zip(b)) {
            *part += a * b;
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    parts.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_eigenvalue_of_diagonal_matrix_is_its_maximum() {
        for order in [1, 2, 7, 100, 1000] {
            let found = largest_eigenvalue(order, |x, y| {
                y.iter_mut().zip(x).enumerate().for_each(|(i, (y, x))| *y = (i + 1) as f64 * x);
            });
            assert!((found / order as f64 - 1.0).abs() < 1e-6, "order {order}: {found}");
        }
    }

    #[test]
    fn largest_eigenvalue_of_identity_is_one_and_of_zero_is_zero() {
        assert!((largest_eigenvalue(50, |x, y| y.copy_from_slice(x)) - 1.0).abs() < 1e-12);
        assert_eq!(largest_eigenvalue(50, |_, y| y.fill(0.0)), 0.0);
    }

    #[test]
    fn eigenvalues_within_rounding_of_zero_do_not_add_to_rank() {
        assert_eq!(spectrum_of(&[-1e-16, 1e-15, 0.25, 1.0]), Spectrum { rank: 2, condition: f64::INFINITY });
        assert_eq!(spectrum_of(&[0.25, 1.0]), Spectrum { rank: 2, condition: 2.0 });
        assert_eq!(spectrum_of(&[0.0, 0.0]).rank, 0);
    }

    fn spectrum_of(squares: &[f64]) -> Spectrum {
        Spectrum::from_squares(squares, rank_cutoff(squares.len(), squares[squares.len() - 1], 1.0))
    }

    #[test]
    fn rank_cutoff_accounts_for_input_rounding() {
        // Computed by hand: (4·2⁻²³)² = 2.27e-13. If the squares of the numbers sum to 1e6, directions up to 2.27e-7
        // are rounding errors.
        assert!((rank_cutoff(64, 1e-9, 1e6) / 2.273_7e-7 - 1.0).abs() < 1e-4);
        // If the numbers are `X` itself, the f64 bound dominates for many channels: 4096·2.2e-16.
        assert!((rank_cutoff(4096, 1.0, 1.0) / 9.094_9e-13 - 1.0).abs() < 1e-4);
    }
}
