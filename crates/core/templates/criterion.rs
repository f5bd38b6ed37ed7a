//! Example criterion: removes the block with the smallest angular distance at the last token. Replace its rule with
//! yours.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rule::{CalibrationStats, Criterion, CriterionEntry, PruneSpec, Selection, build};
use crate::calibrate::{Pair, SimilarityAxis};
use crate::error::Result;

const NAME: &str = "my-criterion";
const SOURCE: &str = "https://example.org/my-criterion";
pub(super) const ENTRY: CriterionEntry = CriterionEntry::new::<MyCriterion>(NAME, SOURCE, build::<MyCriterion>);

/// Removes the block of `n` layers (of `L`) whose start `s` in `0..=L−n` has the smallest mean of
/// `arccos(cos(X_s, X_{s+n}))/π` at the last token. Ties go to the lowest `s`.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct MyCriterion {}

impl Criterion for MyCriterion {
    fn pairs(&self, cut: &PruneSpec<'_>) -> Vec<Pair> {
        (0..=cut.layers - cut.depth)
            .map(|from| Pair { axis: SimilarityAxis::LastTokenAngle, from, to: from + cut.depth })
            .collect()
    }

    fn one_block(&self, _: &PruneSpec<'_>) -> bool {
        true
    }

    fn select(&self, cut: &PruneSpec<'_>, stats: &mut CalibrationStats<'_>) -> Result<Selection> {
        Selection::best_block(cut, stats.remaining_similarities(self.pairs(cut))?, true)
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
        assert_eq!(super::ENTRY.appearance.name, super::NAME);
        let cut = PruneSpec { backbone: "b", layers: 5, depth: 2, unit: DepthUnit::Layers };
        let angles = [0.5, 0.3, 0.4, 0.3];
        let selection = select(&super::ENTRY, &json!({}), &cut, |pair| angles[pair.from], |_| 0.0).unwrap();
        assert_eq!(selection.removed, [1, 2]);
        let selection = select(&super::ENTRY, &json!({}), &cut, |pair| -(pair.from as f64), |_| 0.0).unwrap();
        assert_eq!(selection.removed, [3, 4], "the last layer can be removed");
    }
}
