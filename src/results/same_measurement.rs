//! Detects rows that show the same measurement under different names. Used by table notes, claims and `search`.

use std::collections::BTreeMap;

use super::number_record::{Condition, Record};
use crate::metric::Metric;
use crate::model::Cut;
use crate::pipeline::stage::boundary_result::{BoundaryResult, PlacedRepair};

/// Minimum number of equal scores at which two rows are assumed to show the same measurement rather than a coincidence.
pub const MIN_EQUAL_SCORES: usize = 3;

/// Removed layers of a variant, with the operators that replace them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeasuredProgram {
    removed: Cut,
    /// First removed layer, placement and content key of each operator, in ascending order of layers.
    operators: Vec<(usize, Option<PlacedRepair>, String)>,
}

impl MeasuredProgram {
    pub fn new(removed: &Cut, boundaries: &[BoundaryResult]) -> Self {
        let mut operators: Vec<_> = boundaries
            .iter()
            .filter_map(|result| Some((result.region.0, result.placed, result.operator.clone()?)))
            .collect();
        operators.sort_by_key(|(start, ..)| *start);
        Self { removed: removed.clone(), operators }
    }
}

/// Content by which rows are compared: removed layers and operators, or printed scores.
#[derive(Debug, Clone, PartialEq)]
pub enum RowContent<'a> {
    /// Programs, one per averaged calibration seed.
    Programs(&'a [MeasuredProgram]),
    /// Scores as printed in a table, by metric and condition. The conditions have no criterion, so that rows of two
    /// criteria can be equal.
    Scores(BTreeMap<(String, Condition), Option<String>>),
}

impl RowContent<'_> {
    /// Returns the content of a row for which no programs were recorded: the scores printed in the paper or stored in
    /// `numbers.json`.
    pub fn scores<'r>(records: impl IntoIterator<Item = &'r Record>) -> Self {
        Self::Scores(
            records
                .into_iter()
                .map(|Record { condition, metric, value, .. }| {
                    let decimals = Metric::find(metric).map_or(2, |metric| metric.decimals);
                    let condition = Condition { criterion: String::new(), ..condition.clone() };
                    ((metric.clone(), condition), value.map(|value| Metric::format_value(value, decimals)))
                })
                .collect(),
        )
    }

    /// Returns whether equal content is enough evidence that two rows show the same measurement.
    fn is_decisive(&self) -> bool {
        match self {
            Self::Programs(programs) => !programs.is_empty(),
            Self::Scores(scores) => scores.values().flatten().count() >= MIN_EQUAL_SCORES,
        }
    }
}

/// Returns whether two rows of the same backbone show the same measurement, that is, whether their programs or printed
/// scores are equal.
pub fn is_one_measurement(one: &RowContent<'_>, other: &RowContent<'_>) -> bool {
    one.is_decisive() && one == other
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn boundary(start: usize, operator: Option<&str>, placed: &str) -> BoundaryResult {
        let result = json!({
            "region": [start, start + 1], "operator": operator, "placed": placed, "notes": [], "losses": [],
            "solve_seconds": 0.0, "boundary_mae": 0.0, "boundary_mae_by_channel": [], "delta_norm": 0.0,
            "relative_residual": 0.0, "m_norm": 0.0, "m_symmetric_norm": 0.0, "m_antisymmetric_norm": 0.0,
        });
        serde_json::from_value(result).unwrap()
    }

    fn record(criterion: &str, metric: &str, value: Option<f64>) -> Record {
        let condition = Condition {
            backbone: "llama".into(),
            layers: 16,
            depth: 4,
            unit: crate::criterion::DepthUnit::Layers,
            criterion: criterion.into(),
            recovery: "none".into(),
            finetuned: false,
            calibration: "c4".into(),
        };
        Record { condition, metric: metric.into(), value, error: None }
    }

    #[test]
    fn programs_are_equal_only_if_layers_and_operators_match() {
        let plain = MeasuredProgram::new(&Cut::layers([3, 2]), &[boundary(2, None, "stream")]);
        let region = MeasuredProgram::new(&Cut::layers([2, 3]), &[boundary(2, Some("a"), "stream")]);
        let layers = MeasuredProgram::new(
            &Cut::layers([2, 3]),
            &[boundary(3, Some("c"), "stream"), boundary(2, Some("b"), "stream")],
        );
        let reordered = MeasuredProgram::new(
            &Cut::layers([3, 2]),
            &[boundary(2, Some("b"), "stream"), boundary(3, Some("c"), "stream")],
        );
        let branch = MeasuredProgram::new(&Cut::layers([2, 3]), &[boundary(2, Some("a"), "mlp")]);
        let cases = [
            ("no operators", &plain, &MeasuredProgram::new(&Cut::layers([2, 3]), &[]), true),
            ("other layers", &plain, &MeasuredProgram::new(&Cut::layers([2, 4]), &[]), false),
            ("repaired and not", &plain, &region, false),
            ("per region and per layer", &region, &layers, false),
            ("order of boundaries", &layers, &reordered, true),
            ("other placement", &region, &branch, false),
        ];
        for (name, one, other, expected) in cases {
            let [one, other] = [one, other].map(std::slice::from_ref).map(RowContent::Programs);
            assert_eq!(is_one_measurement(&one, &other), expected, "{name}");
        }
        let unknown = RowContent::Programs(&[]);
        assert!(!is_one_measurement(&unknown, &unknown), "rows without a program cannot be compared");
    }

    #[test]
    fn scores_match_if_three_values_are_equal_as_printed() {
        let row = |criterion: &str, values: [Option<f64>; 3]| {
            let records: Vec<Record> = ["rte", "copa", "race"]
                .into_iter()
                .zip(values)
                .map(|(task, value)| record(criterion, task, value))
                .collect();
            RowContent::scores(&records)
        };
        let first = row("shortgpt", [Some(50.0), Some(60.0), Some(70.001)]);
        assert!(is_one_measurement(&first, &row("llm-streamline", [Some(50.0), Some(60.0), Some(70.0)])));
        assert!(!is_one_measurement(&first, &row("llm-streamline", [Some(50.0), Some(60.0), Some(70.1)])));
        let missing = row("shortgpt", [Some(50.0), Some(60.0), None]);
        assert!(!is_one_measurement(&missing, &missing), "two scores are too few");
    }
}
