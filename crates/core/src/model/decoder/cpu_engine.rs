//! CPU engine, which runs the decoder with ghostlab's kernels. Matrix products are computed in f32 or bf16, and
//! everything else in f32.

use std::time::Instant;

use candle_core::{Device, Tensor};

use super::Decoder;
use crate::error::Result;
use crate::model::batch::Batch;
use crate::model::batching::PassPlanner;
use crate::model::compare::{compare_parts_in_parallel, compare_trie};
use crate::model::config::Config;
use crate::model::decoding::{Decoding, TrieDecoding};
use crate::model::engine::{
    BatchDivergences, BatchObserver, BatchPredictions, Engine, EngineId, HostRows, Lockstep, PerBatchObserver,
    ResidualStream, StepTimer, StreamAdapter, regroup_by_part, run_parts_in_parallel, run_sequentially,
};
use crate::model::program::Step;
use crate::model::rms_norm::RmsNorm;
use crate::model::sublayer::Sublayer;
use crate::model::trie::{Model, Observer, Trie};

/// Minimum number of tokens per part ([`Engine::part_tokens`]). Parts run independently, so cores synchronize only at
/// the end of a chunk instead of after every step.
const PART_TOKENS: usize = 512;

impl Engine for Decoder {
    fn id(&self) -> EngineId {
        self.products.engine_id()
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn part_tokens(&self) -> usize {
        PART_TOKENS
    }

    fn pass_tokens(&self, streams: usize) -> usize {
        self.pass_planner.as_ref().map_or(0, |planner| planner.tokens(streams))
    }

    fn run(
        &self,
        trie: &Trie,
        batch: &Batch,
        observer: &mut dyn Observer<dyn ResidualStream>,
    ) -> Result<BatchPredictions> {
        trie.run(self, batch, &mut StreamAdapter(observer))
    }

    fn score(&self, trie: &Trie, parts: &[Batch], seconds: &mut [f64]) -> Result<Vec<BatchPredictions>> {
        let Some(planner) = &self.pass_planner else { return run_parts_in_parallel(self, trie, parts, seconds) };
        self.run_pass(planner, parts, true, |model, streams| {
            trie.run_by_layer(streams, model, parts, &mut StepTimer(seconds))
        })
        .map(|outputs| regroup_by_part(outputs, parts.len()))
    }

    fn compare(&self, trie: &Trie, parts: &[Batch], seconds: &mut [f64]) -> Result<Vec<BatchDivergences>> {
        let Some(planner) = &self.pass_planner else { return compare_parts_in_parallel(self, trie, parts, seconds) };
        self.run_pass(planner, parts, true, |model, streams| compare_trie(model, trie, Some(streams), parts, seconds))
            .map(|outputs| regroup_by_part(outputs, parts.len()))
    }

    fn observe(&self, trie: &Trie, batches: &[Batch], observer: &mut dyn BatchObserver) -> Result<()> {
        let Some(planner) = &self.pass_planner else { return run_sequentially(self, trie, batches, observer) };
        self.run_pass(planner, batches, false, |model, streams| {
            trie.run_by_layer(streams, model, batches, &mut PerBatchObserver(observer))
        })
        .map(drop)
    }

    fn start_decoding<'a>(&'a self, trie: &'a Trie) -> Result<Box<dyn Decoding + 'a>> {
        Ok(Box::new(TrieDecoding::new(self, trie)?))
    }

    fn run_steps(&self, batch: &Batch, steps: &[Step], stream: &[f32]) -> Result<HostRows> {
        let mut x = Tensor::from_slice(stream, (batch.tokens(), self.config.hidden), &Device::Cpu)?;
        for step in steps {
            x = self.advance(batch, step, &x)?;
        }
        x.rows()
    }

    fn logits(&self, stream: &[f32], rows: &[usize]) -> Result<HostRows> {
        let c = self.config.hidden;
        let stream = Tensor::from_slice(stream, (stream.len() / c, c), &Device::Cpu)?;
        Decoder::logits(self, &stream, rows)?.flatten_all()?.rows()
    }

    fn input_norm(&self, layer: usize, sublayer: Sublayer) -> Result<RmsNorm> {
        let part = self.weight_cache.layer(&self.config, layer)?;
        let weight = part.layer()?.norms[sublayer.norms()[0]].clone();
        Ok(RmsNorm { eps: self.config.norm_eps, weight })
    }

    fn final_norm(&self) -> Result<RmsNorm> {
        Ok(RmsNorm { eps: self.config.norm_eps, weight: Some(self.final_norm.clone()) })
    }
}

impl Decoder {
    /// Calls `run` with an adapter that runs the batches together, and with the number of streams to keep. Reports the
    /// duration to the planner.
    fn run_pass<T>(
        &self,
        planner: &PassPlanner,
        batches: &[Batch],
        one_core_per_batch: bool,
        run: impl FnOnce(&Lockstep<'_, Self>, usize) -> T,
    ) -> T {
        let tokens = batches.iter().map(Batch::tokens).sum();
        let started = Instant::now();
        let loaded_before = self.weight_cache.load_seconds();
        let output = run(&Lockstep { model: self, one_core_per_batch }, planner.streams(tokens));
        let loading_seconds = self.weight_cache.load_seconds() - loaded_before;
        planner.record_pass(tokens, started.elapsed().as_secs_f64(), loading_seconds);
        output
    }
}
