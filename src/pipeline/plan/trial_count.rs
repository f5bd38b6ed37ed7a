//! Counts the trials that criteria need, and how many of them are stored.

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
    /// Criterion, as it is written in the grid.
    pub criterion: String,
    pub needed: usize,
    pub stored: usize,
}

impl TrialCount {
    /// Counts the trials of each criterion on one calibration of a backbone. A trial that two criteria share is counted
    /// for both of them.
    pub fn of(plan: &Plan<'_>, backbone: &BackbonePlan, calibration: usize, state: &StoreState) -> Vec<Self> {
        let trials = CriterionTrials::of(plan.grid, backbone, calibration, state).into_iter();
        trials
            .filter(|trials| !trials.all.is_empty())
            .map(|CriterionTrials { criterion, all, missing, .. }| Self {
                criterion,
                needed: all.len(),
                stored: all.len() - missing.len(),
            })
            .collect()
    }
}

/// Trials of a criterion on one calibration.
pub(super) struct CriterionTrials {
    criterion: String,
    pub(super) metric: TrialMetric,
    /// Removed sublayers of each trial at the greatest depth, which include the trials of smaller depths. The later
    /// trials of a greedy criterion depend on earlier results, so only their number and sizes are exact; their
    /// sublayers are examples. If trials decide how many follow, this is the largest possible number.
    pub(super) all: Vec<Cut>,
    /// Sublayers that each missing trial removes.
    pub(super) missing: Vec<Cut>,
}

impl CriterionTrials {
    /// Returns the trials for each criterion and each unit of depth on a calibration.
    pub(super) fn of(grid: &Grid, backbone: &BackbonePlan, calibration: usize, state: &StoreState) -> Vec<Self> {
        let tokens = &backbone.calibrations[calibration].tokens;
        let stored = |metric: TrialMetric, trial: &Trial| {
            state.trial(&scores::trial(backbone.calibrated().key_parts(), tokens, metric, trial), metric)
        };
        let uses = criterion_uses(grid, backbone, calibration, state).into_iter();
        uses.map(|used| {
            let rule = &*used.method.rule;
            let lacks = used.missing.map_or_else(Vec::new, |depth| missing_trials(rule, &backbone.cut(depth), &stored));
            let all = rule.trials(&backbone.cut(used.deepest));
            Self { criterion: used.name, metric: rule.trial_metric(), all, missing: lacks }
        })
        .collect()
    }
}

/// Cells with the same calibration whose selections share their trials.
struct CriterionUse<'g> {
    name: String,
    method: &'g Method<dyn Criterion>,
    /// Selection of an iterative criterion. Its trials depend on the repairs, so they are not shared with other
    /// selections.
    selection: Option<Arc<Key>>,
    deepest: Depth,
    /// Greatest depth among the selections that are not stored.
    missing: Option<Depth>,
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
        let lacks = !variant.selection.as_ref().is_some_and(|key| state.has(key));
        let missing = lacks.then_some(cell.depth);
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
            None => uses.push(CriterionUse { name, method, selection, deepest: cell.depth, missing }),
        }
    }
    uses
}

/// Returns the trials that a selection still needs. A greedy selection is followed through its stored trials up to the
/// first step with a missing trial. All trials of later steps are missing, because they depend on that step. Iterative
/// selections do not store trials.
fn missing_trials(
    rule: &dyn Criterion,
    cut: &PruneSpec<'_>,
    stored: &dyn Fn(TrialMetric, &Trial) -> Option<f64>,
) -> Vec<Cut> {
    if rule.is_iterative() {
        return rule.trials(cut);
    }
    let mut requested = 0;
    let mut missing = Vec::new();
    let mut trials = |metric: TrialMetric, trials: &[Trial]| {
        let results: Vec<Option<f64>> = trials.iter().map(|trial| stored(metric, trial)).collect();
        requested += trials.len();
        let lacking = trials.iter().zip(&results).filter(|(_, result)| result.is_none());
        missing.extend(lacking.map(|(trial, _)| trial.removed.clone()));
        results.into_iter().collect::<Option<Vec<f64>>>().ok_or_else(|| Error::job("a trial is not stored"))
    };
    let similarities = Similarities::default();
    // `select` fails at the first step with a missing trial.
    let selected = rule.select(cut, &mut CalibrationStats::new(&similarities, None, &mut trials));
    if selected.is_err() {
        missing.extend(rule.trials(cut).into_iter().skip(requested));
    }
    missing
}
