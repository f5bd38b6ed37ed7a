//! Counts the trials that criteria need, and how many of them are stored.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{BackbonePlan, Plan, StoreState};
use crate::calibrate::Similarities;
use crate::criterion::{CalibrationStats, Criterion, Depth, PruneSpec, Trial, TrialMetric};
use crate::error::Error;
use crate::grid::{Grid, Method};
use crate::model::Cut;
use crate::pipeline::stage::scores;
use ghostlab_store::Key;

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
        state: &StoreState,
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
        state: &StoreState,
    ) -> Vec<Self> {
        let tokens = &backbone.calibrations[calibration].tokens;
        let stored = |metric: TrialMetric, trial: &Trial| {
            state.read_trial(&scores::trial_key(backbone.calibrated().key_parts(), tokens, metric, trial), metric)
        };
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
    state: &StoreState,
) -> Vec<CriterionUse<'g>> {
    let mut uses: Vec<CriterionUse<'g>> = Vec::new();
    for variant in backbone.variants.iter().filter(|variant| variant.calibration == Some(calibration)) {
        let cell = &grid.cells[variant.cell];
        let Some(method) = &cell.criterion else { continue };
        let is_missing = !variant.selection.as_ref().is_some_and(|key| state.has(key));
        let missing = is_missing.then_some(cell.depth);
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
    /// Trials in order, and whether each is stored.
    known: Vec<(TrialMetric, Trial, bool)>,
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
            let states = trials.iter().zip(&results).map(|(trial, result)| (metric, trial.clone(), result.is_some()));
            known.extend(states);
            results.into_iter().collect::<Option<Vec<f64>>>().ok_or_else(|| Error::job("a trial is not stored"))
        };
        let similarities = Similarities::default();
        // `select` fails at the first step with a missing trial.
        rule.select(cut, &mut CalibrationStats::new(&similarities, None, &mut trials)).ok();
        let is_complete = !known.is_empty() && known.iter().all(|(_, _, is_stored)| *is_stored);
        let later = if is_complete { Vec::new() } else { examples.into_iter().skip(known.len()).collect() };
        Self { known, later }
    }

    /// Returns the sublayers that each trial removes. `is_counted` returns whether a known trial counts, given whether
    /// it is stored. Known trials already in `counted` are skipped, and the others are added to `counted`.
    fn into_cuts(self, is_counted: impl Fn(bool) -> bool, counted: &mut BTreeSet<(TrialMetric, Trial)>) -> Vec<Cut> {
        let known = self.known.into_iter().filter(|(_, _, is_stored)| is_counted(*is_stored));
        let new = known.filter_map(|(metric, trial, _)| {
            let removed = trial.removed.clone();
            counted.insert((metric, trial)).then_some(removed)
        });
        new.chain(self.later).collect()
    }
}
