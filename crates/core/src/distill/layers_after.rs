//! The layers after a boundary.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::model::candle::{End, ops};
use crate::model::{Config, FrozenWeights, Sublayer};

/// The layers from one on, the final norm and the output projection, frozen, in plain operations.
pub struct LayersAfter {
    config: Config,
    weights: FrozenWeights,
}

impl LayersAfter {
    /// Reads the layers from `first` on.
    ///
    /// # Errors
    /// As [`crate::model::Decoder::load`].
    pub fn load(config: &Config, folder: &Path, first: usize, device: &Device) -> Result<Self> {
        Ok(Self { weights: FrozenWeights::read(config, folder, first, device)?, config: config.clone() })
    }

    pub fn channels(&self) -> usize {
        self.config.hidden
    }

    pub fn device(&self) -> &Device {
        self.weights.head.device()
    }

    /// The logits of every position of one sequence.
    ///
    /// # Shapes
    /// `stream [positions, C]`, what enters the first of these layers; result `[positions, vocab]`.
    pub fn logits(&self, stream: &Tensor) -> Result<Tensor> {
        let positions = stream.dim(0)?;
        let tables = self.weights.rotary(positions)?;
        let scores = ops::Scores::of(&self.config);
        let mut masks = BTreeMap::new();
        let mut x = stream.clone();
        for layer in &self.weights.layers {
            let mask = match masks.entry(layer.window) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(free) => free.insert(causal(positions, layer.window, self.device())?),
            };
            let turned = tables[self.weights.rotary_of(layer.index)].as_ref();
            let attend = |queries: &Tensor, keys: &Tensor, values: &Tensor| -> Result<Tensor> {
                let [queries, keys, values] = [queries, keys, values].map(|x| x.unsqueeze(0));
                Ok(ops::attention(&queries?, &keys?, &values?, mask, scores)?.squeeze(0)?)
            };
            for half in Sublayer::BOTH {
                x = (&x + layer.branch(&self.config, half, &x, End::Branch, turned, attend)?)?;
            }
        }
        self.project(&x)
    }

    /// Final norm and output projection.
    ///
    /// # Shapes
    /// `stream [positions, C]`, what leaves the last layer; result `[positions, vocab]`.
    pub fn project(&self, stream: &Tensor) -> Result<Tensor> {
        let logits = ops::linear(&ops::rms_norm(stream, &self.weights.final_norm, self.eps())?, &self.weights.head)?;
        ops::capped(logits, self.config.logit_cap)
    }

    /// As [`Self::project`], of rows in this machine's memory.
    pub fn project_rows(&self, rows: &[f32]) -> Result<Tensor> {
        let rows = Tensor::from_slice(rows, (rows.len() / self.channels(), self.channels()), self.device())?;
        Ok(self.project(&rows)?.to_device(&Device::Cpu)?.to_dtype(DType::F32)?)
    }

    fn eps(&self) -> f64 {
        f64::from(self.config.norm_eps)
    }
}

/// `[positions, positions]`: 0 where a query sees a key, −∞ where not.
fn causal(positions: usize, window: Option<usize>, device: &Device) -> Result<Tensor> {
    let of = |at: usize| {
        let (query, key) = (at / positions, at % positions);
        let seen = key <= query && query - key < window.unwrap_or(positions);
        if seen { 0.0f32 } else { f32::NEG_INFINITY }
    };
    let mask: Vec<f32> = (0..positions * positions).map(of).collect();
    Ok(Tensor::from_vec(mask, (positions, positions), device)?)
}
