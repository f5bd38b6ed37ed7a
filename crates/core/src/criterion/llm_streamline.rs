//! LLM-Streamline: removes the block whose input and output are most similar (docs/design.md §6).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rule::{
    CalibrationStats, Cosine, Criterion, CriterionEntry, Importance, PruneSpec, READS_FIRST_SEQUENCES, Selection,
    build, check_depth, iterative,
};
use crate::calibrate::Pair;
use crate::error::Result;
use crate::options::Variant;

const SOURCE: &str = "https://github.com/ruckbreasoning/llm-streamline";
pub(super) const ENTRY: CriterionEntry =
    CriterionEntry::new::<LlmStreamline>("llm-streamline", SOURCE, build::<LlmStreamline>)
        .label("LLM-Streamline")
        .short("streamline")
        .variants(VARIANTS)
        .deviations(READS_FIRST_SEQUENCES);

const VARIANTS: &[Variant] = &[iterative("LLM-Streamline, iterative")];

/// Removal of the block whose input and output are most similar. The first and last layers are kept.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct LlmStreamline {
    /// Axis over which the cosine is computed.
    cosine: Cosine,
    /// Whether the backbone is repaired and measured again after each removed layer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    iterative: bool,
}

impl Criterion for LlmStreamline {
    fn check(&self, name: &str, spec: &PruneSpec<'_>) -> Result<()> {
        check_depth(name, "keeps the first and the last layer", spec.layers.saturating_sub(2), spec)
    }

    fn pairs(&self, spec: &PruneSpec<'_>) -> Vec<Pair> {
        let axis = self.cosine.axis();
        (1..spec.layers - spec.depth).map(|from| Pair { axis, from, to: from + spec.depth }).collect()
    }

    fn one_block(&self, _: &PruneSpec<'_>) -> bool {
        !self.iterative
    }

    fn is_iterative(&self) -> bool {
        self.iterative
    }

    fn importance(&self) -> Option<Importance> {
        Some(Importance { quantity: "cosine", lowest_first: false })
    }

    /// Selects the block start `s` in `1..=L−n−1` with the highest mean cosine of `X_s` and `X_{s+n}`. The first
    /// maximum wins.
    fn select(&self, spec: &PruneSpec<'_>, stats: &mut CalibrationStats<'_>) -> Result<Selection> {
        Selection::best_block(spec, stats.remaining_similarities(self.pairs(spec))?, false)
    }
}

#[cfg(test)]
mod tests {
    use crate::criterion::DepthUnit;
    use crate::criterion::rule::PruneSpec;
    use crate::criterion::rule::tests::select;
    use serde_json::json;

    #[test]
    fn streamline_keeps_end_layers_and_removes_first_of_ties() {
        let spec = PruneSpec { backbone: "b", layers: 6, depth: 2, unit: DepthUnit::Layers };
        // Blocks 0 and 4 are excluded although they are the most similar. Blocks 2 and 3 tie.
        let cosines = [1.0, 0.5, 0.7, 0.7, 1.0];
        let selection = select(&super::ENTRY, &json!({}), &spec, |pair| cosines[pair.from], |_| 0.0).unwrap();
        assert_eq!(selection.removed, [2, 3]);
        assert_eq!(selection.scores.len(), 3);
        assert!(select(&super::ENTRY, &json!({}), &PruneSpec { depth: 5, ..spec }, |_| 0.0, |_| 0.0).is_err());
    }
}
