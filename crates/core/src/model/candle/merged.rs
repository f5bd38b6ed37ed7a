//! Weights of merged layers as candle tensors.

use candle_core::{DType, Tensor};

use super::device_weight_cache::{GatedTensors, LayerTensors, MlpTensors, TensorPart, WeightCache};
use crate::error::{Error, Result};
use crate::model::merged_layer::MergedLayer;

/// Source layers, each with its factor.
type Sources<'a> = [(f64, &'a LayerTensors)];

impl WeightCache {
    /// Computes the weights of a merged layer from those of its source layers.
    ///
    /// # Errors
    /// Fails if a source layer cannot be loaded or has experts.
    pub(super) fn compute_merged(&self, merged: &MergedLayer) -> Result<TensorPart> {
        let base = self.layer(merged.layer())?;
        let parts = merged.factors().map(|(layer, factor)| Ok((factor, self.layer(layer)?)));
        let parts: Vec<_> = parts.collect::<Result<_>>()?;
        let sources = parts.iter().map(|(factor, part)| Ok((*factor, part.layer()?)));
        let sources: Vec<_> = sources.collect::<Result<_>>()?;
        let layer = LayerTensors::merge(base.layer()?, &sources, merged.has_merged_norms())?;
        Ok(TensorPart::Layer(Box::new(layer)))
    }
}

impl LayerTensors {
    fn merge(base: &Self, sources: &Sources<'_>, merges_norms: bool) -> Result<Self> {
        let mut merged = Self {
            rotary: base.rotary,
            norms: base.norms.clone(),
            query_norm: base.query_norm.clone(),
            key_norm: base.key_norm.clone(),
            query: merge_matrix(sources, |layer| Ok(&layer.query))?,
            key: merge_matrix(sources, |layer| Ok(&layer.key))?,
            value: merge_matrix(sources, |layer| Ok(&layer.value))?,
            output: merge_matrix(sources, |layer| Ok(&layer.output))?,
            biases: merge_vectors(sources, |layer| Ok(&layer.biases))?,
            mlp: MlpTensors::Dense(GatedTensors {
                gate: merge_matrix(sources, |layer| Ok(&layer.dense()?.gate))?,
                up: merge_matrix(sources, |layer| Ok(&layer.dense()?.up))?,
                down: merge_matrix(sources, |layer| Ok(&layer.dense()?.down))?,
                biases: merge_vectors(sources, |layer| Ok(&layer.dense()?.biases))?,
            }),
            window: base.window,
        };
        if merges_norms {
            merged.norms = merge_vectors(sources, |layer| Ok(&layer.norms))?;
            merged.query_norm = merge_vector(sources, |layer| Ok(layer.query_norm.as_ref()))?;
            merged.key_norm = merge_vector(sources, |layer| Ok(layer.key_norm.as_ref()))?;
        }
        Ok(merged)
    }

    fn dense(&self) -> Result<&GatedTensors> {
        match &self.mlp {
            MlpTensors::Dense(mlp) => Ok(mlp),
            MlpTensors::Experts(..) => Err(Error::job("layers with experts cannot be merged")),
        }
    }
}

fn merge_matrix(sources: &Sources<'_>, select: impl Fn(&LayerTensors) -> Result<&Tensor>) -> Result<Tensor> {
    let tensors = sources.iter().map(|&(factor, layer)| Ok((factor, select(layer)?)));
    weighted_sum(&tensors.collect::<Result<Vec<_>>>()?)
}

/// Merges each vector across the source layers. A vector that no source layer has stays `None`.
fn merge_vectors<const N: usize>(
    sources: &Sources<'_>,
    select: impl Fn(&LayerTensors) -> Result<&[Option<Tensor>; N]>,
) -> Result<[Option<Tensor>; N]> {
    let mut merged = [const { None }; N];
    for (index, merged) in merged.iter_mut().enumerate() {
        *merged = merge_vector(sources, |layer| Ok(select(layer)?[index].as_ref()))?;
    }
    Ok(merged)
}

fn merge_vector(
    sources: &Sources<'_>,
    select: impl Fn(&LayerTensors) -> Result<Option<&Tensor>>,
) -> Result<Option<Tensor>> {
    let mut tensors = Vec::new();
    for &(factor, layer) in sources {
        tensors.extend(select(layer)?.map(|tensor| (factor, tensor)));
    }
    if tensors.is_empty() { Ok(None) } else { weighted_sum(&tensors).map(Some) }
}

/// Computes `Σ factor·tensor`, in f64 on the CPU. Other devices use f32, because f64 is slow or missing there.
fn weighted_sum(tensors: &[(f64, &Tensor)]) -> Result<Tensor> {
    let mut sum: Option<Tensor> = None;
    for (factor, tensor) in tensors {
        let wide = if tensor.device().is_cpu() { DType::F64 } else { DType::F32 };
        let term = tensor.to_dtype(wide)?.affine(*factor, 0.0)?;
        sum = Some(match sum {
            Some(sum) => (sum + term)?,
            None => term,
        });
    }
    let (Some(sum), Some((_, first))) = (sum, tensors.first()) else {
        return Err(Error::job("a merged layer has no source layers"));
    };
    Ok(sum.to_dtype(first.dtype())?)
}
