//! Layers or sublayers that a criterion selects for removal, with the scores of the criterion.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;

use super::activations::{self, FirstPass};
use super::calibration_inputs::{CalibrationInputs, WantedRepair};
use super::calibration_job::CalibrationJob;
use super::measured_trials::MeasuredTrials;
use super::{BackboneKeyParts, InputNames, Stage, from_json, operator, scores, to_json};
use crate::calibrate::{Activations, Similarities};
use crate::criterion::{self, CalibrationStats, Criterion, Depth, PruneSpec, Selection, Trial, TrialMetric};
use crate::error::{Error, ErrorKind, Result};
use crate::grid::Method;
use crate::iterative::ShrinkingModel;
use crate::model::{Cut, Load, Sublayer};
use crate::pipeline::env::backbone::Variant;
use crate::pipeline::env::event::WorkKind;
use crate::pipeline::identity::CutId;
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
        "backbone": backbone.dense.model.content, "criterion": name, "criterion_version": version,
        "options": options.value(), "depth": depth,
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
pub(super) struct Selections<'a> {
    by_key: BTreeMap<String, SelectionSlot<'a>>,
}

struct SelectionSlot<'a> {
    key: Arc<Key>,
    method: &'a Method<dyn Criterion>,
    cut: PruneSpec<'a>,
    state: SelectionState,
}

enum SelectionState {
    Done(Selection),
    Failed(String),
    /// Waiting for similarities or activations from the calibration pass.
    Waiting,
}

impl<'a> Selections<'a> {
    /// Computes the selections that are not stored, and collects the activations that repairs of the selected layers
    /// read. A variant fails if its layers cannot be selected.
    ///
    /// # Errors
    /// Fails on errors that stop the run or affect all variants.
    pub(super) fn select_all(job: &CalibrationJob<'a>, variants: &[&Variant]) -> Result<(Self, Activations)> {
        let mut trials = MeasuredTrials::new(job);
        let mut selections = Self::compute_before_pass(job, variants, &mut trials)?;
        let pass = FirstPass::run(job, selections.needed_inputs(job, variants))?;
        selections.compute_after_pass(&pass, &mut trials, job)?;
        selections.record_failures(job, variants);
        let activations = pass.complete(job, &selections.needed_inputs(job, variants).required)?;
        Ok((selections, activations))
    }

    /// Returns the variants whose layers or sublayers have been selected.
    pub(super) fn chosen<'s>(&'s self, variants: &[&'s Variant]) -> Vec<(&'s Variant, &'s Selection)> {
        let chosen = variants.iter().filter_map(|&variant| match &self.slot(variant)?.state {
            SelectionState::Done(selection) => Some((variant, selection)),
            SelectionState::Failed(_) | SelectionState::Waiting => None,
        });
        chosen.collect()
    }

    /// Records a failure for each variant whose layers or sublayers have not been selected.
    fn record_failures(&self, job: &CalibrationJob<'_>, variants: &[&Variant]) {
        for variant in variants {
            match self.slot(variant).map(|slot| &slot.state) {
                Some(SelectionState::Done(_)) => {}
                Some(SelectionState::Failed(reason)) => match &variant.selection {
                    Some(key) => job.run.fail_and_record(variant.cell, key, reason.clone()),
                    None => job.run.fail(variant.cell, reason.clone()),
                },
                Some(SelectionState::Waiting) | None => {
                    job.run.fail(variant.cell, "the criterion selected no layers".to_string());
                }
            }
        }
    }

    /// Reads the stored selections, and computes the missing ones that need no results of the calibration pass.
    ///
    /// # Errors
    /// Fails if the run was stopped. The failure of a single selection is recorded, and is not an error.
    fn compute_before_pass(
        job: &CalibrationJob<'a>,
        variants: &[&Variant],
        trials: &mut MeasuredTrials<'_>,
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
                method,
                cut: job.backbone.prune_spec(cell.depth),
                state: stored.map_or(SelectionState::Waiting, SelectionState::Done),
            };
            let criterion = &*method.rule;
            let needs_pass = !criterion.pairs(&slot.cut).is_empty() || !criterion.sites(&slot.cut).is_empty();
            if slot.is_waiting() && criterion.is_iterative() {
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
    fn needed_inputs(&self, job: &CalibrationJob<'_>, variants: &[&Variant]) -> CalibrationInputs {
        CalibrationInputs::from_repairs(variants.iter().filter_map(|variant| {
            let slot = self.slot(variant).filter(|slot| !slot.method.rule.is_iterative())?;
            let recovery = &job.run.grid.cells[variant.cell].recovery;
            let removed = match &slot.state {
                SelectionState::Done(selection) => Some(selection.removed.clone()),
                SelectionState::Failed(_) => return None,
                SelectionState::Waiting => None,
            };
            let criterion = &*slot.method.rule;
            let recovery = &*recovery.as_ref()?.rule;
            Some(WantedRepair { criterion, recovery, cut: slot.cut, removed })
        }))
    }

    /// Computes the selections that need results of the calibration pass.
    fn compute_after_pass(
        &mut self,
        pass: &FirstPass,
        trials: &mut MeasuredTrials<'_>,
        job: &CalibrationJob<'_>,
    ) -> Result<()> {
        let activations = pass.criterion_activations.as_ref();
        let mut waiting = self.by_key.values_mut().filter(|slot| slot.is_waiting());
        waiting.try_for_each(|slot| slot.select(&pass.similarities, activations, trials, job, Instant::now()))
    }

    /// Returns the selection of a variant, or `None` if the variant needs no selection.
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
        trials: &mut MeasuredTrials<'_>,
        job: &CalibrationJob<'_>,
        started: Instant,
    ) -> Result<()> {
        // A criterion may use trials only if it declares them. Otherwise, the key of the selection would not refer to
        // them.
        let criterion = &*self.method.rule;
        let label = self.method.to_string();
        let declares_trials = !criterion.trials(&self.cut).is_empty();
        let mut measure = |metric: TrialMetric, measured: &[Trial]| match declares_trials {
            true => trials.measure(&label, metric, measured),
            false => Err(Error::job("a criterion measures trials, but declares none in `trials`").at(&label)),
        };
        let norms = |(layer, sublayer): (usize, Sublayer)| job.engine.input_norm(layer, sublayer);
        let mut stats = CalibrationStats::new(similarities, activations, &mut measure).with_norms(&norms);
        let selected = criterion.select(&self.cut, &mut stats);
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
        let criterion = &*self.method.rule;
        let trials = criterion.remaining_trials(&self.cut, done);
        let trial_cost = scores::trial_cost(&job.backbone.config, criterion.trial_metric(), [&trials, &[]], &load);
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
        let selected = model.resume(criterion, &self.cut, &earlier, &mut store_step, &mut advance);
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
        let notes = criterion::degenerate(&*self.method.rule, &self.cut, selection, &job.windows, channels);
        self::store(job.run.store, key, seconds, selection, &notes)?;
        job.guard.record_progress();
        Ok(())
    }
}
