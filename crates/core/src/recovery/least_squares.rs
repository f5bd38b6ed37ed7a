//! From normal equations to a solution, with what there is to say about them, and the ridge that is added to them.

use std::borrow::Cow;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::boundary::{Boundary, Repair, Solution, System};
use crate::error::{Error, Result};
use crate::linalg::solve::NormalEquations;
use crate::model::Operator;

/// Added to the diagonal of `XᵀX`, as the reference code of ghosted does.
pub(super) const RIDGE: f64 = 1e-6;

/// A solved least-squares problem.
pub(super) struct Solved {
    /// `[C, C]`, row-major.
    pub(super) matrix: Vec<f64>,
    pub(super) system: System,
    pub(super) notes: Vec<String>,
}

impl Solved {
    /// The solution that puts an operator on the residual stream.
    pub(super) fn on_stream(self, operator: Arc<Operator>) -> Solution {
        let Self { system, notes, .. } = self;
        Solution { repair: Repair::Stream(operator), notes, system: Some(system), losses: Vec::new() }
    }

    /// `W = I + M` in f32, the sum formed in f64, like the sums before it.
    pub(super) fn with_identity(&self, channels: usize) -> Vec<f32> {
        let identity = |at: usize| if at.is_multiple_of(channels + 1) { 1.0 } else { 0.0 };
        self.matrix.iter().enumerate().map(|(at, v)| (v + identity(at)) as f32).collect()
    }
}

/// `(XᵀX + ridge·I)⁻¹XᵀY`; the minimum-norm solution where that system is singular.
pub(super) fn solve(normal: &NormalEquations, channels: usize, ridge: f64) -> Result<Solved> {
    let spectrum = normal.spectrum()?;
    let system = System { rank: spectrum.rank, condition: spectrum.condition };
    let deficient = spectrum.rank < channels;
    let what = format!("rank {} of {channels} ({} tokens)", spectrum.rank, normal.rows());
    // A ridge makes the system regular, as far as f64 can tell the ridge from nothing.
    if !deficient || ridge > 0.0 {
        match normal.solve(ridge) {
            Ok(matrix) => {
                let note = format!("{what}: the ridge of {ridge:e} decides where the activations do not");
                return Ok(Solved { matrix, system, notes: if deficient { vec![note] } else { Vec::new() } });
            }
            Err(error) if !deficient => return Err(error.into()),
            Err(_) => {}
        }
    }
    let solution = normal.minimum_norm()?;
    Ok(Solved { matrix: solution.solution, system, notes: vec![format!("{what}: the solution of least norm")] })
}

/// What is added to the diagonal of `XᵀX`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub(super) enum Ridge {
    Fixed(f64),
    /// Chosen on held-out windows.
    Auto,
}

const AUTO: &str = "auto";

/// Shares of the mean eigenvalue that are tried.
const SHARES: [f64; 9] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];

/// Of so many windows one is held out.
const FOLD: usize = 4;

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

/// The map with the ridge that is best on held-out windows.
///
/// `M_λ = (XᵀX + λI)⁻¹XᵀΔ` shrinks the map along directions of which the calibration holds little: with the singular values
/// `σ_i` of `X` its part along the i-th is `σ_i² / (σ_i² + λ)` of the least-squares one. What a direction gives on other text
/// is told by other text: one window of four is held out, each `λ` is solved on the rest, and the one is taken whose map has
/// the least `‖X_h·M_λ − Δ_h‖²` on those held out. Windows are drawn at random and may overlap: one that shares a token with
/// one that is held out is not other text, and is left out of the choice. Sums over all windows are then solved with it. Candidates are shares of
/// the mean eigenvalue `tr(XᵀX) / C`, so that a share means the same for part of the windows and for all, and the paper's
/// own 1e-6.
///
/// # Errors
/// Fewer than two windows, or none that shares no token with those held out; activations that are not finite.
pub(super) fn chosen(boundary: &Boundary<'_>) -> Result<Solved> {
    let (channels, windows) = (boundary.channels(), boundary.fitted);
    if windows < 2 {
        return Err(Error::job("a ridge cannot be chosen without a window to hold out")
            .expected("2 operator sequences or more")
            .found(windows));
    }
    let (mut seen, mut held, mut shared, mut square) = (boundary.sums(), boundary.sums(), boundary.sums(), 0.0);
    let is_held = |window: usize| (window + 1).is_multiple_of(FOLD) || (windows < FOLD && window + 1 == windows);
    let is_shared = |window: usize| (0..windows).any(|other| is_held(other) && boundary.overlap(window, other));
    let (mut count, mut left_out) = (0, 0);
    for window in 0..windows {
        let rows = boundary.sequence(window);
        let (pre, post) = (boundary.pre(rows.clone())?, boundary.post(rows)?);
        if !is_held(window) {
            let overlaps = is_shared(window);
            left_out += usize::from(overlaps);
            if overlaps { &mut shared } else { &mut seen }.add_difference(pre, post)?;
            continue;
        }
        count += 1;
        held.add_difference(pre, post)?;
        square += pre.iter().zip(post).map(|(&pre, &post)| (f64::from(post) - f64::from(pre)).powi(2)).sum::<f64>();
    }
    if count + left_out == windows {
        return Err(Error::job("a ridge cannot be chosen: every window shares tokens with one that is held out")
            .expected("windows of which some lie apart")
            .found(format!("{windows} windows of {} tokens", boundary.length()))
            .hint("shorter windows, or a longer text"));
    }
    let (mut seen, held, shared) = (seen.finish()?, held.finish()?, shared.finish()?);
    // `None` is the paper's.
    let ridge = |share: Option<f64>, of: &NormalEquations| share.map_or(RIDGE, |share| share * of.mean_eigenvalue());
    let (mut best, mut plain): (Option<(Option<f64>, f64)>, f64) = (None, f64::NAN);
    for share in [None].into_iter().chain(SHARES.map(Some)) {
        // A ridge that leaves the system singular is no candidate.
        let Ok(map) = seen.solve(ridge(share, &seen)) else { continue };
        let error = held.excess(&map);
        if share.is_none() {
            plain = error;
        }
        if best.is_none_or(|(_, least)| error < least) {
            best = Some((share, error));
        }
    }
    let Some((share, error)) = best else {
        return Err(Error::job("no ridge makes the normal equations regular").found(format!("{} rows", seen.rows())));
    };
    seen.merge(&held);
    seen.merge(&shared);
    let mut solved = solve(&seen, channels, ridge(share, &seen))?;
    let apart = match left_out {
        0 => String::new(),
        some => format!(" ({some} that share tokens with these are left out of the choice)"),
    };
    let chosen = share.map_or(format!("{RIDGE:e}"), |share| format!("{share:e} of the mean eigenvalue"));
    solved.notes.push(format!(
        "ridge {chosen}, chosen on {count} held-out windows of {windows}{apart}: there it leaves {:.2} % of Δ², {RIDGE:e} {:.2} %",
        100.0 * (square + error) / square,
        100.0 * (square + plain) / square
    ));
    Ok(solved)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::corpus::Start;
    use crate::recovery::boundary::tests::{Written, near};
    use crate::recovery::{build, resolved};

    #[test]
    fn the_ridge_that_is_best_on_the_held_out_window_solves_all_of_them() {
        // One channel, four windows of one token, x = 1. Three say Δ = 2, the held-out one says 1. On the three
        // M = 6 / (3 + λ): with λ = 3, the whole mean eigenvalue, it is 1, and the held-out one is met. On all four the mean
        // eigenvalue is 4: M = 7 / (4 + 4), W = 1.875.
        let streams: [(usize, &[f32]); 2] = [(1, &[1.0; 4]), (2, &[3.0, 3.0, 3.0, 2.0])];
        let written = Written::new(1, 4, &streams);
        let solution = written.solve((1, 2), &[], "ghosted", &json!({"ridge": "auto"})).unwrap();
        near(&solution.repair.operator().unwrap().to_dense().unwrap(), &[1.875]);
        assert!(solution.notes[0].contains("ridge 1e0 of the mean eigenvalue, chosen on 1 held-out windows of 4"));
        // With the paper's ridge it is 7/4.
        let plain = written.solve((1, 2), &[], "ghosted", &json!({})).unwrap();
        near(&plain.repair.operator().unwrap().to_dense().unwrap(), &[2.75]);
    }

    #[test]
    fn where_all_windows_say_the_same_hardly_any_ridge_is_chosen() {
        let streams: [(usize, &[f32]); 2] = [(1, &[1.0, 2.0, 3.0, 4.0]), (2, &[3.0, 6.0, 9.0, 12.0])];
        let solution = Written::new(1, 4, &streams).solve((1, 2), &[], "ghosted", &json!({"ridge": "auto"})).unwrap();
        near(&solution.repair.operator().unwrap().to_dense().unwrap(), &[3.0]);
    }

    #[test]
    fn windows_that_share_tokens_with_a_held_out_one_have_no_part_in_the_choice() {
        // As above, but one of the three windows that say Δ = 2 is cut from where the held-out one is, of which it says
        // Δ = 1, too: with it a ridge of the mean eigenvalue would not be the best of the candidates.
        let streams: [(usize, &[f32]); 2] = [(1, &[1.0; 8]), (2, &[3.0, 3.0, 2.0, 2.0, 3.0, 3.0, 2.0, 2.0])];
        let at = |token| Start { document: 0, token };
        let mut written = Written::new(1, 4, &streams);
        written.starts = vec![at(10), at(51), at(20), at(50)];
        let solution = written.solve((1, 2), &[], "ghosted", &json!({"ridge": "auto"})).unwrap();
        let note = &solution.notes[0];
        assert!(note.contains("ridge 1e0 of") && note.contains("of 4 (1 that share tokens with these"), "{note}");
        // The chosen share on all windows: the mean eigenvalue is 8, Σ xΔ = 12.
        near(&solution.repair.operator().unwrap().to_dense().unwrap(), &[1.0 + 12.0 / 16.0]);
        // In other documents, or apart by their length, windows share nothing.
        written.starts = vec![at(10), Start { document: 1, token: 51 }, at(48), at(50)];
        let note = &written.solve((1, 2), &[], "ghosted", &json!({"ridge": "auto"})).unwrap().notes[0];
        assert!(!note.contains("share tokens"), "{note}");
        written.starts = vec![at(49), at(50), at(51), at(50)];
        let error = written.solve((1, 2), &[], "ghosted", &json!({"ridge": "auto"})).unwrap_err();
        assert!(error.to_string().contains("every window shares tokens"), "{error}");
    }

    #[test]
    fn a_single_window_is_refused() {
        let streams: [(usize, &[f32]); 2] = [(1, &[1.0, 2.0]), (2, &[3.0, 6.0])];
        let error = Written::new(1, 1, &streams).solve((1, 2), &[], "ghosted", &json!({"ridge": "auto"})).unwrap_err();
        assert!(error.to_string().contains("hold out"), "{error}");
    }

    #[test]
    fn the_papers_ridge_is_no_part_of_a_key_and_a_wrong_one_is_refused() {
        let resolved = |options: serde_json::Value| resolved("ghosted", options.as_object().unwrap()).map(|of| of.1);
        assert_eq!(resolved(json!({"ridge": 1e-6})).unwrap(), resolved(json!({})).unwrap());
        assert_eq!(resolved(json!({"ridge": "auto"})).unwrap()["ridge"], "auto");
        assert_eq!(resolved(json!({"ridge": 0})).unwrap()["ridge"], 0.0);
        for wrong in [json!({"ridge": "much"}), json!({"ridge": -1}), json!({"ridge": "auto", "solver": "svd"})] {
            let text = build("ghosted", wrong.as_object().unwrap()).err().unwrap().to_string();
            assert!(text.contains("ridge"), "{text}");
        }
    }
}
