//! Neural Block Linearization (arXiv 2505.21077): removes the sublayers that an affine map of their input approximates
//! best. The published scripts rank only attention sublayers. The Ghosted Layers paper does not evaluate this
//! criterion.
//!
//! The bound is that of [`super::cca`], applied to the streams before and after the sublayer, as in the published
//! scripts. `input: normed` compares `h = RMSNorm(x)`, the input of the sublayer, with `h + a`, where `a` is its
//! output.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cca::compute_bound_between;
use super::depth::DepthUnit;
use super::rule::{CalibrationStats, Criterion, CriterionEntry, Importance, PruneSpec, Selection, build, iterative};
use crate::calibrate::{HookPoint, Pair};
use crate::error::Result;
use crate::map_input::MapInput;
use crate::model::Sublayer;
use crate::options::Variant;

pub(super) const ENTRY: CriterionEntry =
    CriterionEntry::new::<Nbl>("nbl", "https://github.com/LIONS-EPFL/NBL", build::<Nbl>)
        .label("NBL bound")
        .variants(VARIANTS)
        .not_in_paper();

const VARIANTS: &[Variant] = &[
    Variant { option: "input", value: "normed", word: "normed", label: "NBL bound, normed input" },
    iterative("NBL bound, iterative"),
];

/// Removal of the sublayers with the lowest `C − Σ ρᵢ²`, where `ρᵢ` are the canonical correlations between the streams
/// before and after the sublayer.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Nbl {
    /// Input to the map that replaces a sublayer: the stream, or the normed stream that the sublayer reads.
    #[serde(skip_serializing_if = "MapInput::is_stream")]
    input: MapInput,
    /// Whether the backbone is repaired and measured again after each removed sublayer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    iterative: bool,
}

impl Criterion for Nbl {
    fn units(&self) -> &'static [DepthUnit] {
        DepthUnit::SUBLAYER_UNITS
    }

    fn sites(&self, spec: &PruneSpec<'_>) -> Vec<HookPoint> {
        let pairs = spec.unit.candidates(spec.layers).into_iter().map(|(layer, kind)| Pair::around(layer, kind));
        let sites: BTreeSet<HookPoint> = pairs.flat_map(|pair| pair.ends()).collect();
        sites.into_iter().collect()
    }

    fn is_iterative(&self) -> bool {
        self.iterative
    }

    fn importance(&self) -> Option<Importance> {
        Some(Importance { quantity: "bound", lowest_first: true })
    }

    fn select(&self, spec: &PruneSpec<'_>, stats: &mut CalibrationStats<'_>) -> Result<Selection> {
        let activations = stats.activations()?;
        let mut scores = Vec::new();
        for candidate in spec.remaining(stats.removed()) {
            let (layer, kind) = Sublayer::from_index(candidate);
            let norm = match self.input {
                MapInput::Stream => None,
                MapInput::Normed => stats.input_norm((layer, kind))?,
            };
            let ends = Pair::around(layer, kind).ends();
            scores.push((candidate, compute_bound_between(activations, ends, norm.as_ref())?));
        }
        Ok(Selection::lowest(spec, scores))
    }
}
