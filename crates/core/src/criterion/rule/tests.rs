use std::collections::BTreeSet;

use serde_json::json;

use super::*;
use crate::corpus::Start;
use crate::criterion::build;

/// Returns no measurements. Used for criteria that need no trials.
#[expect(clippy::unnecessary_wraps, reason = "must match the type `Trials`")]
pub(crate) fn no_trials(_: TrialMetric, _: &[Trial]) -> Result<Vec<f64>> {
    Ok(Vec::new())
}

/// Runs a selection with similarities and perplexities given by functions.
pub(crate) fn select(
    entry: &CriterionEntry,
    options: &serde_json::Value,
    spec: &PruneSpec<'_>,
    similarity: impl Fn(Pair) -> f64,
    perplexity: impl Fn(&Cut) -> f64,
) -> Result<Selection> {
    let criterion = entry.build(options.as_object().unwrap())?;
    check(entry.appearance.name, &*criterion, spec)?;
    let pairs: BTreeSet<Pair> = criterion.pairs(spec).into_iter().collect();
    let mut similarities = Similarities::new(&pairs);
    similarities.add_sums(&pairs.into_iter().map(similarity).collect::<Vec<_>>(), 1);
    let mut trials =
        |_: TrialMetric, trials: &[Trial]| Ok(trials.iter().map(|trial| perplexity(&trial.removed)).collect());
    let mut stats = CalibrationStats::new(&similarities, None, &mut trials);
    let selection = criterion.select(spec, &mut stats)?;
    for region in selection.regions() {
        assert!(criterion.regions(spec).contains(&region), "{region:?} is not one of the criterion's regions");
    }
    Ok(selection)
}

#[test]
fn missing_or_nan_similarity_error_names_both_layers() {
    let mut similarities = Similarities::new(&[pair_to_last(1), pair_to_last(2)].into());
    similarities.add_sums(&[f64::NAN, 0.5], 1);
    let mut none = no_trials;
    let stats = CalibrationStats::new(&similarities, None, &mut none);
    assert_eq!(stats.similarity(pair_to_last(2)).unwrap(), 0.5);
    for (from, found) in [(0, "no measurement"), (1, "NaN")] {
        let text = stats.similarity(pair_to_last(from)).unwrap_err().to_string();
        assert!(text.contains(&format!("layers {from} and 3")) && text.contains(found), "{text}");
    }
}

fn pair_to_last(from: usize) -> Pair {
    Pair { axis: crate::calibrate::SimilarityAxis::Token, from, to: 3 }
}

#[test]
fn regions_are_maximal_runs_of_removed_layers() {
    let selection = Selection::from_layers([0, 2, 3, 4, 7], Vec::new());
    assert_eq!(selection.regions(), [(0, 1), (2, 5), (7, 8)]);
}

#[test]
fn lowest_selection_prefers_lower_layer_on_ties() {
    let spec = PruneSpec { backbone: "b", layers: 4, depth: 2, unit: DepthUnit::Layers };
    let selection = Selection::lowest(&spec, vec![(0, 2.0), (1, 1.0), (2, 1.0), (3, 1.0)]);
    assert_eq!(selection.removed, [1, 2]);
}

fn reasons(rule: &str, options: &serde_json::Value, ids: &[u32], scores: &[f64]) -> Vec<String> {
    let starts = vec![Start { document: 0, token: 0 }];
    let calibration = Windows { ids: ids.to_vec(), length: ids.len(), starts, corpus_tokens: ids.len(), bytes: 0 };
    let selection = Selection::from_layers([1], scores.iter().copied().enumerate().collect());
    let spec = PruneSpec { backbone: "llama-3-8b", layers: 32, depth: 1, unit: DepthUnit::Layers };
    degenerate(&*build(rule, options.as_object().unwrap()).unwrap(), &spec, &selection, &calibration, 4)
}

#[test]
fn degenerate_calibration_is_noted_for_criteria_that_use_it() {
    for rule in ["llm-streamline", "shortgpt", "angular", "cca", "sleb", "shortened-llama"] {
        let compares = !["sleb", "shortened-llama"].contains(&rule);
        assert_eq!(default_reasons(rule, &[1, 2, 3, 4], &[0.5, 0.25]), [""; 0], "{rule}");
        assert!(default_reasons(rule, &[7; 8], &[0.5, 0.25])[0].contains("repeats one token"), "{rule}");
        let single = default_reasons(rule, &[7], &[0.5, 0.25]);
        assert_eq!(single, ["the calibration text has only one token"], "{rule}");
        let few = default_reasons(rule, &[1, 2, 3], &[0.5, 0.25]);
        assert_eq!(few.len(), usize::from(compares), "{rule}: {few:?}");
        assert!(few.iter().all(|why| why.contains("fewer tokens (3) than the backbone has channels (4)")), "{few:?}");
        let tied = default_reasons(rule, &[1, 2, 3, 4], &[0.5, 0.5 + 1e-12, 0.5]);
        assert_eq!(tied, ["all candidates have the same score"], "{rule}");
        assert!(default_reasons(rule, &[1, 2, 3, 4], &[0.0]).is_empty(), "a single candidate is not a tie");
    }
    for (rule, options) in [("explicit", json!({"layers": [1]})), ("shortened-llama", json!({"order": "released"}))] {
        assert!(reasons(rule, &options, &[7], &[]).is_empty(), "{rule} reads no activations");
    }
}

fn default_reasons(rule: &str, ids: &[u32], scores: &[f64]) -> Vec<String> {
    reasons(rule, &json!({}), ids, scores)
}
