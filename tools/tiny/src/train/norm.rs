//! Root-mean-square norm of rows, and its gradient.

use super::real::{Real, dot, dot3};
use ghostlab_core::in_widest;

/// Computes `1 / sqrt(mean x² + eps)`.
#[inline(always)]
fn scale_of<R: Real>(x: &[R], eps: f64) -> R {
    R::of(1.0 / ((dot(x, x) / R::of(x.len() as f64)).wide() + eps).sqrt())
}

/// Computes `out ← x · scale(x) · weight` row by row, or adds it to `out` if `add` is set.
///
/// # Shapes
/// `weight [C]`, `x [rows, C]`, `out [rows, C]`.
pub(super) fn forward<R: Real>(x: &[R], weight: &[R], eps: f64, out: &mut [R], add: bool) {
    let width = weight.len();
    in_widest!({
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            row_forward(x, weight, eps, out, add);
        }
    });
}

#[inline(always)]
pub(super) fn row_forward<R: Real>(x: &[R], weight: &[R], eps: f64, out: &mut [R], add: bool) {
    let scale = scale_of(x, eps);
    for ((out, &x), &w) in out.iter_mut().zip(x).zip(weight) {
        let y = x * scale * w;
        *out = if add { *out + y } else { y };
    }
}

/// Computes the gradient of [`forward`]. Adds the weight's gradient to `d_weight`. Writes the gradient of `x` to `out`,
/// or adds it there.
///
/// # Shapes
/// `weight [C]`, `d_weight [C]`; `x`, `d_out`, `out [rows, C]`.
pub(super) fn backward<R: Real>(
    x: &[R],
    weight: &[R],
    eps: f64,
    d_out: &[R],
    d_weight: &mut [R],
    out: &mut [R],
    add: bool,
) {
    let width = weight.len();
    in_widest!({
        let rows = x.chunks_exact(width).zip(d_out.chunks_exact(width)).zip(out.chunks_exact_mut(width));
        for ((x, d_out), out) in rows {
            row_backward(x, weight, eps, d_out, d_weight, out, add);
        }
    });
}

/// Computes one row of [`backward`].
///
/// With `s = (mean x² + eps)^(−1/2)` and `g = d_out · weight`: `dx = s·g − x · s³ · (Σ g·x) / C`.
#[inline(always)]
pub(super) fn row_backward<R: Real>(
    x: &[R],
    weight: &[R],
    eps: f64,
    d_out: &[R],
    d_weight: &mut [R],
    out: &mut [R],
    add: bool,
) {
    let scale = scale_of(x, eps);
    for ((d_weight, &x), &d) in d_weight.iter_mut().zip(x).zip(d_out) {
        *d_weight += d * x * scale;
    }
    let back = dot3(x, d_out, weight) * scale * scale * scale / R::of(x.len() as f64);
    for (((out, &x), &d), &w) in out.iter_mut().zip(x).zip(d_out).zip(weight) {
        let dx = d * w * scale - x * back;
        *out = if add { *out + dx } else { dx };
    }
}
