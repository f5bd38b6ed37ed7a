//! Ghosted Layers with a bias, which its paper does not evaluate: the linear minimum mean square error estimate of
//! Neural Block Linearization (arXiv 2505.21077, section 3), applied to removed layers.
//!
//! The repaired stream is `x·(I + M) + b`. Its mean equals the mean of the target stream `X_post`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::boundary::{Boundary, Placement, Solution, Span};
use super::least_squares::RIDGE;
use super::method::{FitSequences, Recovery, RecoveryEntry, build};
use super::stream_fit;
use crate::error::Result;

pub(super) const ENTRY: RecoveryEntry =
    RecoveryEntry::new::<Affine>("affine", "https://arxiv.org/abs/2505.21077", build::<Affine>)
        .label("Affine (NBL)")
        .not_in_paper();

/// `x ← x·W + b`: ghosted's map of the centered streams, and a bias that matches the means.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Affine {
    /// Whether to use one operator per region or one per removed layer.
    boundary: Placement,
}

impl Recovery for Affine {
    fn spans(&self, region: Span) -> Vec<Span> {
        self.boundary.spans(region)
    }

    fn fit_sequences(&self, _: bool) -> FitSequences {
        FitSequences::First
    }

    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution> {
        stream_fit::solve(boundary, None, true, RIDGE)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::recovery::boundary::tests::{LiteralActivations, near};

    #[test]
    fn affine_recovers_a_known_map_and_bias() {
        // X_post = X·(2 0; 1 3) + (5, −1) at the corners of the unit square.
        let streams: [(usize, &[f32]); 2] =
            [(1, &[0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0]), (3, &[5.0, -1.0, 7.0, -1.0, 6.0, 2.0, 8.0, 2.0])];
        let written = LiteralActivations::new(2, 1, &streams);
        let solution = written.solve((1, 3), &[], "affine", &json!({})).unwrap();
        let operator = solution.repair.operator().unwrap();
        near(&operator.linear_part().unwrap(), &[2.0, 0.0, 1.0, 3.0]);
        near(&operator.bias().unwrap().unwrap(), &[5.0, -1.0]);
        assert_eq!((solution.system.unwrap().rank, solution.notes.len()), (2, 0));
        // Without a bias, the normal equations are (2 1; 1 2)·W = (15 1; 14 4), so W = (16 −2; 13 7) / 3.
        let plain = written.solve((1, 3), &[], "ghosted", &json!({})).unwrap();
        near(&plain.repair.operator().unwrap().to_dense().unwrap(), &[16.0, -2.0, 13.0, 7.0].map(|v| v / 3.0));
    }
}
