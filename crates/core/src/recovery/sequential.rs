//! Sequential variant of Ghosted Layers, which the paper does not include: each operator is fitted on the stream in the
//! partly repaired model.
//!
//! If several regions are removed, ghosted fits each operator on the activations of the dense model:
//! `M_k = argmin ‖X_k·M − Δ_k‖`. In the pruned model, the k-th region receives a different stream `X̂_k`, because the
//! preceding operators leave residuals. This method solves `M_k = argmin ‖X̂_k·M − (X_post,k − X̂_k)‖`, so that each
//! operator also corrects the preceding residuals. The first operator, which in a contiguous cut is the only one,
//! equals ghosted's.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::boundary::{Boundary, Placement, Solution, Span};
use super::least_squares::{self, RIDGE};
use super::method::{FitSequences, Recovery, RecoveryEntry, build};
use crate::error::Result;

pub(super) const ENTRY: RecoveryEntry = RecoveryEntry::new::<Sequential>("sequential", "", build::<Sequential>)
    .label("Ghost Layer, sequential")
    .not_in_paper();

/// `W = I + M` with `M = argmin ‖X̂·M − (X_post − X̂)‖` on the stream `X̂` of the partly repaired model.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Sequential {
    /// Whether to use one operator per region or one per removed layer.
    boundary: Placement,
}

impl Recovery for Sequential {
    fn spans(&self, region: Span) -> Vec<Span> {
        self.boundary.spans(region)
    }

    fn fit_sequences(&self, _: bool) -> FitSequences {
        FitSequences::First
    }

    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution> {
        let normal = if boundary.earlier.is_empty() {
            boundary.normal_equations()?
        } else {
            let mut sums = boundary.new_sums();
            for sequence in 0..boundary.fitted {
                let repaired = boundary.repaired(sequence)?;
                let post = boundary.post(boundary.sequence(sequence))?;
                sums.add_difference(&repaired.values()?, post)?;
            }
            sums.finish()?
        };
        least_squares::solve(&normal, RIDGE)?.into_repair(boundary.channels(), None, None)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::recovery::Span;
    use crate::recovery::boundary::tests::{LiteralActivations, near};

    #[test]
    fn sequential_repair_is_solved_on_repaired_activations() {
        // The example has one channel and two tokens. Layer 1 doubles the stream, so W = 2 and (2, 4) enters layer 2.
        // In the test engine, layer 2 adds 1 and 10, so (13, 15) enters layer 3 of the repaired model. In the dense
        // model, (50, 70) enters it.
        let streams: [(usize, &[f32]); 4] =
            [(1, &[1.0, 2.0]), (2, &[2.0, 4.0]), (3, &[50.0, 70.0]), (4, &[26.0, 30.0])];
        let written = LiteralActivations::new(1, 1, &streams);
        let first = written.solve((1, 2), &[], "sequential", &json!({})).unwrap();
        near(&dense_map(&first), &[2.0]);
        let earlier = [(Span::layers(1, 2), first.repair)];
        near(&dense_map(&written.solve((3, 4), &earlier, "sequential", &json!({})).unwrap()), &[2.0]);
        // Ghosted uses the dense model's stream: (26·50 + 30·70) / (50² + 70²).
        near(&dense_map(&written.solve((3, 4), &earlier, "ghosted", &json!({})).unwrap()), &[3400.0 / 7400.0]);
        // Two adjacent layers with separate operators: (2, 4) → (50, 70).
        let next = written.solve((2, 3), &earlier, "sequential", &json!({})).unwrap();
        near(&dense_map(&next), &[(2.0 * 50.0 + 4.0 * 70.0) / 20.0]);
    }

    fn dense_map(solution: &crate::recovery::Solution) -> Vec<f32> {
        solution.repair.operator().unwrap().to_dense().unwrap()
    }
}
