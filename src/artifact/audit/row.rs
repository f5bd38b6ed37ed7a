//! One row of a table.

use std::collections::HashMap;

/// For sums of decimal fractions, which a binary number does not hold exactly.
pub(super) const EPSILON: f64 = 1e-9;

use super::columns::AuditColumns;
use crate::artifact::paper::PaperNumber;
use crate::recovery;
use crate::results::record::{Condition, DENSE};

/// The numbers that one table gives for one condition.
#[derive(Debug)]
pub(super) struct AuditRow<'a> {
    pub(super) artifact: &'a str,
    pub(super) condition: &'a Condition,
    /// What its columns mean.
    pub(super) columns: &'a AuditColumns,
    /// In the table's order; a metric that is given twice is here twice.
    pub(super) cells: Vec<&'a PaperNumber>,
    /// The first cell of each metric, by its name.
    first: HashMap<&'a str, &'a PaperNumber>,
    /// Those that are scores, with a value, in one order for all rows: every row is compared with every other.
    scores: Vec<Option<&'a PaperNumber>>,
}

impl<'a> AuditRow<'a> {
    /// The rows of all tables, in the order of their first cells.
    pub(super) fn group(entries: &'a [PaperNumber], columns: &'a AuditColumns) -> Vec<Self> {
        let mut rows: Vec<Self> = Vec::new();
        let mut known: HashMap<(&str, &Condition), usize> = HashMap::new();
        for entry in entries {
            let (artifact, condition) = (entry.artifact.as_str(), &entry.record.condition);
            let index = *known.entry((artifact, condition)).or_insert_with(|| {
                rows.push(AuditRow {
                    artifact,
                    condition,
                    columns,
                    cells: Vec::new(),
                    first: HashMap::new(),
                    scores: Vec::new(),
                });
                rows.len() - 1
            });
            rows[index].cells.push(entry);
            rows[index].first.entry(entry.record.metric.as_str()).or_insert(entry);
        }
        let AuditColumns { accuracy, perplexity, .. } = columns;
        let scores = columns.task_names().into_iter().chain(columns.text_names());
        let scores: Vec<&str> = scores.chain([accuracy.as_str(), perplexity.as_str()]).collect();
        for row in &mut rows {
            row.scores = scores.iter().map(|metric| Some(row.get(metric)?.0)).collect();
        }
        rows
    }

    /// The first cell of a metric, with its value; None where it is absent or has none.
    pub(super) fn get(&self, metric: &str) -> Option<(&'a PaperNumber, f64)> {
        let cell = *self.first.get(metric)?;
        Some((cell, cell.record.value?))
    }

    /// The cells of these metrics with their values; None unless all are there.
    pub(super) fn all(&self, metrics: &[&str]) -> Option<Vec<(&'a PaperNumber, f64)>> {
        metrics.iter().map(|metric| self.get(metric)).collect()
    }

    /// Pairs of cells of the two rows that are scores of the same metric, each once.
    pub(super) fn shared_scores(&self, other: &AuditRow<'a>) -> Vec<(&'a PaperNumber, &'a PaperNumber)> {
        self.scores.iter().zip(&other.scores).filter_map(|(one, two)| (*one).zip(*two)).collect()
    }
}

/// Whether two cells have the same value.
pub(super) fn agree(one: &PaperNumber, other: &PaperNumber) -> bool {
    matches!((one.record.value, other.record.value), (Some(a), Some(b)) if (a - b).abs() < EPSILON)
}

/// A row in words.
pub(super) fn words(condition: &Condition) -> String {
    let Condition { backbone, layers, depth, criterion, recovery, finetuned, calibration } = condition;
    if criterion == DENSE {
        return format!("{backbone}, dense");
    }
    // Of a table with a row for each method nothing is known but its name.
    if criterion.is_empty() {
        return backbone.clone();
    }
    let recovery = if recovery == recovery::NONE { "pruned" } else { recovery };
    let finetuned = if *finetuned { ", finetuned" } else { "" };
    format!("{backbone}, {depth}/{layers}, {criterion}, {recovery}{finetuned}, {calibration}")
}

/// The condition without what cannot change a value: the dense backbone is not calibrated.
pub(super) fn exact(condition: &Condition) -> Condition {
    let mut exact = condition.clone();
    if exact.criterion == DENSE {
        exact.calibration.clear();
    }
    exact
}

/// Sequences that the paper's code draws for the operator where nothing else is said.
const DEFAULT_SIZE: &str = "32";

/// The condition without what should not change a value: the solver of the ghost layer, and the number of calibration
/// sequences where it is the default.
pub(super) fn loose(condition: &Condition) -> Condition {
    let mut loose = exact(condition);
    if let Some(method) = recovery::appearance(&condition.recovery) {
        method.name.clone_into(&mut loose.recovery);
    }
    if let (corpus, Some(DEFAULT_SIZE)) = loose.calibrated() {
        loose.calibration = corpus.to_owned();
    }
    loose
}
