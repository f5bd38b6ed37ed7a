//! Aggregates numbers over calibration seeds into their mean, sample standard deviation and number of seeds.

use std::borrow::Cow;
use std::sync::Arc;

use super::equal_selections::equal_selections;
use super::notes::drawn_texts_note;
use super::result_row::{CellSummary, ResultRow, Results, Sample};
use super::settings::{SEED, group_by_key, value_text};
use super::{MeasuredProgram, Settings, distinct};
use crate::grid::Over;
use crate::model::Cut;

impl Results {
    /// Returns the results aggregated over `axis`, or unchanged if there is no axis.
    #[must_use]
    pub fn aggregate_over(&self, axis: Option<Over>) -> Cow<'_, Self> {
        match axis {
            Some(Over::Seed) => Cow::Owned(self.aggregate_seeds()),
            None => Cow::Borrowed(self),
        }
    }

    /// Returns notes about averages over calibration seeds, criteria that remove the same layers, and overlapping
    /// windows.
    pub fn notes(&self) -> Vec<String> {
        let numbers = || self.numbers().map(AsRef::as_ref);
        seed_notes(numbers())
            .into_iter()
            .chain(equal_selections(&self.cells))
            .chain(drawn_texts_note(numbers()))
            .collect()
    }

    /// Merges cells that differ only in their calibration seed. Cells without a seed, such as dense ones, are not
    /// changed.
    #[must_use]
    pub fn aggregate_seeds(&self) -> Self {
        let cells = group_by_key(self.cells.iter().enumerate().map(|(index, cell)| {
            let settings = without_seed(&cell.settings);
            // A cell without a seed is not merged with any other cell.
            ((settings.is_none().then_some(index), settings), cell)
        }));
        Self { cells: cells.iter().map(|(_, all)| merge_cells(all)).collect(), protocols: self.protocols.clone() }
    }
}

/// Returns the settings without the seed, or `None` if there is no seed.
fn without_seed(settings: &Settings) -> Option<Settings> {
    let mut rest = settings.clone();
    rest.remove(SEED).map(|_| rest)
}

/// Merges rows that differ only in their seed. The result has their mean and standard deviation.
fn merge_seeds(group: &[&Arc<ResultRow>]) -> Arc<ResultRow> {
    let first = group[0];
    let Some(rest) = without_seed(&first.setup.variant) else { return Arc::clone(first) };
    let values: Vec<f64> = group.iter().filter_map(|row| row.valid_value()).collect();
    let mut number = ResultRow::clone(first);
    (number.record.value, number.record.error) = (mean(&values), deviation(&values));
    number.setup.variant = Arc::new(rest);
    number.setup.undetermined = group.iter().any(|group| group.setup.undetermined);
    // Report a failure only if the measurements failed for all seeds.
    number.failure = if values.is_empty() { group.iter().find_map(|group| group.failure.clone()) } else { None };
    number.sample = Sample::Seeds(group.iter().copied().cloned().collect());
    Arc::new(number)
}

pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the sample standard deviation, or `None` for fewer than two values.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|_| values.len() > 1)?;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

/// Merges cells that differ only in their seed.
fn merge_cells(all: &[&CellSummary]) -> CellSummary {
    let first = all[0];
    let Some(rest) = without_seed(&first.settings) else { return first.clone() };
    let seeds = all.iter().map(format_seed).collect::<Vec<_>>().join(",");
    let removed = distinct(all.iter().map(|cell| &cell.removed));
    let mut notes = distinct(all.iter().flat_map(|cell| &cell.notes));
    if removed.len() > 1 {
        let each = all.iter().map(|cell| format!("{} under seed {}", cell.removed, format_seed(cell)));
        notes.push(format!("removed layers differ: {}", each.collect::<Vec<_>>().join(", ")));
    }
    let failed = all.iter().filter_map(|cell| Some(format!("seed {}: {}", format_seed(cell), cell.failure.as_ref()?)));
    let failed: Vec<String> = failed.collect();
    let failure = (failed.len() == all.len()).then(|| failed.join("; "));
    if failure.is_none() {
        notes.extend(failed.into_iter().map(|reason| format!("failed under {reason}")));
    }
    let [corpus, sequences, length] = ["corpus", "sequences", "length"]
        .map(|name| rest.get(&format!("calibration.{name}")).map(value_text).unwrap_or_default());
    // The first number in each column, in order of first appearance.
    let mut columns: Vec<&ResultRow> = Vec::new();
    for number in all.iter().flat_map(|cell| &cell.numbers) {
        if !columns.iter().any(|known| known.has_same_column(number)) {
            columns.push(number);
        }
    }
    CellSummary {
        numbers: columns
            .iter()
            .map(|column| merge_seeds(&all.iter().filter_map(|cell| cell.number(column)).collect::<Vec<_>>()))
            .collect(),
        calibration: Some(format!("{corpus}:{sequences}x{length}@{seeds}")),
        removed: if removed.len() == 1 { first.removed.clone() } else { Cut::default() },
        programs: merged_programs(all),
        settings: Arc::new(rest),
        seconds: all.iter().map(|cell| cell.seconds).sum(),
        notes,
        failure,
        ..first.clone()
    }
}

fn format_seed(cell: &&CellSummary) -> String {
    cell.settings.get(SEED).map(value_text).unwrap_or_default()
}

/// Returns the measured programs for all seeds, or an empty list if any of them is unknown.
fn merged_programs(all: &[&CellSummary]) -> Vec<MeasuredProgram> {
    let is_known = all.iter().all(|cell| !cell.programs.is_empty());
    all.iter().filter(|_| is_known).flat_map(|cell| cell.programs.clone()).collect()
}

/// Returns one note for each distinct list of seeds over which numbers were averaged.
fn seed_notes<'a>(numbers: impl IntoIterator<Item = &'a ResultRow>) -> Vec<String> {
    let all: Vec<Vec<u64>> = distinct(
        numbers
            .into_iter()
            .filter_map(|number| match &number.sample {
                Sample::Seeds(rows) => Some(rows.iter().map(|row| row.seed()).collect::<Vec<u64>>()),
                _ => None,
            })
            .collect::<Vec<_>>()
            .iter(),
    );
    all.iter()
        .map(|seeds| {
            let list = seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
            format!("Mean ± standard deviation over n = {} calibration seeds ({list}).", seeds.len())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::number_record::{Condition, Record};
    use super::super::result_row::Setup;
    use super::super::settings::flatten_below;
    use super::*;
    use crate::grid::Cell;
    use crate::metric::{Metric, PARAMETERS_REMOVED};
    use crate::results::{NumberColumn, PrintedNumber};

    fn number(seed: Option<u64>, value: Option<f64>) -> ResultRow {
        let condition = Condition {
            backbone: "llama".into(),
            layers: 16,
            depth: 4,
            unit: crate::criterion::DepthUnit::Layers,
            criterion: "sleb".into(),
            recovery: "ghosted".into(),
            finetuned: false,
            calibration: "c4".into(),
        };
        let settings = match seed {
            Some(seed) => flatten_below("", &json!({"recovery": "ghosted", "calibration": {"seed": seed}})),
            None => Settings::new(),
        };
        let record = Record { condition, metric: "rte".into(), value, error: Some(9.0) };
        ResultRow {
            failure: value.is_none().then(|| "it failed".to_owned()),
            setup: Setup { variant: Arc::new(settings), ..Setup::default() },
            ..ResultRow::new(record, format!("cell@{seed:?}"))
        }
    }

    fn results(numbers: &[ResultRow]) -> Results {
        Results {
            cells: numbers
                .iter()
                .map(|number| CellSummary {
                    cell: Cell::with_name("", &number.cell),
                    settings: Arc::clone(&number.setup.variant),
                    failure: number.failure.clone(),
                    numbers: vec![Arc::new(number.clone())],
                    ..CellSummary::default()
                })
                .collect(),
            protocols: Vec::new(),
        }
    }

    #[test]
    fn seed_aggregate_is_mean_and_sample_standard_deviation() {
        let aggregated = results(&[
            number(None, Some(70.0)),
            number(Some(0), Some(50.0)),
            number(Some(1), Some(53.0)),
            number(Some(2), Some(56.0)),
        ])
        .aggregate_seeds();
        assert_eq!((aggregated.cells.len(), aggregated.rows().len()), (2, 2));
        // Dense cells do not change.
        assert_eq!((aggregated.rows()[0].record.value, aggregated.rows()[0].record.error), (Some(70.0), Some(9.0)));
        let first = &aggregated.cells[1].numbers[0];
        // The variance is (3² + 0² + 3²) / 2 = 9.
        assert_eq!((first.record.value, first.record.error), (Some(53.0), Some(3.0)));
        assert_eq!(PrintedNumber::printed(first, 2, "failed").text, "53.00 ± 3.00");
        let notes = seed_notes(aggregated.numbers().map(AsRef::as_ref));
        assert_eq!(notes, ["Mean ± standard deviation over n = 3 calibration seeds (0, 1, 2)."]);
    }

    #[test]
    fn task_and_metric_with_the_same_name_have_different_columns() {
        let cells = [0, 1].map(|seed| {
            let size = ResultRow {
                metric: PARAMETERS_REMOVED.metric(),
                column: PARAMETERS_REMOVED.head.to_owned(),
                ..number(Some(seed), Some(25.0))
            };
            let task = ResultRow {
                metric: Metric::task(PARAMETERS_REMOVED.name),
                record: Record { value: Some(50.0), ..size.record.clone() },
                ..size.clone()
            };
            assert_eq!(size.metric.id, task.metric.id);
            [size, task]
        });
        let mut both = results(&cells.clone().map(|[size, _]| size));
        for (cell, [_, task]) in both.cells.iter_mut().zip(&cells) {
            cell.numbers.push(Arc::new(task.clone()));
        }
        let merged = both.aggregate_seeds().rows();
        let values: Vec<_> = merged.iter().map(|number| number.record.value).collect();
        assert_eq!(values, [Some(25.0), Some(50.0)]);
        for number in &merged {
            let column = NumberColumn {
                column: Some(number.column.clone()),
                ..NumberColumn::new(number.metric.clone(), number.column.clone())
            };
            let shown: Vec<_> = column.numbers(&merged.iter().collect::<Vec<_>>()).collect();
            assert_eq!(shown, [number]);
        }
    }

    #[test]
    fn failed_seed_is_noted_and_not_averaged() {
        let aggregated = results(&[number(Some(0), Some(50.0)), number(Some(1), None), number(Some(2), Some(52.0))])
            .aggregate_seeds();
        assert_eq!(PrintedNumber::printed(&aggregated.rows()[0], 2, "failed").text, "51.00 ± 1.41 (n = 2)");
        assert_eq!(aggregated.cells[0].notes, ["failed under seed 1: it failed"]);
        let aggregated = results(&[number(Some(0), None), number(Some(1), None)]).aggregate_seeds();
        assert_eq!(PrintedNumber::printed(&aggregated.rows()[0], 2, "failed").text, "failed");
        assert_eq!(aggregated.cells[0].failure.as_deref(), Some("seed 0: it failed; seed 1: it failed"));
    }
}
