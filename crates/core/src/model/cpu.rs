//! CPU engine, which runs the decoder with ghostlab's kernels. Matrix products are computed in f32 or bf16, and
//! everything else in f32.

use std::time::Instant;

use candle_core::{Device, Tensor};

use super::batch::Batch;
use super::batching::PassPlanner;
use super::compare::{compare_parts_in_parallel, compare_trie};
use super::config::Config;
use super::decoder::Decoder;
use super::decoding::{Decoding, TrieDecoding};
use super::engine::{
    BatchDivergences, BatchObserver, BatchPredictions, Engine, EngineId, HostRows, Lockstep, PerBatchObserver,
    ResidualStream, StepTimer, StreamAdapter, regroup_by_part, run_parts_in_parallel, run_sequentially,
};
use super::program::Step;
use super::rms_norm::RmsNorm;
use super::sublayer::Sublayer;
use super::trie::{Model, Observer, Trie};
use crate::error::Result;

/// Minimum number of tokens per part ([`Engine::part_tokens`]). Parts run independently, so cores synchronize only at
/// the end of a chunk instead of after every step.
const PART_TOKENS: usize = 512;

impl Engine for Decoder {
    fn id(&self) -> EngineId {
        self.products().engine_id()
    }

    fn config(&self) -> &Config {
        self.config()
    }

    fn part_tokens(&self) -> usize {
        PART_TOKENS
    }

    fn pass_tokens(&self, streams: usize) -> usize {
        self.pass_planner().map_or(0, |planner| planner.tokens(streams))
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
        let Some(planner) = self.pass_planner() else { return run_parts_in_parallel(self, trie, parts, seconds) };
        let model = Lockstep { model: self, one_core_per_batch: true };
        let streams = planner.streams(count_tokens(parts));
        self.run_pass(planner, parts, || trie.run_by_layer(streams, &model, parts, &mut StepTimer(seconds)))
            .map(|outputs| regroup_by_part(outputs, parts.len()))
    }

    fn compare(&self, trie: &Trie, parts: &[Batch], seconds: &mut [f64]) -> Result<Vec<BatchDivergences>> {
        let Some(planner) = self.pass_planner() else { return compare_parts_in_parallel(self, trie, parts, seconds) };
        let model = Lockstep { model: self, one_core_per_batch: true };
        let streams = planner.streams(count_tokens(parts));
        self.run_pass(planner, parts, || compare_trie(&model, trie, Some(streams), parts, seconds))
            .map(|outputs| regroup_by_part(outputs, parts.len()))
    }

    fn observe(&self, trie: &Trie, batches: &[Batch], observer: &mut dyn BatchObserver) -> Result<()> {
        let Some(planner) = self.pass_planner() else { return run_sequentially(self, trie, batches, observer) };
        let model = Lockstep { model: self, one_core_per_batch: false };
        let streams = planner.streams(count_tokens(batches));
        self.run_pass(planner, batches, || trie.run_by_layer(streams, &model, batches, &mut PerBatchObserver(observer)))
            .map(drop)
    }

    fn start_decoding<'a>(&'a self, trie: &'a Trie) -> Result<Box<dyn Decoding + 'a>> {
        Ok(Box::new(TrieDecoding::new(self, trie)?))
    }

    fn run_steps(&self, batch: &Batch, steps: &[Step], stream: &[f32]) -> Result<HostRows> {
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

    fn input_norm(&self, layer: usize, sublayer: Sublayer) -> Result<RmsNorm> {
        Decoder::input_norm(self, layer, sublayer)
    }

    fn final_norm(&self) -> Result<RmsNorm> {
        Decoder::final_norm(self)
    }
}

impl Decoder {
    /// Calls `run`, which runs the batches through the layers, and reports its duration to the planner.
    fn run_pass<T>(&self, planner: &PassPlanner, batches: &[Batch], run: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let loaded_before = self.load_seconds();
        let output = run();
        planner.record_pass(
            count_tokens(batches),
            started.elapsed().as_secs_f64(),
            self.load_seconds() - loaded_before,
        );
        output
    }
}

fn count_tokens(batches: &[Batch]) -> usize {
    batches.iter().map(Batch::tokens).sum()
}
