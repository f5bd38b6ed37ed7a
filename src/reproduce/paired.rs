//! Ours against the best of the others, item by item.

use serde::Serialize;

use super::ours::{Number, Sample};
use crate::significance::{mcnemar_exact, paired_bootstrap};

/// A paired test of two variants on the same items.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Paired {
    /// `mcnemar` or `bootstrap`
    pub test: &'static str,
    /// The other variant's recovery.
    pub against: String,
    /// Ours less theirs: in points of percent, or in nats per token.
    pub difference: f64,
    /// Two-sided.
    pub p: f64,
}

/// Draws of the bootstrap.
const DRAWS: usize = 2000;
const SEED: u64 = 0;
/// From which probability on two variants count as different.
const LEVEL: f64 = 0.05;

impl Paired {
    pub fn significant(&self) -> bool {
        self.p < LEVEL
    }

    /// What stands beside the number: `+` where ours is better, `-` where it is worse, nothing where they cannot be told
    /// apart.
    pub fn mark(&self) -> &'static str {
        // More right answers are better, and so is less loss.
        let better = (self.difference > 0.0) == (self.test == "mcnemar");
        match (self.significant(), better) {
            (false, _) => "",
            (true, true) => "+",
            (true, false) => "-",
        }
    }
}

/// None where the two have no items in common.
pub(super) fn test(ours: &Number, other: &Number) -> Option<Paired> {
    let against = other.record.condition.recovery.clone();
    match (&ours.sample, &other.sample) {
        (Sample::Right(one), Sample::Right(two)) if one.len() == two.len() && !one.is_empty() => {
            let only = |a: &[bool], b: &[bool]| a.iter().zip(b).filter(|&(&a, &b)| a && !b).count() as u64;
            let (gained, lost) = (only(one, two), only(two, one));
            let difference = 100.0 * (gained as f64 - lost as f64) / one.len() as f64;
            Some(Paired { test: "mcnemar", against, difference, p: mcnemar_exact(gained, lost) })
        }
        (Sample::Losses(one), Sample::Losses(two)) if one.len() == two.len() && one.len() > 1 => {
            let finite = one.iter().chain(two).all(|loss| loss.is_finite());
            let difference = one.iter().zip(two).map(|(a, b)| a - b).sum::<f64>() / one.len() as f64;
            let interval = paired_bootstrap(one, two, DRAWS, SEED).ok().filter(|_| finite)?;
            Some(Paired { test: "bootstrap", against, difference, p: interval.p })
        }
        _ => None,
    }
}
