//! Trials: perplexities on the calibration windows without some layers.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::job::CalibrationJob;
use crate::error::Result;
use crate::evaluate::perplexity::{Losses, PerplexityEval};
use crate::exec::score::ChunkRun;
use crate::model::Program;
use crate::stage::scores;
use ghostlab_store::Key;

/// Scores trials, each once: two rules, or two depths, may ask for the same.
pub(super) struct Trials<'a> {
    job: &'a CalibrationJob<'a>,
    /// By removed layers.
    known: BTreeMap<Vec<usize>, f64>,
}

impl<'a> Trials<'a> {
    pub(super) fn new(job: &'a CalibrationJob<'a>) -> Self {
        Self { job, known: BTreeMap::new() }
    }

    /// The perplexity without each of some sets of layers. `label` is the rule that asks.
    pub(super) fn perplexities(&mut self, label: &str, removed: &[Vec<usize>]) -> Result<Vec<f64>> {
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
        let keys: Vec<_> = removed.iter().map(|set| Arc::new(scores::trial(backbone.keyed(), tokens, set))).collect();
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
            journal: scores::journal(backbone.keyed(), tokens),
            within: Some(self.job.hold),
        };
        let losses = scoring.scores(&keys)?;
        Ok(losses.into_iter().map(|windows| Losses { windows }.perplexity()).collect())
    }
}
