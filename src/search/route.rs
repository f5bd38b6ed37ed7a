//! Computation shared between candidates: a pass over an item runs their common prefixes once.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::stage::operator::{BoundaryResult, PlacedRepair};

/// A candidate's way through the layers. Steps are equal when they compute the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Route {
    /// Identity of each step, and its cost in half layers.
    steps: Vec<(u64, u32)>,
}

impl Route {
    /// Builds the path through a backbone without the removed layers.
    pub fn of<'b>(layers: usize, removed: &[usize], boundaries: &'b [BoundaryResult]) -> Self {
        let before = |start: usize| (0..start).rev().find(|layer| !removed.contains(layer));
        let repair = |of: &'b BoundaryResult| Some((of.region.0, of.placed?, of.operator.as_deref()?));
        let repairs: Vec<(usize, PlacedRepair, &str)> = boundaries.iter().filter_map(repair).collect();
        let edits = |layer: usize, both: bool| -> Vec<&str> {
            let own = |(start, placed, _): &&(usize, PlacedRepair, &str)| match placed {
                PlacedRepair::Stream => false,
                PlacedRepair::Mlp => !both && before(*start) == Some(layer),
                PlacedRepair::AttentionAndMlp => before(*start) == Some(layer),
            };
            repairs.iter().filter(own).map(|(.., operator)| *operator).collect()
        };
        let mut route = Self::default();
        for layer in 0..layers {
            // At the first layer it scales the stream itself.
            for (start, placed, operator) in &repairs {
                if *start == layer && (*placed == PlacedRepair::Stream || before(layer).is_none()) {
                    route.push(&("operator", operator), 0);
                }
            }
            if !removed.contains(&layer) {
                route.push(&("attention", layer, edits(layer, true)), 1);
                route.push(&("mlp", layer, edits(layer, false)), 1);
            }
        }
        route
    }

    fn push(&mut self, step: &impl Hash, halves: u32) {
        let mut hasher = DefaultHasher::new();
        step.hash(&mut hasher);
        self.steps.push((hasher.finish(), halves));
    }
}

/// Counts the layers that one item runs through under some candidates, shared ones once.
pub fn layers<'a>(routes: impl IntoIterator<Item = &'a Route>) -> f64 {
    let mut seen = HashSet::new();
    let mut halves = 0;
    for route in routes {
        // A beginning is known by the hash of all its steps.
        let mut beginning = DefaultHasher::new();
        for (step, own) in &route.steps {
            step.hash(&mut beginning);
            if seen.insert(beginning.finish()) {
                halves += own;
            }
        }
    }
    f64::from(halves) / 2.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::PlacedRepair::{AttentionAndMlp, Mlp, Stream};
    use super::*;

    fn repair(start: usize, operator: &str, placed: PlacedRepair) -> BoundaryResult {
        let result = json!({
            "region": [start, start + 1], "operator": operator, "placed": placed, "notes": [], "losses": [], "solve_seconds": 0.0,
            "boundary_mae": 0.0, "boundary_mae_by_channel": [], "delta_norm": 0.0, "relative_residual": 0.0, "m_norm": 0.0, "m_symmetric_norm": 0.0,
            "m_antisymmetric_norm": 0.0,
        });
        serde_json::from_value(result).unwrap()
    }

    #[test]
    fn shared_value_counts_once_until_its_last_user_leaves() {
        // Expected by hand: 10 layers without 3 to 5; 3 are shared by all, 4 follow each operator.
        let cut = |repairs: &[BoundaryResult]| Route::of(10, &[3, 4, 5], repairs);
        let [plain, one, two] = [cut(&[]), cut(&[repair(3, "a", Stream)]), cut(&[repair(3, "b", Stream)])];
        assert_eq!(layers([&plain]), 7.0);
        assert_eq!(layers([&plain, &one, &two]), 3.0 + 3.0 * 4.0);
        assert_eq!(layers([&one, &one]), 7.0);
        let other = Route::of(10, &[8, 9], &[]);
        assert_eq!(layers([&one, &two, &other]), 3.0 + 2.0 * 4.0 + 5.0);
        // A map of the MLP shares the attention before it; one of both branches shares neither.
        assert_eq!(layers([&plain, &cut(&[repair(3, "a", Mlp)])]), 2.5 + 2.0 * 4.5);
        assert_eq!(layers([&plain, &cut(&[repair(3, "a", AttentionAndMlp)])]), 2.0 + 2.0 * 5.0);
        assert_eq!(layers([]), 0.0);
    }

    #[test]
    fn equal_contents_are_one_route() {
        let cut = |operator: &str| Route::of(4, &[0, 2], &[repair(0, "x", Mlp), repair(2, operator, Stream)]);
        assert_eq!(cut("a"), cut("a"));
        assert_ne!(cut("a"), cut("b"));
    }
}
