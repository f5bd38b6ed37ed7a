//! Ghosted Layers: the least-squares map of what the removed layers added (paper §3, Theorem 1; design §7).

use std::sync::Arc;

use serde::Deserialize;

use super::boundary::pre_and_delta;
use super::{Boundary, Recovery};
use crate::error::Result;
use crate::linalg::solve::Normal;
use crate::model::Operator;
use crate::options::{self, Options};

pub(super) const NAME: &str = "ghosted";

/// Added to the diagonal of `XᵀX`, as the reference code does.
const RIDGE: f64 = 1e-6;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    solver: Solver,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Solver {
    /// `(XᵀX + 1e-6·I)·M = XᵀΔ` by Cholesky in f64.
    #[default]
    Normal,
}

/// `W = I + M` with `M = argmin ‖X_pre·M − Δ‖`, over the operator sequences.
struct Ghosted {
    solver: Solver,
}

pub(super) fn build(options: &Options) -> Result<Box<dyn Recovery>> {
    let Settings { solver } = options::read(NAME, options)?;
    Ok(Box::new(Ghosted { solver }))
}

impl Recovery for Ghosted {
    fn solve(&self, boundary: &Boundary<'_>) -> Result<Option<Arc<Operator>>> {
        let channels = boundary.channels();
        let solution = match self.solver {
            Solver::Normal => {
                let mut normal = Normal::new(channels);
                for block in boundary.blocks(boundary.operator_sequences) {
                    let (pre, post) = block?;
                    let (pre, delta) = pre_and_delta(pre, post);
                    normal.add(&pre, &delta);
                }
                normal.solve(RIDGE)?
            }
        };
        let mut matrix: Vec<f32> = solution.iter().map(|&m| m as f32).collect();
        for i in 0..channels {
            // The sum is formed in f64, like the sums before it.
            matrix[i * channels + i] = (1.0 + solution[i * channels + i]) as f32;
        }
        Operator::dense(channels, matrix).map(Some)
    }
}
