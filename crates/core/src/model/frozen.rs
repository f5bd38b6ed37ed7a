//! Weights as candle's tensors, as files store them: for passes that are differentiated.

use std::path::Path;

use candle_core::{Device, Tensor};

use super::config::Config;
use super::rope::Rotary;
use super::tensors::{self, BIASES, EMBEDDING, FINAL_NORM, HEAD, KEY_NORM, QUERY_NORM};
use super::weights::Weights;
use crate::error::{Error, Result};

/// A layer's weights, matrices `[out, in]`.
pub struct FrozenLayer {
    pub query: Tensor,
    pub key: Tensor,
    pub value: Tensor,
    pub output: Tensor,
    pub gate: Tensor,
    pub up: Tensor,
    pub down: Tensor,
    pub query_norm: Option<Tensor>,
    pub key_norm: Option<Tensor>,
    /// Of queries, keys and values.
    pub biases: [Option<Tensor>; 3],
    /// How many tokens a query sees.
    pub window: Option<usize>,
    /// Before and after attention, before and after the MLP.
    pub norms: [Option<Tensor>; 4],
}

/// The weights of a folder, made into tensors on a device when they are asked for.
pub struct FrozenWeights {
    config: Config,
    files: Weights,
    rotary: Rotary,
    device: Device,
}

impl FrozenWeights {
    /// # Errors
    /// As [`super::check_weights`].
    pub fn open(config: &Config, folder: &Path, device: &Device) -> Result<Self> {
        let files = tensors::checked(config, folder)?;
        let rotary = Rotary::new(&config.rope, config.head_dim);
        Ok(Self { config: config.clone(), files, rotary, device: device.clone() })
    }

    fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        Ok(Tensor::from_vec(self.files.take(name, shape)?, shape, &self.device)?)
    }

    /// # Errors
    /// A tensor that cannot be read, named with file and place.
    pub fn layer(&self, layer: usize) -> Result<FrozenLayer> {
        let parts = tensors::parts(&self.config);
        let find = |part: &str| -> Result<Option<Tensor>> {
            let shape = parts.iter().find(|(name, _)| *name == part).map(|(_, shape)| shape);
            shape.map(|shape| self.take(&tensors::name(layer, part), shape)).transpose()
        };
        let matrix = |part: &str| {
            find(part)?.ok_or_else(|| Error::job("an architecture has no such matrix").at(part.to_string()))
        };
        let [a, b, c, d] = self.config.architecture.norms.map(|part| part.map(find).transpose().map(Option::flatten));
        let [query_bias, key_bias, value_bias] = BIASES.map(find);
        Ok(FrozenLayer {
            query: matrix("self_attn.q_proj")?,
            key: matrix("self_attn.k_proj")?,
            value: matrix("self_attn.v_proj")?,
            output: matrix("self_attn.o_proj")?,
            gate: matrix("mlp.gate_proj")?,
            up: matrix("mlp.up_proj")?,
            down: matrix("mlp.down_proj")?,
            query_norm: find(QUERY_NORM)?,
            key_norm: find(KEY_NORM)?,
            biases: [query_bias?, key_bias?, value_bias?],
            window: self.config.windows[layer],
            norms: [a?, b?, c?, d?],
        })
    }

    /// # Errors
    /// As [`Self::layer`].
    pub fn final_norm(&self) -> Result<Tensor> {
        self.take(FINAL_NORM, &[self.config.hidden])
    }

    /// The output projection, `[vocab, C]`.
    ///
    /// # Errors
    /// As [`Self::layer`].
    pub fn head(&self) -> Result<Tensor> {
        let name = if self.config.tied_embeddings { EMBEDDING } else { HEAD };
        self.take(name, &[self.config.vocab, self.config.hidden])
    }

    /// Cosines and sines of the first positions, `[positions, D/2]` each.
    ///
    /// # Errors
    /// None that a caller could mend.
    pub fn rotary(&self, positions: usize) -> Result<(Tensor, Tensor)> {
        let (table, half) = (self.rotary.table(positions), self.config.head_dim / 2);
        let tensor = |of: &[f32]| Tensor::from_slice(&of[..positions * half], (positions, half), &self.device);
        Ok((tensor(&table.cos)?, tensor(&table.sin)?))
    }
}
