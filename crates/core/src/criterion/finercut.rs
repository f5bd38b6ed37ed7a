//! FinerCut (arXiv 2405.18218): repeatedly removes the sublayer whose removal changes the logits least. The Ghosted
//! Layers paper does not evaluate it.
//!
//! Unlike the published script, which never removes layer 0 in its first step, this implementation may remove layer 0.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::depth::DepthUnit;
use super::greedy::{greedy_trials, remove_greedily};
use super::rule::{
    CalibrationStats, Criterion, CriterionEntry, Importance, PruneSpec, Selection, TrialMetric, build, iterative,
};
use crate::error::Result;
use crate::evaluate::logit_distance::LogitDistance;
use crate::model::{Cut, Sublayer};
use crate::options::Variant;

const NAME: &str = "finercut";
pub(super) const ENTRY: CriterionEntry =
    CriterionEntry::new::<FinerCut>(NAME, "https://github.com/YaNgZhAnG-V5/llm_dissect", build::<FinerCut>)
        .label("FinerCut")
        .variants(VARIANTS)
        .not_in_paper();

const VARIANTS: &[Variant] = &[
    Variant { option: "distance", value: "js", word: "js", label: "FinerCut, Jensen-Shannon" },
    iterative("FinerCut, iterative"),
];

/// Greedy removal by the distance of the logits from those of the dense backbone.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct FinerCut {
    /// Distance measure between the logits at a token.
    distance: LogitDistance,
    /// Whether the backbone is repaired and measured again after each removed sublayer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    iterative: bool,
}

/// Returns the candidates sorted by their names in the published code. The order determines which candidate wins ties:
/// `model.layers.10.mlp.down_proj` comes before `model.layers.10.self_attn.o_proj` and `model.layers.2.mlp.down_proj`.
fn sort_by_name(mut candidates: Vec<usize>) -> Vec<usize> {
    candidates.sort_by_cached_key(|&candidate| {
        let (layer, kind) = Sublayer::from_index(candidate);
        (format!("{layer}."), kind == Sublayer::Attention)
    });
    candidates
}

impl Criterion for FinerCut {
    fn units(&self) -> &'static [DepthUnit] {
        DepthUnit::SUBLAYER_UNITS
    }

    fn trials(&self, spec: &PruneSpec<'_>) -> Vec<Cut> {
        greedy_trials(spec)
    }

    fn trial_metric(&self) -> TrialMetric {
        TrialMetric::Distance(self.distance)
    }

    fn is_iterative(&self) -> bool {
        self.iterative
    }

    fn importance(&self) -> Option<Importance> {
        let quantity = match self.distance {
            LogitDistance::Angle => "logit angle",
            LogitDistance::Js => "logit divergence",
        };
        Some(Importance { quantity, lowest_first: true })
    }

    fn select(&self, spec: &PruneSpec<'_>, stats: &mut CalibrationStats<'_>) -> Result<Selection> {
        let candidates = sort_by_name(spec.remaining(stats.removed()));
        remove_greedily(NAME, spec, &candidates, self.trial_metric(), stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finercut_candidates_are_sorted_by_published_name() {
        let order = sort_by_name(DepthUnit::Sublayers.candidate_indices(11));
        assert_eq!(order[..8], [1, 0, 3, 2, 21, 20, 5, 4]);
    }
}
