//! Counts the trials that criteria need, and those that are stored.

use super::{BackbonePlan, Plan, StoreState, Variant};
use crate::criterion::{Criterion, Depth, TrialMetric};
use crate::grid::{Grid, Method};
use crate::model::Cut;
use crate::pipeline::stage::scores;
use ghostlab_store::Store;

/// Number of trials of a criterion on one calibration. A trial scores the backbone without some layers or sublayers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialCount {
    /// Criterion, as written in the grid.
    pub criterion: String,
    pub needed: usize,
    pub stored: usize,
}

impl TrialCount {
    /// Counts the trials on a calibration of a backbone, by criterion.
    pub fn of(
        plan: &Plan<'_>,
        backbone: &BackbonePlan,
        calibration: usize,
        state: &StoreState,
        store: &Store,
    ) -> Vec<Self> {
        let calibrated: Vec<&Variant> =
            backbone.variants.iter().filter(|variant| variant.calibration == Some(calibration)).collect();
        let tokens = &backbone.calibrations[calibration].tokens;
        deepest(plan.grid, backbone, &calibrated, state)
            .into_iter()
            .map(|Deepest { criterion, metric, sets, left }| {
                let key_parts = backbone.calibrated().key_parts();
                let stored =
                    sets.iter().filter(|set| !left || store.has(&scores::trial(key_parts, tokens, metric, set)));
                Self { criterion, needed: sets.len(), stored: stored.count() }
            })
            .filter(|fit| fit.needed > 0)
            .collect()
    }
}

/// Trials of a criterion at its greatest depth, which include those of smaller depths.
pub(super) struct Deepest {
    criterion: String,
    metric: TrialMetric,
    /// Removed sublayers of each trial.
    pub(super) sets: Vec<Cut>,
    /// Whether any selection of the criterion is missing.
    pub(super) left: bool,
}

/// Returns the trials of each criterion and unit of depth that `variants` use.
pub(super) fn deepest(grid: &Grid, backbone: &BackbonePlan, variants: &[&Variant], state: &StoreState) -> Vec<Deepest> {
    let mut by_name: Vec<(String, &Method<dyn Criterion>, Depth, bool)> = Vec::new();
    for variant in variants {
        let cell = &grid.cells[variant.cell];
        let Some(method) = &cell.criterion else { continue };
        let lacks = !variant.selection.as_ref().is_some_and(|key| state.has(key));
        match by_name
            .iter_mut()
            .find(|(name, _, depth, _)| *name == method.to_string() && depth.unit == cell.depth.unit)
        {
            Some((.., depth, left)) => (*depth, *left) = (cell.depth.max(*depth), *left | lacks),
            None => by_name.push((method.to_string(), method, cell.depth, lacks)),
        }
    }
    by_name
        .into_iter()
        .map(|(criterion, method, depth, left)| Deepest {
            criterion,
            metric: method.rule.trial_metric(),
            sets: method.rule.trials(&backbone.cut(depth)),
            left,
        })
        .collect()
}
