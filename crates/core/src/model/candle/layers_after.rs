//! Frozen layers after a trained operator, computed with differentiable operations.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use candle_core::{DType, Device, Tensor};

use super::batch_layout::AttentionContext;
use super::device::FloatType;
use super::device_weight_cache::{LayerTensors, WeightSource};
use super::ops;
use crate::error::{Error, Result};
use crate::model::config::Config;
use crate::model::rope::{self, Rotaries};
use crate::model::sublayer::{Sublayer, SublayerOutput};
use crate::model::tensor_name::FINAL_NORM;
use crate::model::tensors::open_checked_weights;

/// Layers starting at a given index, with the final norm and the output projection, in f32 on a device.
pub struct LayersAfter {
    config: Config,
    layers: Vec<LayerTensors>,
    final_norm: Tensor, // [C]
    /// The output projection.
    head: Tensor, // [vocab, C]
    rotaries: Rotaries,
}

/// Rotary tables and masks of one sequence.
struct SequenceContext {
    /// Cosines and sines for each rotary embedding, `[positions, R/2]` each.
    cos_sin: Vec<Option<(Tensor, Tensor)>>,
    /// Mask `[positions, positions]` for each window of the layers.
    masks: BTreeMap<Option<usize>, Tensor>,
}

impl AttentionContext for SequenceContext {
    fn cos_sin(&self, rotary: usize) -> Option<&(Tensor, Tensor)> {
        self.cos_sin.get(rotary).and_then(Option::as_ref)
    }

    fn attention(&self, inputs: [&Tensor; 3], window: Option<usize>, scores: ops::Scores) -> Result<Tensor> {
        let mask = self.masks.get(&window).ok_or_else(|| Error::job("no attention mask for a layer's window"))?;
        let [queries, keys, values] = inputs.map(|x| x.unsqueeze(0));
        Ok(ops::attention(&queries?, &keys?, &values?, mask, scores)?.squeeze(0)?)
    }
}

impl LayersAfter {
    /// Loads the layers from index `first` on, the final norm and the head.
    ///
    /// # Errors
    /// See [`crate::model::Decoder::load`].
    pub fn load(config: &Config, folder: &Path, first: usize, device: &Device) -> Result<Self> {
        let weights = open_checked_weights(config, folder)?;
        let source = WeightSource { config: config.clone(), weights, device: device.clone(), dtype: FloatType::F32 };
        Ok(Self {
            layers: (first..config.layers).map(|layer| source.load_layer(layer)).collect::<Result<_>>()?,
            final_norm: source.load_norm(FINAL_NORM, &[config.hidden])?,
            head: source.load_head()?,
            rotaries: Rotaries::new(config),
            config: source.config,
        })
    }

    pub fn channels(&self) -> usize {
        self.config.hidden
    }

    pub fn device(&self) -> &Device {
        self.head.device()
    }

    /// Computes the logits at every position of one sequence.
    ///
    /// # Shapes
    /// `stream [positions, C]`, the input of the first loaded layer; result `[positions, vocab]`.
    pub fn logits(&self, stream: &Tensor) -> Result<Tensor> {
        let positions = stream.dim(0)?;
        let rows: Vec<usize> = (0..positions).collect();
        let cos_sin =
            self.rotaries.map_used(|rotary| rope::cos_sin_tensors(&rotary.table(positions), &rows, self.device()))?;
        let windows: BTreeSet<Option<usize>> = self.layers.iter().map(|layer| layer.window).collect();
        let masks =
            windows.into_iter().map(|window| Ok((window, ops::causal_mask(0, positions, window, self.device())?)));
        let context = SequenceContext { cos_sin, masks: masks.collect::<Result<_>>()? };
        let mut x = stream.clone();
        for layer in &self.layers {
            for sublayer in Sublayer::ALL {
                x = layer.run_sublayer(&self.config, sublayer, &x, SublayerOutput::Stream, &context)?;
            }
        }
        self.project(&x)
    }

    /// Applies the final norm and the output projection.
    ///
    /// # Shapes
    /// `stream [positions, C]`, the output of the last layer; result `[positions, vocab]`.
    pub fn project(&self, stream: &Tensor) -> Result<Tensor> {
        let logits =
            ops::linear(&ops::rms_norm(stream, &self.final_norm, f64::from(self.config.norm_eps))?, &self.head)?;
        ops::apply_cap(logits, self.config.logit_cap)
    }

    /// Applies [`Self::project`] to rows in host memory and returns the logits in host memory.
    pub fn project_rows(&self, rows: &[f32]) -> Result<Tensor> {
        let rows = Tensor::from_slice(rows, (rows.len() / self.channels(), self.channels()), self.device())?;
        Ok(self.project(&rows)?.to_device(&Device::Cpu)?.to_dtype(DType::F32)?)
    }
}
