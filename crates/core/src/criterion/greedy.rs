//! Greedy removal of layers or sublayers by the results of trials.

use super::depth::DepthUnit;
use super::rule::{CalibrationStats, PruneSpec, Selection, TrialMetric};
use crate::error::{Error, Result};
use crate::model::Cut;

/// Removes `depth` layers or sublayers one by one. In each step, measures `metric` without each remaining candidate and
/// removes the candidate with the lowest value. The first candidate wins ties. The scores are the removed candidates in
/// order, each with the value after its removal.
pub(super) fn remove_greedily(
    name: &str,
    spec: &PruneSpec<'_>,
    candidates: &[usize],
    metric: TrialMetric,
    stats: &mut CalibrationStats<'_>,
) -> Result<Selection> {
    let mut selection = Selection::new(Cut::default(), Vec::new());
    for _ in 0..spec.depth {
        let (remaining, trials) = extend_cut(spec.unit, candidates, &selection.removed);
        let values = stats.measure(metric, &trials)?;
        let measured = remaining.into_iter().zip(trials).zip(values);
        let best = measured.reduce(|best, next| if next.1 < best.1 { next } else { best });
        let noun = if spec.unit.is_layers() { "layers" } else { "sublayers" };
        let ((candidate, removed), value) =
            best.ok_or_else(|| Error::job(format!("no {noun} left to remove")).at(name))?;
        selection.scores.push((candidate, value));
        selection.removed = removed;
    }
    Ok(selection)
}

/// Returns cuts for the cost estimate, similar to those that [`remove_greedily`] measures. Assumes that candidates in
/// the middle are removed first.
pub(super) fn greedy_trials(spec: &PruneSpec<'_>) -> Vec<Cut> {
    let candidates = spec.unit.candidate_indices(spec.layers);
    let start = candidates.len().saturating_sub(spec.depth) / 2;
    let steps = (0..spec.depth).map(|step| spec.unit.cut(candidates.iter().copied().skip(start).take(step)));
    steps.flat_map(|removed| extend_cut(spec.unit, &candidates, &removed).1).collect()
}

/// Returns each candidate that `removed` does not contain, and a cut that also removes this candidate.
fn extend_cut(unit: DepthUnit, candidates: &[usize], removed: &Cut) -> (Vec<usize>, Vec<Cut>) {
    let extended = candidates.iter().map(|&candidate| {
        let mut cut = unit.cut([candidate]);
        cut.extend(removed);
        (candidate, cut)
    });
    extended.filter(|(_, cut)| cut != removed).unzip()
}
