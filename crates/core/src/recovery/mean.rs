//! Mean change: a constant replaces the update of the removed layers (as in arXiv 2407.16286). The Ghosted Layers paper
//! does not evaluate it.
//!
//! `‖1·bᵀ − Δ‖²` is minimal for `b = δ̄`, the mean of `Δ` over tokens. The repaired stream `x + δ̄` has the same mean
//! as `X_post`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::boundary::{Boundary, Placement, Repair, Solution, Span};
use super::method::{ELEMENT_COST, FitSequences, Recovery, RecoveryEntry, build};
use crate::error::Result;
use crate::model::{Config, Operator, StepForm};

pub(super) const ENTRY: RecoveryEntry =
    RecoveryEntry::new::<Mean>("mean", "https://arxiv.org/abs/2407.16286", build::<Mean>)
        .label("Mean change")
        .not_in_paper();

/// `x ← x + b`, where `b` is the mean update by the removed layers over the operator sequences.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Mean {
    /// Whether to use one constant per region or one per removed layer.
    boundary: Placement,
}

impl Recovery for Mean {
    fn step_form(&self, _: &Config) -> Option<StepForm> {
        Some(StepForm::Constant)
    }

    fn spans(&self, region: Span) -> Vec<Span> {
        self.boundary.spans(region)
    }

    fn fit_sequences(&self, _: bool) -> FitSequences {
        FitSequences::First
    }

    fn estimated_operations(&self, channels: usize, rows: usize) -> f64 {
        2.0 * ELEMENT_COST * (rows * channels) as f64
    }

    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution> {
        let channels = boundary.channels();
        let mut sums = vec![0.0f64; channels];
        for rows in boundary.blocks(boundary.fitted) {
            let pre = boundary.pre(rows.clone())?;
            let post = boundary.post(rows)?;
            for (pre, post) in pre.chunks_exact(channels).zip(post.chunks_exact(channels)) {
                for ((sum, &pre), &post) in sums.iter_mut().zip(pre).zip(post) {
                    *sum += f64::from(post) - f64::from(pre);
                }
            }
        }
        let count = (boundary.fitted * boundary.length()) as f64;
        let bias = sums.into_iter().map(|sum| (sum / count) as f32).collect();
        Ok(Solution::new(Repair::Stream(Operator::bias_only(bias)?)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::recovery::boundary::tests::{LiteralActivations, near};

    #[test]
    fn mean_repair_adds_the_mean_change_over_tokens() {
        let streams: [(usize, &[f32]); 2] = [(1, &[1.0, 2.0, 3.0, 4.0]), (3, &[2.0, 2.0, 6.0, 1.0])];
        let solution = LiteralActivations::new(2, 1, &streams).solve((1, 3), &[], "mean", &json!({})).unwrap();
        let operator = solution.repair.operator().unwrap();
        assert!(operator.is_bias_only() && solution.system.is_none());
        near(&operator.bias().unwrap().unwrap(), &[2.0, -1.5]);
    }
}
