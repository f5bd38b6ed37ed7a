//! SLEB: repeatedly removes the layer whose removal increases the perplexity least (design §6).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rule::{
    CalibrationStats, Criterion, CriterionEntry, PruneSpec, Selection, TOO_FEW_LAYERS, build, check_depth,
};
use crate::error::{Error, Result};

const NAME: &str = "sleb";
const SOURCE: &str = "https://github.com/jiwonsong-dev/SLEB";
pub(super) const ENTRY: CriterionEntry = CriterionEntry::new::<Sleb>(NAME, SOURCE, build::<Sleb>).label("SLEB");

/// Greedy removal; the first layer of equal perplexities is removed.
/// The scores are the removed layers in order, each with the perplexity after its removal.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Sleb {}

/// Returns `removed` extended by one layer, for each remaining layer.
fn candidates(layers: usize, removed: &[usize]) -> Vec<Vec<usize>> {
    (0..layers).filter(|layer| !removed.contains(layer)).map(|layer| with(removed, layer)).collect()
}

fn with(removed: &[usize], layer: usize) -> Vec<usize> {
    let mut extended = [removed, &[layer]].concat();
    extended.sort_unstable();
    extended
}

impl Criterion for Sleb {
    fn check(&self, cut: &PruneSpec<'_>) -> Result<()> {
        check_depth(NAME, TOO_FEW_LAYERS, cut.layers, cut)
    }

    fn trials(&self, cut: &PruneSpec<'_>) -> Vec<Vec<usize>> {
        // The cost estimate assumes that layers in the middle are removed first.
        let start = (cut.layers - cut.depth) / 2;
        (0..cut.depth).flat_map(|step| candidates(cut.layers, &(start..start + step).collect::<Vec<_>>())).collect()
    }

    fn select(&self, cut: &PruneSpec<'_>, stats: &mut CalibrationStats<'_>) -> Result<Selection> {
        let mut selection = Selection { removed: Vec::new(), scores: Vec::new() };
        for _ in 0..cut.depth {
            let candidates = candidates(cut.layers, &selection.removed);
            let perplexities = stats.perplexities_without(&candidates)?;
            let scored = candidates.into_iter().zip(perplexities);
            let best = scored.reduce(|best, next| if next.1 < best.1 { next } else { best });
            let (removed, perplexity) = best.ok_or_else(|| Error::job("no layer is left to remove").at(NAME))?;
            let gone = removed.iter().copied().find(|layer| !selection.removed.contains(layer)).unwrap_or(0);
            selection.scores.push((gone, perplexity));
            selection.removed = removed;
        }
        Ok(selection)
    }
}

#[cfg(test)]
mod tests {
    use crate::criterion::rule::PruneSpec;
    use crate::criterion::rule::tests::select;
    use serde_json::json;

    #[test]
    fn overflowing_trials_are_refused() {
        let cut = PruneSpec { backbone: "b", layers: 4, depth: 2 };
        for entry in [super::ENTRY, crate::criterion::shortened_llama::ENTRY] {
            for broken in [f64::NAN, f64::INFINITY] {
                let some = |removed: &[usize]| if removed.contains(&2) { broken } else { 3.0 };
                for perplexity in [&some as &dyn Fn(&[usize]) -> f64, &|_| broken] {
                    let error = select(&entry, &json!({}), &cut, |_| 0.0, perplexity).unwrap_err();
                    assert!(error.exit_code() == 4 && error.to_string().contains("no number"), "{error}");
                }
            }
        }
    }

    #[test]
    fn each_step_measures_the_remaining_layers() {
        let cut = PruneSpec { backbone: "b", layers: 4, depth: 2 };
        // Alone, 1 hurts least and 2 next; but after 1, 2 hurts most and 3 least.
        let selection = select(
            &super::ENTRY,
            &json!({}),
            &cut,
            |_| 0.0,
            |removed: &[usize]| match removed {
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
