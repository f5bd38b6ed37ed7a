//! Example recovery: restores the magnitude of the stream with one factor for all channels. Replace its rule with
//! yours.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::boundary::{Boundary, Repair, Solution};
use super::method::{Recovery, RecoveryEntry, build};
use crate::error::Result;
use crate::model::Operator;

const NAME: &str = "my-recovery";
/// Source of the method, for table 1.
const SOURCE: &str = "https://example.org/my-recovery";
pub(super) const ENTRY: RecoveryEntry =
    RecoveryEntry::new::<MyRecovery>(NAME, SOURCE, build::<MyRecovery>).label("My Recovery").not_in_paper();

/// Operator `W = d·I` with `d = (Σ|X_post| / Σ|X_pre|)^power` over all sequences.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct MyRecovery {
    /// Exponent: 1 compensates the full difference, 0 none of it.
    power: f64,
}

impl Default for MyRecovery {
    fn default() -> Self {
        Self { power: 1.0 }
    }
}

impl Recovery for MyRecovery {
    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution> {
        let mut pre = 0.0;
        let mut post = 0.0;
        // Read blocks of rows, because the activations may exceed memory.
        for rows in boundary.blocks(boundary.fitted) {
            pre += magnitude(boundary.pre(rows.clone())?);
            post += magnitude(boundary.post(rows)?);
        }
        let factor = (post / pre).powf(self.power) as f32;
        let operator = Operator::diagonal(vec![factor; boundary.channels()])?;
        Ok(Solution::new(Repair::Stream(operator)))
    }
}

fn magnitude(x: &[f32]) -> f64 {
    x.iter().map(|v| f64::from(v.abs())).sum()
}

#[cfg(test)]
mod tests {
    use crate::options::Options;
    use crate::recovery::boundary::tests::LiteralActivations;

    #[test]
    fn factor_restores_the_magnitude_of_the_stream() {
        // Two tokens with two channels each, before and after the removed layer. Their magnitudes sum to 10 and 20.
        let written = LiteralActivations::new(2, 1, &[(1, &[1.0, -2.0, 3.0, 4.0]), (2, &[2.0, 4.0, -6.0, 8.0])]);
        assert_eq!(super::ENTRY.appearance.name, super::NAME);
        let method = super::ENTRY.build(&Options::new()).unwrap();
        let repair = written.solve_by((1, 2), &[], &*method).unwrap().repair;
        assert_eq!(repair.operator().unwrap().apply(&[1.0, -1.0]).unwrap(), [2.0, -2.0]);
    }
}
