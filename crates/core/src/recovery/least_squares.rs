//! From normal equations to a solution, with what there is to say about them.

use std::sync::Arc;

use super::repair::{Repair, Solution, System};
use crate::error::Result;
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
            Err(error) if !deficient => return Err(error),
            Err(_) => {}
        }
    }
    let solution = normal.minimum_norm()?;
    Ok(Solved { matrix: solution.solution, system, notes: vec![format!("{what}: the solution of least norm")] })
}
