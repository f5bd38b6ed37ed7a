//! The CPU engine: the decoder with this crate's own kernels, in f32.

use candle_core::{Device, Tensor};

use super::batch::{Batch, Prediction};
use super::config::Config;
use super::decoder::Decoder;
use super::engine::{Engine, EngineId, HostRows, ResidualStream, Watched, in_step, side_by_side};
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

    fn score(&self, trie: &Trie, parts: &[Batch], seconds: &mut [f64]) -> Result<Vec<Vec<Option<Vec<Prediction>>>>> {
        if self.keeps_all() {
            return side_by_side(self, trie, parts, seconds);
        }
        in_step(self, trie, parts, seconds)
    }

    fn resume(&self, batch: &Batch, steps: &[Step], stream: &[f32]) -> Result<HostRows> {
        let mut x = Tensor::from_slice(stream, (batch.tokens(), self.config().hidden), &Device::Cpu)?;
        for step in steps {
            x = self.advance(batch, step, &x)?;
        }
        x.rows()
    }

    fn logits(&self, stream: &[f32], rows: &[usize]) -> Result<HostRows> {
        let c = self.config().hidden;
        let stream = Tensor::from_slice(stream, (stream.len() / c, c), &Device::Cpu)?;
        Decoder::logits(self, &stream, rows)?.flatten_all()?.rows()
    }
}
