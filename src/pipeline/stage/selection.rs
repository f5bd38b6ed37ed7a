//! Layers or sublayers that a criterion selects for removal, with the scores of the criterion. Also measures the trials
//! on which a selection is based. A trial measures the perplexity, the logit distance or the output cosine of the
//! backbone without some of its layers or sublayers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;

use super::chunks::ChunkRun;
use super::operator::{self, CalibrationInputs, WantedRepair};
use super::{BackboneKeyParts, InputNames, Stage, activations, from_json, scores, to_json};
use crate::calibrate::{Activations, Similarities};
use crate::criterion::{self, CalibrationStats, Criterion, Depth, PruneSpec, Selection, Trial, TrialMetric};
use crate::error::{Error, ErrorKind, Result};
use crate::evaluate::output_cosines;
use crate::evaluate::perplexity::PerplexityEval;
use crate::iterative::ShrinkingModel;
use crate::model::{Cut, Load, Program, Sublayer, Trie};
use crate::pipeline::env::backbone::{BackbonePlan, ScoredExtent, Variant};
use crate::pipeline::env::context::CalibrationJob;
use crate::pipeline::env::event::WorkKind;
use crate::pipeline::identity::CutId;
use crate::quantity::pluralize;
use ghostlab_store::{Key, ObjectKind, Store, StoredObject};

// Version 3: keys contain the inputs of the criterion and every option. Version 4: the bound of `cca` no longer counts
// rounding errors as directions. Version 5: see version 4 of `tokens`.
pub const KIND: ObjectKind = ObjectKind::new("selection", 5);

pub const STAGE: Stage = Stage {
    words: Some(InputNames {
        group: WorkKind::Calibrate,
        part: "selection",
        about: "Layers to remove.",
        what: "selection",
        reads: |backbone, _, index| {
            let calibration = &backbone.calibrations[index];
            Some((format!("calibration tokens: {}", calibration.calibration), Arc::clone(&calibration.tokens)))
        },
    }),
    ..Stage::new(KIND)
};

/// Returns how many bytes of a memory limit may be used for the activations that an iterative criterion reads in one
/// pass.
pub(crate) fn activation_limit(memory: u64) -> u64 {
    memory / 8
}

/// Payload that contains the selected layers or sublayers, and the scores of the criterion.
const LAYERS: &str = "selection.json";
/// Payload that contains the warnings, if any.
const NOTES: &str = "notes.json";

/// Returns the key of a selection. It refers to the families of similarities and trials, because it is not known in
/// advance which members a criterion reads.
pub fn key(
    backbone: BackboneKeyParts<'_>,
    cut: &CutId,
    rule: (&dyn Criterion, &PruneSpec<'_>),
    tokens: &Arc<Key>,
) -> Key {
    let CutId { criterion: name, version, options, depth, known, repaired } = cut;
    let mut identity = json!({
        "backbone": backbone.dense.model.content, "criterion": name, "criterion_version": version, "options": options.value(),
        "depth": depth,
    });
    if let Some(known) = known {
        identity["known"] = known.value();
    }
    if let Some(repair) = repaired {
        identity["repaired"] = json!(repair);
    }
    if let Some(weights) = &backbone.dense.model.weights {
        identity["weights"] = json!(weights);
    }
    let (criterion, spec) = rule;
    let reads_activations = !criterion.pairs(spec).is_empty() || !criterion.sites(spec).is_empty();
    let activations = reads_activations.then(|| ("activations", activations::family(backbone, tokens).key()));
    let scores = (!criterion.trials(spec).is_empty()).then(|| ("scores", scores::trial_family(backbone, tokens).key()));
    let parents = activations.into_iter().chain(scores).map(|(name, key)| (name, Arc::new(key)));
    Key::new(KIND, identity, parents).with_input_name(backbone.name)
}

/// Stores a selection with its notes.
///
/// # Errors
/// Fails if the store cannot be written.
pub fn store(store: &Store, key: &Key, seconds: f64, selection: &Selection, notes: &[String]) -> Result<()> {
    let layers = to_json(selection)?;
    let notes = (!notes.is_empty()).then(|| to_json(&notes)).transpose()?;
    let payloads = [Some((LAYERS, layers.as_slice())), notes.as_deref().map(|notes| (NOTES, notes))];
    store.put(key, seconds, &payloads.into_iter().flatten().collect::<Vec<_>>()).map(drop)
}

/// Reads a stored selection.
///
/// # Errors
/// Fails if the object is damaged.
pub fn read(object: &StoredObject) -> Result<Selection> {
    from_json(object, LAYERS)
}

/// Returns the reasons why a selection may be meaningless, if any.
///
/// # Errors
/// Fails if the object is damaged.
pub fn notes(object: &StoredObject) -> Result<Vec<String>> {
    let has_notes = object.payloads().any(|name| name == NOTES);
    if has_notes { from_json(object, NOTES) } else { Ok(Vec::new()) }
}

/// Selections for some variants. Identical selections are computed only once.
pub(crate) struct Selections<'a> {
    by_key: BTreeMap<String, SelectionSlot<'a>>,
}

struct SelectionSlot<'a> {
    key: Arc<Key>,
    /// Criterion, as written in the grid.
    label: String,
    cut: PruneSpec<'a>,
    criterion: Arc<dyn Criterion>,
    state: SelectionState,
}

pub(crate) enum SelectionState {
    Done(Selection),
    Failed(String),
    /// Waiting for similarities or activations from the calibration pass.
    Waiting,
}

impl<'a> Selections<'a> {
    /// Reads the stored selections, and computes the missing ones that need no results of the calibration pass.
    ///
    /// # Errors
    /// Fails if the run was stopped. The failure of a single selection is recorded, and is not an error.
    pub(crate) fn compute_before_pass(
        job: &CalibrationJob<'a>,
        variants: &[&Variant],
        trials: &mut Trials<'_>,
    ) -> Result<Self> {
        let mut by_key = BTreeMap::new();
        for variant in variants {
            let cell = &job.run.grid.cells[variant.cell];
            let (Some(key), Some(method)) = (&variant.selection, &cell.criterion) else { continue };
            if by_key.contains_key(key.hash()) {
                continue;
            }
            let started = Instant::now();
            let stored = job.run.get(key).and_then(|artifact| self::read(&artifact).ok());
            let mut slot = SelectionSlot {
                key: Arc::clone(key),
                label: method.to_string(),
                cut: job.backbone.prune_spec(cell.depth),
                criterion: Arc::clone(&method.rule),
                state: stored.map_or(SelectionState::Waiting, SelectionState::Done),
            };
            let needs_pass = !slot.criterion.pairs(&slot.cut).is_empty() || !slot.criterion.sites(&slot.cut).is_empty();
            if slot.is_waiting() && slot.criterion.is_iterative() {
                slot.select_one_by_one(variant, job, started)?;
            } else if slot.is_waiting() && !needs_pass {
                slot.select(&Similarities::default(), None, trials, job, started)?;
            }
            by_key.insert(key.hash().to_string(), slot);
        }
        Ok(Self { by_key })
    }

    /// Returns the inputs that some variants need from the calibration pass, given the selections made so far. Variants
    /// whose selection failed, or whose layers are removed one by one, need no inputs.
    pub(crate) fn needed_inputs(&self, job: &CalibrationJob<'_>, variants: &[&Variant]) -> CalibrationInputs {
        CalibrationInputs::from_repairs(variants.iter().filter_map(|variant| {
            let slot = self.slot(variant).filter(|slot| !slot.criterion.is_iterative())?;
            let recovery = &job.run.grid.cells[variant.cell].recovery;
            let removed = match &slot.state {
                SelectionState::Done(selection) => Some(selection.removed.clone()),
                SelectionState::Failed(_) => return None,
                SelectionState::Waiting => None,
            };
            let criterion = &*slot.criterion;
            let recovery = &*recovery.as_ref()?.rule;
            Some(WantedRepair { criterion, recovery, cut: slot.cut, removed })
        }))
    }

    /// Computes the selections that need results of the calibration pass.
    pub(crate) fn compute_after_pass(
        &mut self,
        similarities: &Similarities,
        activations: Option<&Activations>,
        trials: &mut Trials<'_>,
        job: &CalibrationJob<'_>,
    ) -> Result<()> {
        let mut waiting = self.by_key.values_mut().filter(|slot| slot.is_waiting());
        waiting.try_for_each(|slot| slot.select(similarities, activations, trials, job, Instant::now()))
    }

    /// Returns the state of a variant's selection, or `None` if the variant needs no selection.
    pub(crate) fn state(&self, variant: &Variant) -> Option<&SelectionState> {
        self.slot(variant).map(|slot| &slot.state)
    }

    fn slot(&self, variant: &Variant) -> Option<&SelectionSlot<'a>> {
        self.by_key.get(variant.selection.as_ref()?.hash())
    }
}

impl SelectionSlot<'_> {
    fn is_waiting(&self) -> bool {
        matches!(self.state, SelectionState::Waiting)
    }

    /// Computes and stores a selection. A failure is not stored, so the next run tries again.
    fn select(
        &mut self,
        similarities: &Similarities,
        activations: Option<&Activations>,
        trials: &mut Trials<'_>,
        job: &CalibrationJob<'_>,
        started: Instant,
    ) -> Result<()> {
        // A criterion may use trials only if it declares them. Otherwise, the key of the selection would not refer to
        // them.
        let declares_trials = !self.criterion.trials(&self.cut).is_empty();
        let mut measure = |metric: TrialMetric, measured: &[Trial]| match declares_trials {
            true => trials.measure(&self.label, metric, measured),
            false => Err(Error::job("a criterion measures trials, but declares none in `trials`").at(&*self.label)),
        };
        let norms = |(layer, sublayer): (usize, Sublayer)| job.engine.input_norm(layer, sublayer);
        let mut stats = CalibrationStats::new(similarities, activations, &mut measure).with_norms(&norms);
        let selected = self.criterion.select(&self.cut, &mut stats);
        self.record_result(selected, job, started)
    }

    /// Selects layers by removing them one by one. The model is repaired after each removal. The selection after each
    /// step is stored, so that an interrupted selection continues after its last complete step.
    fn select_one_by_one(&mut self, variant: &Variant, job: &CalibrationJob<'_>, started: Instant) -> Result<()> {
        let recovery = operator::recovery_of(&job.run.grid.cells[variant.cell])?;
        let PruneSpec { depth, unit, .. } = self.cut;
        let label = format!("{}: remove {} one by one", job.label, Depth { count: depth, unit });
        let stored = variant.steps.iter().rev().find_map(|key| self::read(&job.run.get(key)?).ok());
        let earlier = stored.unwrap_or_else(|| Selection::new(Cut::default(), Vec::new()));
        let done = earlier.scores.len();
        let passes = depth - done + if recovery.is_repairing() { depth - 1 } else { 0 };
        let load = Load::windows(job.shape.sequences * job.shape.length, job.shape.length);
        let trials = self.criterion.remaining_trials(&self.cut, done);
        let trial_cost = scores::trial_cost(&job.backbone.config, self.criterion.trial_metric(), [&trials, &[]], &load);
        let progress = operator::begin_passes(job, &label, passes, trial_cost.shared);
        let batch = job.backbone.batch_tokens;
        let limit = activation_limit(job.run.settings.memory_bytes());
        let mut model = ShrinkingModel::new(&*job.engine, &job.windows, batch, recovery, variant.fitted())
            .with_activation_limit(limit);
        let mut store_step = |selection: &Selection| match variant.steps.get(selection.scores.len() - 1) {
            Some(key) => self.store(key, selection, job, started),
            None => Ok(()),
        };
        let mut advance = |tokens| job.run.advance(progress, tokens);
        let selected = model.resume(&*self.criterion, &self.cut, &earlier, &mut store_step, &mut advance);
        job.run.finish(progress);
        self.record_result(selected, job, started)
    }

    /// Stores a selection, or records why it failed.
    fn record_result(&mut self, selected: Result<Selection>, job: &CalibrationJob<'_>, started: Instant) -> Result<()> {
        self.state = match selected {
            Ok(selection) => {
                self.store(&self.key, &selection, job, started)?;
                SelectionState::Done(selection)
            }
            Err(error) if error.kind() == ErrorKind::Job => SelectionState::Failed(error.one_line()),
            Err(error) => return Err(error),
        };
        Ok(())
    }

    /// Stores a selection under `key`, which belongs to this slot or to an earlier step.
    fn store(&self, key: &Key, selection: &Selection, job: &CalibrationJob<'_>, started: Instant) -> Result<()> {
        let seconds = started.elapsed().as_secs_f64();
        job.check_unchanged()?;
        let channels = job.backbone.config.hidden;
        let notes = criterion::degenerate(&*self.criterion, &self.cut, selection, &job.windows, channels);
        self::store(job.run.store, key, seconds, selection, &notes)?;
        job.guard.record_progress();
        Ok(())
    }
}

/// Cache of trial results. Several criteria or depths may request the same trial.
pub(crate) struct Trials<'a> {
    job: &'a CalibrationJob<'a>,
    known: BTreeMap<(TrialMetric, Trial), f64>,
}

impl<'a> Trials<'a> {
    pub(crate) fn new(job: &'a CalibrationJob<'a>) -> Self {
        Self { job, known: BTreeMap::new() }
    }

    /// Returns the result of each trial. Measures those that are not cached. `label` is the name of the criterion.
    pub(crate) fn measure(&mut self, label: &str, metric: TrialMetric, trials: &[Trial]) -> Result<Vec<f64>> {
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
        let CalibrationJob { run, models, backbone, tokens, windows, .. } = self.job;
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
            models,
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
