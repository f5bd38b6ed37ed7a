//! Measures the trials on which selections are based. A trial measures the perplexity, the logit distance or the output
//! cosine of the backbone without some of its layers or sublayers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::calibration_job::CalibrationJob;
use super::chunks::ChunkRun;
use super::scores;
use crate::criterion::{Trial, TrialMetric};
use crate::error::{Error, Result};
use crate::evaluate::output_cosines;
use crate::evaluate::perplexity::PerplexityEval;
use crate::model::{Load, Program, Trie};
use crate::pipeline::env::backbone::{BackbonePlan, ScoredExtent};
use crate::quantity::pluralize;
use ghostlab_store::Key;

/// Cache of trial results. Several criteria or depths may request the same trial.
pub(crate) struct MeasuredTrials<'a> {
    job: &'a CalibrationJob<'a>,
    known: BTreeMap<(TrialMetric, Trial), f64>,
}

impl<'a> MeasuredTrials<'a> {
    pub(super) fn new(job: &'a CalibrationJob<'a>) -> Self {
        Self { job, known: BTreeMap::new() }
    }

    /// Returns the result of each trial. Measures those that are not cached. `label` is the name of the criterion.
    pub(super) fn measure(&mut self, label: &str, metric: TrialMetric, trials: &[Trial]) -> Result<Vec<f64>> {
        let new: Vec<&Trial> =
            trials.iter().filter(|trial| !self.known.contains_key(&(metric, (*trial).clone()))).collect();
        if !new.is_empty() {
            let measured = match metric {
                TrialMetric::Perplexity => self.measure_perplexities(label, &new)?,
                TrialMetric::Distance(_) | TrialMetric::Cosine => self.measure_means(label, metric, &new)?,
            };
            self.known.extend(new.into_iter().map(|trial| (metric, trial.clone())).zip(measured));
        }
        Ok(trials.iter().map(|trial| self.known[&(metric, trial.clone())]).collect())
    }

    /// Returns the logit distance or output cosine of each trial, averaged over windows. Missing values are measured in
    /// one [`Trie`] and stored, so that a resumed run continues after the last complete step.
    fn measure_means(&self, label: &str, metric: TrialMetric, trials: &[&Trial]) -> Result<Vec<f64>> {
        let CalibrationJob { run, backbone, tokens, windows, engine, guard, .. } = self.job;
        let keys: Vec<_> = trials
            .iter()
            .map(|trial| Arc::new(scores::trial_key(backbone.key_parts(), tokens, metric, trial)))
            .collect();
        let stored = keys.iter().map(|key| run.get(key).and_then(|object| scores::read(&object).ok()));
        let mut values: Vec<Option<Vec<f64>>> = stored.collect();
        let missing: Vec<usize> = (0..trials.len()).filter(|&index| values[index].is_none()).collect();
        if !missing.is_empty() {
            let started = Instant::now();
            let layers = backbone.config.layers;
            let programs: Vec<Program> = missing.iter().map(|&index| trials[index].program(layers)).collect();
            let tokens = windows.ids.len();
            let with_dense: Vec<Program> = programs.iter().cloned().chain([Program::trunk(layers)]).collect();
            let load = Load::windows(tokens, windows.length);
            let flops = Trie::new(&with_dense).flops(&backbone.config, &load).shared;
            let id = run.start(guard.name(), &trials_label(label, backbone, missing.len()), tokens, 0, flops);
            let mut progress = |tokens| run.advance(id, tokens);
            let measured = match metric {
                TrialMetric::Distance(distance) => distance.by_window(&**engine, &programs, windows, &mut progress)?,
                _ => output_cosines(&**engine, &programs, windows, &mut progress)?,
            };
            run.finish(id);
            guard.check()?;
            let seconds = started.elapsed().as_secs_f64() / missing.len() as f64;
            for (index, window_values) in missing.into_iter().zip(measured) {
                run.store.put(
                    &keys[index],
                    seconds,
                    &[(scores::VALUES_FILE, &scores::encode_values(&window_values))],
                )?;
                values[index] = Some(window_values);
            }
            guard.record_progress();
        }
        Ok(values.into_iter().flatten().map(|windows| scores::trial_result(metric, windows)).collect())
    }

    /// Returns the perplexity of each trial. Missing trials are scored in one [`Trie`] and stored individually.
    fn measure_perplexities(&self, label: &str, trials: &[&Trial]) -> Result<Vec<f64>> {
        let CalibrationJob { run, backbone, tokens, windows, .. } = self.job;
        let batch = backbone.batch_tokens;
        let metric = TrialMetric::Perplexity;
        let keys: Vec<_> = trials
            .iter()
            .map(|trial| Arc::new(scores::trial_key(backbone.key_parts(), tokens, metric, trial)))
            .collect();
        let program = |key: &Key| {
            let found = keys.iter().zip(trials).find(|(candidate, _)| candidate.hash() == key.hash());
            Ok(found.map(|(_, trial)| trial.program(backbone.config.layers)))
        };
        let scoring = ChunkRun {
            run,
            backbone,
            eval_set: &PerplexityEval::new(windows, batch),
            program: &program,
            label: &trials_label(label, backbone, trials.len()),
            journal: scores::journal_name(backbone.key_parts(), tokens, ScoredExtent::default()),
            calibration_guard: Some(self.job.guard),
            sample: None,
        };
        let losses = score_missing(&scoring, &keys)?;
        Ok(losses.into_iter().map(|windows| scores::trial_result(metric, windows)).collect())
    }
}

fn trials_label(criterion: &str, backbone: &BackbonePlan, count: usize) -> String {
    format!("{criterion} for {} ({})", backbone.name, pluralize(count, "trial"))
}

/// Returns the window losses of each trial. Missing trials are scored and stored first.
fn score_missing(scoring: &ChunkRun<'_>, keys: &[Arc<Key>]) -> Result<Vec<Vec<f64>>> {
    let missing = keys.iter().filter(|key| scoring.run.get(key).is_none_or(|object| scores::read(&object).is_err()));
    let missing: Vec<_> = missing.cloned().collect();
    if !missing.is_empty() {
        scoring.finish(&mut scoring.begin(missing)?)?;
        // The scores of trials are not reported.
        scoring.run.forget_scores(keys.iter());
    }
    keys.iter()
        .map(|key| {
            scores::read(
                &scoring
                    .run
                    .get(key)
                    .ok_or_else(|| Error::job("scores are missing from the store").at(scoring.label.to_string()))?,
            )
        })
        .collect()
}
