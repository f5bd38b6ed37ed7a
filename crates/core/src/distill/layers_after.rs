//! The layers after a boundary.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::model::architecture::QueryKeyNorm;
use crate::model::candle::ops;
use crate::model::{Config, FrozenWeights, LayerTensors};

/// The layers from one on, the final norm and the output projection, frozen, in plain operations.
pub struct LayersAfter {
    config: Config,
    layers: Vec<LayerTensors>,
    final_norm: Tensor, // [C]
    head: Tensor,       // [vocab, C]
    weights: FrozenWeights,
}

impl LayersAfter {
    /// Reads the layers from `first` on.
    ///
    /// # Errors
    /// As [`crate::model::Decoder::load`].
    pub fn load(config: &Config, folder: &Path, first: usize, device: &Device) -> Result<Self> {
        let weights = FrozenWeights::open(config, folder, device)?;
        Ok(Self {
            layers: (first..config.layers).map(|layer| weights.layer(layer)).collect::<Result<_>>()?,
            final_norm: weights.final_norm()?,
            head: weights.head()?,
            config: config.clone(),
            weights,
        })
    }

    pub fn channels(&self) -> usize {
        self.config.hidden
    }

    pub fn device(&self) -> &Device {
        self.head.device()
    }

    /// The logits of every position of one sequence.
    ///
    /// # Shapes
    /// `stream [positions, C]`, what enters the first of these layers; result `[positions, vocab]`.
    pub fn logits(&self, stream: &Tensor) -> Result<Tensor> {
        let positions = stream.dim(0)?;
        let tables = self.weights.rotary(positions)?;
        let mut masks = BTreeMap::new();
        let mut x = stream.clone();
        for layer in &self.layers {
            let mask = match masks.entry(layer.window) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(free) => free.insert(causal(positions, layer.window, self.device())?),
            };
            x = (&x + self.attention(layer, &x, &tables, mask)?)?;
            x = (&x + self.mlp(layer, &x)?)?;
        }
        self.project(&x)
    }

    /// Final norm and output projection.
    ///
    /// # Shapes
    /// `stream [positions, C]`, what leaves the last layer; result `[positions, vocab]`.
    pub fn project(&self, stream: &Tensor) -> Result<Tensor> {
        ops::linear(&ops::rms_norm(stream, &self.final_norm, self.eps())?, &self.head)
    }

    /// As [`Self::project`], of rows in this machine's memory.
    pub fn project_rows(&self, rows: &[f32]) -> Result<Tensor> {
        let rows = Tensor::from_slice(rows, (rows.len() / self.channels(), self.channels()), self.device())?;
        Ok(self.project(&rows)?.to_device(&Device::Cpu)?.to_dtype(DType::F32)?)
    }

    fn eps(&self) -> f64 {
        f64::from(self.config.norm_eps)
    }

    fn normed(&self, x: &Tensor, weight: Option<&Tensor>) -> Result<Tensor> {
        weight.map_or_else(|| Ok(x.clone()), |weight| ops::rms_norm(x, weight, self.eps()))
    }

    /// The branch of attention.
    fn attention(
        &self,
        layer: &LayerTensors,
        x: &Tensor,
        (cos, sin): &(Tensor, Tensor),
        mask: &Tensor,
    ) -> Result<Tensor> {
        let (positions, head_dim) = (x.dim(0)?, self.config.head_dim);
        let h = self.normed(x, layer.norms[0].as_ref())?;
        let whole = self.config.architecture.query_key_norm == QueryKeyNorm::WholeProjection;
        let heads = |weight: &Tensor, bias: Option<&Tensor>, norm: Option<&Tensor>| -> Result<Tensor> {
            let x = ops::biased(&ops::linear(&h, weight)?, bias)?;
            let x = if whole { self.normed(&x, norm)? } else { x };
            let x = x.reshape((positions, x.dim(1)? / head_dim, head_dim))?;
            let x = if whole { x } else { self.normed(&x, norm)? };
            Ok(x)
        };
        let [query, key, value] = layer.biases.each_ref().map(Option::as_ref);
        let queries = heads(&layer.query, query, layer.query_norm.as_ref())?;
        let keys = heads(&layer.key, key, layer.key_norm.as_ref())?;
        let [queries, keys] = [queries, keys].map(|x| ops::rotate(&x, cos, sin)?.unsqueeze(0).map_err(Error::from));
        let (queries, keys, values) = (queries?, keys?, heads(&layer.value, value, None)?.unsqueeze(0)?);
        let context = ops::attention(&queries, &keys, &values, mask)?.squeeze(0)?;
        self.normed(&ops::linear(&context, &layer.output)?, layer.norms[1].as_ref())
    }

    /// The branch of the MLP.
    fn mlp(&self, layer: &LayerTensors, x: &Tensor) -> Result<Tensor> {
        let h = self.normed(x, layer.norms[2].as_ref())?;
        let out = ops::mlp(&h, &layer.gate, &layer.up, &layer.down)?;
        self.normed(&out, layer.norms[3].as_ref())
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
