//! LLM-Drop (arXiv 2406.15786): removes the sublayers that change the residual stream least. The Ghosted Layers paper
//! does not evaluate it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::depth::DepthUnit;
use super::rule::{CalibrationStats, Criterion, CriterionEntry, Importance, PruneSpec, Selection, build, iterative};
use crate::calibrate::Pair;
use crate::error::Result;
use crate::model::Sublayer;
use crate::options::Variant;

pub(super) const ENTRY: CriterionEntry =
    CriterionEntry::new::<LlmDrop>("llm-drop", "https://github.com/CASE-Lab-UMD/LLM-Drop", build::<LlmDrop>)
        .label("LLM-Drop")
        .variants(VARIANTS)
        .not_in_paper();

const VARIANTS: &[Variant] = &[iterative("LLM-Drop, iterative")];

/// Removal of the sublayers with the lowest `1 − mean cos(x, x + f(x))` over tokens, where `f` includes the norm. The
/// depth selects the kind of sublayer. Ties go to attention sublayers before MLPs, then to the lower layer.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct LlmDrop {
    /// Whether the backbone is repaired and measured again after each removed sublayer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    iterative: bool,
}

impl Criterion for LlmDrop {
    fn units(&self) -> &'static [DepthUnit] {
        DepthUnit::SUBLAYER_UNITS
    }

    fn pairs(&self, spec: &PruneSpec<'_>) -> Vec<Pair> {
        spec.unit.candidates(spec.layers).into_iter().map(|(layer, kind)| Pair::around(layer, kind)).collect()
    }

    fn is_iterative(&self) -> bool {
        self.iterative
    }

    fn importance(&self) -> Option<Importance> {
        Some(Importance { quantity: "1 − cosine", lowest_first: true })
    }

    fn select(&self, spec: &PruneSpec<'_>, stats: &mut CalibrationStats<'_>) -> Result<Selection> {
        let scores = spec.remaining(stats.removed()).into_iter().map(|candidate| {
            let (layer, kind) = Sublayer::from_index(candidate);
            Ok((candidate, 1.0 - stats.similarity(Pair::around(layer, kind))?))
        });
        Ok(Selection::lowest(spec, scores.collect::<Result<_>>()?))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::criterion::depth::DepthUnit;
    use crate::criterion::rule::PruneSpec;
    use crate::criterion::rule::tests::select;

    #[test]
    fn llm_drop_removes_lowest_scores_of_each_unit() {
        for (unit, depth, expected) in [
            (DepthUnit::Attention, 2, r#"["attention 0","attention 2"]"#),
            (DepthUnit::Mlp, 1, r#"["mlp 1"]"#),
            // The attention of layer 2 and the MLP of layer 1 have equal scores, so the attention is removed first.
            (DepthUnit::Sublayers, 1, r#"["attention 2"]"#),
            (DepthUnit::Sublayers, 3, r#"["attention 0","mlp 1","attention 2"]"#),
        ] {
            let spec = PruneSpec { backbone: "b", layers: 3, depth, unit };
            let cosines = [[0.8, 0.5], [0.1, 0.9], [0.9, 0.7]];
            let selection = select(
                &super::ENTRY,
                &json!({}),
                &spec,
                |pair| cosines[pair.from][usize::from(pair.axis == crate::calibrate::SimilarityAxis::Mlp)],
                |_| 0.0,
            );
            let selection = selection.unwrap();
            assert_eq!(serde_json::to_string(&selection.removed).unwrap(), expected, "{unit} {depth}");
        }
    }

    #[test]
    fn depth_that_removes_every_sublayer_is_rejected() {
        for (unit, depth) in [(DepthUnit::Attention, 4), (DepthUnit::Mlp, 4), (DepthUnit::Sublayers, 6)] {
            let spec = PruneSpec { backbone: "b", layers: 3, depth, unit };
            let error = select(&super::ENTRY, &json!({}), &spec, |_| 0.0, |_| 0.0).unwrap_err();
            assert!(error.to_string().contains("too few sublayers"), "{error}");
        }
    }
}
