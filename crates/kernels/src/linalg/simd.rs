//! Elementwise f32 loops, vectorized by the compiler for the widest instruction set of the processor.
//!
//! Release binaries run on any x86-64 or ARM machine, so each loop is compiled several times and the best version is
//! selected at run time (`pulp`). Reductions keep 16 partial sums in a fixed order, so results do not depend on the
//! number of threads.

use pulp::Arch;

const LANES: usize = 16;

/// Runs `body` with the best instruction set of this processor.
///
/// `body` must be marked `#[inline(always)]`, as `in_widest!` does. A closure that is not inlined is compiled for the
/// baseline instruction set.
#[inline(always)]
pub fn widest<R>(body: impl FnOnce() -> R) -> R {
    struct Body<F>(F);
    impl<R, F: FnOnce() -> R> pulp::NullaryFnOnce for Body<F> {
        type Output = R;
        #[inline(always)]
        fn call(self) -> R {
            (self.0)()
        }
    }
    Arch::new().dispatch(Body(body))
}

/// Evaluates an expression with the best instruction set of this processor.
#[macro_export]
macro_rules! in_widest {
    ($body:expr) => {
        $crate::linalg::simd::widest(
            #[inline(always)]
            || $body,
        )
    };
}
pub use in_widest;

/// Computes `e^x` to about 1 ulp between −87.3 and 88.3. Arguments outside this range are clamped. NaN stays NaN. The
/// function is branch-free, so that loops over it vectorize.
///
/// Method: `x = n·ln 2 + r`, a polynomial for `e^r` on |r| ≤ ln 2 / 2 (Cephes `expf`), and `2^n` from its bits.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5·2^23 rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.3, 88.3);
    let shifted = clamped * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * LN2_HIGH - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    let power = f32::from_bits((shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127)) << 23);
    p * power
}

/// Folds element `i` into partial result `i mod 16`, starting from `start`. The order of a sum is therefore fixed.
#[inline(always)]
fn fold_lanes(xs: &[f32], start: f32, fold: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    let mut parts = [start; LANES];
    let (chunks, rest) = xs.as_chunks::<LANES>();
    for chunk in chunks {
        for (part, &x) in parts.iter_mut().zip(chunk) {
            *part = fold(*part, x);
        }
    }
    for (part, &x) in parts.iter_mut().zip(rest) {
        *part = fold(*part, x);
    }
    parts
}

#[inline(always)]
fn sum_terms(xs: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let parts = fold_lanes(
        xs,
        0.0,
        #[inline(always)]
        |part, x| part + term(x),
    );
    parts.iter().sum()
}

/// Returns the maximum, or −∞ if empty. Ignores NaN, which is safe: the sum of exponentials that callers compute next
/// is NaN anyway.
#[inline(always)]
pub fn max(xs: &[f32]) -> f32 {
    let parts = fold_lanes(
        xs,
        f32::NEG_INFINITY,
        #[inline(always)]
        |part, x| if x > part { x } else { part },
    );
    let mut greatest = f32::NEG_INFINITY;
    for part in &parts {
        greatest = if *part > greatest { *part } else { greatest };
    }
    greatest
}

/// Computes `Σ x·y`.
#[inline(always)]
pub fn dot(xs: &[f32], ys: &[f32]) -> f32 {
    let mut parts = [0.0f32; LANES];
    let ((chunks, rest), (others, last)) = (xs.as_chunks::<LANES>(), ys.as_chunks::<LANES>());
    for (xs, ys) in chunks.iter().zip(others) {
        for ((part, &x), &y) in parts.iter_mut().zip(xs).zip(ys) {
            *part += x * y;
        }
    }
    for ((part, &x), &y) in parts.iter_mut().zip(rest).zip(last) {
        *part += x * y;
    }
    parts.iter().sum()
}

/// Computes `Σ e^(x − shift)`.
#[inline(always)]
pub fn sum_exp(xs: &[f32], shift: f32) -> f32 {
    sum_terms(
        xs,
        #[inline(always)]
        |x| exp(x - shift),
    )
}

/// Replaces `xs` with the softmax numerators `e^(x − max)` and returns their sum. Callers divide their output by the
/// sum, because their output has fewer elements than `xs`.
#[inline(always)]
pub fn softmax_numerators(xs: &mut [f32]) -> f32 {
    let shift = max(xs);
    let mut parts = [0.0f32; LANES];
    let (chunks, rest) = xs.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for (part, x) in parts.iter_mut().zip(chunk) {
            *x = exp(*x - shift);
            *part += *x;
        }
    }
    for (part, x) in parts.iter_mut().zip(rest) {
        *x = exp(*x - shift);
        *part += *x;
    }
    parts.iter().sum()
}

/// Computes `1 / sqrt(mean x² + eps)`.
#[inline(always)]
fn rms_scale(x: &[f32], eps: f32) -> f32 {
    let squares = sum_terms(
        x,
        #[inline(always)]
        |v| v * v,
    );
    1.0 / (squares / x.len() as f32 + eps).sqrt()
}

/// Computes the RMS norm of one row: `out = x / sqrt(mean x² + eps) · weight`.
///
/// # Shapes
/// `x [C]`, `weight [C]`, `out [C]`.
#[inline(always)]
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = rms_scale(x, eps);
    for ((o, &v), &w) in out.iter_mut().zip(x).zip(weight) {
        *o = v * scale * w;
    }
}

#[inline(always)]
pub fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = rms_scale(x, eps);
    for (v, &w) in x.iter_mut().zip(weight) {
        *v = *v * scale * w;
    }
}

/// Computes `gate ← silu(gate) · up`, where `silu(g) = g / (1 + e^−g)`.
#[inline(always)]
pub fn silu_mul(gate: &mut [f32], up: &[f32]) {
    for (g, &u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + exp(-*g)) * u;
    }
}

/// Computes `gate ← gelu(gate) · up` in the tanh form, `gelu(g) = g/2·(1 + tanh y) = g / (1 + e^−2y)` with `y =
/// √(2/π)·(g + 0.044715·g³)`.
#[inline(always)]
pub fn gelu_mul(gate: &mut [f32], up: &[f32]) {
    // 2·√(2/π).
    const TWICE: f32 = 1.595_769_2;
    for (g, &u) in gate.iter_mut().zip(up) {
        let y = TWICE * (*g + 0.044_715 * *g * *g * *g);
        *g = *g / (1.0 + exp(-y)) * u;
    }
}

/// Computes `tanh x` to a few ulp without branches (Cephes `tanhf`). NaN stays NaN.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let size = x.abs();
    let far = 1.0 - 2.0 / (exp(2.0 * size) + 1.0);
    let z = x * x;
    let mut p = -5.704_988_7e-3;
    p = p * z + 2.063_909e-2;
    p = p * z - 5.373_971_5e-2;
    p = p * z + 1.333_144_2e-1;
    p = p * z - 3.333_328e-1;
    let near = p * z * x + x;
    if size < 0.625 { near } else { far.copysign(x) }
}

/// Computes `x ← cap·tanh(x / cap)`.
#[inline(always)]
pub fn soft_cap(xs: &mut [f32], cap: f32) {
    for x in xs {
        *x = cap * tanh(*x / cap);
    }
}

/// Applies the rotary embedding to the first `R` channels of a head, with Hugging Face's half-split pairs
/// `(x_i, x_{i + R/2})`. Scales all channels by `scale`.
///
/// # Shapes
/// `x [D]`, `cos [R/2]`, `sin [R/2]`, `out [D]`.
#[inline(always)]
pub fn rotate(x: &[f32], cos: &[f32], sin: &[f32], scale: f32, out: &mut [f32]) {
    let half = cos.len();
    for (out, x) in out[2 * half..].iter_mut().zip(&x[2 * half..]) {
        *out = x * scale;
    }
    let (low, high) = x[..2 * half].split_at(half);
    let (out_low, out_high) = out[..2 * half].split_at_mut(half);
    for i in 0..half {
        out_low[i] = (low[i] * cos[i] - high[i] * sin[i]) * scale;
        out_high[i] = (high[i] * cos[i] + low[i] * sin[i]) * scale;
    }
}

/// Computes `y ← y + x`.
#[inline(always)]
pub fn add(y: &mut [f32], x: &[f32]) {
    for (a, &b) in y.iter_mut().zip(x) {
        *a += b;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_over_its_whole_range() {
        let mut worst = 0.0f64;
        for i in -870_000..=880_000 {
            let x = i as f32 * 1e-4;
            let ours = f64::from(in_widest!(exp(x)));
            let exact = f64::from(x).exp();
            worst = worst.max(((ours - exact) / exact).abs());
        }
        // The bound is two units in the last place of f32.
        assert!(worst < 2.4e-7, "worst relative error {worst:e}");
    }

    #[test]
    fn exp_handles_extremes_and_nan() {
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(-1e30) < 1.3e-38 && exp(f32::NEG_INFINITY) < 1.3e-38);
        assert!(exp(100.0) > 2e38);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_is_accurate_near_zero_and_far_from_it() {
        for i in -200_000..=200_000 {
            let x = i as f32 * 1e-4;
            let ours = f64::from(tanh(x));
            let exact = f64::from(x).tanh();
            assert!((ours - exact).abs() <= 3e-7 * exact.abs(), "{x}: {ours} {exact}");
        }
        assert!(tanh(f32::NAN).is_nan() && tanh(f32::INFINITY) == 1.0 && tanh(f32::NEG_INFINITY) == -1.0);
    }

    #[test]
    fn softmax_numerators_propagate_nan() {
        let mut xs = vec![0.0f32; 40];
        xs[17] = f32::NAN;
        assert!(softmax_numerators(&mut xs).is_nan());
    }

    #[test]
    fn softmax_numerators_are_correct_at_any_length() {
        for n in 1..50 {
            let logits: Vec<f32> = (0..n).map(|i| (i as f32 * 0.7).sin() * 30.0).collect();
            let mut xs = logits.clone();
            let sum = widest(|| softmax_numerators(&mut xs));
            let exact: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
            for (&x, &logit) in xs.iter().zip(&logits) {
                assert!((f64::from(x / sum) - f64::from(logit).exp() / exact).abs() < 1e-6, "{n}");
            }
        }
    }

    #[test]
    fn rms_norm_of_a_constant_row_is_its_sign() {
        let x = vec![-3.0f32; 20];
        let weight = vec![1.0f32; 20];
        let mut out = vec![0.0; 20];
        rms_norm(&x, &weight, 0.0, &mut out);
        assert!(out.iter().all(|v| (v + 1.0).abs() < 1e-6));
    }
}
