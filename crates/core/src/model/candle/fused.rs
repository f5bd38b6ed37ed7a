//! Fused layer operations without gradients. Each operation makes one pass over memory instead of four or five.
//!
//! On GPUs, they call candle's fused kernels, but on CUDA `ops.rs` prefers those in `cuda.rs`. On the CPU, they call
//! ghostlab's kernels, because candle's CPU kernels are scalar.

use std::ops::Range;

use candle_core::{CpuStorage, CustomOp2, CustomOp3, DType, InplaceOp2, Layout, Shape, Tensor};
use ghostlab_kernels::forward::{self as kernels, Norm};

use crate::error::Result;
use crate::model::config::Config;

/// Scale and soft cap ([`apply_cap`]) of attention scores.
#[derive(Debug, Clone, Copy)]
pub struct Scores {
    pub scale: f64,
    pub cap: Option<f32>,
}

impl Scores {
    /// Returns the scale and soft cap of a backbone's attention scores.
    pub fn from_config(config: &Config) -> Self {
        let plain = config.scale == 1.0 / (config.head_dim as f32).sqrt();
        let scale = if plain { 1.0 / (config.head_dim as f64).sqrt() } else { f64::from(config.scale) };
        Self { scale, cap: config.score_cap }
    }
}

/// Computes `cap·tanh(x / cap)`. Returns `x` unchanged if there is no cap.
pub fn apply_cap(x: Tensor, cap: Option<f32>) -> Result<Tensor> {
    match cap {
        Some(cap) => Ok(((x / f64::from(cap))?.tanh()? * f64::from(cap))?),
        None => Ok(x),
    }
}

/// Returns whether an operation on these inputs may be fused. All inputs must be f32 and must not require gradients,
/// because candle's fused operations silently cut the autograd graph.
pub(super) fn supports(tensors: &[&Tensor]) -> bool {
    tensors.iter().all(|x| x.dtype() == DType::F32 && !x.track_op())
}

/// Computes [`super::ops::rms_norm`].
pub(super) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let x = x.contiguous()?;
    let eps = eps as f32;
    if !x.device().is_cpu() {
        return Ok(candle_nn::ops::rms_norm(&x, weight, eps)?);
    }
    apply_to_copy(&x, weight, |x: &mut [f32], weight: &[f32]| kernels::normalize_rows(x, Norm { weight, eps }))
}

/// Computes [`super::ops::rotate`] over all channels of a head.
pub(super) fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let x = x.contiguous()?;
    let cos = cos.contiguous()?;
    let sin = sin.contiguous()?;
    if x.device().is_cpu() {
        return Ok(x.apply_op3_no_bwd(&cos, &sin, &Rotate)?);
    }
    Ok(candle_nn::rotary_emb::rope_thd(&x.unsqueeze(0)?, &cos, &sin)?.squeeze(0)?)
}

/// Computes [`super::ops::softmax`].
pub(super) fn softmax(x: &Tensor) -> Result<Tensor> {
    Ok(candle_nn::ops::softmax_last_dim(&x.contiguous()?)?)
}

/// Computes the softmax of scaled, capped and masked scores. On the CPU, the function overwrites `scores`, because a
/// copy would take as long as the computation.
///
/// # Shapes
/// `scores [.., q, k]`, `mask [q, k]` of 0 and −∞; result `[.., q, k]`.
pub(super) fn attention_weights(scores: Tensor, mask: &Tensor, settings: Scores) -> Result<Tensor> {
    if !scores.device().is_cpu() {
        return softmax(&apply_cap((scores * settings.scale)?, settings.cap)?.broadcast_add(mask)?);
    }
    let keys = mask.dim(1)?;
    let scale = settings.scale as f32;
    let scores = scores.contiguous()?;
    scores.inplace_op2(
        &mask.contiguous()?,
        &InplaceUpdate(|scores: &mut [f32], mask: &[f32]| {
            kernels::attention_weights(scores, mask, keys, scale, settings.cap);
        }),
    )?;
    Ok(scores)
}

/// Computes `x + y` for tensors of equal shape.
pub(super) fn sum(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return Ok((x + y)?);
    }
    apply_to_copy(&x.contiguous()?, &y.contiguous()?, kernels::add_rows)
}

/// Computes `silu(gate) * up`.
pub(super) fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    if !gate.device().is_cpu() {
        return Ok((gate.silu()? * up)?);
    }
    apply_to_copy(&gate.contiguous()?, &up.contiguous()?, kernels::silu_mul)
}

/// Applies `change` to a copy of `x`, with `other` as the second argument.
fn apply_to_copy(x: &Tensor, other: &Tensor, change: impl Fn(&mut [f32], &[f32])) -> Result<Tensor> {
    Ok(x.apply_op2_no_bwd(other, &InplaceUpdate(change))?)
}

/// Custom op that updates its first tensor, or a copy of it, from the values of the second.
struct InplaceUpdate<F>(F);

impl<F: Fn(&mut [f32], &[f32])> InplaceOp2 for InplaceUpdate<F> {
    fn name(&self) -> &'static str {
        "fused"
    }

    fn cpu_fwd(
        &self,
        x: &mut CpuStorage,
        x_layout: &Layout,
        other: &CpuStorage,
        other_layout: &Layout,
    ) -> candle_core::Result<()> {
        let CpuStorage::F32(values) = x else { return Err(candle_core::Error::msg("expected f32 values")) };
        (self.0)(&mut values[element_range(x_layout)?], f32_slice(other, other_layout)?);
        Ok(())
    }
}

impl<F: Fn(&mut [f32], &[f32])> CustomOp2 for InplaceUpdate<F> {
    fn name(&self) -> &'static str {
        "fused"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        other: &CpuStorage,
        other_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let mut out = f32_slice(x, x_layout)?.to_vec();
        (self.0)(&mut out, f32_slice(other, other_layout)?);
        Ok((CpuStorage::F32(out), x_layout.shape().clone()))
    }
}

struct Rotate;

impl CustomOp3 for Rotate {
    fn name(&self) -> &'static str {
        "rotate"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        cos: &CpuStorage,
        cos_layout: &Layout,
        sin: &CpuStorage,
        sin_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (_, heads, head_dim) = x_layout.shape().dims3()?;
        let x = f32_slice(x, x_layout)?;
        let cos = f32_slice(cos, cos_layout)?;
        let sin = f32_slice(sin, sin_layout)?;
        let mut out = vec![0.0; x.len()];
        kernels::rotate_rows(x, heads, head_dim, [cos, sin], &mut out);
        Ok((CpuStorage::F32(out), x_layout.shape().clone()))
    }
}

/// Returns the elements of a contiguous f32 tensor.
fn f32_slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> candle_core::Result<&'a [f32]> {
    Ok(&storage.as_slice::<f32>()?[element_range(layout)?])
}

fn element_range(layout: &Layout) -> candle_core::Result<Range<usize>> {
    let (first, end) =
        layout.contiguous_offsets().ok_or_else(|| candle_core::Error::msg("expected a contiguous tensor"))?;
    Ok(first..end)
}
