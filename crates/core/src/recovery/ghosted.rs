//! Ghosted Layers: replaces removed layers by the least-squares map of their update (paper §3, Theorem 1;
//! docs/design.md §7).
//!
//! With `input: normed`, which the paper does not include, the map reads `H = RMSNorm(X)` instead of `X`. The repaired
//! stream is `x + h·M (+ b)`. The norm is that of the first removed layer. It has no weight if the layer does not start
//! with a norm.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::boundary::{Boundary, Placement, Solution, Span, pre_and_delta};
use super::least_squares::{self, LeastSquaresSolution, RIDGE, Ridge};
use super::method::{F64_COST, FitSequences, Recovery, RecoveryEntry, least_squares_operations};
use super::stream_fit;
use crate::error::{Error, Result};
use crate::linalg::spectrum::Spectrum;
use crate::linalg::streaming_qr::StreamingQr;
use crate::map_input::MapInput;
use crate::model::{Config, StepForm, Sublayer};
use crate::options::{self, Options, Variant};
use crate::style::{Dash, Hue, Marker, Style};

const NAME: &str = "ghosted";
pub(super) const ENTRY: RecoveryEntry =
    RecoveryEntry::new::<Ghosted>(NAME, "https://github.com/daniel-eai/ghosted_layers_official_repository", build)
        .label("Ghost Layer (Ours)")
        .style(Style::new(Hue::Blue, Marker::Circle, Dash::Solid))
        .proposed_by_paper()
        .variants(VARIANTS);

/// The two solvers in table A10 of the paper, labeled as in that table, and variants that are not in the paper.
const VARIANTS: &[Variant] = &[
    Variant { option: "solver", value: "svd", word: "svd", label: "SVD-based" },
    Variant { option: "solver", value: "normal", word: "solve", label: "Solver-based" },
    Variant { option: "ridge", value: "auto", word: "ridge", label: "Ghost Layer, chosen ridge" },
    Variant { option: "input", value: "normed", word: "normed", label: "Ghost Layer, normed" },
];

/// Relative cutoff for singular values, as in the reference code. A singular value is treated as zero if it is at most
/// this fraction of the largest one.
const CUTOFF: f64 = 1e-6;

/// `W = I + M` with `M = argmin ‖X_pre·M − Δ‖`, over the operator sequences.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Ghosted {
    /// Solver for the least-squares problem.
    solver: Solver,
    /// Whether to use one operator per region or one per removed layer.
    boundary: Placement,
    /// Ridge added to the diagonal of `XᵀX`: a number, or `auto` to select it on held-out windows.
    #[serde(skip_serializing_if = "Ridge::is_default")]
    ridge: Ridge,
    /// Input to the map: the stream, or the stream after an RMS norm.
    #[serde(skip_serializing_if = "MapInput::is_stream")]
    input: MapInput,
    /// Whether a bias is added to the map of the normed stream.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    bias: bool,
}

#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Solver {
    /// `(XᵀX + ridge·I)·M = XᵀΔ` by Cholesky in f64.
    #[default]
    Normal,
    /// `M = X_pre⁺·Δ` by a thin singular value decomposition in f64, streamed.
    Svd,
}

fn build(name: &str, options: &Options) -> Result<Box<dyn Recovery>> {
    let ghosted: Ghosted = options::read(name, options)?;
    if matches!(ghosted.solver, Solver::Svd) && !ghosted.ridge.is_default() {
        let found = "`solver: svd`, which truncates small singular values instead";
        return Err(options::invalid_options(name, "`ridge` only with `solver: normal`", found));
    }
    if ghosted.input.is_stream() && ghosted.bias {
        return Err(options::invalid_options(name, "`bias: true` only with `input: normed`", "`input: stream`")
            .hint("use the recovery `affine`, which fits a map of the stream with a bias"));
    }
    let is_plain = matches!(ghosted.solver, Solver::Normal) && ghosted.ridge.is_default();
    if ghosted.input == MapInput::Normed && !is_plain {
        let found = if matches!(ghosted.solver, Solver::Svd) { "`solver: svd`" } else { "a `ridge`" };
        let expected = "`input: normed` only with `solver: normal` and no `ridge`";
        return Err(options::invalid_options(name, expected, found));
    }
    Ok(Box::new(ghosted))
}

impl Recovery for Ghosted {
    fn is_tunable(&self) -> bool {
        self.boundary == Placement::Region && self.input.is_stream()
    }

    fn step_form(&self, _: &Config) -> Option<StepForm> {
        Some(if self.input.is_stream() { StepForm::Stream } else { StepForm::Normed })
    }

    fn check_export(&self) -> Result<()> {
        if self.input.is_stream() || self.boundary == Placement::Region {
            return Ok(());
        }
        Err(Error::bad_input("a checkpoint can store only one operator between two layers")
            .at(format!("`{NAME}`"))
            .expected("`input: normed` only with `boundary: region`")
            .found("`boundary: layer`, whose maps of the normed stream cannot be combined into one"))
    }

    fn spans(&self, region: Span) -> Vec<Span> {
        self.boundary.spans(region)
    }

    fn fit_sequences(&self, _: bool) -> FitSequences {
        FitSequences::First
    }

    fn estimated_operations(&self, channels: usize, rows: usize) -> f64 {
        let cube = (channels as f64).powi(3);
        match (self.solver, self.ridge) {
            (Solver::Normal, Ridge::Fixed(_)) => least_squares_operations(channels, rows),
            // The system is solved with each candidate ridge, on all windows except the held-out ones.
            (Solver::Normal, Ridge::Auto) => least_squares_operations(channels, rows) + 20.0 * F64_COST * cube,
            // Householder reflections of [X Δ], and the SVD of the triangular factor.
            (Solver::Svd, _) => F64_COST * (6.0 * rows as f64 * (channels as f64).powi(2) + 30.0 * cube),
        }
    }

    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution> {
        let channels = boundary.channels();
        if self.input == MapInput::Normed {
            let norm = boundary.backbone.input_norm(boundary.span.start, Sublayer::Attention)?;
            return stream_fit::solve(boundary, Some(norm), self.bias, RIDGE);
        }
        let solved = match self.solver {
            Solver::Normal => match self.ridge {
                Ridge::Fixed(ridge) => least_squares::solve(&boundary.normal_equations()?, ridge)?,
                Ridge::Auto => least_squares::solve_cross_validated(boundary)?,
            },
            Solver::Svd => {
                let mut qr = StreamingQr::new(channels);
                for rows in boundary.blocks(boundary.fitted) {
                    let (pre, delta) = pre_and_delta(boundary.pre(rows.clone())?, boundary.post(rows)?);
                    qr.add(&pre, &delta);
                }
                let svd = qr.solve(CUTOFF)?;
                let mut notes = Vec::new();
                if svd.rank < channels {
                    notes.push(format!(
                        "rank {} of {channels} ({} tokens): the minimum-norm solution is used",
                        svd.rank,
                        qr.rows()
                    ));
                }
                let system = Spectrum { rank: svd.rank, condition: svd.condition };
                LeastSquaresSolution { matrix: svd.solution, system, notes }
            }
        };
        solved.into_repair(channels, None, None)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::options::Options;
    use crate::recovery::boundary::tests::{LiteralActivations, near};
    use crate::recovery::{build, build_resolved};

    #[test]
    fn normed_input_recovers_a_known_map_and_bias() {
        // In the test engine, the norm of (a, b) is √2·(3a, 5b) / √(a² + b²), which gives (3, 5), (3, −5), (−3, 5) and
        // (3, 5). The changes are h·M with M = (1 2; 0 1), plus the bias (5, −1).
        let pre = [2.0, 2.0, 1.0, -1.0, -4.0, 4.0, 0.5, 0.5];
        let changes = [[3.0, 11.0], [3.0, 1.0], [-3.0, -1.0], [3.0, 11.0]];
        for (bias, shift) in [(false, [0.0, 0.0]), (true, [5.0, -1.0])] {
            let post: Vec<f32> = (0..8).map(|i| pre[i] + changes[i / 2][i % 2] + shift[i % 2]).collect();
            let written = LiteralActivations::new(2, 1, &[(1, &pre), (3, &post)]);
            let solution = written.solve((1, 3), &[], "ghosted", &json!({"input": "normed", "bias": bias})).unwrap();
            let operator = solution.repair.operator().unwrap();
            let matrix: Vec<f32> = operator.change().unwrap().into_iter().map(|v| v as f32).collect();
            near(&matrix, &[1.0, 2.0, 0.0, 1.0]);
            assert_eq!(operator.has_bias(), bias);
            near(&operator.bias().unwrap().unwrap_or(vec![0.0; 2]), &shift);
            near(&operator.apply(&pre).unwrap(), &post);
        }
    }

    #[test]
    fn normed_map_options_are_in_the_key_only_if_set() {
        let (_, plain, _) = build_resolved("ghosted", &options(&json!({"input": "stream", "bias": false}))).unwrap();
        assert_eq!(plain, options(&json!({"boundary": "region", "solver": "normal"})));
        let (_, normed, _) = build_resolved("ghosted", &options(&json!({"input": "normed", "bias": true}))).unwrap();
        assert_eq!((&normed["input"], &normed["bias"]), (&json!("normed"), &json!(true)));
        for (wrong, hint) in [
            (json!({"bias": true}), "affine"),
            (json!({"input": "normed", "solver": "svd"}), "solver: normal"),
            (json!({"input": "normed", "ridge": "auto"}), "no `ridge`"),
            (json!({"input": "normed", "finetune": {"sequences": 1, "length": 2}}), "fine-tuning"),
        ] {
            let text = build("ghosted", &options(&wrong)).err().unwrap().to_string();
            assert!(text.contains(hint), "{wrong}: {text}");
        }
    }

    fn options(value: &serde_json::Value) -> Options {
        value.as_object().unwrap().clone()
    }
}
