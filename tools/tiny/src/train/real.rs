//! Element types of training: f32 for training, f64 for gradient checks.

use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use ghostlab_core::linalg::gemm::Element;
use ghostlab_core::linalg::simd;

pub trait Real:
    Element
    + Debug
    + Default
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
{
    fn of(value: f64) -> Self;
    fn of_f32(value: f32) -> Self;
    fn wide(self) -> f64;
    fn exp(self) -> Self;
}

impl Real for f32 {
    #[inline(always)]
    fn of(value: f64) -> Self {
        value as Self
    }

    #[inline(always)]
    fn of_f32(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn exp(self) -> Self {
        // The standard library's `exp` does not vectorize.
        simd::exp(self)
    }
}

impl Real for f64 {
    #[inline(always)]
    fn of(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn of_f32(value: f32) -> Self {
        Self::from(value)
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }

    #[inline(always)]
    fn exp(self) -> Self {
        Self::exp(self)
    }
}

/// Number of elements that loops process at a time.
pub(super) const LANES: usize = 16;

/// Computes `Σ term(a, b)` over two rows with 16 partial sums: deterministic on every machine, and vectorizable.
#[inline(always)]
pub(super) fn sum<R: Real>(a: &[R], b: &[R], term: impl Fn(R, R) -> R) -> R {
    let mut parts = [R::ZERO; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for ((part, &a), &b) in parts.iter_mut().zip(a).zip(b) {
            *part += term(a, b);
        }
    }
    for ((part, &a), &b) in parts.iter_mut().zip(a_rest).zip(b_rest) {
        *part += term(a, b);
    }
    parts.iter().fold(R::ZERO, |sum, &part| sum + part)
}

/// Computes `Σ a·b`.
#[inline(always)]
pub(super) fn dot<R: Real>(a: &[R], b: &[R]) -> R {
    sum(a, b, |a, b| a * b)
}

/// Computes `Σ a·b·c`.
#[inline(always)]
pub(super) fn dot3<R: Real>(a: &[R], b: &[R], c: &[R]) -> R {
    let mut parts = [R::ZERO; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let (c, c_rest) = c.as_chunks::<LANES>();
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        for (((part, &a), &b), &c) in parts.iter_mut().zip(a).zip(b).zip(c) {
            *part += a * b * c;
        }
    }
    for (((part, &a), &b), &c) in parts.iter_mut().zip(a_rest).zip(b_rest).zip(c_rest) {
        *part += a * b * c;
    }
    parts.iter().fold(R::ZERO, |sum, &part| sum + part)
}

/// Returns the maximum, or -1e30 for an empty row.
#[inline(always)]
pub(super) fn greatest<R: Real>(xs: &[R]) -> R {
    let mut parts = [R::of(-1e30); LANES];
    let (chunks, rest) = xs.as_chunks::<LANES>();
    for chunk in chunks {
        for (part, &x) in parts.iter_mut().zip(chunk) {
            *part = if x > *part { x } else { *part };
        }
    }
    for (part, &x) in parts.iter_mut().zip(rest) {
        *part = if x > *part { x } else { *part };
    }
    parts.iter().fold(parts[0], |a, &b| if b > a { b } else { a })
}

/// Computes `x ← e^(x − greatest)`, and returns `(greatest, Σ e^(x − greatest))`.
#[inline(always)]
pub(super) fn exponentials<R: Real>(xs: &mut [R]) -> (R, R) {
    let shift = greatest(xs);
    for x in xs.iter_mut() {
        *x = (*x - shift).exp();
    }
    (shift, sum(xs, xs, |x, _| x))
}

/// Computes `y ← y + x`.
#[inline(always)]
pub(super) fn add<R: Real>(y: &mut [R], x: &[R]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y += x;
    }
}
