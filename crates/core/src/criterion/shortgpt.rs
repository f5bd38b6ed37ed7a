//! ShortGPT: removes the layers that change the residual stream least (docs/design.md §6).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rule::{
    CalibrationStats, Cosine, Criterion, CriterionEntry, Importance, PruneSpec, READS_FIRST_SEQUENCES, Selection,
    TOO_FEW_LAYERS, build, check_depth, iterative,
};
use crate::calibrate::Pair;
use crate::error::Result;
use crate::options::Variant;

pub(super) const ENTRY: CriterionEntry =
    CriterionEntry::new::<ShortGpt>("shortgpt", "https://github.com/sramshetty/ShortGPT", build::<ShortGpt>)
        .label("ShortGPT")
        .variants(VARIANTS)
        .deviations(READS_FIRST_SEQUENCES);

const VARIANTS: &[Variant] = &[iterative("ShortGPT, iterative")];

/// Removal of the `n` layers with the lowest block influence `BI_l = 1 − cos(X_l, X_{l+1})`.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct ShortGpt {
    /// Axis over which the cosine is computed.
    cosine: Cosine,
    /// Whether the last layer may be removed.
    last_layer: LastLayer,
    /// Whether the backbone is repaired and measured again after each removed layer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    iterative: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum LastLayer {
    /// The last layer is never removed, as in the reference code.
    #[default]
    Keep,
    Allow,
}

impl ShortGpt {
    fn candidate_count(&self, spec: &PruneSpec<'_>) -> usize {
        spec.layers - usize::from(self.last_layer == LastLayer::Keep)
    }
}

impl Criterion for ShortGpt {
    fn check(&self, name: &str, spec: &PruneSpec<'_>) -> Result<()> {
        check_depth(name, TOO_FEW_LAYERS, self.candidate_count(spec), spec)
    }

    fn pairs(&self, spec: &PruneSpec<'_>) -> Vec<Pair> {
        (0..self.candidate_count(spec)).map(|from| Pair { axis: self.cosine.axis(), from, to: from + 1 }).collect()
    }

    fn is_iterative(&self) -> bool {
        self.iterative
    }

    fn importance(&self) -> Option<Importance> {
        Some(Importance { quantity: "block influence", lowest_first: true })
    }

    fn select(&self, spec: &PruneSpec<'_>, stats: &mut CalibrationStats<'_>) -> Result<Selection> {
        let cosines = stats.remaining_similarities(self.pairs(spec))?.into_iter();
        Ok(Selection::lowest(spec, cosines.map(|(layer, cosine)| (layer, 1.0 - cosine)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use crate::criterion::DepthUnit;
    use crate::criterion::rule::PruneSpec;
    use crate::criterion::rule::tests::select;
    use serde_json::json;

    #[test]
    fn shortgpt_removes_last_layer_only_if_allowed() {
        let spec = PruneSpec { backbone: "b", layers: 5, depth: 2, unit: DepthUnit::Layers };
        let cosines = [0.9, 0.2, 0.95, 0.3, 0.99];
        let removed =
            |options| select(&super::ENTRY, &options, &spec, |pair| cosines[pair.from], |_| 0.0).unwrap().removed;
        assert_eq!(removed(json!({})), [0, 2]);
        assert_eq!(removed(json!({"last_layer": "allow"})), [2, 4]);
    }
}
