//! Angular distance: removes the block with the smallest angular distance at the last token (Gromov et al.; used by
//! ReplaceMe; docs/design.md §6).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rule::{CalibrationStats, Criterion, CriterionEntry, Importance, PruneSpec, Selection, build, iterative};
use crate::calibrate::{Pair, SimilarityAxis};
use crate::error::Result;
use crate::options::Variant;

pub(super) const ENTRY: CriterionEntry =
    CriterionEntry::new::<Angular>("angular", "https://github.com/arcee-ai/PruneMe", build::<Angular>)
        .variants(VARIANTS);

const VARIANTS: &[Variant] = &[iterative("angular, iterative")];

/// Removes the block of `n` layers (of `L`) whose start `s` in `0..=L−n` has the smallest mean of
/// `arccos(cos(X_s, X_{s+n}))/π` at the last token. Ties go to the lowest `s`.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Angular {
    /// Whether the backbone is repaired and measured again after each removed layer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    iterative: bool,
}

impl Criterion for Angular {
    fn pairs(&self, spec: &PruneSpec<'_>) -> Vec<Pair> {
        (0..=spec.layers - spec.depth)
            .map(|from| Pair { axis: SimilarityAxis::LastTokenAngle, from, to: from + spec.depth })
            .collect()
    }

    fn one_block(&self, _: &PruneSpec<'_>) -> bool {
        !self.iterative
    }

    fn is_iterative(&self) -> bool {
        self.iterative
    }

    fn importance(&self) -> Option<Importance> {
        Some(Importance { quantity: "angle", lowest_first: true })
    }

    fn select(&self, spec: &PruneSpec<'_>, stats: &mut CalibrationStats<'_>) -> Result<Selection> {
        Selection::best_block(spec, stats.remaining_similarities(self.pairs(spec))?, true)
    }
}

#[cfg(test)]
mod tests {
    use crate::criterion::DepthUnit;
    use crate::criterion::rule::PruneSpec;
    use crate::criterion::rule::tests::select;
    use serde_json::json;

    #[test]
    fn block_with_the_smallest_angle_is_removed() {
        let spec = PruneSpec { backbone: "b", layers: 5, depth: 2, unit: DepthUnit::Layers };
        let angles = [0.5, 0.3, 0.4, 0.3];
        let selection = select(&super::ENTRY, &json!({}), &spec, |pair| angles[pair.from], |_| 0.0).unwrap();
        assert_eq!(selection.removed, [1, 2]);
        let selection = select(&super::ENTRY, &json!({}), &spec, |pair| -(pair.from as f64), |_| 0.0).unwrap();
        assert_eq!(selection.removed, [3, 4], "the last layer may be removed");
    }
}
