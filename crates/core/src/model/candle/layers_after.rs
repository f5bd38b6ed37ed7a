//! Frozen layers after the trained operator, computed with differentiable operations.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::model::candle::{SublayerOutput, ops};
use crate::model::{Config, FrozenWeights, Sublayer};

/// Layers starting at a given index, with the final norm and the output projection.
pub struct LayersAfter {
    config: Config,
    weights: FrozenWeights,
}

impl LayersAfter {
    /// Loads the layers from index `first` on, the final norm and the head.
    ///
    /// # Errors
    /// See [`crate::model::Decoder::load`].
    pub fn load(config: &Config, folder: &Path, first: usize, device: &Device) -> Result<Self> {
        Ok(Self { weights: FrozenWeights::read(config, folder, first, device)?, config: config.clone() })
    }

    pub fn channels(&self) -> usize {
        self.config.hidden
    }

    pub fn device(&self) -> &Device {
        self.weights.head.device()
    }

    /// Computes the logits at every position of one sequence.
    ///
    /// # Shapes
    /// `stream [positions, C]`, the input of the first loaded layer; result `[positions, vocab]`.
    pub fn logits(&self, stream: &Tensor) -> Result<Tensor> {
        let positions = stream.dim(0)?;
        let tables = self.weights.rotary(positions)?;
        let scores = ops::Scores::from_config(&self.config);
        let mut masks = BTreeMap::new();
        let mut x = stream.clone();
        for layer in &self.weights.layers {
            let mask = match masks.entry(layer.window) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(free) => free.insert(causal_mask(positions, layer.window, self.device())?),
            };
            let rotary = tables[self.weights.rotary_of(layer.index)].as_ref();
            for sublayer in Sublayer::ALL {
                x = (&x
                    + layer.branch(
                        &self.config,
                        sublayer,
                        &x,
                        SublayerOutput::Branch,
                        rotary,
                        |queries: &Tensor, keys: &Tensor, values: &Tensor| -> Result<Tensor> {
                            let [queries, keys, values] = [queries, keys, values].map(|x| x.unsqueeze(0));
                            Ok(ops::attention(&queries?, &keys?, &values?, mask, scores)?.squeeze(0)?)
                        },
                    )?)?;
            }
        }
        self.project(&x)
    }

    /// Applies the final norm and the output projection.
    ///
    /// # Shapes
    /// `stream [positions, C]`, the output of the last layer; result `[positions, vocab]`.
    pub fn project(&self, stream: &Tensor) -> Result<Tensor> {
        let logits = ops::linear(&ops::rms_norm(stream, &self.weights.final_norm, self.eps())?, &self.weights.head)?;
        ops::apply_cap(logits, self.config.logit_cap)
    }

    /// Applies [`Self::project`] to rows in host memory and returns the logits in host memory.
    pub fn project_rows(&self, rows: &[f32]) -> Result<Tensor> {
        let rows = Tensor::from_slice(rows, (rows.len() / self.channels(), self.channels()), self.device())?;
        Ok(self.project(&rows)?.to_device(&Device::Cpu)?.to_dtype(DType::F32)?)
    }

    fn eps(&self) -> f64 {
        f64::from(self.config.norm_eps)
    }
}

/// Returns the causal mask `[positions, positions]` for a sliding window: 0 for visible keys, −∞ elsewhere.
fn causal_mask(positions: usize, window: Option<usize>, device: &Device) -> Result<Tensor> {
    let window = window.unwrap_or(positions);
    let mut mask = vec![f32::NEG_INFINITY; positions * positions];
    for (query, row) in mask.chunks_exact_mut(positions.max(1)).enumerate() {
        row[(query + 1).saturating_sub(window)..=query].fill(0.0);
    }
    Ok(Tensor::from_vec(mask, (positions, positions), device)?)
}
