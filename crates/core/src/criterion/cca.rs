//! Canonical-correlation bound of Neural Block Linearization (arXiv 2505.21077, theorem 3.2). The Ghosted Layers paper
//! does not evaluate it.
//!
//! For the centered input `X` and output `Y` of a layer, the error of the best affine estimate of `Y` has the
//! covariance `C_E = C_Y − C_YX·C_X⁻¹·C_XY = C_Y^½ (I − K·Kᵀ) C_Y^½`, with `K = C_Y^(−½)·C_YX·C_X^(−½)`. The singular
//! values of `K` are the canonical correlations `ρ_i`. Positive semi-definite matrices satisfy `tr(A·B) ≤ tr(A)·tr(B)`,
//! so
//!
//! `E‖Y − Ŷ‖² / E‖Y‖² = tr(C_Y (I − K·Kᵀ)) / tr(C_Y) ≤ tr(I − K·Kᵀ) = C − Σ ρ_i²`.
//!
//! This is the theorem's bound `(C − r) + Σ_{i ≤ r} (1 − ρ_i²)`, where `r` is the smaller rank. Layers with the lowest
//! bound are closest to an affine map, so a linear repair approximates them best. As in the theorem, `Y` is the stream
//! after the layer, including the residual connection.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rule::{CalibrationStats, Criterion, CriterionEntry, Importance, PruneSpec, Selection, iterative};
use crate::calibrate::{Activations, HookPoint};
use crate::error::Result;
use crate::linalg::gemm::gram_parallel;
use crate::linalg::solve::NormalEquations;
use crate::model::RmsNorm;
use crate::options::{self, Options, Variant};

pub(super) const ENTRY: CriterionEntry = CriterionEntry::new::<Cca>("cca", "https://arxiv.org/abs/2505.21077", build)
    .label("CCA bound (NBL)")
    .variants(VARIANTS)
    .not_in_paper();

const VARIANTS: &[Variant] = &[
    Variant { option: "cut", value: "block", word: "block", label: "CCA bound (NBL), one block" },
    iterative("CCA bound (NBL), iterative"),
];

/// Number of rows per block.
const BLOCK_ROWS: usize = 2048;

/// Removal of the layers closest to an affine map, by the canonical correlations between their input and output.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Cca {
    /// Whether to compare single layers or blocks.
    cut: Cut,
    /// Whether the backbone is repaired and measured again after each removed layer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    iterative: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Cut {
    /// The `n` layers with the lowest bounds, as in the reference.
    #[default]
    Layers,
    /// The block of `n` layers with the lowest bound. Ties go to the first block.
    Block,
}

fn build(name: &str, options: &Options) -> Result<Box<dyn Criterion>> {
    let rule: Cca = options::read(name, options)?;
    if rule.iterative && rule.cut == Cut::Block {
        let expected = "`iterative: true` only with `cut: layers`";
        return Err(options::invalid_options(name, expected, "`cut: block`, which removes all layers at once"));
    }
    Ok(Box::new(rule))
}

impl Cca {
    /// Returns the blocks `[start, end)` of layers to compare.
    fn candidates(&self, spec: &PruneSpec<'_>) -> Vec<(usize, usize)> {
        let length = if self.cut == Cut::Layers { 1 } else { spec.depth };
        (0..=spec.layers - length).map(|start| (start, start + length)).collect()
    }
}

impl Criterion for Cca {
    fn sites(&self, spec: &PruneSpec<'_>) -> Vec<HookPoint> {
        (0..=spec.layers).map(HookPoint::Stream).collect()
    }

    fn regions(&self, spec: &PruneSpec<'_>) -> Vec<(usize, usize)> {
        match self.cut {
            Cut::Layers => super::rule::any_regions(spec),
            Cut::Block => self.candidates(spec),
        }
    }

    fn one_block(&self, _: &PruneSpec<'_>) -> bool {
        self.cut == Cut::Block
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
        let blocks = self.candidates(spec).into_iter();
        for (start, end) in blocks.filter(|&(start, _)| !stats.removed().contains_layer(start)) {
            scores.push((start, compute_bound_between(activations, [start, end].map(HookPoint::Stream), None)?));
        }
        match self.cut {
            Cut::Layers => Ok(Selection::lowest(spec, scores)),
            Cut::Block => {
                // A bound that is NaN is never the lowest. If there is no other bound, the first block is selected.
                let bounds = scores.iter().copied().filter(|(_, bound)| !bound.is_nan());
                let lowest = bounds.reduce(|best, next| if next.1 < best.1 { next } else { best });
                let start = lowest.map_or(0, |(start, _)| start);
                Ok(Selection::from_layers(start..start + spec.depth, scores))
            }
        }
    }
}

/// Computes the bound for a map between two sites of the stream. If a norm is given, the input of the map is the
/// normalized stream.
pub(super) fn compute_bound_between(
    activations: &Activations,
    [before, after]: [HookPoint; 2],
    norm: Option<&RmsNorm>,
) -> Result<f64> {
    let channels = activations.shape().channels;
    let stream_before: RowSource<'_> = &|rows| Ok(to_f64(activations.rows(before, rows)?));
    let stream_after: RowSource<'_> = &|rows| Ok(to_f64(activations.rows(after, rows)?));
    let Some(norm) = norm else { return compute_bound(activations, [stream_before, stream_after]) };
    let normed: RowSource<'_> = &|rows| Ok(norm.apply(activations.rows(before, rows)?, channels));
    let normed_plus_output: RowSource<'_> = &|rows| {
        let ends = stream_after(rows.clone())?.into_iter().zip(stream_before(rows.clone())?);
        let changes = ends.map(|(after, before)| after - before);
        Ok(normed(rows)?.into_iter().zip(changes).map(|(normed, change)| normed + change).collect())
    };
    compute_bound(activations, [normed, normed_plus_output])
}

/// Function that returns rows `[rows, C]` of a variable in f64.
type RowSource<'a> = &'a dyn Fn(Range<usize>) -> Result<Vec<f64>>;

fn to_f64(rows: &[f32]) -> Vec<f64> {
    rows.iter().map(|&v| f64::from(v)).collect()
}

/// Computes `C − Σ ρ_i²` for two variables. `sides` contains a row source for each variable, with one row for each row
/// of `activations`.
fn compute_bound(activations: &Activations, sides: [RowSource<'_>; 2]) -> Result<f64> {
    let shape = activations.shape();
    let channels = shape.channels;
    let mut means = [vec![0.0f64; channels], vec![0.0f64; channels]];
    let mut squares = [0.0f64; 2];
    for rows in activations.blocks(0..shape.rows(), BLOCK_ROWS) {
        for ((side, sums), square) in sides.into_iter().zip(&mut means).zip(&mut squares) {
            for row in side(rows.clone())?.chunks_exact(channels) {
                sums.iter_mut().zip(row).for_each(|(sum, &v)| *sum += v);
                *square += row.iter().map(|v| v.powi(2)).sum::<f64>();
            }
        }
    }
    means.iter_mut().flatten().for_each(|sum| *sum /= shape.rows() as f64);
    let mut normal = NormalEquations::new(channels);
    let mut gram = vec![0.0; channels * channels]; // YᵀY
    for rows in activations.blocks(0..shape.rows(), BLOCK_ROWS) {
        let mut centered = [sides[0](rows.clone())?, sides[1](rows)?];
        for (rows, mean) in centered.iter_mut().zip(&means) {
            rows.iter_mut().zip(mean.iter().cycle()).for_each(|(v, mean)| *v -= mean);
        }
        let [x, y] = centered;
        normal.add(&x, &y);
        gram_parallel(&mut gram, &y, channels);
    }
    let [x_squares, y_squares] = squares;
    normal.set_source_squared_norm(x_squares);
    Ok(channels as f64 - normal.squared_canonical_correlations(gram, y_squares)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::calibrate::{ActivationShape, InMemory, Similarities, Spool};
    use crate::criterion::DepthUnit;
    use crate::criterion::rule::tests::no_trials;

    /// Orthogonal patterns of four tokens with zero mean.
    const A: [f32; 4] = [1.0, 1.0, -1.0, -1.0];
    const B: [f32; 4] = [1.0, -1.0, 1.0, -1.0];
    const C: [f32; 4] = [1.0, -1.0, -1.0, 1.0];

    type Channel = fn(usize) -> f32;

    /// Returns the two-channel streams of the test, which span:
    /// - A and B
    /// - A and B again, shifted and scaled
    /// - A and 3B + 4C
    /// - A and C
    /// - C and B
    fn streams() -> [[Channel; 2]; 5] {
        [
            [|t| A[t] + 9.0, |t| B[t]],
            [|t| 3.0 * B[t], |t| A[t] - 2.0 * B[t] - 5.0],
            [|t| A[t], |t| 3.0 * B[t] + 4.0 * C[t]],
            [|t| A[t], |t| C[t]],
            [|t| C[t], |t| B[t] + 1.0],
        ]
    }

    fn select(options: &serde_json::Value, depth: usize) -> Selection {
        let mut spool = InMemory::new((0..5).map(HookPoint::Stream));
        for (layer, channels) in streams().iter().enumerate() {
            let rows: Vec<f32> = (0..4).flat_map(|t| channels.map(|channel| channel(t))).collect();
            spool.push(HookPoint::Stream(layer), &rows).unwrap();
        }
        let activations = spool.finish(ActivationShape { channels: 2, sequences: 2, length: 2 }).unwrap();
        let spec = PruneSpec { backbone: "b", layers: 4, depth, unit: DepthUnit::Layers };
        let criterion = ENTRY.build(options.as_object().unwrap()).unwrap();
        let similarities = Similarities::default();
        let mut none = no_trials;
        let mut stats = CalibrationStats::new(&similarities, Some(&activations), &mut none);
        let selection = criterion.select(&spec, &mut stats).unwrap();
        assert!(selection.regions().iter().all(|region| criterion.regions(&spec).contains(region)));
        selection
    }

    fn assert_scores(selection: &Selection, expected: &[f64]) {
        assert_eq!(selection.scores.len(), expected.len());
        for ((_, found), expected) in selection.scores.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-9, "{:?}, expected {expected:?}", selection.scores);
        }
    }

    #[test]
    fn layer_bounds_match_hand_computed_values() {
        let selection = select(&json!({}), 2);
        // The input and output of layer 0 span the same space, so its bound is 0. The canonical correlations of layers
        // 1 to 3 are 1 and 3/5, 1 and 4/5, and 1 and 0, so their bounds are 1 − 9/25, 1 − 16/25 and 1.
        assert_scores(&selection, &[0.0, 16.0 / 25.0, 9.0 / 25.0, 1.0]);
        assert_eq!(selection.removed, [0, 2]);
    }

    #[test]
    fn block_bounds_match_hand_computed_values() {
        let selection = select(&json!({"cut": "block"}), 2);
        // The input and output of the first block have A and 3/5 of B in common. Those of the second have only A in
        // common. Those of the third have only 3B + 4C in common, which lies in the plane of C and B.
        assert_scores(&selection, &[16.0 / 25.0, 1.0, 1.0]);
        assert_eq!(selection.removed, [0, 1]);
    }

    #[test]
    fn cca_without_activations_is_rejected() {
        let spec = PruneSpec { backbone: "b", layers: 4, depth: 1, unit: DepthUnit::Layers };
        let similarities = Similarities::default();
        let mut none = no_trials;
        let mut stats = CalibrationStats::new(&similarities, None, &mut none);
        let error = ENTRY.build(&Options::new()).unwrap().select(&spec, &mut stats).unwrap_err();
        assert!(error.to_string().contains("activations"), "{error}");
    }
}
