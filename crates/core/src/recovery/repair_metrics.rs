//! Norms and errors of a repair on its calibration activations (docs/design.md §7). Figure numbers refer to the Ghosted
//! Layers paper.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::boundary::{Boundary, RemainingLayer, Repair};
use crate::calibrate::HookPoint;
use crate::error::Result;
use crate::files::number;
use crate::linalg::gemm::{MatrixView, MatrixViewMut, Update, gemm_parallel};
use crate::model::{Batch, HostRows, Operator, Step, Sublayer};

/// Norms and errors of a repair at one boundary, over all calibration sequences.
///
/// `X̂` is the repair's estimate of `X_post` given the dense model's stream, even if the repair was fitted on another
/// stream. `M` is the matrix of the update without its bias: `W − I`, or the map of the normalized stream.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RepairMetrics {
    /// Mean of |X̂ − X_post| over tokens and channels.
    pub boundary_mae: f64,
    /// Mean of |X̂ − X_post| over tokens, for each channel (figure 4).
    pub boundary_mae_by_channel: Vec<f64>,
    /// Relative residual, ‖X̂ − X_post‖ / ‖Δ‖, or NaN if the removed layers did not change the stream.
    #[serde(with = "number")]
    pub relative_residual: f64,
    /// Norm of the update that the removed layers made, ‖Δ‖.
    pub delta_norm: f64,
    /// Norm of the repair's update, ‖M‖.
    pub m_norm: f64,
    /// Norm of the symmetric part of `M`, ‖(M + Mᵀ)/2‖ (figure 3).
    pub m_symmetric_norm: f64,
    /// Norm of the antisymmetric part of `M`, ‖(M − Mᵀ)/2‖ (figure 3).
    pub m_antisymmetric_norm: f64,
}

impl RepairMetrics {
    /// Computes the metrics of a repair.
    ///
    /// # Errors
    /// Fails if the activations cannot be read, or the layer before the span cannot be run.
    pub fn compute(boundary: &Boundary<'_>, repair: &Repair) -> Result<Self> {
        let channels = boundary.channels();
        let m = repair.operator().map_or_else(|| Ok(vec![0.0; channels * channels]), |operator| operator.change())?;
        let mut absolute_errors = vec![0.0f64; channels];
        let mut squared_residual = 0.0;
        let mut delta_square = 0.0;
        let mut rows = 0usize;
        // Blocks are computed in parallel and summed in order, so that the result does not depend on the number of
        // threads.
        for group in row_blocks(boundary, repair).chunks(2 * rayon::current_num_threads()) {
            // Each error is [rows, C].
            let errors = group.par_iter().map(|block| compute_error(boundary, repair, &m, block.clone()));
            for (block, error) in group.iter().zip(errors.collect::<Result<Vec<_>>>()?) {
                for row in error.chunks_exact(channels) {
                    for (sum, e) in absolute_errors.iter_mut().zip(row) {
                        *sum += e.abs();
                        squared_residual += e * e;
                    }
                }
                let pre = boundary.pre(block.clone())?;
                let post = boundary.post(block.clone())?;
                delta_square +=
                    pre.iter().zip(post).map(|(&pre, &post)| (f64::from(post) - f64::from(pre)).powi(2)).sum::<f64>();
                rows += block.len();
            }
        }
        Ok(Self {
            boundary_mae: absolute_errors.iter().sum::<f64>() / (rows * channels) as f64,
            boundary_mae_by_channel: absolute_errors.iter().map(|sum| sum / rows as f64).collect(),
            relative_residual: (squared_residual / delta_square).sqrt(),
            delta_norm: delta_square.sqrt(),
            m_norm: m.iter().map(|v| v * v).sum::<f64>().sqrt(),
            m_symmetric_norm: component_norm(&m, channels, 1.0),
            m_antisymmetric_norm: component_norm(&m, channels, -1.0),
        })
    }
}

/// Computes `‖(M + sign·Mᵀ)/2‖`: the norm of the symmetric part for a sign of 1, and that of the antisymmetric part for
/// −1.
fn component_norm(m: &[f64], channels: usize, sign: f64) -> f64 {
    let rows = (0..channels).map(|i| {
        let squares = (0..channels).map(|j| ((m[i * channels + j] + sign * m[j * channels + i]) / 2.0).powi(2));
        squares.sum::<f64>()
    });
    rows.sum::<f64>().sqrt()
}

/// Returns blocks of rows that together cover all sequences. If the repair requires running a layer again, each block
/// is a whole sequence, because attention needs all of its rows.
fn row_blocks(boundary: &Boundary<'_>, repair: &Repair) -> Vec<Range<usize>> {
    match repair {
        Repair::Branches { attention: true, .. } | Repair::Merged(_) => {
            (0..boundary.sequences()).map(|index| boundary.sequence(index)).collect()
        }
        _ => boundary.blocks(boundary.sequences()).collect(),
    }
}

/// Computes `X̂ − X_post` for the given rows, `[rows, C]`. To avoid cancellation, the streams are subtracted before
/// products are added.
fn compute_error(boundary: &Boundary<'_>, repair: &Repair, m: &[f64], rows: Range<usize>) -> Result<Vec<f64>> {
    let channels = boundary.channels();
    let pre = boundary.pre(rows.clone())?;
    let post = boundary.post(rows.clone())?;
    // X̂ is X_pre, plus A·M and the bias for a linear repair, where the input A is X_pre (possibly normalized) or the
    // output of the MLP before the cut. The error is therefore A·M + b − Δ, and just −Δ for a plain cut. If attention
    // is repaired too, or layers are merged, the layer is run again.
    match repair {
        Repair::Cut => Ok(subtract(pre, post)),
        Repair::Stream(operator) if operator.is_bias_only() => add_bias(subtract(pre, post), operator),
        Repair::Stream(operator) => {
            let input = operator
                .norm()?
                .map_or_else(|| pre.iter().copied().map(f64::from).collect(), |norm| norm.apply(pre, channels));
            add_bias(add_product(subtract(pre, post), &input, m, channels), operator)
        }
        Repair::Branches { operator, attention: false } => {
            add_bias(add_product(subtract(pre, post), &subtract(pre, boundary.middle(rows)?), m, channels), operator)
        }
        Repair::Branches { operator, attention: true } => {
            let layer = boundary.layer_before()?;
            let plain = RemainingLayer { layer, edits: BTreeMap::new() };
            let edited = boundary.before.unwrap_or(&plain).edited_steps(operator)?;
            Ok(subtract(&rerun(boundary, layer, &edited, rows)?.values()?, post))
        }
        Repair::Merged(merged) => {
            let steps = Sublayer::ALL.map(|sublayer| Step::Merged(sublayer, Arc::clone(merged)));
            Ok(subtract(&rerun(boundary, merged.layer(), &steps, rows)?.values()?, post))
        }
    }
}

/// Runs the steps that replace a layer, starting from the stream that enters the layer.
fn rerun(boundary: &Boundary<'_>, layer: usize, steps: &[Step], rows: Range<usize>) -> Result<HostRows> {
    let entering = boundary.activations.rows(HookPoint::Stream(layer), rows.clone())?;
    let batch = Batch::windows([vec![0; rows.len()].as_slice()]);
    boundary.backbone.run_steps(&batch, steps, entering)
}

fn subtract(x: &[f32], y: &[f32]) -> Vec<f64> {
    x.iter().zip(y).map(|(&x, &y)| f64::from(x) - f64::from(y)).collect()
}

/// Computes `sum + x·m`.
fn add_product(mut sum: Vec<f64>, x: &[f64], m: &[f64], channels: usize) -> Vec<f64> {
    let rows = x.len() / channels;
    let x = MatrixView::rows(x, rows, channels);
    let m = MatrixView::rows(m, channels, channels);
    gemm_parallel(MatrixViewMut::rows(&mut sum, rows, channels), Update::Add, x, m);
    sum
}

/// Adds the operator's bias, if any, to each row.
fn add_bias(mut sum: Vec<f64>, operator: &Operator) -> Result<Vec<f64>> {
    if let Some(bias) = operator.bias()? {
        sum.iter_mut().zip(bias.iter().cycle()).for_each(|(sum, b)| *sum += f64::from(*b));
    }
    Ok(sum)
}
