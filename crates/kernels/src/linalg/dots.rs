//! Products of a few rows and a few columns, with the same summation order on every processor. One use is the product
//! of queries and keys for a short answer choice.
//!
//! The `gemm` crate computes such products as dot products with one partial sum per vector lane, so the last bits
//! depend on the processor. This module reproduces the order of the crate's AVX-512 kernel on processors without
//! AVX-512, so results are bitwise equal everywhere.

use super::simd::in_widest;
use super::view::{MatrixView, MatrixViewMut, Update};

/// Number of partial sums, i.e. the lanes of an AVX-512 register.
const LANES: usize = 16;
/// Maximum number of output elements for which the `gemm` crate uses dot products.
const MAX_ELEMENTS: usize = 16 * 16;
/// Maximum number of products that the `gemm` crate sums in one piece.
const PIECE: usize = 1024;

/// Multiplies two small matrices with contiguous rows of `a` and columns of `b`, and updates `destination`. Returns
/// `false` without computing anything for larger products, other layouts, and processors with AVX-512 or without FMA.
/// Callers must then use the `gemm` crate.
///
/// # Shapes
/// `a [m, k]`, `b [k, n]`, `destination [m, n]`.
pub(super) fn try_multiply(
    destination: &mut MatrixViewMut<'_, f32>,
    into: Update,
    a: MatrixView<'_, f32>,
    b: MatrixView<'_, f32>,
) -> bool {
    let is_small = a.row_count() * b.column_count() <= MAX_ELEMENTS;
    let is_supported =
        is_small && a.has_contiguous_rows() && b.t().has_contiguous_rows() && !has_avx512() && has_avx2_fma();
    if is_supported {
        compute_products(destination, into, a, b);
    }
    is_supported
}

fn compute_products(
    destination: &mut MatrixViewMut<'_, f32>,
    into: Update,
    a: MatrixView<'_, f32>,
    b: MatrixView<'_, f32>,
) {
    let columns = b.t();
    in_widest!({
        for row in 0..a.row_count() {
            let numbers = a.row(row);
            for (column, element) in destination.row(row).iter_mut().enumerate() {
                let mut into = into;
                for (x, y) in numbers.chunks(PIECE).zip(columns.row(column).chunks(PIECE)) {
                    let product = dot(x, y);
                    *element = if into == Update::Add { product + *element } else { product };
                    into = Update::Add;
                }
            }
        }
    });
}

fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx512f")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Returns whether the processor has FMA and AVX2.
fn has_avx2_fma() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("fma") && is_x86_feature_detected!("avx2")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Computes `Σ x·y` in sixteen partial sums, which are reduced by repeatedly adding the upper half to the lower half.
#[inline(always)]
fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut parts = [0.0f32; LANES];
    let ((x_blocks, x_rest), (y_blocks, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in x_blocks.iter().zip(y_blocks) {
        for (part, (x, y)) in parts.iter_mut().zip(x.iter().zip(y)) {
            *part = x.mul_add(*y, *part);
        }
    }
    for (part, (x, y)) in parts.iter_mut().zip(x_rest.iter().zip(y_rest)) {
        *part = x.mul_add(*y, *part);
    }
    for half in [LANES / 2, LANES / 4, LANES / 8, LANES / 16] {
        for lane in 0..half {
            parts[lane] += parts[lane + half];
        }
    }
    parts[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::gemm::multiply_with_gemm_crate;

    const EXPECTED_BITS: [u32; 7] =
        [3197763780, 3223464942, 3224045135, 3231905519, 3240617766, 3246582712, 3259283644];

    fn noise(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 104_729) % 10_007) as f32 / 5003.0 - 1.0).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    /// Compares the result with the bits that the `gemm` crate computes with AVX-512. Every processor must reproduce
    /// them.
    #[test]
    fn dot_product_is_bit_identical_to_avx512() {
        let found: Vec<u32> =
            [3, 16, 17, 32, 64, 100, 300].map(|inner| dot(&noise(inner, 1), &noise(inner, 2)).to_bits()).to_vec();
        assert_eq!(found, EXPECTED_BITS, "{found:?}");
    }

    #[test]
    fn small_products_match_the_gemm_crate_with_avx512() {
        if !has_avx512() {
            return;
        }
        for (rows, columns, inner) in [(2, 1, 32), (2, 3, 64), (5, 7, 128), (16, 16, 100), (7, 2, 3), (3, 4, 2500)] {
            let x = noise(rows * inner, 3);
            let y = noise(columns * inner, 4);
            for into in [Update::Replace, Update::Add] {
                let [mut ours, mut theirs] = [vec![0.25f32; rows * columns], vec![0.25f32; rows * columns]];
                let a = MatrixView::rows(&x, rows, inner);
                let b = MatrixView::rows(&y, columns, inner).t();
                compute_products(&mut MatrixViewMut::rows(&mut ours, rows, columns), into, a, b);
                multiply_with_gemm_crate(&mut MatrixViewMut::rows(&mut theirs, rows, columns), into, a, b, 1);
                assert_eq!(bits(&ours), bits(&theirs), "[{rows}, {columns}] of {inner}, {into:?}");
            }
        }
    }
}
