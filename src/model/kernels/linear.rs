//! Linear layers and the MLP, with norms and residual additions fused in.

use rayon::prelude::*;

use super::{Norm, block_rows};
use crate::linalg::gemm::{Into, View, ViewMut, gemm};
use crate::linalg::lanes;

/// Rows of a task: the intermediates of the MLP stay in a core's cache, the weights are packed seldom enough.
const MOST_ROWS: usize = 256;

/// `norm(x)·W`, then optionally a norm of the result, then optionally added to a residual stream.
///
/// # Shapes
/// `x [rows, inner]`, `weight [inner, outer]`, `residual [rows, outer]`; result `[rows, outer]`.
pub(crate) fn linear(
    x: &[f32],
    inner: usize,
    before: Option<Norm<'_>>,
    weight: &[f32],
    after: Option<Norm<'_>>,
    residual: Option<&[f32]>,
) -> Vec<f32> {
    let (rows, outer) = (x.len() / inner, weight.len() / inner);
    let mut out = destination(rows * outer, after, residual);
    let step = block_rows(rows, MOST_ROWS);
    out.par_chunks_mut(step * outer).enumerate().for_each_init(Vec::new, |scratch, (task, out)| {
        let first = task * step;
        let block = out.len() / outer;
        let x = &x[first * inner..(first + block) * inner];
        let x = normed(x, inner, before, scratch);
        let (x, weight) = (View::rows(x, block, inner), View::rows(weight, inner, outer));
        write(x, weight, out, block, outer, after, residual.map(|r| &r[first * outer..(first + block) * outer]));
    });
    out
}

/// `silu(norm(x)·G) * (norm(x)·U) · D`, then like [`linear`].
///
/// # Shapes
/// `x [rows, C]`, `gate_up [C, 2F]` (gate first), `down [F, C]`; result `[rows, C]`.
pub(crate) fn mlp(
    x: &[f32],
    channels: usize,
    before: Option<Norm<'_>>,
    gate_up: &[f32],
    down: &[f32],
    after: Option<Norm<'_>>,
    residual: Option<&[f32]>,
) -> Vec<f32> {
    let (rows, width) = (x.len() / channels, down.len() / channels);
    let mut out = destination(rows * channels, after, residual);
    let step = block_rows(rows, MOST_ROWS);
    out.par_chunks_mut(step * channels).enumerate().for_each_init(
        || (Vec::new(), Vec::new()),
        |(scratch, hidden), (task, out)| {
            let first = task * step;
            let block = out.len() / channels;
            let range = first * channels..(first + block) * channels;
            let normed = normed(&x[range.clone()], channels, before, scratch);
            hidden.resize(block * 2 * width, 0.0);
            // [block, 2F]
            gemm(
                ViewMut::rows(hidden, block, 2 * width),
                Into::Replace,
                View::rows(normed, block, channels),
                View::rows(gate_up, channels, 2 * width),
            );
            lanes::widest(
                #[inline(always)]
                || {
                    for row in hidden.chunks_exact_mut(2 * width) {
                        let (gate, up) = row.split_at_mut(width);
                        lanes::silu_mul(gate, up);
                    }
                },
            );
            // The activations stand in the first half of each row: [block, F] with row stride 2F.
            let activations = View::strided(hidden, block, width, 2 * width);
            let down = View::rows(down, width, channels);
            write(activations, down, out, block, channels, after, residual.map(|r| &r[range]));
        },
    );
    out
}

/// `x·diag(d)`.
///
/// # Shapes
/// `x [rows, C]`, `diagonal [C]`.
pub(crate) fn apply_diagonal(x: &[f32], diagonal: &[f32]) -> Vec<f32> {
    let mut out = x.to_vec();
    lanes::widest(
        #[inline(always)]
        || {
            for row in out.chunks_exact_mut(diagonal.len()) {
                for (v, d) in row.iter_mut().zip(diagonal) {
                    *v *= d;
                }
            }
        },
    );
    out
}

/// `x ← x + y`
pub(crate) fn add(x: &mut [f32], y: &[f32]) {
    lanes::widest(
        #[inline(always)]
        || lanes::add(x, y),
    );
}

/// The product adds straight to a copy of the residual stream, unless a norm of the product stands between.
fn destination(len: usize, after: Option<Norm<'_>>, residual: Option<&[f32]>) -> Vec<f32> {
    match (after, residual) {
        (None, Some(residual)) => residual.to_vec(),
        _ => vec![0.0; len],
    }
}

fn normed<'a>(x: &'a [f32], width: usize, norm: Option<Norm<'_>>, scratch: &'a mut Vec<f32>) -> &'a [f32] {
    let Some(norm) = norm else { return x };
    scratch.resize(x.len(), 0.0);
    lanes::widest(
        #[inline(always)]
        || {
            for (x, out) in x.chunks_exact(width).zip(scratch.chunks_exact_mut(width)) {
                lanes::rms_norm(x, norm.weight, norm.eps, out);
            }
        },
    );
    scratch
}

fn write(
    x: View<'_, f32>,
    weight: View<'_, f32>,
    out: &mut [f32],
    block: usize,
    outer: usize,
    after: Option<Norm<'_>>,
    residual: Option<&[f32]>,
) {
    let into = if after.is_none() && residual.is_some() { Into::Add } else { Into::Replace };
    gemm(ViewMut::rows(out, block, outer), into, x, weight);
    let Some(norm) = after else { return };
    lanes::widest(
        #[inline(always)]
        || {
            for row in out.chunks_exact_mut(outer) {
                lanes::rms_norm_in_place(row, norm.weight, norm.eps);
            }
            if let Some(residual) = residual {
                lanes::add(out, residual);
            }
        },
    );
}
