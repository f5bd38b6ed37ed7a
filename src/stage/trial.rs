//! Trials: perplexities on the calibration windows without some layers.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::chunks::{ChunkRun, KIND, dense, files, journal};
use super::{Cost, Family, KeyedBackbone};
use crate::error::Result;
use crate::evaluate::perplexity::{Losses, PerplexityEval};
use crate::model::{Config, Load, Program, Trie};
use crate::work::calibration_job::CalibrationJob;
use ghostlab_store::Key;

/// The field that tells a trial from the whole backbone on the same tokens.
pub(super) const REMOVED: &str = "removed";

/// The scores of the bare backbone without some layers, on a calibration's tokens. The whole one stands for all of them.
pub(super) fn family(backbone: KeyedBackbone<'_>, tokens: &Arc<Key>) -> Family {
    Family::new(KIND, dense(backbone), tokens, backbone)
}

/// Those without one set of layers.
pub fn key(backbone: KeyedBackbone<'_>, tokens: &Arc<Key>, removed: &[usize]) -> Key {
    family(backbone, tokens).member([(REMOVED, json!(removed))])
}

/// What trials take; a step of a greedy search waits for the one before it: each size is a run of its own.
pub fn cost(config: &Config, sets: &[Vec<usize>], left: bool, load: &Load) -> Cost {
    let mut cost = Cost::default();
    for run in sets.chunk_by(|a, b| a.len() == b.len()) {
        let programs: Vec<Program> = run.iter().map(|set| Program::pruned(config.layers, set, |_| None)).collect();
        let flops = Trie::new(&programs).flops(config, load).shared;
        let (left, inodes) = if left { (flops, files(config.layers)) } else { (0.0, 0) };
        cost += Cost { separate: flops, shared: flops, left, inodes, disk: 0 };
    }
    cost
}

/// Scores trials, each once: two rules, or two depths, may ask for the same.
pub(crate) struct Trials<'a> {
    job: &'a CalibrationJob<'a>,
    /// By removed layers.
    known: BTreeMap<Vec<usize>, f64>,
}

impl<'a> Trials<'a> {
    pub(crate) fn new(job: &'a CalibrationJob<'a>) -> Self {
        Self { job, known: BTreeMap::new() }
    }

    /// The perplexity without each of some sets of layers. `label` is the rule that asks.
    pub(crate) fn perplexities(&mut self, label: &str, removed: &[Vec<usize>]) -> Result<Vec<f64>> {
        let new: Vec<&Vec<usize>> = removed.iter().filter(|set| !self.known.contains_key(*set)).collect();
        if !new.is_empty() {
            let measured = self.measure(label, &new)?;
            self.known.extend(new.into_iter().cloned().zip(measured));
        }
        Ok(removed.iter().map(|set| self.known[set]).collect())
    }

    /// All in one trie. Each is stored.
    fn measure(&self, label: &str, removed: &[&Vec<usize>]) -> Result<Vec<f64>> {
        let CalibrationJob { run, models, backbone, tokens, windows, .. } = self.job;
        let batch = run.settings.batch_tokens;
        let keys: Vec<_> = removed.iter().map(|set| Arc::new(self::key(backbone.keyed(), tokens, set))).collect();
        let program = |key: &Key| {
            let of = keys.iter().zip(removed).find(|(of, _)| of.hash() == key.hash());
            Ok(of.map(|(_, set)| Program::pruned(backbone.config.layers, set, |_| None)))
        };
        let scoring = ChunkRun {
            run,
            models,
            backbone,
            eval_set: &PerplexityEval::new(windows, batch),
            program: &program,
            label: &format!("{label} for {} ({} trials)", backbone.name, removed.len()),
            journal: journal(backbone.keyed(), tokens, None),
            within: Some(self.job.hold),
        };
        let losses = scoring.scores(&keys)?;
        Ok(losses.into_iter().map(|windows| Losses { windows }.perplexity()).collect())
    }
}
