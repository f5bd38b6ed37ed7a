//! Orthonormal Walsh–Hadamard matrices, applied as a fast transform.

use rayon::prelude::*;

use super::lanes;

/// Whether there is a transform of this order. So far: powers of two (the Sylvester matrices).
pub fn exists(order: usize) -> bool {
    order.is_power_of_two()
}

/// `x ← x·H` for each row; `H` is symmetric and its own inverse.
///
/// # Shapes
/// `x [rows, order]`; `order` a power of two ([`exists`]).
pub fn transform(x: &mut [f32], order: usize) {
    assert!(exists(order), "no Hadamard matrix of order {order}");
    let scale = 1.0 / (order as f32).sqrt();
    x.par_chunks_mut(order).for_each(|row| {
        lanes::widest(
            #[inline(always)]
            || {
                let mut half = 1;
                while half < order {
                    for pair in row.chunks_exact_mut(2 * half) {
                        let (low, high) = pair.split_at_mut(half);
                        for (a, b) in low.iter_mut().zip(high) {
                            (*a, *b) = (*a + *b, *a - *b);
                        }
                    }
                    half *= 2;
                }
                for v in row {
                    *v *= scale;
                }
            },
        );
    });
}

/// The matrix itself, `[order, order]` row-major.
pub fn matrix(order: usize) -> Vec<f32> {
    let mut identity = vec![0.0; order * order];
    identity.iter_mut().step_by(order + 1).for_each(|v| *v = 1.0);
    transform(&mut identity, order);
    identity
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_four_by_hand() {
        let half = 0.5;
        let expected = [1, 1, 1, 1, 1, -1, 1, -1, 1, 1, -1, -1, 1, -1, -1, 1].map(|sign| sign as f32 * half);
        assert_eq!(matrix(4), expected);
    }

    #[test]
    fn the_transform_is_its_own_inverse() {
        let x: Vec<f32> = (0..3 * 64).map(|i| (i as f32).sin()).collect();
        let mut twice = x.clone();
        transform(&mut twice, 64);
        transform(&mut twice, 64);
        assert!(x.iter().zip(&twice).all(|(a, b)| (a - b).abs() < 1e-6));
    }
}
