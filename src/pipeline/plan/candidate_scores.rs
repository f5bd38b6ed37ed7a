//! Trial scores of all candidates (layers or sublayers) of a criterion. A stored greedy selection contains only the
//! scores of the candidates that it removes.

use super::Plan;
use crate::calibrate::Similarities;
use crate::criterion::{CalibrationStats, DepthUnit, PruneSpec, Trial, TrialMetric};
use crate::error::{Error, Result};
use crate::grid::Cell;
use crate::model::Cut;
use crate::pipeline::stage::scores;
use ghostlab_store::Store;

/// Pairs of candidate and score, in the criterion's order.
pub type CandidateScores = Vec<(usize, f64)>;

/// Returns the stored trial results from the first step of a cell's criterion, as pairs of candidate and score.
/// Candidates are in the criterion's order, and numbered as in [`Selection`](crate::criterion::Selection). Returns
/// `None` if the criterion uses no trials.
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
    let tokens = &backbone.calibrations[calibration].tokens;
    let mut candidate_scores = Vec::new();
    let mut read_results = |metric: TrialMetric, trials: &[Trial]| -> Result<Vec<f64>> {
        let mut results = Vec::new();
        for trial in trials {
            let key = scores::trial_key(backbone.calibrated().key_parts(), tokens, metric, trial);
            let result = scores::read_trial(store, &key, metric).ok_or_else(|| {
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
