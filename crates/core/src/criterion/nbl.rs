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

use super::cca::{RowSource, compute_bound, to_f64};
use super::depth::DepthUnit;
use super::rule::{CalibrationStats, Criterion, CriterionEntry, Importance, PruneSpec, Selection, build};
use super::sublayers::{check_sublayers, select_lowest_sublayers};
use crate::calibrate::{Activations, HookPoint};
use crate::error::Result;
use crate::map_input::MapInput;
use crate::model::{RmsNorm, Sublayer};
use crate::options::Variant;

const NAME: &str = "nbl";
const SOURCE: &str = "https://github.com/LIONS-EPFL/NBL";
pub(super) const ENTRY: CriterionEntry =
    CriterionEntry::new::<Nbl>(NAME, SOURCE, build::<Nbl>).label("NBL bound").variants(VARIANTS).not_in_paper();

const VARIANTS: &[Variant] = &[
    Variant { option: "input", value: "normed", word: "normed", label: "NBL bound, normed input" },
    Variant { option: "iterative", value: "true", word: "iterative", label: "NBL bound, iterative" },
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

/// Returns the sites before and after a sublayer.
fn sites_around((layer, sublayer): (usize, Sublayer)) -> [HookPoint; 2] {
    match sublayer {
        Sublayer::Attention => [HookPoint::Stream(layer), HookPoint::Middle(layer)],
        Sublayer::Mlp => [HookPoint::Middle(layer), HookPoint::Stream(layer + 1)],
    }
}

impl Criterion for Nbl {
    fn units(&self) -> &'static [DepthUnit] {
        DepthUnit::SUBLAYER_UNITS
    }

    fn check(&self, spec: &PruneSpec<'_>) -> Result<()> {
        check_sublayers(NAME, spec)
    }

    fn sites(&self, spec: &PruneSpec<'_>) -> Vec<HookPoint> {
        let sites: BTreeSet<HookPoint> = spec.unit.candidates(spec.layers).into_iter().flat_map(sites_around).collect();
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
        for candidate in spec.unit.candidates(spec.layers) {
            if stats.removed().contains(candidate.0, candidate.1) {
                continue;
            }
            let norm = match self.input {
                MapInput::Stream => None,
                MapInput::Normed => stats.input_norm(candidate)?,
            };
            scores.push((candidate, compute_sublayer_bound(activations, candidate, norm.as_ref())?));
        }
        Ok(select_lowest_sublayers(&scores, spec.depth))
    }
}

/// Computes the bound for a sublayer. If a norm is given, the input of the map is the normalized stream.
fn compute_sublayer_bound(
    activations: &Activations,
    sublayer: (usize, Sublayer),
    norm: Option<&RmsNorm>,
) -> Result<f64> {
    let [before, after] = sites_around(sublayer);
    let channels = activations.shape().channels;
    let stream_before: RowSource<'_> = &|rows| to_f64(activations.rows(before, rows)?);
    let stream_after: RowSource<'_> = &|rows| to_f64(activations.rows(after, rows)?);
    let Some(norm) = norm else { return compute_bound(activations, [stream_before, stream_after]) };
    let normed: RowSource<'_> = &|rows| Ok(norm.apply(activations.rows(before, rows)?, channels));
    let normed_plus_output: RowSource<'_> = &|rows| {
        let changes = stream_after(rows.clone())?
            .into_iter()
            .zip(stream_before(rows.clone())?)
            .map(|(after, before)| after - before);
        Ok(normed(rows)?.into_iter().zip(changes).map(|(normed, change)| normed + change).collect())
    };
    compute_bound(activations, [normed, normed_plus_output])
}
