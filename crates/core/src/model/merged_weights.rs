//! Weights of merged layers in the CPU engine.

use ghostlab_kernels::forward::PackedWeights;

use super::config::Config;
use super::merged_layer::{MergedLayer, weighted_sum};
use super::weight_cache::{GatedMlp, Layer, Mlp, ModelPart, WeightCache};
use crate::error::{Error, Result};

/// Source layers, each with its factor.
type Sources<'a> = [(f64, &'a Layer)];

impl WeightCache {
    /// Computes the weights of a merged layer from the weights of its source layers.
    ///
    /// # Errors
    /// Fails if a source layer cannot be loaded or has experts.
    pub(super) fn compute_merged(&self, config: &Config, merged: &MergedLayer) -> Result<ModelPart> {
        let base = self.layer(config, merged.layer())?;
        let parts = merged.factors().map(|(layer, factor)| Ok((factor, self.layer(config, layer)?)));
        let parts: Vec<_> = parts.collect::<Result<_>>()?;
        let sources = parts.iter().map(|(factor, part)| Ok((*factor, part.layer()?)));
        let sources: Vec<_> = sources.collect::<Result<_>>()?;
        Ok(ModelPart::Layer(Box::new(Layer::merge(base.layer()?, &sources, merged.has_merged_norms())?)))
    }
}

impl Layer {
    fn merge(base: &Self, sources: &Sources<'_>, merges_norms: bool) -> Result<Self> {
        let mut merged = Self {
            qkv: merge_matrix(sources, |layer| Ok(&layer.qkv))?,
            bias: merge_vector(sources, |layer| Ok(layer.bias.as_ref()))?,
            output: merge_matrix(sources, |layer| Ok(&layer.output))?,
            output_bias: merge_vector(sources, |layer| Ok(layer.output_bias.as_ref()))?,
            mlp: Mlp::Dense(GatedMlp {
                gate_up: merge_matrix(sources, |layer| Ok(&layer.dense()?.gate_up))?,
                gate_up_bias: merge_vector(sources, |layer| Ok(layer.dense()?.gate_up_bias.as_ref()))?,
                down: merge_matrix(sources, |layer| Ok(&layer.dense()?.down))?,
                down_bias: merge_vector(sources, |layer| Ok(layer.dense()?.down_bias.as_ref()))?,
            }),
            ..base.clone()
        };
        if merges_norms {
            for index in 0..merged.norms.len() {
                merged.norms[index] = merge_vector(sources, |layer| Ok(layer.norms[index].as_ref()))?;
            }
            merged.query_norm = merge_vector(sources, |layer| Ok(layer.query_norm.as_ref()))?;
            merged.key_norm = merge_vector(sources, |layer| Ok(layer.key_norm.as_ref()))?;
        }
        Ok(merged)
    }

    fn dense(&self) -> Result<&GatedMlp> {
        match &self.mlp {
            Mlp::Dense(mlp) => Ok(mlp),
            Mlp::Experts(_) => Err(Error::job("layers with experts cannot be merged")),
        }
    }
}

fn merge_matrix(sources: &Sources<'_>, select: impl Fn(&Layer) -> Result<&PackedWeights>) -> Result<PackedWeights> {
    let matrices = sources.iter().map(|&(factor, layer)| Ok((factor, select(layer)?)));
    PackedWeights::weighted_sum(&matrices.collect::<Result<Vec<_>>>()?)
        .ok_or_else(|| Error::job("the source layers of a merged layer have different weight types"))
}

/// Merges one vector across the source layers. Returns `None` if no source layer has it.
fn merge_vector(
    sources: &Sources<'_>,
    select: impl Fn(&Layer) -> Result<Option<&Vec<f32>>>,
) -> Result<Option<Vec<f32>>> {
    let mut vectors: Vec<(f64, &[f32])> = Vec::new();
    for &(factor, layer) in sources {
        vectors.extend(select(layer)?.map(|vector| (factor, vector.as_slice())));
    }
    Ok((!vectors.is_empty()).then(|| weighted_sum(&vectors)))
}
