//! Safe interface for products of unpacked f32 and f64 matrices. Packed weights are multiplied by [`super::panels`].
//!
//! This module wraps the `unsafe` call of the `gemm` crate with bounds checks, and lets benchmarks measure the time
//! spent in products ([`profile`]).

use ::gemm::Parallelism;

use super::dots;
pub use super::view::{MatrixView, MatrixViewMut, Update};

/// Element type supported by [`gemm()`].
pub trait Element: Copy + 'static + private::Sealed {
    const ZERO: Self;
    const ONE: Self;

    /// Multiplies a few rows by a few columns in the summation order of AVX-512. Returns `false` if the product is not
    /// supported.
    fn try_small_product(
        _destination: &mut MatrixViewMut<'_, Self>,
        _into: Update,
        _a: MatrixView<'_, Self>,
        _b: MatrixView<'_, Self>,
    ) -> bool {
        false
    }
}

impl Element for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    fn try_small_product(
        destination: &mut MatrixViewMut<'_, Self>,
        into: Update,
        a: MatrixView<'_, Self>,
        b: MatrixView<'_, Self>,
    ) -> bool {
        dots::try_multiply(destination, into, a, b)
    }
}

impl Element for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
}

mod private {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// Computes `destination ← a·b` or `destination ← destination + a·b` on the calling thread.
///
/// Callers distribute the rows over threads themselves, so that the same threads compute the product and the operations
/// fused with it.
///
/// # Shapes
/// `a [m, k]`, `b [k, n]`, `destination [m, n]`.
///
/// # Panics
/// Panics if the shapes do not match.
pub fn gemm<T: Element>(
    mut destination: MatrixViewMut<'_, T>,
    into: Update,
    a: MatrixView<'_, T>,
    b: MatrixView<'_, T>,
) {
    multiply(&mut destination, into, a, b, 1);
}

/// Computes [`gemm()`] on all rayon threads. Meant for products that do not run concurrently with other work.
pub fn gemm_parallel<T: Element>(
    mut destination: MatrixViewMut<'_, T>,
    into: Update,
    a: MatrixView<'_, T>,
    b: MatrixView<'_, T>,
) {
    multiply(&mut destination, into, a, b, rayon::current_num_threads());
}

/// Number of rows per band in [`gram_parallel`]. It is large enough for full speed, and small enough to waste little
/// work below the diagonal.
const GRAM_BAND_ROWS: usize = 256;

/// Adds `xᵀ·x` to the upper triangle of `destination` on all rayon threads, at half the cost of a full product.
/// Elements below the diagonal are left in an unspecified state.
///
/// # Shapes
/// `x [rows, columns]`, `destination [columns, columns]`.
///
/// # Panics
/// Panics if the length of `destination` is not `columns²`.
pub fn gram_parallel<T: Element>(destination: &mut [T], x: &[T], columns: usize) {
    assert!(destination.len() == columns * columns, "the Gram matrix has the wrong order");
    let rows = x.len() / columns;
    if rows == 0 {
        return;
    }
    for first in (0..columns).step_by(GRAM_BAND_ROWS) {
        let high = GRAM_BAND_ROWS.min(columns - first);
        let wide = columns - first;
        let band = MatrixView::strided(&x[first..], rows, high, columns); // [rows, high]
        let rest = MatrixView::strided(&x[first..], rows, wide, columns); // [rows, wide], including the band
        let above = MatrixViewMut::strided(&mut destination[first * columns + first..], high, wide, columns);
        gemm_parallel(above, Update::Add, band.t(), rest);
    }
}

/// Returns the L2 cache size per core in bytes, which the `gemm` crate also uses for blocking.
pub(crate) fn l2_cache_bytes() -> usize {
    gemm_common::cache::CACHE_INFO[1].cache_bytes
}

/// Returns the number of ways of the L1 data cache.
#[cfg(target_arch = "x86_64")]
pub(super) fn l1_cache_ways() -> usize {
    gemm_common::cache::CACHE_INFO[0].associativity
}

fn multiply<T: Element>(
    destination: &mut MatrixViewMut<'_, T>,
    into: Update,
    a: MatrixView<'_, T>,
    b: MatrixView<'_, T>,
    threads: usize,
) {
    assert!(
        a.rows == destination.rows && b.columns == destination.columns && a.columns == b.rows,
        "shape mismatch in a matrix product: [{}, {}] = [{}, {}] x [{}, {}]",
        destination.rows,
        destination.columns,
        a.rows,
        a.columns,
        b.rows,
        b.columns
    );
    if let (1, Some(row)) = (destination.rows, destination.data.get_mut(..b.columns)) {
        // The `gemm` crate has a separate code path for a single row, which rounds differently. Computing the row twice
        // gives the same result as in a product with many rows.
        let mut pair = row.repeat(2);
        let mut out = MatrixViewMut::rows(&mut pair, 2, b.columns);
        multiply(&mut out, into, MatrixView { rows: 2, row_stride: 0, ..a }, b, threads);
        row.copy_from_slice(&pair[..b.columns]);
        return;
    }
    if !T::try_small_product(destination, into, a, b) {
        multiply_with_gemm_crate(destination, into, a, b, threads);
    }
}

pub(super) fn multiply_with_gemm_crate<T: Element>(
    destination: &mut MatrixViewMut<'_, T>,
    into: Update,
    a: MatrixView<'_, T>,
    b: MatrixView<'_, T>,
    threads: usize,
) {
    assert!(a.rows == destination.rows && b.columns == destination.columns && a.columns == b.rows);
    let started = profile::start_timer();
    // SAFETY: the constructors of `MatrixView` and `MatrixViewMut` checked that all addressed elements lie inside their
    // slices. The shapes match, and the borrow rules keep the destination disjoint from both operands.
    unsafe {
        ::gemm::gemm(
            destination.rows,
            destination.columns,
            a.columns,
            destination.data.as_mut_ptr(),
            1,
            destination.row_stride as isize,
            into == Update::Add,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            T::ONE,
            T::ONE,
            false,
            false,
            false,
            if threads == 1 { Parallelism::None } else { Parallelism::Rayon(threads) },
        );
    }
    profile::stop_timer(started, threads);
}

/// Counter of the time spent in matrix products (including bf16), summed over threads. Disabled unless a benchmark
/// enables it.
pub mod profile {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
    use std::time::Instant;

    static ENABLED: AtomicBool = AtomicBool::new(false);
    static NANOSECONDS: AtomicU64 = AtomicU64::new(0);

    /// Resets the counter and starts counting.
    pub fn enable() {
        NANOSECONDS.store(0, Relaxed);
        ENABLED.store(true, Relaxed);
    }

    /// Stops counting and returns the thread-seconds spent in products since [`enable`].
    pub fn disable() -> f64 {
        ENABLED.store(false, Relaxed);
        NANOSECONDS.load(Relaxed) as f64 * 1e-9
    }

    pub fn start_timer() -> Option<Instant> {
        ENABLED.load(Relaxed).then(Instant::now)
    }

    pub fn stop_timer(started: Option<Instant>, threads: usize) {
        if let Some(started) = started {
            let nanoseconds = started.elapsed().as_nanos() as u64 * threads as u64;
            NANOSECONDS.fetch_add(nanoseconds, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn product_matches_naive_sums() {
        let a: Vec<f32> = (0..6).map(|i| i as f32).collect(); // [2, 3]
        let b: Vec<f32> = (0..6).map(|i| (i * i) as f32).collect(); // [2, 3], used transposed
        let mut c = vec![1.0f32; 4];
        gemm(
            MatrixViewMut::rows(&mut c, 2, 2),
            Update::Add,
            MatrixView::rows(&a, 2, 3),
            MatrixView::rows(&b, 2, 3).t(),
        );
        // Computed by hand: row 0 = (0·0+1·1+2·4, 0·9+1·16+2·25), row 1 = (3·0+4·1+5·4, 3·9+4·16+5·25), each + 1.
        assert_eq!(c, [10.0, 67.0, 25.0, 217.0]);
    }

    #[test]
    fn row_product_bits_do_not_depend_on_other_rows() {
        let inner = 300;
        let outer = 70;
        let x: Vec<f32> = (0..260 * inner).map(noise).collect();
        let w: Vec<f32> = (0..inner * outer).map(|i| noise(i + 3)).collect();
        let product = |rows: usize, into| {
            let mut out = vec![0.25f32; rows * outer];
            let x = MatrixView::rows(&x[..rows * inner], rows, inner);
            gemm(MatrixViewMut::rows(&mut out, rows, outer), into, x, MatrixView::rows(&w, inner, outer));
            out
        };
        for into in [Update::Replace, Update::Add] {
            let all = product(260, into);
            for rows in [1, 2, 3, 15, 16, 17, 63, 64, 255, 257] {
                let few = product(rows, into);
                assert!(few.iter().zip(&all).all(|(a, b)| a.to_bits() == b.to_bits()), "{rows} rows, {into:?}");
            }
        }
    }

    fn noise(i: usize) -> f32 {
        ((i * 7919 % 1000) as f32 / 997.0) - 0.5
    }

    #[test]
    fn strided_views_skip_the_gaps() {
        let a = [1.0f64, 2.0, 99.0, 3.0, 4.0, 99.0]; // [2, 2] in rows of 3
        let b = [1.0f64, 0.0, 0.0, 1.0];
        let mut c = vec![7.0f64; 6];
        gemm(
            MatrixViewMut::strided(&mut c, 2, 2, 3),
            Update::Replace,
            MatrixView::strided(&a, 2, 2, 3),
            MatrixView::rows(&b, 2, 2),
        );
        assert_eq!(c, [1.0, 2.0, 7.0, 3.0, 4.0, 7.0]);
    }

    #[test]
    fn gram_upper_triangle_matches_naive_sums() {
        for columns in [3, GRAM_BAND_ROWS, GRAM_BAND_ROWS + 70] {
            let x: Vec<f64> = (0..5 * columns).map(|i| (i % 11) as f64 - 5.0).collect();
            let mut gram = vec![1.0; columns * columns];
            gram_parallel(&mut gram, &x, columns);
            for i in 0..columns {
                for j in i..columns {
                    let sum: f64 = x.chunks(columns).map(|row| row[i] * row[j]).sum();
                    assert_eq!(gram[i * columns + j], 1.0 + sum, "{columns} columns, element {i}, {j}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "exceeds its slice")]
    fn view_past_the_end_of_its_slice_panics() {
        let _ = MatrixView::rows(&[0.0f32; 5], 2, 3);
    }
}
