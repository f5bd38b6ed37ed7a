//! SLEB: repeatedly removes the layer whose removal increases the perplexity least (docs/design.md §6).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::greedy::{greedy_trials, remove_greedily};
use super::rule::{
    CalibrationStats, Criterion, CriterionEntry, Importance, PruneSpec, Selection, TrialMetric, build, iterative,
};
use crate::error::Result;
use crate::model::Cut;
use crate::options::Variant;

const NAME: &str = "sleb";
pub(super) const ENTRY: CriterionEntry =
    CriterionEntry::new::<Sleb>(NAME, "https://github.com/jiwonsong-dev/SLEB", build::<Sleb>)
        .label("SLEB")
        .variants(VARIANTS);

const VARIANTS: &[Variant] = &[iterative("SLEB, iterative")];

/// Greedy removal by perplexity. Ties go to the first layer. The scores are the removed layers in order, each with the
/// perplexity after its removal.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Sleb {
    /// Whether the backbone is repaired and measured again after each removed layer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    iterative: bool,
}

impl Criterion for Sleb {
    fn trials(&self, spec: &PruneSpec<'_>) -> Vec<Cut> {
        greedy_trials(spec)
    }

    fn is_iterative(&self) -> bool {
        self.iterative
    }

    fn importance(&self) -> Option<Importance> {
        Some(Importance { quantity: "perplexity without", lowest_first: true })
    }

    fn select(&self, spec: &PruneSpec<'_>, stats: &mut CalibrationStats<'_>) -> Result<Selection> {
        remove_greedily(NAME, spec, &spec.remaining(stats.removed()), TrialMetric::Perplexity, stats)
    }
}

#[cfg(test)]
mod tests {
    use crate::criterion::DepthUnit;
    use crate::criterion::rule::PruneSpec;
    use crate::criterion::rule::tests::select;
    use crate::model::Cut;
    use serde_json::json;

    #[test]
    fn nonfinite_trial_perplexity_is_rejected() {
        let spec = PruneSpec { backbone: "b", layers: 4, depth: 2, unit: DepthUnit::Layers };
        for entry in [super::ENTRY, crate::criterion::shortened_llama::ENTRY] {
            for broken in [f64::NAN, f64::INFINITY] {
                let some = |removed: &Cut| if removed.contains_layer(2) { broken } else { 3.0 };
                for perplexity in [&some as &dyn Fn(&Cut) -> f64, &|_| broken] {
                    let error = select(&entry, &json!({}), &spec, |_| 0.0, perplexity).unwrap_err();
                    assert!(error.exit_code() == 4 && error.to_string().contains("is not finite"), "{error}");
                }
            }
        }
    }

    #[test]
    fn sleb_measures_remaining_layers_each_step() {
        let spec = PruneSpec { backbone: "b", layers: 4, depth: 2, unit: DepthUnit::Layers };
        // Removing only layer 1 gives the lowest perplexity, and removing only layer 2 the second lowest. Once layer 1
        // is removed, removing layer 2 gives the highest perplexity and removing layer 3 the lowest.
        let selection = select(
            &super::ENTRY,
            &json!({}),
            &spec,
            |_| 0.0,
            |removed: &Cut| match removed.whole_layers()[..] {
                [1] => 1.0,
                [2] => 2.0,
                [1, 2] => 99.0,
                [1, 3] => 3.0,
                [0, 1] => 4.0,
                _ => 9.0,
            },
        )
        .unwrap();
        assert_eq!(selection.removed, [1, 3]);
        assert_eq!(selection.scores, [(1, 1.0), (3, 3.0)]);
    }
}
