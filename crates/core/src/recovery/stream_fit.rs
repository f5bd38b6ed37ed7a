//! Least-squares maps of the residual stream, or of a function of its rows.

use super::boundary::{Boundary, Solution, pre_and_delta};
use super::least_squares::{self, LeastSquaresSolution};
use crate::error::Result;
use crate::model::RmsNorm;

/// Fits a map of the stream, or of the normalized stream if a norm is given, and returns the repair `x + z·M (+ b)`.
pub(super) fn solve(boundary: &Boundary<'_>, norm: Option<RmsNorm>, has_bias: bool, ridge: f64) -> Result<Solution> {
    let channels = boundary.channels();
    let map_input = |pre: &[f32], stream: Vec<f64>| norm.as_ref().map_or(stream, |norm| norm.apply(pre, channels));
    let (solved, bias) = if has_bias {
        let (solved, bias) = fit_with_bias(boundary, &map_input, ridge)?;
        (solved, Some(bias))
    } else {
        (fit_without_bias(boundary, &map_input, ridge)?, None)
    };
    solved.into_repair(channels, norm, bias)
}

/// Function that computes the input `Z [rows, C]` of a map. Its arguments are the same rows of `X_pre` in f32 and in
/// f64.
type ComputeInput<'a> = &'a dyn Fn(&[f32], Vec<f64>) -> Vec<f64>;

/// Solves `min ‖Z·M − Δ‖² + ridge·‖M‖²` over the first [`Boundary::fitted`] sequences.
fn fit_without_bias(
    boundary: &Boundary<'_>,
    compute_input: ComputeInput<'_>,
    ridge: f64,
) -> Result<LeastSquaresSolution> {
    let mut sums = boundary.new_sums();
    visit_blocks(boundary, compute_input, |[z, delta]| sums.add(z, delta))?;
    least_squares::solve(&sums.finish()?, ridge)
}

/// Solves `min ‖Z·M + 1·bᵀ − Δ‖² + ridge·‖M‖²` over the first [`Boundary::fitted`] sequences. Returns the map and the
/// bias `[C]`.
///
/// The loss is minimal in `b` where its derivative `1ᵀ(Z·M + 1·bᵀ − Δ)` is zero: `b = δ̄ − z̄·M`, where `z̄` and `δ̄`
/// are the means over tokens. Substituting `b` leaves the centered least-squares problem
/// `‖(Z − 1·z̄ᵀ)·M − (Δ − 1·δ̄ᵀ)‖²`.
fn fit_with_bias(
    boundary: &Boundary<'_>,
    compute_input: ComputeInput<'_>,
    ridge: f64,
) -> Result<(LeastSquaresSolution, Vec<f32>)> {
    let channels = boundary.channels();
    let mut means = [vec![0.0; channels], vec![0.0; channels]];
    let mut count = 0usize;
    let mut squares = 0.0;
    visit_blocks(boundary, compute_input, |pair| {
        squares += pair[0].iter().map(|v| v * v).sum::<f64>();
        for (sums, rows) in means.iter_mut().zip(pair.iter()) {
            rows.chunks_exact(channels).for_each(|row| sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += v));
        }
        count += pair[0].len() / channels;
        Ok(())
    })?;
    means.iter_mut().flatten().for_each(|sum| *sum /= count as f64);
    let mut sums = boundary.new_sums();
    visit_blocks(boundary, compute_input, |pair| {
        for (rows, mean) in pair.iter_mut().zip(&means) {
            rows.iter_mut().zip(mean.iter().cycle()).for_each(|(v, mean)| *v -= mean);
        }
        sums.add(&pair[0], &pair[1])
    })?;
    let mut normal = sums.finish()?;
    normal.set_source_squared_norm(squares);
    let solved = least_squares::solve(&normal, ridge)?;
    let [input_mean, delta_mean] = means;
    let bias = (0..channels).map(|j| {
        let mapped_mean: f64 = (0..channels).map(|i| input_mean[i] * solved.matrix[i * channels + j]).sum();
        (delta_mean[j] - mapped_mean) as f32
    });
    let bias = bias.collect();
    Ok((solved, bias))
}

/// Calls `visit` with blocks of `Z` and `Δ` in f64, which together cover the first [`Boundary::fitted`] sequences.
fn visit_blocks(
    boundary: &Boundary<'_>,
    compute_input: ComputeInput<'_>,
    mut visit: impl FnMut(&mut [Vec<f64>; 2]) -> Result<()>,
) -> Result<()> {
    for rows in boundary.blocks(boundary.fitted) {
        let pre = boundary.pre(rows.clone())?;
        let (wide, delta) = pre_and_delta(pre, boundary.post(rows)?);
        visit(&mut [compute_input(pre, wide), delta])?;
    }
    Ok(())
}
