//! The CPU engine: the decoder with this crate's own kernels, in f32.

use candle_core::{Device, Tensor};
use rayon::prelude::*;

use super::batch::{Batch, Prediction};
use super::config::Config;
use super::decoder::Decoder;
use super::engine::{Clock, Engine, EngineId, HostRows, ResidualStream, Watched, side_by_side};
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
        let of_programs = trie.run(&InStep(self), parts, &mut Clock(seconds))?;
        let mut of_parts = vec![Vec::with_capacity(trie.programs()); parts.len()];
        for outputs in of_programs {
            let outputs: Vec<Option<_>> = match outputs {
                Some(outputs) => outputs.into_iter().map(Some).collect(),
                None => vec![None; parts.len()],
            };
            of_parts.iter_mut().zip(outputs).for_each(|(of_part, output)| of_part.push(output));
        }
        Ok(of_parts)
    }

    fn resume(&self, batch: &Batch, steps: &[Step], stream: &[f32]) -> Result<HostRows> {
        let mut x = Tensor::from_slice(stream, (batch.tokens(), self.config().hidden), &Device::Cpu)?;
        for step in steps {
            x = self.advance(batch, step, &x)?;
        }
        x.rows()
    }
}

/// All parts of a chunk take a step before any takes the next one: each layer's weights are made once for all of them.
struct InStep<'a>(&'a Decoder);

impl Model for InStep<'_> {
    type Batch = [Batch];
    type Residual = Vec<Tensor>;
    type Output = Vec<Vec<Prediction>>;

    fn expect(&self, steps: [Option<&Step>; 3]) {
        self.0.expect(steps);
    }

    fn begin(&self, parts: &[Batch]) -> Result<Vec<Tensor>> {
        parts.par_iter().map(|batch| self.0.begin(batch)).collect()
    }

    fn advance(&self, parts: &[Batch], step: &Step, streams: &Vec<Tensor>) -> Result<Vec<Tensor>> {
        parts.par_iter().zip(streams).map(|(batch, x)| self.0.advance(batch, step, x)).collect()
    }

    fn finish(&self, parts: &[Batch], streams: &Vec<Tensor>) -> Result<Vec<Vec<Prediction>>> {
        parts.par_iter().zip(streams).map(|(batch, x)| self.0.finish(batch, x)).collect()
    }
}
