//! BlockPruner: repeatedly removes the sublayer whose removal leaves the lowest perplexity (arXiv 2406.10594). Its
//! authors calibrate on Alpaca. The Ghosted Layers paper does not evaluate it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::depth::DepthUnit;
use super::greedy::{greedy_trials, remove_greedily};
use super::rule::{
    CalibrationStats, Criterion, CriterionEntry, Importance, PruneSpec, Selection, TrialMetric, build, iterative,
};
use crate::error::Result;
use crate::model::Cut;
use crate::options::Variant;

const NAME: &str = "block-pruner";
pub(super) const ENTRY: CriterionEntry =
    CriterionEntry::new::<BlockPruner>(NAME, "https://github.com/MrGGLS/BlockPruner", build::<BlockPruner>)
        .label("BlockPruner")
        .variants(VARIANTS)
        .not_in_paper();

const VARIANTS: &[Variant] = &[iterative("BlockPruner, iterative")];

/// Greedy removal by the perplexity on the calibration windows. Ties go to attention sublayers before MLPs, then to the
/// lower layer.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct BlockPruner {
    /// Whether the backbone is repaired and measured again after each removed sublayer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    iterative: bool,
}

impl Criterion for BlockPruner {
    fn units(&self) -> &'static [DepthUnit] {
        DepthUnit::SUBLAYER_UNITS
    }

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
    use serde_json::json;

    use crate::criterion::depth::DepthUnit;
    use crate::criterion::rule::PruneSpec;
    use crate::criterion::rule::tests::select;
    use crate::model::{Cut, Sublayer};

    #[test]
    fn block_pruner_measures_remaining_sublayers_each_step() {
        let spec = PruneSpec { backbone: "b", layers: 2, depth: 2, unit: DepthUnit::Sublayers };
        let first = (1, Sublayer::Mlp);
        // Removing only the MLP of layer 1 gives the lowest perplexity, and removing only the attention of layer 1 the
        // second lowest. Once the MLP is removed, removing the attention of layer 1 gives the highest.
        let selection = select(
            &super::ENTRY,
            &json!({}),
            &spec,
            |_| 0.0,
            |removed| match (removed.contains(1, Sublayer::Mlp), removed.len()) {
                (true, 1) => 1.0,
                (true, _) if removed.contains(1, Sublayer::Attention) => 99.0,
                (true, _) => 4.0,
                _ if removed.contains(1, Sublayer::Attention) => 2.0,
                _ => 9.0,
            },
        )
        .unwrap();
        // Both remaining candidates give a perplexity of 4, so the first one, the attention of layer 0, is removed.
        assert_eq!(selection.removed, Cut::sublayers([first, (0, Sublayer::Attention)]));
        assert_eq!(selection.scores, [(3, 1.0), (0, 4.0)]);
    }
}
