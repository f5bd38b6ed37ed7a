//! Code shared by the criteria that remove sublayers: greedy removal and the depth check.

use super::rule::{CalibrationStats, PruneSpec, Selection, TrialMetric, check_depth};
use crate::error::{Error, Result};
use crate::model::{Cut, Sublayer};

/// Rejects a depth that exceeds the number of candidates or would remove all sublayers of the backbone.
pub(super) fn check_sublayers(name: &str, spec: &PruneSpec<'_>) -> Result<()> {
    let candidates = spec.unit.candidates(spec.layers).len();
    let max = candidates - usize::from(candidates == 2 * spec.layers);
    check_depth(name, "has too few sublayers to choose from", max, spec)
}

/// Selects the candidates with the lowest scores. The first candidate wins ties.
pub(super) fn select_lowest_sublayers(scores: &[((usize, Sublayer), f64)], depth: usize) -> Selection {
    let mut ranked = scores.to_vec();
    // The sort is stable, so the first of several equal scores stays first.
    ranked.sort_by(|a, b| a.1.total_cmp(&b.1));
    let removed: Cut = ranked.into_iter().take(depth).map(|(sublayer, _)| sublayer).collect();
    let scores = scores.iter().map(|&((layer, kind), score)| (kind.index_in_model(layer), score)).collect();
    Selection::new(removed, scores)
}

/// Removes `depth` sublayers one by one. In each step, measures `metric` without each remaining sublayer and removes
/// the sublayer with the lowest value. The first candidate wins ties. The scores are the removed sublayers in order,
/// each with the value after its removal.
pub(super) fn remove_greedily(
    name: &str,
    spec: &PruneSpec<'_>,
    mut candidates: Vec<(usize, Sublayer)>,
    metric: TrialMetric,
    stats: &mut CalibrationStats<'_>,
) -> Result<Selection> {
    candidates.retain(|&(layer, kind)| !stats.removed().contains(layer, kind));
    let mut selection = Selection::new(Cut::default(), Vec::new());
    for _ in 0..spec.depth {
        let remaining = remaining_candidates(&candidates, &selection.removed);
        let trials: Vec<Cut> = remaining.iter().map(|&(layer, kind)| selection.removed.with(layer, kind)).collect();
        let measured = remaining.into_iter().zip(stats.measure(metric, &trials)?);
        let best = measured.reduce(|best, next| if next.1 < best.1 { next } else { best });
        let ((layer, kind), cost) = best.ok_or_else(|| Error::job("no sublayers left to remove").at(name))?;
        selection.scores.push((kind.index_in_model(layer), cost));
        selection.removed = selection.removed.with(layer, kind);
    }
    Ok(selection)
}

/// Returns cuts for the cost estimate, similar to those that [`remove_greedily`] measures. Assumes that candidates in
/// the middle are removed first.
pub(super) fn greedy_trials(spec: &PruneSpec<'_>) -> Vec<Cut> {
    let candidates = spec.unit.candidates(spec.layers);
    let start = candidates.len().saturating_sub(spec.depth) / 2;
    let mut removed = Cut::default();
    let mut trials = Vec::new();
    for &(layer, kind) in candidates.iter().skip(start).take(spec.depth) {
        trials.extend(
            remaining_candidates(&candidates, &removed).into_iter().map(|(layer, kind)| removed.with(layer, kind)),
        );
        removed = removed.with(layer, kind);
    }
    trials
}

fn remaining_candidates(candidates: &[(usize, Sublayer)], removed: &Cut) -> Vec<(usize, Sublayer)> {
    candidates.iter().copied().filter(|&(layer, kind)| !removed.contains(layer, kind)).collect()
}
