//! The CPU engine: the decoder with this crate's own kernels, in f32.

use candle_core::{Device, Tensor};

use super::batch::{Batch, Prediction};
use super::config::Config;
use super::decoder::Decoder;
use super::engine::{Engine, EngineId, HostRows, ResidualStream, Watched};
use super::program::Step;
use super::trie::{Model, Observer, Trie};
use crate::error::Result;

/// The CPU engine's.
pub const CPU: EngineId = EngineId { name: "cpu", dtype: "f32", device: "cpu" };

/// Cores that share every step wait for each other at its end; parts of a chunk meet at the chunk's end only.
const PART_TOKENS: usize = 512;

impl Engine for Decoder {
    fn id(&self) -> EngineId {
        CPU
    }

    fn config(&self) -> &Config {
        self.config()
    }

    fn part_tokens(&self) -> usize {
        PART_TOKENS
    }

    fn run(
        &self,
        trie: &Trie,
        batch: &Batch,
        observer: &mut dyn Observer<dyn ResidualStream>,
    ) -> Result<Vec<Option<Vec<Prediction>>>> {
        trie.run(self, batch, &mut Watched(observer))
    }

    fn resume(&self, batch: &Batch, steps: &[Step], stream: &[f32]) -> Result<HostRows> {
        let mut x = Tensor::from_slice(stream, (batch.tokens(), self.config().hidden), &Device::Cpu)?;
        for step in steps {
            x = self.advance(batch, step, &x)?;
        }
        x.rows()
    }
}
