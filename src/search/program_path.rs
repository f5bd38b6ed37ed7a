//! Programs of candidates ([`Program`]: sequence of sublayers and operators), by which layer evaluations are counted. A
//! common prefix of several programs runs only once.

use crate::error::{Error, Result};
use crate::model::Cut;
use crate::model::{Operator, Program, Trie};
use crate::pipeline::stage::boundary_result::BoundaryResult;
use crate::pipeline::stage::operator;

/// Builds a candidate's program with a placeholder for each distinct operator.
///
/// # Errors
/// Fails if an operator belongs to the MLP branch of the layer before a cut that starts at layer 0.
pub fn build_program(layers: usize, removed: &Cut, boundaries: &[BoundaryResult]) -> Result<Program> {
    operator::build_program(layers, removed, boundaries, |_, key: &str| {
        Operator::diagonal(key.bytes().map(f32::from).collect())
    })?
    .ok_or_else(|| Error::job("an MLP repair has no preceding layer"))
}

/// Counts the layer evaluations per item in the trie (prefix tree) of all programs. A layer in a common prefix counts
/// once, and a single sublayer counts as half a layer.
pub fn count_layers<'a>(programs: impl IntoIterator<Item = &'a Program>) -> f64 {
    let programs: Vec<Program> = programs.into_iter().cloned().collect();
    Trie::new(&programs).sublayers() as f64 / 2.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pipeline::stage::boundary_result::PlacedRepair::{self, AttentionAndMlp, Mlp, Stream};

    fn repair(start: usize, operator: &str, placed: PlacedRepair) -> BoundaryResult {
        let result = json!({
            "region": [start, start + 1], "operator": operator, "placed": placed, "notes": [], "losses": [], "solve_seconds": 0.0,
            "boundary_mae": 0.0, "boundary_mae_by_channel": [], "delta_norm": 0.0, "relative_residual": 0.0, "m_norm": 0.0, "m_symmetric_norm": 0.0,
            "m_antisymmetric_norm": 0.0,
        });
        serde_json::from_value(result).unwrap()
    }

    #[test]
    fn shared_layers_are_counted_once() {
        let [plain, one, two] =
            [without_three(&[]), without_three(&[repair(3, "a", Stream)]), without_three(&[repair(3, "b", Stream)])];
        assert_eq!(count_layers([&plain]), 7.0);
        assert_eq!(count_layers([&plain, &one, &two]), 3.0 + 3.0 * 4.0);
        assert_eq!(count_layers([&one, &one]), 7.0);
        let other = build_program(10, &Cut::layers([8, 9]), &[]).unwrap();
        assert_eq!(count_layers([&one, &two, &other]), 3.0 + 2.0 * 4.0 + 5.0);
        // A repair on the MLP branch can share the preceding attention with plain removal. A repair on both branches
        // cannot.
        assert_eq!(count_layers([&plain, &without_three(&[repair(3, "a", Mlp)])]), 2.5 + 2.0 * 4.5);
        assert_eq!(count_layers([&plain, &without_three(&[repair(3, "a", AttentionAndMlp)])]), 2.0 + 2.0 * 5.0);
        assert_eq!(count_layers([]), 0.0);
    }

    /// Builds a program with 10 layers of which layers 3 to 5 are removed. All candidates share the first 3 layers, and
    /// 4 layers follow each operator.
    fn without_three(repairs: &[BoundaryResult]) -> Program {
        build_program(10, &Cut::layers([3, 4, 5]), repairs).unwrap()
    }

    #[test]
    fn programs_with_equal_operators_are_equal() {
        assert_eq!(without_first_and_third("a"), without_first_and_third("a"));
        assert_ne!(without_first_and_third("a"), without_first_and_third("b"));
    }

    fn without_first_and_third(operator: &str) -> Program {
        build_program(4, &Cut::layers([0, 2]), &[repair(0, "x", AttentionAndMlp), repair(2, operator, Stream)]).unwrap()
    }
}
