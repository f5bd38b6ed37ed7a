//! Calibrations that say nothing of which layers to remove, whatever the rule.

use super::rule::{Criterion, PruneSpec, Selection};
use crate::corpus::Windows;

/// Scores that lie within this part of each other are the same: the streams that they come from are of f32.
const SAME: f64 = 1e-9;

/// Why layers were chosen by what cannot tell them apart: a text of one token, or of one token over and over (then every
/// channel of the residual stream is constant), fewer tokens than channels where the rule compares streams of so many
/// `channels`, or scores that are all the same. Empty where they were not, and of a rule that reads no calibration.
pub fn degenerate(
    criterion: &dyn Criterion,
    cut: &PruneSpec<'_>,
    selection: &Selection,
    calibration: &Windows,
    channels: usize,
) -> Vec<String> {
    let compares = !criterion.pairs(cut).is_empty() || !criterion.sites(cut).is_empty();
    if !compares && criterion.trials(cut).is_empty() {
        return Vec::new();
    }
    let (tokens, mut reasons) = (calibration.ids.len(), Vec::new());
    let first = calibration.ids.first();
    if tokens == 1 {
        reasons.push("the layers were chosen by one token of calibration".to_owned());
    } else if calibration.ids.iter().all(|id| Some(id) == first) {
        reasons.push(
            "the layers were chosen by a calibration of one token over and over: its channels do not change".to_owned(),
        );
    }
    if tokens > 1 && tokens < channels && compares {
        reasons
            .push(format!("the layers were chosen by {tokens} tokens of calibration: fewer than {channels} channels"));
    }
    let scores = || selection.scores.iter().map(|(_, score)| *score);
    let (least, most) = (scores().fold(f64::INFINITY, f64::min), scores().fold(f64::NEG_INFINITY, f64::max));
    if selection.scores.len() > 1 && most - least <= SAME * least.abs().max(most.abs()) {
        reasons.push("all scores that the layers were chosen by are the same".to_owned());
    }
    reasons
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::corpus::Start;
    use crate::criterion::build;

    fn reasons(rule: &str, options: &serde_json::Value, ids: &[u32], scores: &[f64]) -> Vec<String> {
        let starts = vec![Start { document: 0, token: 0 }];
        let calibration = Windows { ids: ids.to_vec(), length: ids.len(), starts, corpus_tokens: ids.len(), bytes: 0 };
        let selection = Selection { removed: vec![1], scores: scores.iter().copied().enumerate().collect() };
        let cut = PruneSpec { backbone: "llama-3-8b", layers: 32, depth: 1 };
        degenerate(&*build(rule, options.as_object().unwrap()).unwrap(), &cut, &selection, &calibration, 4)
    }

    #[test]
    fn what_tells_no_layers_apart_is_said_of_every_rule_that_reads_a_calibration() {
        let of = |rule: &str, ids: &[u32], scores: &[f64]| reasons(rule, &json!({}), ids, scores);
        for rule in ["llm-streamline", "shortgpt", "angular", "cca", "sleb", "shortened-llama"] {
            let compares = !["sleb", "shortened-llama"].contains(&rule);
            assert_eq!(of(rule, &[1, 2, 3, 4], &[0.5, 0.25]), [""; 0], "{rule}");
            assert!(of(rule, &[7; 8], &[0.5, 0.25])[0].contains("one token over and over"), "{rule}");
            assert_eq!(of(rule, &[7], &[0.5, 0.25]), ["the layers were chosen by one token of calibration"], "{rule}");
            let few = of(rule, &[1, 2, 3], &[0.5, 0.25]);
            assert_eq!(few.len(), usize::from(compares), "{rule}: {few:?}");
            assert!(few.iter().all(|why| why.contains("3 tokens of calibration: fewer than 4 channels")), "{few:?}");
            let tied = of(rule, &[1, 2, 3, 4], &[0.5, 0.5 + 1e-12, 0.5]);
            assert_eq!(tied, ["all scores that the layers were chosen by are the same"], "{rule}");
            assert!(of(rule, &[1, 2, 3, 4], &[0.0]).is_empty(), "one candidate is no tie");
        }
        for (rule, options) in [("explicit", json!({"layers": [1]})), ("shortened-llama", json!({"order": "released"}))]
        {
            assert!(reasons(rule, &options, &[7], &[]).is_empty(), "{rule} reads none");
        }
    }
}
