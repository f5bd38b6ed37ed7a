//! Engine that computes nothing and advances the virtual clock by the time the cost model predicts.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::simulated_machine::Pace;
use super::{CHANNELS, LOADING_TIME};
use crate::error::{Error, Result};
use crate::model::{
    Batch, BatchObserver, CPU, Config, Engine, EngineId, HostRows, Observer, Prediction, ResidualStream,
    Step as ProgramStep, Trie,
};
use crate::pipeline::env::backbone::BackbonePlan;

/// Simulates the loading of a backbone.
pub(super) fn load(backbone: &BackbonePlan, pace: &Arc<Pace>) -> Arc<dyn Engine> {
    pace.totals.loaded.fetch_add(1, Relaxed);
    pace.wait(LOADING_TIME);
    Arc::new(PacedEngine { config: backbone.config.clone(), pace: Arc::clone(pace) })
}

/// Engine with deterministic residual streams, which are hashes of the token, position, layer and channel.
struct PacedEngine {
    config: Config,
    pace: Arc<Pace>,
}

struct SyntheticStream(Vec<f32>);

impl ResidualStream for SyntheticStream {
    fn rows(&self) -> Result<HostRows> {
        HostRows::new(self.0.clone())
    }
}

/// Returns a pseudorandom value in `[-0.4, 0.6)`.
fn synthetic_value(id: u32, position: usize, node: usize, channel: usize) -> f32 {
    let mixed = (u64::from(id) << 40) ^ ((position as u64) << 24) ^ ((node as u64) << 12) ^ channel as u64;
    let mixed = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed >> 40) as f32 / (1u64 << 24) as f32) - 0.4
}

impl Engine for PacedEngine {
    fn id(&self) -> EngineId {
        CPU
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn part_tokens(&self) -> usize {
        usize::MAX
    }

    fn run(
        &self,
        _: &Trie,
        _: &Batch,
        _: &mut dyn Observer<dyn ResidualStream>,
    ) -> Result<Vec<Option<Vec<Prediction>>>> {
        Err(Error::job("the simulated engine does not support `run`"))
    }

    fn score(&self, trie: &Trie, parts: &[Batch], seconds: &mut [f64]) -> Result<Vec<Vec<Option<Vec<Prediction>>>>> {
        self.pace.simulate_pass(trie, parts);
        seconds.fill(1.0);
        Ok(parts
            .iter()
            .map(|part| {
                let predictions: Vec<_> = part
                    .targets
                    .iter()
                    .map(|target| Prediction {
                        log_probability: synthetic_value(target.token, target.row, 0, 0) - 1.0,
                        is_greedy: true,
                    })
                    .collect();
                vec![Some(predictions); trie.programs()]
            })
            .collect())
    }

    fn observe(&self, trie: &Trie, batches: &[Batch], observer: &mut dyn BatchObserver) -> Result<()> {
        self.pace.simulate_pass(trie, batches);
        for &node in trie.path(0) {
            for (index, batch) in batches.iter().enumerate() {
                let rows = batch
                    .ids
                    .iter()
                    .enumerate()
                    .flat_map(|(position, &id)| (0..CHANNELS).map(move |c| synthetic_value(id, position, node, c)))
                    .collect();
                observer.after_step(index, node, &SyntheticStream(rows))?;
            }
        }
        Ok(())
    }

    fn run_steps(&self, _: &Batch, _: &[ProgramStep], stream: &[f32]) -> Result<HostRows> {
        HostRows::new(stream.to_vec())
    }

    fn logits(&self, _: &[f32], _: &[usize]) -> Result<HostRows> {
        Err(Error::job("the engine has no vocabulary"))
    }
}
