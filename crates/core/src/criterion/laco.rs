//! LaCo (arXiv 2402.11187): merges layers from the top down, and keeps a merge if the output of the backbone stays
//! similar. The Ghosted Layers paper does not evaluate it.
//!
//! The loop follows the published notebook, which has no target depth. Here, the loop ends once enough layers are
//! removed. A merge that would remove too many layers combines fewer of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rule::{CalibrationStats, Criterion, CriterionEntry, ITERATIVE, PruneSpec, Selection, any_regions, build};
use super::trial::{Trial, TrialMetric};
use crate::deviation::Deviation;
use crate::error::{Error, Result};
use crate::model::{Config, Cut, LayerMerge, MergeForm};
use crate::options::Variant;

const NAME: &str = "laco";
pub(super) const ENTRY: CriterionEntry =
    CriterionEntry::new::<Laco>(NAME, "https://github.com/yangyifei729/LaCo", build::<Laco>)
        .label("LaCo")
        .variants(VARIANTS)
        .deviations(DEVIATIONS)
        .not_in_paper()
        .refusing(ITERATIVE, "its loop already measures the merged backbone after each merge");

const VARIANTS: &[Variant] = &[
    Variant { option: "form", value: "released", word: "released", label: "LaCo, as released" },
    Variant { option: "form", value: "norms", word: "norms", label: "LaCo with norms" },
];

const DEVIATIONS: &[Deviation] =
    &[Deviation { applies: |_| true, text: "merges down to the lowest layer, without a target depth" }];

/// Merges of layers from the top down. A merge is kept if the cosine between the outputs of the final norm and those of
/// the dense backbone, averaged over the calibration windows, exceeds a threshold. The scores are the cosines of all
/// merges that were tried, each with the layer that would have remained.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Laco {
    /// Number of layers that a merge combines into one.
    #[schemars(range(min = 2))]
    combine: usize,
    /// Cosine above which a merge is kept.
    threshold: f64,
    /// Number of layers between a kept merge and the next trial. After a rejected merge, it is 1.
    #[schemars(range(min = 1))]
    interval: usize,
    /// Lowest layer into which layers are merged.
    lowest: usize,
    /// The first trial merges the layers directly below this one. Defaults to the last layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    highest: Option<usize>,
    /// Formula for the merged weights in trials. The recovery `merge` has the same option.
    form: MergeForm,
}

/// Settings of the published notebook for 13B models.
impl Default for Laco {
    fn default() -> Self {
        Self { combine: 7, threshold: 0.45, interval: 1, lowest: 0, highest: None, form: MergeForm::Paper }
    }
}

impl Laco {
    fn highest(&self, spec: &PruneSpec<'_>) -> usize {
        self.highest.unwrap_or(spec.layers.saturating_sub(1))
    }

    /// Returns the position of the first trial, which is the layer into which it merges other layers. Returns `None` if
    /// no position is valid.
    fn first_position(&self, spec: &PruneSpec<'_>) -> Option<usize> {
        let first = self.highest(spec).checked_sub(self.combine.min(spec.depth + 1))?;
        (first >= self.lowest).then_some(first)
    }

    /// Returns the position `distance` layers below `position`, or `None` if it would be below `lowest`.
    fn position_below(&self, position: usize, distance: usize) -> Option<usize> {
        position.checked_sub(distance).filter(|&next| next >= self.lowest)
    }

    fn build_trial(&self, merges: &[LayerMerge]) -> Trial {
        Trial { removed: absorbed_layers(merges), merged: self.form.apply(merges) }
    }
}

/// Returns the layers that the merges remove.
fn absorbed_layers(merges: &[LayerMerge]) -> Cut {
    Cut::layers(merges.iter().flat_map(|merge| merge.absorbed.iter().copied()))
}

fn option_error(option: &str, expected: impl Into<String>, found: impl std::fmt::Display) -> Error {
    Error::bad_input(format!("invalid `{option}` of `{NAME}`")).expected(expected.into()).found(found)
}

impl Criterion for Laco {
    fn check_backbone(&self, config: &Config) -> Result<()> {
        MergeForm::check(config)
    }

    fn check(&self, _: &str, spec: &PruneSpec<'_>) -> Result<()> {
        if self.combine < 2 {
            return Err(option_error("combine", "2 or more layers", self.combine));
        }
        if self.interval == 0 {
            return Err(option_error("interval", "1 or more layers", self.interval));
        }
        if !(-1.0..1.0).contains(&self.threshold) {
            return Err(option_error("threshold", "a cosine of at least -1 and less than 1", self.threshold));
        }
        if let Some(highest) = self.highest.filter(|&highest| highest >= spec.layers) {
            return Err(option_error("highest", format!("a layer below {}", spec.layers), highest));
        }
        if self.first_position(spec).is_none() {
            return Err(Error::bad_input(format!("`{NAME}` cannot merge any layers"))
                .expected(format!("`lowest` at least {} below `highest`", self.combine.min(spec.depth + 1)))
                .found(format!(
                    "`lowest` {}, `highest` {} (depth {}, {} layers)",
                    self.lowest,
                    self.highest(spec),
                    spec.depth,
                    spec.layers
                ))
                .hint("reduce `depth`, `combine` or `lowest`"));
        }
        Ok(())
    }

    fn regions(&self, spec: &PruneSpec<'_>) -> Vec<(usize, usize)> {
        any_regions(spec).into_iter().filter(|&(start, _)| start > self.lowest).collect()
    }

    /// Returns one trial for each position, which is an upper bound on the number of trials.
    fn trials(&self, spec: &PruneSpec<'_>) -> Vec<Cut> {
        let Some(first) = self.first_position(spec) else { return Vec::new() };
        let removed = (self.combine - 1).min(spec.depth);
        (self.lowest..=first).rev().map(|layer| Cut::layers(layer + 1..=layer + removed)).collect()
    }

    fn trial_metric(&self) -> TrialMetric {
        TrialMetric::Cosine
    }

    fn select(&self, spec: &PruneSpec<'_>, stats: &mut CalibrationStats<'_>) -> Result<Selection> {
        let mut layers: Vec<usize> = (0..spec.layers).collect();
        let mut selection = Selection::from_layers([], Vec::new());
        let mut position = self.first_position(spec);
        while let Some(current) = position.filter(|_| layers.len() + spec.depth > spec.layers) {
            let missing = layers.len() + spec.depth - spec.layers;
            let above = &layers[current + 1..];
            let absorbed = above[..above.len().min(self.combine - 1).min(missing)].to_vec();
            let mut merges = selection.merges.clone();
            merges.push(LayerMerge { layer: layers[current], absorbed });
            let cosine = stats.measure_trials(self.trial_metric(), &[self.build_trial(&merges)])?[0];
            selection.scores.push((layers[current], cosine));
            let is_accepted = cosine > self.threshold;
            if is_accepted {
                let removed = &merges[merges.len() - 1].absorbed;
                layers.retain(|layer| !removed.contains(layer));
                selection.merges = merges;
            }
            position = self.position_below(current, if is_accepted { self.interval } else { 1 });
        }
        let removed = spec.layers - layers.len();
        if removed < spec.depth {
            return Err(Error::job(format!("`{NAME}` removed {removed} of {} layers", spec.depth))
                .expected(format!("more merges with a cosine above {}", self.threshold))
                .hint("reduce `threshold` or `depth`"));
        }
        selection.removed = absorbed_layers(&selection.merges);
        Ok(selection)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::ENTRY;
    use crate::criterion::depth::DepthUnit;
    use crate::criterion::rule::tests::select;
    use crate::criterion::rule::{Criterion, PruneSpec, Selection};
    use crate::error::Result;
    use crate::model::{Config, Cut};

    fn select_layers(options: &Value, depth: usize, cosine: impl Fn(&[usize]) -> f64) -> Result<Selection> {
        let spec = PruneSpec { backbone: "b", layers: 10, depth, unit: DepthUnit::Layers };
        select(&ENTRY, options, &spec, |_| 0.0, |removed: &Cut| cosine(&removed.whole_layers()))
    }

    fn merges(selection: &Selection) -> Vec<(usize, Vec<usize>)> {
        selection.merges.iter().map(|merge| (merge.layer, merge.absorbed.clone())).collect()
    }

    #[test]
    fn later_trials_include_the_kept_merges() {
        let options = json!({"combine": 3, "threshold": 0.5});
        // The first trial merges into layer 9 − 3.
        let all = select_layers(&options, 5, |_| 0.6).unwrap();
        assert_eq!(merges(&all), [(6, vec![7, 8]), (5, vec![6, 9]), (4, vec![5])]);
        assert_eq!(all.removed, [5, 6, 7, 8, 9]);
        // A rejected merge leaves the layers unchanged.
        let some = select_layers(&options, 4, |removed| if removed.contains(&6) { 0.5 } else { 0.6 }).unwrap();
        assert_eq!(merges(&some), [(6, vec![7, 8]), (3, vec![4, 5])]);
        assert_eq!(some.scores, [(6, 0.6), (5, 0.5), (4, 0.5), (3, 0.6)]);
        let spaced_merges = json!({"combine": 3, "threshold": 0.5, "interval": 3, "highest": 8});
        assert_eq!(merges(&select_layers(&spaced_merges, 4, |_| 0.6).unwrap()), [(5, vec![6, 7]), (2, vec![3, 4])]);
    }

    #[test]
    fn threshold_that_allows_too_few_merges_is_rejected() {
        let text = select_layers(&json!({"combine": 3, "lowest": 2}), 2, |_| 0.45).unwrap_err().to_string();
        assert!(text.contains("removed 0 of 2 layers") && text.contains("above 0.45"), "{text}");
    }

    #[test]
    fn invalid_laco_settings_are_rejected() {
        for (options, words) in [
            (json!({"combine": 1}), "`combine`"),
            (json!({"interval": 0}), "`interval`"),
            (json!({"threshold": 1.0}), "`threshold`"),
            (json!({"highest": 10}), "a layer below 10"),
            (json!({"lowest": 7}), "`lowest` at least 3 below `highest`"),
        ] {
            let error = select_layers(&options, 2, |_| 1.0).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn backbone_with_experts_is_rejected() {
        let read_config = |class: &str| {
            let folder = tempfile::tempdir().unwrap();
            let config = json!({
                "architectures": [class], "hidden_size": 64, "intermediate_size": 128, "head_dim": 16,
                "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 4, "vocab_size": 100,
                "rms_norm_eps": 1e-5,
            });
            std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
            Config::read_file(&folder.path().join("config.json")).unwrap()
        };
        let rule = super::Laco::default();
        assert!(rule.check_backbone(&read_config("MistralForCausalLM")).is_ok());
        let error = rule.check_backbone(&read_config("MixtralForCausalLM")).unwrap_err().one_line();
        assert!(error.contains("layers with experts cannot be merged"), "{error}");
    }
}
