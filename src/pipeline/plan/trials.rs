//! Trials that criteria need: counts them, finds out which of them are stored, and reads their results.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{BackbonePlan, Plan, StoreView};
use crate::calibrate::Similarities;
use crate::criterion::{CalibrationStats, Criterion, Depth, DepthUnit, PruneSpec, Trial, TrialMetric};
use crate::error::{Error, Result};
use crate::grid::{Cell, Grid, Method};
use crate::model::Cut;
use crate::pipeline::stage::scores;
use ghostlab_store::{Key, Store};

/// Pairs of candidate and score, in the criterion's order.
pub type CandidateScores = Vec<(usize, f64)>;

/// Returns the stored trial results from the first step of a cell's criterion, as pairs of candidate and score.
/// Candidates are in the criterion's order, and numbered as in [`Selection`](crate::criterion::Selection). A stored
/// greedy selection, in contrast, contains only the scores of the candidates that it removes. Returns `None` if the
/// criterion uses no trials.
///
/// # Errors
/// Fails if a trial is not stored.
pub fn trial_scores(plan: &Plan<'_>, cell: &Cell, store: &Store) -> Result<Option<CandidateScores>> {
    let variant = plan.variants().find(|(_, variant)| plan.grid.cells[variant.cell] == *cell);
    let Some((backbone, calibration)) = variant.and_then(|(backbone, variant)| Some((backbone, variant.calibration?)))
    else {
        return Ok(None);
    };
    let Some(method) = &cell.criterion else { return Ok(None) };
    let first_step = PruneSpec { depth: 1, ..backbone.prune_spec(cell.depth) };
    if method.rule.trials(&first_step).is_empty() {
        return Ok(None);
    }
    let mut candidate_scores = Vec::new();
    let mut read_results = |metric: TrialMetric, trials: &[Trial]| -> Result<Vec<f64>> {
        let mut results = Vec::new();
        for trial in trials {
            let result = read_trial(store, backbone, calibration, metric, trial).ok_or_else(|| {
                Error::missing("a trial result was evicted from the store, but its selection was not")
                    .at(format!("`{method}`, without {}", trial.removed))
                    .hint("pass an empty folder with --store to run the trials again")
            })?;
            candidate_scores
                .extend(removed_candidate(first_step.unit, &trial.removed).map(|candidate| (candidate, result)));
            results.push(result);
        }
        Ok(results)
    };
    let similarities = Similarities::default();
    method.rule.select(&first_step, &mut CalibrationStats::new(&similarities, None, &mut read_results))?;
    Ok(Some(candidate_scores))
}

/// Returns the index of the candidate that a cut removes, or `None` if the cut is empty.
fn removed_candidate(unit: DepthUnit, removed: &Cut) -> Option<usize> {
    if unit.is_layers() {
        return removed.whole_layers().first().copied();
    }
    removed.iter().next().map(|(layer, sublayer)| sublayer.index_in_model(layer))
}

/// Reads the result of a trial on a calibration of a backbone. Returns `None` if it is not stored or is damaged.
fn read_trial(
    store: &Store,
    backbone: &BackbonePlan,
    calibration: usize,
    metric: TrialMetric,
    trial: &Trial,
) -> Option<f64> {
    let tokens = &backbone.calibrations[calibration].tokens;
    let key = scores::trial_key(backbone.calibrated().key_parts(), tokens, metric, trial);
    scores::read_trial(store, &key, metric)
}

/// Number of trials that a criterion needs on one calibration. A trial scores the backbone without some of its layers
/// or sublayers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialCount {
    /// Criterion, as written in the grid.
    pub criterion: String,
    pub needed: usize,
    pub stored: usize,
}

impl TrialCount {
    /// Counts the trials on a calibration of a backbone, by criterion. A trial that several criteria share is counted
    /// only for the first one, which measures it.
    pub fn count_by_criterion(
        plan: &Plan<'_>,
        backbone: &BackbonePlan,
        calibration: usize,
        state: &StoreView,
    ) -> Vec<Self> {
        let trials = CriterionTrials::list_by_criterion(plan.grid, backbone, calibration, state).into_iter();
        trials
            .filter(|trials| !trials.all.is_empty() || !trials.missing.is_empty())
            .map(|CriterionTrials { criterion, all, missing, .. }| {
                // `missing` may contain trials that were counted for an earlier criterion, if the selection of that
                // criterion is already stored.
                let needed = all.len().max(missing.len());
                Self { criterion, needed, stored: needed - missing.len() }
            })
            .collect()
    }
}

/// Trials of a criterion on one calibration.
pub(super) struct CriterionTrials {
    criterion: String,
    pub(super) metric: TrialMetric,
    /// Sublayers that each trial at the greatest depth removes. These trials include those at smaller depths, but not
    /// those already counted for an earlier criterion. In a greedy search, later trials depend on earlier results, so
    /// their sublayers are placeholders, and only their number and sizes are exact. If the number of trials also
    /// depends on results, it is an upper bound.
    pub(super) all: Vec<Cut>,
    /// Sublayers that each missing trial removes.
    pub(super) missing: Vec<Cut>,
}

impl CriterionTrials {
    /// Returns the trials for each criterion and each unit of depth on a calibration.
    pub(super) fn list_by_criterion(
        grid: &Grid,
        backbone: &BackbonePlan,
        calibration: usize,
        state: &StoreView,
    ) -> Vec<Self> {
        let stored = |metric, trial: &Trial| read_trial(&state.store, backbone, calibration, metric, trial);
        let mut counted = [BTreeSet::new(), BTreeSet::new()];
        let uses = criterion_uses(grid, backbone, calibration, state).into_iter();
        uses.map(|used| {
            let rule = &*used.method.rule;
            let follow = |depth| FollowedTrials::follow(rule, &backbone.prune_spec(depth), &stored);
            let [known, known_missing] = &mut counted;
            let all = follow(used.deepest).into_cuts(|_| true, known);
            let missing = match used.missing {
                Some(depth) if rule.is_iterative() => rule.remaining_trials(&backbone.prune_spec(depth), used.steps),
                Some(depth) => follow(depth).into_cuts(|is_stored| !is_stored, known_missing),
                None => Vec::new(),
            };
            Self { criterion: used.name, metric: rule.trial_metric(), all, missing }
        })
        .collect()
    }
}

/// Use of a criterion by cells with the same calibration, whose selections share their trials.
struct CriterionUse<'g> {
    name: String,
    method: &'g Method<dyn Criterion>,
    /// Key of the selection if the criterion is iterative. Its trials depend on the repairs, so they are not shared
    /// with other selections.
    selection: Option<Arc<Key>>,
    /// Greatest depth of the cells.
    deepest: Depth,
    /// Greatest depth of the cells whose selection is not stored, or `None` if all selections are stored.
    missing: Option<Depth>,
    /// Number of stored steps of an iterative selection.
    steps: usize,
}

fn criterion_uses<'g>(
    grid: &'g Grid,
    backbone: &BackbonePlan,
    calibration: usize,
    state: &StoreView,
) -> Vec<CriterionUse<'g>> {
    let mut uses: Vec<CriterionUse<'g>> = Vec::new();
    for variant in backbone.variants.iter().filter(|variant| variant.calibration == Some(calibration)) {
        let cell = &grid.cells[variant.cell];
        let Some(method) = &cell.criterion else { continue };
        let missing = Some(cell.depth).filter(|_| !state.has_optional(variant.selection.as_ref()));
        let name = method.to_string();
        let selection = variant.selection.clone().filter(|_| method.rule.is_iterative());
        let known = uses.iter_mut().find(|used| {
            used.name == name
                && used.deepest.unit == cell.depth.unit
                && used.selection.as_ref().map(|key| key.hash()) == selection.as_ref().map(|key| key.hash())
        });
        match known {
            Some(used) => {
                used.deepest = used.deepest.max(cell.depth);
                used.missing = used.missing.max(missing);
            }
            None => {
                let steps = state.selected_steps(variant);
                uses.push(CriterionUse { name, method, selection, deepest: cell.depth, missing, steps });
            }
        }
    }
    uses
}

/// Known trials of a selection, and placeholders for the later ones.
struct FollowedTrials {
    /// Trials in order, each with its result if it is stored.
    known: Vec<(TrialMetric, Trial, Option<f64>)>,
    /// Placeholders for the later trials, which depend on the result of a missing trial or on a repair.
    later: Vec<Cut>,
}

impl FollowedTrials {
    /// Replays a greedy selection with its stored trials, up to the first step with a missing trial. Iterative
    /// selections do not store trials.
    fn follow(rule: &dyn Criterion, cut: &PruneSpec<'_>, stored: &dyn Fn(TrialMetric, &Trial) -> Option<f64>) -> Self {
        let examples = rule.trials(cut);
        if rule.is_iterative() || examples.is_empty() {
            return Self { known: Vec::new(), later: examples };
        }
        let mut known = Vec::new();
        let mut trials = |metric: TrialMetric, trials: &[Trial]| {
            let results: Vec<Option<f64>> = trials.iter().map(|trial| stored(metric, trial)).collect();
            known.extend(trials.iter().zip(&results).map(|(trial, result)| (metric, trial.clone(), *result)));
            results.into_iter().collect::<Option<Vec<f64>>>().ok_or_else(|| Error::job("a trial is not stored"))
        };
        let similarities = Similarities::default();
        // `select` fails at the first step with a missing trial.
        rule.select(cut, &mut CalibrationStats::new(&similarities, None, &mut trials)).ok();
        let is_complete = !known.is_empty() && known.iter().all(|(_, _, result)| result.is_some());
        let later = if is_complete { Vec::new() } else { examples.into_iter().skip(known.len()).collect() };
        Self { known, later }
    }

    /// Returns the sublayers that each trial removes. `is_counted` returns whether a known trial counts, given whether
    /// it is stored. Known trials already in `counted` are skipped, and the others are added to `counted`.
    fn into_cuts(self, is_counted: impl Fn(bool) -> bool, counted: &mut BTreeSet<(TrialMetric, Trial)>) -> Vec<Cut> {
        let known = self.known.into_iter().filter(|(_, _, result)| is_counted(result.is_some()));
        let new = known.filter_map(|(metric, trial, _)| {
            let removed = trial.removed.clone();
            counted.insert((metric, trial)).then_some(removed)
        });
        new.chain(self.later).collect()
    }
}
