//! Neural Block Linearization: the attentions that an affine map of their input replaces best (arXiv 2505.21077), beyond
//! the paper. The bound is that of [`super::cca`], of the streams before and after the attention, as in the published
//! scripts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cca::bound;
use super::depth::DepthUnit;
use super::rule::{CalibrationStats, Criterion, CriterionEntry, Importance, PruneSpec, Selection, build};
use super::sublayers::{check_sublayers, lowest_sublayers};
use crate::calibrate::HookPoint;
use crate::error::Result;
use crate::model::Sublayer;

const NAME: &str = "nbl";
const SOURCE: &str = "https://github.com/LIONS-EPFL/NBL";
pub(super) const ENTRY: CriterionEntry =
    CriterionEntry::new::<Nbl>(NAME, SOURCE, build::<Nbl>).label("NBL bound").beyond();

/// Removes the attentions with the lowest `C − Σ ρᵢ²`, with the canonical correlations `ρᵢ` of the streams before and after
/// the attention.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Nbl {}

/// Returns the places before and after an attention.
fn ends(layer: usize) -> [HookPoint; 2] {
    [HookPoint::Stream(layer), HookPoint::Middle(layer)]
}

impl Criterion for Nbl {
    fn units(&self) -> &'static [DepthUnit] {
        &[DepthUnit::Attention]
    }

    fn check(&self, cut: &PruneSpec<'_>) -> Result<()> {
        check_sublayers(NAME, cut)
    }

    fn sites(&self, cut: &PruneSpec<'_>) -> Vec<HookPoint> {
        (0..cut.layers).flat_map(ends).collect()
    }

    fn importance(&self) -> Option<Importance> {
        Some(Importance { quantity: "bound", lowest_first: true })
    }

    fn select(&self, cut: &PruneSpec<'_>, stats: &mut CalibrationStats<'_>) -> Result<Selection> {
        let activations = stats.activations()?;
        let mut scores = Vec::new();
        for layer in 0..cut.layers {
            scores.push(((layer, Sublayer::Attention), bound(activations, ends(layer))?));
        }
        Ok(lowest_sublayers(&scores, cut.depth))
    }
}
