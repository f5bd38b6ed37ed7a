//! FinerCut (arXiv 2405.18218): repeatedly removes the sublayer whose removal changes the logits least. The Ghosted
//! Layers paper does not evaluate it.
//!
//! Unlike the published script, which never removes layer 0 in its first step, this implementation may remove layer 0.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::depth::DepthUnit;
use super::rule::{CalibrationStats, Criterion, CriterionEntry, Importance, PruneSpec, Selection, TrialMetric, build};
use super::sublayers::{check_sublayers, greedy_trials, remove_greedily};
use crate::error::Result;
use crate::evaluate::logit_distance::LogitDistance;
use crate::model::{Cut, Sublayer};
use crate::options::Variant;

const NAME: &str = "finercut";
const SOURCE: &str = "https://github.com/YaNgZhAnG-V5/llm_dissect";
pub(super) const ENTRY: CriterionEntry = CriterionEntry::new::<FinerCut>(NAME, SOURCE, build::<FinerCut>)
    .label("FinerCut")
    .variants(VARIANTS)
    .not_in_paper();

const VARIANTS: &[Variant] = &[
    Variant { option: "distance", value: "js", word: "js", label: "FinerCut, Jensen-Shannon" },
    Variant { option: "iterative", value: "true", word: "iterative", label: "FinerCut, iterative" },
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
fn candidates_by_name(spec: &PruneSpec<'_>) -> Vec<(usize, Sublayer)> {
    let mut candidates = spec.unit.candidates(spec.layers);
    candidates.sort_by_cached_key(|&(layer, kind)| (format!("{layer}."), kind == Sublayer::Attention));
    candidates
}

impl Criterion for FinerCut {
    fn units(&self) -> &'static [DepthUnit] {
        DepthUnit::SUBLAYER_UNITS
    }

    fn check(&self, spec: &PruneSpec<'_>) -> Result<()> {
        check_sublayers(NAME, spec)
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
        remove_greedily(NAME, spec, candidates_by_name(spec), self.trial_metric(), stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finercut_candidates_are_sorted_by_published_name() {
        let spec = PruneSpec { backbone: "b", layers: 11, depth: 1, unit: DepthUnit::Sublayers };
        let order: Vec<usize> =
            candidates_by_name(&spec).iter().map(|(layer, kind)| kind.index_in_model(*layer)).collect();
        assert_eq!(order[..8], [1, 0, 3, 2, 21, 20, 5, 4]);
    }
}
