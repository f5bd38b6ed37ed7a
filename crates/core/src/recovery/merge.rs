//! Merged layers (LaCo, arXiv 2402.11187): the weights of the removed layers are merged into those of the layer before
//! the cut. The Ghosted Layers paper does not evaluate this method.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::boundary::{Boundary, Repair, Solution, Span};
use super::method::{Recovery, RecoveryEntry, RepairTarget, build};
use crate::calibrate::HookPoint;
use crate::error::{Error, Result};
use crate::model::{Config, LayerMerge, MergeForm, MergedLayer};
use crate::options::Variant;

const NAME: &str = "merge";
pub(super) const ENTRY: RecoveryEntry =
    RecoveryEntry::new::<Merge>(NAME, "https://github.com/yangyifei729/LaCo", build::<Merge>)
        .label("LaCo merge")
        .not_in_paper()
        .variants(VARIANTS);

const VARIANTS: &[Variant] = &[
    Variant { option: "form", value: "released", word: "released", label: "LaCo merge, as released" },
    Variant { option: "form", value: "norms", word: "norms", label: "LaCo merge with norms" },
];

/// Merges the weights of the removed layers `s … e − 1` into layer `s − 1`, the layer before them. Calibration is
/// used only to measure the errors of the repair.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Merge {
    /// Formula for the merged weights.
    form: MergeForm,
}

impl Recovery for Merge {
    fn check(&self, config: &Config) -> Result<()> {
        MergeForm::check(config)
    }

    fn is_fitted(&self) -> bool {
        false
    }

    fn target(&self) -> RepairTarget {
        RepairTarget::Layer
    }

    fn merged(&self, merges: &[LayerMerge]) -> Option<Vec<MergedLayer>> {
        Some(self.form.apply(merges))
    }

    fn sites(&self, span: Span) -> Vec<HookPoint> {
        // Computing the errors of the repair requires the stream that enters the merged layer.
        span.ends_and(HookPoint::Stream)
    }

    fn estimated_operations(&self, _: usize, _: usize) -> f64 {
        0.0
    }

    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution> {
        self.check(boundary.backbone.config())?;
        if boundary.before.is_some() {
            return Err(Error::job(format!("`{NAME}` does not support iterative removal"))
                .hint("remove `iterative` from the criterion, or use another recovery"));
        }
        let layer = boundary.layer_before()?;
        let region = [LayerMerge { layer, absorbed: (boundary.span.start..boundary.span.end).collect() }];
        let merges = if boundary.merges.is_empty() { &region[..] } else { boundary.merges };
        let merged = self.form.apply(merges).into_iter().find(|merged| merged.layer() == layer);
        let merged = merged.ok_or_else(|| {
            Error::job("the selection contains no merge into this layer").at(format!("layer {layer}"))
        })?;
        Ok(Solution::new(Repair::Merged(Arc::new(merged))))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The expected factors were obtained by expanding the formulas by hand.
    #[test]
    fn merge_factors_match_hand_computed_values() {
        for (form, removed, expected) in [
            ("paper", 3..6, vec![(2, -2.0), (3, 1.0), (4, 1.0), (5, 1.0)]),
            ("paper", 3..4, vec![(3, 1.0)]),
            ("released", 3..6, vec![(5, 1.0)]),
            ("norms", 3..5, vec![(2, -1.0), (3, 1.0), (4, 1.0)]),
        ] {
            let options = json!({"form": form});
            let method = crate::recovery::build(NAME, options.as_object().unwrap()).unwrap();
            let merged = method.merged(&[LayerMerge { layer: 2, absorbed: removed.collect() }]).unwrap().remove(0);
            assert_eq!(merged.factors().collect::<Vec<_>>(), expected, "{form}");
            assert_eq!((merged.layer(), merged.has_merged_norms()), (2, form == "norms"), "{form}");
        }
    }
}
