//! The block of least angular distance at the last token (Gromov et al.; used by ReplaceMe; design §6).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rule::{Criterion, CriterionEntry, Evidence, PruneSpec, Selection, at_most, build};
use crate::calibrate::{Pair, SimilarityAxis};
use crate::error::Result;

const NAME: &str = "angular";
const SOURCE: &str = "https://github.com/arcee-ai/PruneMe";
pub(super) const ENTRY: CriterionEntry = CriterionEntry::new::<Angular>(NAME, SOURCE, build::<Angular>);

/// Starts `s` in `0..=L−n`; the least mean of `arccos(cos(X_s, X_{s+n}))/π` at the last token; the first minimum wins.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Angular {}

impl Criterion for Angular {
    fn check(&self, cut: &PruneSpec<'_>) -> Result<()> {
        at_most(NAME, "has not so many layers to choose from", cut.layers, cut)
    }

    fn pairs(&self, cut: &PruneSpec<'_>) -> Vec<Pair> {
        let pair = |from| Pair { axis: SimilarityAxis::LastTokenAngle, from, to: from + cut.depth };
        (0..=cut.layers - cut.depth).map(pair).collect()
    }

    fn regions(&self, cut: &PruneSpec<'_>) -> Vec<(usize, usize)> {
        self.pairs(cut).iter().map(|pair| (pair.from, pair.to)).collect()
    }

    fn one_block(&self, _: &PruneSpec<'_>) -> bool {
        true
    }

    fn select(&self, cut: &PruneSpec<'_>, evidence: &mut Evidence<'_>) -> Result<Selection> {
        Selection::highest_block(cut, self.pairs(cut), evidence, |angle| -angle)
    }
}

#[cfg(test)]
mod tests {
    use crate::criterion::rule::PruneSpec;
    use crate::criterion::rule::tests::select;
    use serde_json::json;

    #[test]
    fn the_block_of_the_least_angle_goes_wherever_it_stands() {
        let cut = PruneSpec { backbone: "b", layers: 5, depth: 2 };
        let angles = [0.5, 0.3, 0.4, 0.3];
        let selection = select(&super::ENTRY, &json!({}), &cut, |pair| angles[pair.from], |_| 0.0).unwrap();
        assert_eq!(selection.removed, [1, 2]);
        let selection = select(&super::ENTRY, &json!({}), &cut, |pair| -(pair.from as f64), |_| 0.0).unwrap();
        assert_eq!(selection.removed, [3, 4], "the last layer may go");
    }
}
