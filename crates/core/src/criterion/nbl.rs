//! Neural Block Linearization (arXiv 2505.21077): removes the attentions that an affine map of their input approximates
//! best. Not part of the paper.
//!
//! The bound is the same as in [`super::cca`], applied to the streams before and after the attention, as in the
//! published scripts. `input: normed` compares `h = RMSNorm(x)`, the input of the attention, with `h + a`, where `a` is
//! its output. `input: branch` compares `h` with `a` alone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cca::{RowSource, bound, to_f64};
use super::depth::DepthUnit;
use super::rule::{CalibrationStats, Criterion, CriterionEntry, Importance, PruneSpec, Selection, build};
use super::sublayers::{check_sublayers, lowest_sublayers};
use crate::calibrate::{Activations, HookPoint};
use crate::error::Result;
use crate::model::{RmsNorm, Sublayer};
use crate::options::Variant;

const NAME: &str = "nbl";
const SOURCE: &str = "https://github.com/LIONS-EPFL/NBL";
pub(super) const ENTRY: CriterionEntry =
    CriterionEntry::new::<Nbl>(NAME, SOURCE, build::<Nbl>).label("NBL bound").variants(VARIANTS).not_in_paper();

const VARIANTS: &[Variant] = &[
    Variant { option: "input", value: "normed", word: "normed", label: "NBL bound, normed input" },
    Variant { option: "input", value: "branch", word: "branch", label: "NBL bound, branch" },
    Variant { option: "iterative", value: "true", word: "iterative", label: "NBL bound, iterative" },
];

/// Removal of the attention sublayers with the lowest `C − Σ ρᵢ²`, where `ρᵢ` are the canonical correlations between
/// the streams before and after the attention.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Nbl {
    /// Activations whose correlations are measured.
    #[serde(skip_serializing_if = "BoundInput::is_stream")]
    input: BoundInput,
    /// Whether the backbone is repaired and measured again after each removed attention sublayer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    iterative: bool,
}

/// Pair of activations whose canonical correlations are measured. `x` is the stream before the attention, `h` the
/// normed stream that the attention reads, and `a` its output.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum BoundInput {
    /// `x` and `x + a`.
    #[default]
    Stream,
    /// `h` and `h + a`.
    Normed,
    /// `h` and `a`.
    Branch,
}

impl BoundInput {
    /// Returns whether the streams before and after the attention are compared.
    fn is_stream(&self) -> bool {
        *self == Self::Stream
    }
}

/// Returns the sites before and after an attention.
fn attention_sites(layer: usize) -> [HookPoint; 2] {
    [HookPoint::Stream(layer), HookPoint::Middle(layer)]
}

impl Criterion for Nbl {
    fn units(&self) -> &'static [DepthUnit] {
        &[DepthUnit::Attention]
    }

    fn check(&self, spec: &PruneSpec<'_>) -> Result<()> {
        check_sublayers(NAME, spec)
    }

    fn sites(&self, spec: &PruneSpec<'_>) -> Vec<HookPoint> {
        (0..spec.layers).flat_map(attention_sites).collect()
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
        for layer in (0..spec.layers).filter(|&layer| !stats.removed().contains(layer, Sublayer::Attention)) {
            let norm = if self.input.is_stream() { None } else { stats.input_norm(layer)? };
            scores.push(((layer, Sublayer::Attention), self.input.bound_at(activations, layer, norm.as_ref())?));
        }
        Ok(lowest_sublayers(&scores, spec.depth))
    }
}

impl BoundInput {
    /// Computes the bound for the attention of a layer. `norm` is the attention's norm, or `None` if it reads the stream
    /// as it is.
    fn bound_at(self, activations: &Activations, layer: usize, norm: Option<&RmsNorm>) -> Result<f64> {
        let [before, after] = attention_sites(layer);
        let channels = activations.shape().channels;
        let stream: RowSource<'_> = &|rows| to_f64(activations.rows(before, rows)?);
        let added: RowSource<'_> = &|rows| to_f64(activations.rows(after, rows)?);
        let input: RowSource<'_> = &|rows| match norm {
            Some(norm) => Ok(norm.apply(activations.rows(before, rows)?, channels)),
            None => stream(rows),
        };
        let output: RowSource<'_> = &|rows| {
            let pairs = added(rows.clone())?.into_iter().zip(stream(rows)?);
            Ok(pairs.map(|(after, before)| after - before).collect())
        };
        let sum: RowSource<'_> = &|rows| {
            let outputs = output(rows.clone())?;
            Ok(input(rows)?.into_iter().zip(outputs).map(|(input, output)| input + output).collect())
        };
        match self {
            Self::Stream => bound(activations, [stream, added]),
            // Without a norm, `h + a` is the stream after the attention, which has no rounding error of the difference.
            Self::Normed if norm.is_none() => bound(activations, [stream, added]),
            Self::Normed => bound(activations, [input, sum]),
            Self::Branch => bound(activations, [input, output]),
        }
    }
}
