//! Weights as candle's tensors, as files store them: for passes that are differentiated.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};

use super::candle::{FloatType, LayerTensors, WeightSource};
use super::config::Config;
use super::rope::{Rotaries, Rotary};
use super::tensor_name::FINAL_NORM;
use super::tensors;
use crate::error::Result;

/// The weights of a folder in f32, made into tensors on a device when they are asked for.
pub struct FrozenWeights {
    place: WeightSource,
    rotaries: Rotaries,
}

impl FrozenWeights {
    /// # Errors
    /// As [`super::check_weights`].
    pub fn open(config: &Config, folder: &Path, device: &Device) -> Result<Self> {
        let weights = tensors::checked(config, folder)?;
        let rotaries = Rotaries::new(config);
        let place = WeightSource { config: config.clone(), weights, device: device.clone(), dtype: FloatType::F32 };
        Ok(Self { place, rotaries })
    }

    /// # Errors
    /// A tensor that cannot be read, named with file and place.
    pub fn layer(&self, layer: usize) -> Result<LayerTensors> {
        self.place.layer(layer)
    }

    /// # Errors
    /// As [`Self::layer`].
    pub fn final_norm(&self) -> Result<Tensor> {
        self.place.norm(FINAL_NORM, &[self.place.config.hidden])
    }

    /// The output projection, `[vocab, C]`.
    ///
    /// # Errors
    /// As [`Self::layer`].
    pub fn head(&self) -> Result<Tensor> {
        self.place.head()
    }

    /// Cosines and sines of the first positions of a sequence of so many, `[positions, R/2]` each, for each rotary embedding of
    /// the backbone; none where it turns nothing.
    ///
    /// # Errors
    /// None that a caller could mend.
    pub fn rotary(&self, positions: usize) -> Result<BTreeMap<usize, Option<(Tensor, Tensor)>>> {
        let of = |(number, rotary): (usize, &Rotary)| {
            let table = rotary.table(positions);
            let half = table.at(0).0.len();
            if half == 0 {
                return Ok((number, None));
            }
            let tensor =
                |of: &[f32]| Tensor::from_slice(&of[..positions * half], (positions, half), &self.place.device);
            Ok((number, Some((tensor(&table.cos)?, tensor(&table.sin)?))))
        };
        self.rotaries.used().map(of).collect()
    }

    /// The number of a layer's rotary embedding there.
    pub fn rotary_of(&self, layer: usize) -> usize {
        self.rotaries.number(layer)
    }
}
