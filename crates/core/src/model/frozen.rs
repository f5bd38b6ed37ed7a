//! Weights as candle's tensors, as files store them: for passes that are differentiated.

use std::path::Path;

use candle_core::{Device, Tensor};

use super::candle::{BranchPlace, FloatType, LayerTensors};
use super::config::Config;
use super::rope::Rotary;
use super::tensor_name::FINAL_NORM;
use super::tensors;
use crate::error::Result;

/// The weights of a folder in f32, made into tensors on a device when they are asked for.
pub struct FrozenWeights {
    place: BranchPlace,
    rotary: Rotary,
}

impl FrozenWeights {
    /// # Errors
    /// As [`super::check_weights`].
    pub fn open(config: &Config, folder: &Path, device: &Device) -> Result<Self> {
        let weights = tensors::checked(config, folder)?;
        let rotary = Rotary::new(&config.rope, config.head_dim);
        let place = BranchPlace { config: config.clone(), weights, device: device.clone(), dtype: FloatType::F32 };
        Ok(Self { place, rotary })
    }

    /// # Errors
    /// A tensor that cannot be read, named with file and place.
    pub fn layer(&self, layer: usize) -> Result<LayerTensors> {
        self.place.layer(layer)
    }

    /// # Errors
    /// As [`Self::layer`].
    pub fn final_norm(&self) -> Result<Tensor> {
        self.place.tensor(FINAL_NORM, &[self.place.config.hidden], FloatType::F32)
    }

    /// The output projection, `[vocab, C]`.
    ///
    /// # Errors
    /// As [`Self::layer`].
    pub fn head(&self) -> Result<Tensor> {
        self.place.head()
    }

    /// Cosines and sines of the first positions, `[positions, D/2]` each.
    ///
    /// # Errors
    /// None that a caller could mend.
    pub fn rotary(&self, positions: usize) -> Result<(Tensor, Tensor)> {
        let (table, half) = (self.rotary.table(positions), self.place.config.head_dim / 2);
        let tensor = |of: &[f32]| Tensor::from_slice(&of[..positions * half], (positions, half), &self.place.device);
        Ok((tensor(&table.cos)?, tensor(&table.sin)?))
    }
}
