//! Solution of normal equations with a fixed or cross-validated ridge, and rank diagnostics.

use std::borrow::Cow;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::boundary::{Boundary, Repair, Solution};
use crate::error::{Error, Result};
use crate::linalg::solve::NormalEquations;
use crate::linalg::spectrum::Spectrum;
use crate::model::{Operator, RmsNorm};

/// Default ridge added to the diagonal of `XᵀX`, as in the reference code for Ghosted Layers.
pub(super) const RIDGE: f64 = 1e-6;

pub(super) struct LeastSquaresSolution {
    /// Row-major matrix `[C, C]`.
    pub(super) matrix: Vec<f64>,
    pub(super) system: Spectrum,
    pub(super) notes: Vec<String>,
}

impl LeastSquaresSolution {
    /// Converts the result into a solution in which `operator` is applied to the residual stream.
    pub(super) fn on_stream(self, operator: Arc<Operator>) -> Solution {
        let Self { system, notes, .. } = self;
        Solution { repair: Repair::Stream(operator), notes, system: Some(system), losses: Vec::new() }
    }

    /// Converts the result into the repair `x + z·M + b`, where `b` is optional and `z` is the stream, or the
    /// normalized stream if a norm is given.
    pub(super) fn into_repair(
        self,
        channels: usize,
        norm: Option<RmsNorm>,
        bias: Option<Vec<f32>>,
    ) -> Result<Solution> {
        let operator = match (norm, bias) {
            (None, None) => Operator::dense(channels, self.with_identity(channels))?,
            (None, Some(bias)) => Operator::affine(channels, self.with_identity(channels), bias)?,
            (Some(norm), bias) => {
                Operator::normed(norm, channels, self.matrix.iter().map(|&v| v as f32).collect(), bias)?
            }
        };
        Ok(self.on_stream(operator))
    }

    /// Computes `W = I + M` in f64, and rounds it to f32.
    fn with_identity(&self, channels: usize) -> Vec<f32> {
        let identity = [1.0].into_iter().chain(std::iter::repeat_n(0.0, channels)).cycle();
        self.matrix.iter().zip(identity).map(|(v, identity)| (v + identity) as f32).collect()
    }
}

/// Computes `(XᵀX + ridge·I)⁻¹XᵀY`, or the minimum-norm solution if that system is singular.
pub(super) fn solve(normal: &NormalEquations, ridge: f64) -> Result<LeastSquaresSolution> {
    let system = normal.spectrum()?;
    let channels = normal.channels();
    let is_deficient = system.rank < channels;
    let rank = format!("rank {} of {channels} ({} tokens)", system.rank, normal.rows());
    // A ridge makes the system nonsingular, unless it is so small that f64 rounding absorbs it.
    if !is_deficient || ridge > 0.0 {
        match normal.solve(ridge) {
            Ok(matrix) => {
                let note = format!("{rank}: the solution depends on the ridge of {ridge:e}");
                return Ok(LeastSquaresSolution {
                    matrix,
                    system,
                    notes: if is_deficient { vec![note] } else { Vec::new() },
                });
            }
            Err(error) if !is_deficient => return Err(error.into()),
            Err(_) => {}
        }
    }
    let solution = normal.solve_minimum_norm()?;
    Ok(LeastSquaresSolution {
        matrix: solution.solution,
        system,
        notes: vec![format!("{rank}: the minimum-norm solution is used")],
    })
}

/// Ridge added to the diagonal of `XᵀX`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub(super) enum Ridge {
    Fixed(f64),
    /// The ridge is selected by cross-validation on held-out windows.
    Auto,
}

const AUTO: &str = "auto";

/// Candidate ridges as fractions of the mean eigenvalue of `XᵀX`.
const RIDGE_FRACTIONS: [f64; 9] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];

/// Number of consecutive windows of which the last one is held out.
const HOLDOUT_STRIDE: usize = 4;

impl Default for Ridge {
    fn default() -> Self {
        Self::Fixed(RIDGE)
    }
}

impl Ridge {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl TryFrom<Value> for Ridge {
    type Error = String;

    fn try_from(value: Value) -> std::result::Result<Self, String> {
        let number = value.as_f64().filter(|ridge| ridge.is_finite() && *ridge >= 0.0);
        match number {
            Some(ridge) => Ok(Self::Fixed(ridge)),
            None if value == AUTO => Ok(Self::Auto),
            None => Err(format!("`ridge` is {value}, expected a number of 0 or more, or `{AUTO}`")),
        }
    }
}

impl From<Ridge> for Value {
    fn from(ridge: Ridge) -> Self {
        match ridge {
            Ridge::Fixed(ridge) => ridge.into(),
            Ridge::Auto => AUTO.into(),
        }
    }
}

impl JsonSchema for Ridge {
    fn schema_name() -> Cow<'static, str> {
        "Ridge".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "number", "minimum": 0}, {"const": AUTO}]})
    }
}

/// Solves the problem with the ridge that performs best on held-out windows.
///
/// `M_λ = (XᵀX + λI)⁻¹XᵀΔ` shrinks the map along directions with little variance in the calibration data. The direction
/// that belongs to the singular value `σ_i` of `X` shrinks by the factor `σ_i² / (σ_i² + λ)`. Every fourth window is
/// held out. The system for the other windows is solved with each candidate `λ`. The `λ` with the smallest
/// `‖X_h·M_λ − Δ_h‖²` on the held-out windows is selected, and the system for all windows is solved with it. Windows
/// are drawn at random, so windows that share tokens with a held-out window are excluded from the selection. The
/// candidates are the Ghosted Layers paper's 1e-6 and fractions of the mean eigenvalue `tr(XᵀX) / C`. These fractions
/// do not depend on the number of windows.
///
/// # Errors
/// Fails if there are fewer than two windows, all remaining windows share tokens with held-out ones, or the activations
/// are not finite.
pub(super) fn solve_cross_validated(boundary: &Boundary<'_>) -> Result<LeastSquaresSolution> {
    let windows = boundary.fitted;
    if windows < 2 {
        return Err(Error::job("selecting a ridge requires a held-out window")
            .expected("2 operator sequences or more")
            .found(windows)
            .hint("raise `operator_sequences`, or set `ridge` to a number"));
    }
    let Split { mut training, held_out, overlapping, squares, held_out_windows, overlapping_windows } =
        Split::read(boundary)?;
    let Some(choice) = select_ridge(&training, &held_out) else {
        return Err(Error::job("the normal equations are singular for every ridge")
            .found(format!("{} rows", training.rows()))
            .hint("use more calibration sequences, or `solver: svd` without `ridge`"));
    };
    training.merge(&held_out);
    training.merge(&overlapping);
    let mut solved = solve(&training, compute_ridge(choice.fraction, &training))?;
    let excluded = match overlapping_windows {
        0 => String::new(),
        some => format!(" ({some} that share tokens with these are left out of the choice)"),
    };
    let chosen =
        choice.fraction.map_or(format!("{RIDGE:e}"), |fraction| format!("{fraction:e} of the mean eigenvalue"));
    solved.notes.push(format!(
        "ridge {chosen}, chosen on {} held-out windows of {windows}{excluded}: there it leaves {:.2} % of Δ², {RIDGE:e} {:.2} %",
        held_out_windows,
        100.0 * (squares + choice.excess) / squares,
        100.0 * (squares + choice.default_excess) / squares
    ));
    Ok(solved)
}

/// Normal equations for three disjoint sets of windows: training windows, held-out windows, and windows that share
/// tokens with a held-out window.
struct Split {
    training: NormalEquations,
    held_out: NormalEquations,
    overlapping: NormalEquations,
    /// `‖Δ_h‖²` on the held-out windows.
    squares: f64,
    held_out_windows: usize,
    overlapping_windows: usize,
}

impl Split {
    fn read(boundary: &Boundary<'_>) -> Result<Self> {
        let windows = boundary.fitted;
        let held_out_list: Vec<usize> = (0..windows).filter(|&window| is_held_out(window, windows)).collect();
        let mut training = boundary.new_sums();
        let mut held_out = boundary.new_sums();
        let mut overlapping = boundary.new_sums();
        let mut squares = 0.0;
        let mut overlapping_windows = 0;
        for window in 0..windows {
            let rows = boundary.sequence(window);
            let pre = boundary.pre(rows.clone())?;
            let post = boundary.post(rows)?;
            if held_out_list.contains(&window) {
                held_out.add_difference(pre, post)?;
                squares +=
                    pre.iter().zip(post).map(|(&pre, &post)| (f64::from(post) - f64::from(pre)).powi(2)).sum::<f64>();
            } else if held_out_list.iter().any(|&other| boundary.sequences_overlap(window, other)) {
                overlapping_windows += 1;
                overlapping.add_difference(pre, post)?;
            } else {
                training.add_difference(pre, post)?;
            }
        }
        if held_out_list.len() + overlapping_windows == windows {
            return Err(Error::job("cannot select a ridge: every window shares tokens with a held-out window")
                .expected("some windows without shared tokens")
                .found(format!("{windows} windows of {} tokens", boundary.length()))
                .hint("use shorter windows or a longer text"));
        }
        Ok(Self {
            training: training.finish()?,
            held_out: held_out.finish()?,
            overlapping: overlapping.finish()?,
            squares,
            held_out_windows: held_out_list.len(),
            overlapping_windows,
        })
    }
}

/// Returns whether a window is held out: every fourth window, or the last one if there are fewer than four.
fn is_held_out(window: usize, windows: usize) -> bool {
    (window + 1).is_multiple_of(HOLDOUT_STRIDE) || (windows < HOLDOUT_STRIDE && window + 1 == windows)
}

/// Selected candidate ridge. Its excess is `‖X_h·M − Δ_h‖² − ‖Δ_h‖²` on the held-out windows.
struct RidgeChoice {
    /// Ridge as a fraction of the mean eigenvalue, or `None` for the paper's ridge.
    fraction: Option<f64>,
    excess: f64,
    /// Excess of the paper's ridge, or NaN if the system with that ridge is singular.
    default_excess: f64,
}

/// Returns the candidate with the smallest error on the held-out windows, or `None` if every system is singular.
fn select_ridge(training: &NormalEquations, held_out: &NormalEquations) -> Option<RidgeChoice> {
    let mut best: Option<RidgeChoice> = None;
    let mut default_excess = f64::NAN;
    for fraction in [None].into_iter().chain(RIDGE_FRACTIONS.map(Some)) {
        let Ok(map) = training.solve(compute_ridge(fraction, training)) else { continue };
        let excess = held_out.loss_change(&map);
        if fraction.is_none() {
            default_excess = excess;
        }
        if best.as_ref().is_none_or(|best| excess < best.excess) {
            best = Some(RidgeChoice { fraction, excess, default_excess });
        }
    }
    best
}

/// Returns the ridge for a candidate: the paper's value, or a fraction of the mean eigenvalue of `normal`.
fn compute_ridge(fraction: Option<f64>, normal: &NormalEquations) -> f64 {
    fraction.map_or(RIDGE, |fraction| fraction * normal.mean_eigenvalue())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::corpus::Start;
    use crate::error::Result;
    use crate::options::Options;
    use crate::recovery::boundary::tests::{LiteralActivations, near};
    use crate::recovery::{build, build_resolved};

    #[test]
    fn auto_ridge_is_chosen_on_the_held_out_window() {
        // One channel, and four windows of one token with x = 1. Δ is 2 in three windows and 1 in the held-out one.
        // Training gives M = 6 / (3 + λ), which fits the held-out window at λ = 3, the mean eigenvalue. With all four
        // windows, the mean eigenvalue is 4, so M = 7 / (4 + 4) and W = 1.875.
        let streams: [(usize, &[f32]); 2] = [(1, &[1.0; 4]), (2, &[3.0, 3.0, 3.0, 2.0])];
        let written = LiteralActivations::new(1, 4, &streams);
        let solution = written.solve((1, 2), &[], "ghosted", &json!({"ridge": "auto"})).unwrap();
        near(&solution.repair.operator().unwrap().to_dense().unwrap(), &[1.875]);
        assert!(solution.notes[0].contains("ridge 1e0 of the mean eigenvalue, chosen on 1 held-out windows of 4"));
        // The paper's ridge gives M = 7/4.
        let plain = written.solve((1, 2), &[], "ghosted", &json!({})).unwrap();
        near(&plain.repair.operator().unwrap().to_dense().unwrap(), &[2.75]);
    }

    #[test]
    fn auto_ridge_is_tiny_if_all_windows_agree() {
        let streams: [(usize, &[f32]); 2] = [(1, &[1.0, 2.0, 3.0, 4.0]), (2, &[3.0, 6.0, 9.0, 12.0])];
        let solution =
            LiteralActivations::new(1, 4, &streams).solve((1, 2), &[], "ghosted", &json!({"ridge": "auto"})).unwrap();
        near(&solution.repair.operator().unwrap().to_dense().unwrap(), &[3.0]);
    }

    #[test]
    fn overlapping_windows_are_excluded_from_ridge_choice() {
        // As in the first test, but one of the windows with Δ = 2 overlaps the held-out window. If the overlapping
        // window were used for training, the mean eigenvalue would not be selected.
        let streams: [(usize, &[f32]); 2] = [(1, &[1.0; 8]), (2, &[3.0, 3.0, 2.0, 2.0, 3.0, 3.0, 2.0, 2.0])];
        let mut written = LiteralActivations::new(1, 4, &streams);
        written.starts = vec![
            first_document_start(10),
            first_document_start(51),
            first_document_start(20),
            first_document_start(50),
        ];
        let solution = written.solve((1, 2), &[], "ghosted", &json!({"ridge": "auto"})).unwrap();
        let note = &solution.notes[0];
        assert!(note.contains("ridge 1e0 of") && note.contains("of 4 (1 that share tokens with these"), "{note}");
        // The final system covers all windows: its mean eigenvalue is 8, and Σ xΔ = 12.
        near(&solution.repair.operator().unwrap().to_dense().unwrap(), &[1.0 + 12.0 / 16.0]);
        // Windows from different documents share no tokens, and neither do windows that are a full length apart.
        written.starts = vec![
            first_document_start(10),
            Start { document: 1, token: 51 },
            first_document_start(48),
            first_document_start(50),
        ];
        let note = &written.solve((1, 2), &[], "ghosted", &json!({"ridge": "auto"})).unwrap().notes[0];
        assert!(!note.contains("share tokens"), "{note}");
        written.starts = vec![
            first_document_start(49),
            first_document_start(50),
            first_document_start(51),
            first_document_start(50),
        ];
        let error = written.solve((1, 2), &[], "ghosted", &json!({"ridge": "auto"})).unwrap_err();
        assert!(error.to_string().contains("every window shares tokens"), "{error}");
    }

    fn first_document_start(token: usize) -> Start {
        Start { document: 0, token }
    }

    #[test]
    fn auto_ridge_rejects_a_single_window() {
        let streams: [(usize, &[f32]); 2] = [(1, &[1.0, 2.0]), (2, &[3.0, 6.0])];
        let error = LiteralActivations::new(1, 1, &streams)
            .solve((1, 2), &[], "ghosted", &json!({"ridge": "auto"}))
            .unwrap_err();
        assert!(error.to_string().contains("held-out window"), "{error}");
    }

    #[test]
    fn default_ridge_is_omitted_and_invalid_ridge_is_rejected() {
        assert_eq!(resolved_options(&json!({"ridge": 1e-6})).unwrap(), resolved_options(&json!({})).unwrap());
        assert_eq!(resolved_options(&json!({"ridge": "auto"})).unwrap()["ridge"], "auto");
        assert_eq!(resolved_options(&json!({"ridge": 0})).unwrap()["ridge"], 0.0);
        for wrong in [json!({"ridge": "much"}), json!({"ridge": -1}), json!({"ridge": "auto", "solver": "svd"})] {
            let text = build("ghosted", wrong.as_object().unwrap()).err().unwrap().to_string();
            assert!(text.contains("ridge"), "{text}");
        }
    }

    fn resolved_options(options: &serde_json::Value) -> Result<Options> {
        build_resolved("ghosted", options.as_object().unwrap()).map(|(_, options, _)| options)
    }
}
