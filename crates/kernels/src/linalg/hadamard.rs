//! Orthonormal Hadamard matrices of order 2^k × {1, 12, 20, 28, 36, 40, 52, 60}, applied as a fast transform.
//!
//! `H = (Bᵀ ⊗ S) / √order` with a base `B` from `BASES` and the Sylvester (Walsh–Hadamard) matrix `S` of order 2^k.
//! `S` is symmetric. Of the bases, only those of order 28 and 36 are symmetric, so `x·H` and `x·Hᵀ` differ for all
//! others. The base matrices, their order of preference and the orientation follow LinearPatch's reference code.

use rayon::prelude::*;

use super::simd;

/// Base matrices as rows of `+` and `-`, in order of preference. The first base whose order divides the matrix order is
/// used.
///
/// The order divided by its base must be a power of two, so the order and the base have the same odd part. The bases
/// are sorted by odd part (15, 13, 9, 7, 5, 5, 3). If the odd part of the first match is too small, the odd parts of
/// all later bases are too small as well. Base 40 precedes 20, so that 80 is 40·2 and not 20·4.
const BASES: [(usize, &str); 7] = [
    (60, include_str!("hadamard/base60.txt")),
    (52, include_str!("hadamard/base52.txt")),
    (36, include_str!("hadamard/base36.txt")),
    (28, include_str!("hadamard/base28.txt")),
    (40, include_str!("hadamard/base40.txt")),
    (20, include_str!("hadamard/base20.txt")),
    (12, include_str!("hadamard/base12.txt")),
];

/// Number of f32 lanes per vector register.
const LANES: usize = 16;
/// Number of terms that the base product adds per iteration. It must divide every base order.
const BASE_PRODUCT_TERMS: usize = 4;

/// Returns whether a Hadamard matrix of this order is supported.
pub fn is_supported(order: usize) -> bool {
    split_order(order).is_some()
}

/// Computes `x ← x·H` for each row.
///
/// # Shapes
/// `x [rows, order]`.
///
/// # Panics
/// Panics if the order is unsupported ([`is_supported`]), or if `x` has an incomplete row.
pub fn transform(x: &mut [f32], order: usize) {
    apply_transform(x, order, Side::Right);
}

/// Computes `x ← x·Hᵀ` for each row, the inverse of [`transform`].
///
/// # Shapes
/// See [`transform`].
///
/// # Panics
/// See [`transform`].
pub fn inverse_transform(x: &mut [f32], order: usize) {
    apply_transform(x, order, Side::RightTransposed);
}

/// Returns `H [order, order]`, row-major.
pub fn matrix(order: usize) -> Vec<f32> {
    let mut identity = vec![0.0; order * order];
    identity.iter_mut().step_by(order + 1).for_each(|v| *v = 1.0);
    transform(&mut identity, order);
    identity
}

/// Right-hand factor of a transform.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// `H`.
    Right,
    /// `Hᵀ`.
    RightTransposed,
}

/// Returns the base for an order, if there is one, and the power-of-two factor.
fn split_order(order: usize) -> Option<(Option<(usize, &'static str)>, usize)> {
    let base = BASES.into_iter().find(|(base, _)| order > 0 && order.is_multiple_of(*base));
    let power = base.map_or(order, |(base, _)| order / base);
    power.is_power_of_two().then_some((base, power))
}

/// Parses a base matrix into signs `[base, base]` for `side`. Element `[o, i]` is the sign of input block `i` in output
/// block `o`.
fn parse_signs(base: usize, rows: &str, side: Side) -> Vec<f32> {
    let mut signs = vec![0.0; base * base];
    for (row, line) in rows.lines().enumerate() {
        for (column, sign) in line.bytes().enumerate() {
            // x·(Bᵀ ⊗ S) sums block i into block o with sign Bᵀ[i, o] = B[o, i].
            let index = if side == Side::Right { row * base + column } else { column * base + row };
            signs[index] = if sign == b'+' { 1.0 } else { -1.0 };
        }
    }
    signs
}

fn apply_transform(x: &mut [f32], order: usize, side: Side) {
    let found = split_order(order);
    assert!(found.is_some(), "no Hadamard matrix of order {order}");
    let Some((base, power)) = found else { return };
    assert!(x.len().is_multiple_of(order), "the number of elements ({}) is not a multiple of order {order}", x.len());
    let signs = base.map(|(base, rows)| parse_signs(base, rows, side)).unwrap_or_default();
    let scale = 1.0 / (order as f32).sqrt();
    // Each thread needs a copy of a row, because the base product does not work in place.
    let scratch = || vec![0.0; if base.is_some() { order } else { 0 }];
    x.par_chunks_mut(order).for_each_init(scratch, |scratch, row| {
        simd::in_widest!({
            sylvester_transform(row, power);
            if let Some((base, _)) = base {
                scratch.copy_from_slice(row);
                apply_base_matrix(row, scratch, base, power, &signs);
            }
            for v in row {
                *v *= scale;
            }
        });
    });
}

/// Applies `S` to each block of `power` elements, without scaling.
#[inline(always)]
fn sylvester_transform(row: &mut [f32], power: usize) {
    let mut half = 1;
    if power >= LANES {
        // Within one register, elements are combined by lane shuffles, which the compiler would not generate from loops
        // over such short slices.
        for chunk in row.as_chunks_mut::<LANES>().0 {
            butterfly::<1>(chunk);
            butterfly::<2>(chunk);
            butterfly::<4>(chunk);
            butterfly::<8>(chunk);
        }
        half = LANES;
    }
    while half < power {
        for pair in row.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

/// Computes sums and differences of elements at distance `HALF` within a register.
#[inline(always)]
fn butterfly<const HALF: usize>(chunk: &mut [f32; LANES]) {
    let old = *chunk;
    for (i, new) in chunk.iter_mut().enumerate() {
        let partner = old[i ^ HALF];
        *new = if i & HALF == 0 { partner + old[i] } else { partner - old[i] };
    }
}

/// Applies the base matrix across blocks of `power` elements, without scaling.
///
/// # Shapes
/// `output`, `input [base, power]`, `signs [base, base]`.
#[inline(always)]
fn apply_base_matrix(output: &mut [f32], input: &[f32], base: usize, power: usize, signs: &[f32]) {
    output.fill(0.0);
    for (output, signs) in output.chunks_exact_mut(power).zip(signs.chunks_exact(base)) {
        for (blocks, signs) in
            input.chunks_exact(BASE_PRODUCT_TERMS * power).zip(signs.as_chunks::<BASE_PRODUCT_TERMS>().0)
        {
            let (a, blocks) = blocks.split_at(power);
            let (b, blocks) = blocks.split_at(power);
            let (c, d) = blocks.split_at(power);
            let terms = a.iter().zip(b).zip(c.iter().zip(d));
            for (sum, ((a, b), (c, d))) in output.iter_mut().zip(terms) {
                *sum += (signs[0] * a + signs[1] * b) + (signs[2] * c + signs[3] * d);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the orders of all bases, multiplied by powers of two below, at and above the register width.
    fn orders() -> impl Iterator<Item = usize> {
        let bases = BASES.into_iter().map(|(base, _)| base).chain([1]);
        bases.flat_map(|base| [1, 2, 4, 8, 16, 32].map(|power| base * power))
    }

    fn sample(rows: usize, order: usize) -> Vec<f32> {
        (0..rows * order).map(|i| (i as f32 * 0.37).sin()).collect()
    }

    /// Computes `x·H`, or `x·Hᵀ` if `transposed`, by direct summation in f64.
    fn dense(x: &[f32], matrix: &[f32], order: usize, transposed: bool) -> Vec<f64> {
        x.chunks(order)
            .flat_map(|row| {
                (0..order).map(move |o| {
                    row.iter()
                        .enumerate()
                        .map(|(i, &v)| {
                            f64::from(v)
                                * f64::from(if transposed { matrix[o * order + i] } else { matrix[i * order + o] })
                        })
                        .sum()
                })
            })
            .collect()
    }

    fn is_close(a: &[f32], b: &[f64], tolerance: f64) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (f64::from(*a) - b).abs() <= tolerance)
    }

    #[test]
    fn hadamard_order_four_matches_hand_computed_matrix() {
        let half = 0.5;
        let expected = [1, 1, 1, 1, 1, -1, 1, -1, 1, 1, -1, -1, 1, -1, -1, 1].map(|sign| sign as f32 * half);
        assert_eq!(matrix(4), expected);
    }

    #[test]
    fn hadamard_order_uses_the_first_base_that_divides_it() {
        assert_eq!(base_and_power(4096), Some((1, 4096)));
        assert_eq!(base_and_power(5120), Some((40, 128)));
        assert_eq!(base_and_power(3072), Some((12, 256)));
        assert_eq!(base_and_power(3584), Some((28, 128)));
        assert_eq!(base_and_power(20), Some((20, 1)));
        assert_eq!(base_and_power(240), Some((60, 4)));
        for none in [0, 3, 6, 44, 180, 1000, 5000] {
            assert_eq!(base_and_power(none), None, "order {none}");
        }
    }

    fn base_and_power(order: usize) -> Option<(usize, usize)> {
        split_order(order).map(|(base, power)| (base.map_or(1, |(base, _)| base), power))
    }

    #[test]
    fn hadamard_matrices_match_the_reference() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/hadamard/normalized.safetensors");
        let bytes = std::fs::read(path).unwrap();
        let oracle = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for order in [64, 96, 128, 160, 192] {
            let expected = oracle.tensor(&format!("H{order}")).unwrap();
            let expected: Vec<f64> =
                expected.data().as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b).into()).collect();
            assert!(is_close(&matrix(order), &expected, 1e-6), "order {order}");
        }
    }

    #[test]
    fn hadamard_bases_have_orthogonal_rows_of_signs() {
        for (base, rows) in BASES {
            let rows: Vec<Vec<i32>> =
                rows.lines().map(|line| line.bytes().map(|sign| if sign == b'+' { 1 } else { -1 }).collect()).collect();
            assert!(rows.len() == base && rows.iter().all(|row| row.len() == base));
            for (i, a) in rows.iter().enumerate() {
                for (j, b) in rows.iter().enumerate() {
                    let product: i32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                    assert_eq!(product, if i == j { base as i32 } else { 0 }, "base {base}, rows {i} and {j}");
                }
            }
        }
    }

    #[test]
    fn fast_transform_matches_the_dense_product_both_ways() {
        for order in orders() {
            let x = sample(3, order);
            let h = matrix(order);
            let mut forward = x.clone();
            let mut back = x.clone();
            transform(&mut forward, order);
            inverse_transform(&mut back, order);
            assert!(is_close(&forward, &dense(&x, &h, order, false), 1e-5), "x·H, order {order}");
            assert!(is_close(&back, &dense(&x, &h, order, true), 1e-5), "x·Hᵀ, order {order}");
        }
    }

    #[test]
    fn hadamard_matrix_is_the_base_times_the_sylvester_matrix() {
        // Checks `H` entry by entry. The dense product above only shows that the transform is linear.
        for order in orders() {
            let Some((base, power)) = split_order(order) else { panic!("no factors of {order}") };
            let rows: Vec<&[u8]> =
                base.map_or(vec![b"+" as &[u8]], |(_, rows)| rows.lines().map(str::as_bytes).collect());
            let mut expected = Vec::new();
            for i in 0..order {
                for o in 0..order {
                    let base = if rows[o / power][i / power] == b'+' { 1.0 } else { -1.0 };
                    let parity = ((i % power) & (o % power)).count_ones() % 2;
                    expected.push(base * (1.0 - 2.0 * f64::from(parity)) / (order as f64).sqrt());
                }
            }
            assert!(is_close(&matrix(order), &expected, 1e-6), "order {order}");
        }
    }

    #[test]
    fn inverse_transform_undoes_the_hadamard_transform() {
        for order in orders() {
            let x = sample(2, order);
            let mut there_and_back = x.clone();
            transform(&mut there_and_back, order);
            inverse_transform(&mut there_and_back, order);
            assert!(x.iter().zip(&there_and_back).all(|(a, b)| (a - b).abs() < 2e-6), "order {order}");
        }
    }

    #[test]
    #[should_panic(expected = "no Hadamard matrix of order 44")]
    fn unsupported_hadamard_order_panics() {
        transform(&mut [0.0; 44], 44);
    }
}
