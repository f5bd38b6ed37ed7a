//! Rows of the audited tables, and descriptions of their columns.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::artifact::paper::PaperNumber;
use crate::error::{Error, Result};
use crate::results::group_by_key;
use crate::results::number_record::{Condition, DENSE};
use crate::tasks::{TASKS, Task};
use crate::{metric, recovery};

/// Tolerance for sums of decimal fractions, which binary floats only approximate.
pub(super) const EPSILON: f64 = 1e-9;

/// Numbers that one table gives for one condition.
#[derive(Debug)]
pub(super) struct AuditRow<'a> {
    pub(super) artifact: &'a str,
    pub(super) condition: &'a Condition,
    pub(super) columns: &'a AuditColumns,
    /// Cells in table order. A metric that is given twice appears twice.
    pub(super) cells: Vec<&'a PaperNumber>,
    /// First cell of each metric, by metric name.
    first: HashMap<&'a str, &'a PaperNumber>,
    /// Cells of the score columns, in the same order for all rows. `None` if a cell is missing or has no value.
    scores: Vec<Option<&'a PaperNumber>>,
}

impl<'a> AuditRow<'a> {
    /// Groups entries into rows, in order of first appearance.
    pub(super) fn group(entries: &'a [PaperNumber], columns: &'a AuditColumns) -> Vec<Self> {
        let AuditColumns { accuracy, perplexity, .. } = columns;
        let scores = columns.task_names().into_iter().chain(columns.text_names());
        let scores: Vec<&str> = scores.chain([accuracy.as_str(), perplexity.as_str()]).collect();
        let keyed = entries.iter().map(|entry| ((entry.artifact.as_str(), &entry.record.condition), entry));
        let rows = group_by_key(keyed).into_iter().map(|((artifact, condition), cells)| {
            let first = cells.iter().rev().map(|&cell| (cell.record.metric.as_str(), cell)).collect();
            let mut row = AuditRow { artifact, condition, columns, cells, first, scores: Vec::new() };
            row.scores = scores.iter().map(|metric| Some(row.get(metric)?.0)).collect();
            row
        });
        rows.collect()
    }

    /// Returns the first cell for a metric, with its value.
    pub(super) fn get(&self, metric: &str) -> Option<(&'a PaperNumber, f64)> {
        let cell = *self.first.get(metric)?;
        Some((cell, cell.record.value?))
    }

    /// Returns the first cell for each metric, with its value. Returns `None` if a cell is missing or has no value.
    pub(super) fn get_all(&self, metrics: &[&str]) -> Option<Vec<(&'a PaperNumber, f64)>> {
        metrics.iter().map(|metric| self.get(metric)).collect()
    }

    /// Returns a pair of scores for each score column that has a value in both rows.
    pub(super) fn shared_scores(&self, other: &AuditRow<'a>) -> Vec<(&'a PaperNumber, &'a PaperNumber)> {
        self.scores.iter().zip(&other.scores).filter_map(|(one, two)| (*one).zip(*two)).collect()
    }
}

/// Returns whether both entries have a value and the values are equal.
pub(super) fn agree(one: &PaperNumber, other: &PaperNumber) -> bool {
    matches!((one.record.value, other.record.value), (Some(a), Some(b)) if (a - b).abs() < EPSILON)
}

pub(super) fn describe_condition(condition: &Condition) -> String {
    let Condition { backbone, layers, depth, unit: _, criterion, recovery, finetuned, calibration } = condition;
    if criterion == DENSE {
        return format!("{backbone}, dense");
    }
    // In a table with one row per method, `backbone` contains the method's name.
    if criterion.is_empty() {
        return backbone.clone();
    }
    let recovery = if recovery == recovery::NONE { "pruned" } else { recovery };
    let finetuned = if *finetuned { ", finetuned" } else { "" };
    format!("{backbone}, {depth}/{layers}, {criterion}, {recovery}{finetuned}, {calibration}")
}

/// Normalizes the condition of the dense backbone by clearing the calibration, which does not affect its scores.
pub(super) fn normalize_dense(condition: &Condition) -> Condition {
    let mut normalized = condition.clone();
    if normalized.criterion == DENSE {
        normalized.calibration.clear();
    }
    normalized
}

/// Default number of operator calibration sequences in the paper's code.
const DEFAULT_SIZE: &str = "32";

/// Normalizes settings that should not affect a value: the solver of the ghost layer, and an explicit default number of
/// sequences.
pub(super) fn normalize_equivalent(condition: &Condition) -> Condition {
    let mut normalized = normalize_dense(condition);
    if let Some(method) = recovery::appearance(&condition.recovery) {
        method.name.clone_into(&mut normalized.recovery);
    }
    if let (corpus, Some(DEFAULT_SIZE)) = normalized.calibrated() {
        normalized.calibration = corpus.to_owned();
    }
    normalized
}

/// Metric names of the score columns that are audited.
#[derive(Debug, Clone)]
pub struct AuditColumns {
    /// Task columns, in table order.
    pub tasks: Vec<AuditTask>,
    /// Column with the mean accuracy.
    pub accuracy: String,
    /// Perplexity columns.
    pub texts: Vec<String>,
    /// Column with the mean perplexity.
    pub perplexity: String,
}

/// Column of task accuracies in percent.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditTask {
    pub name: String,
    pub label: String,
    /// Number of documents in the task's split, if known.
    pub documents: Option<usize>,
    /// Chance accuracy, followed by the accuracies of constant answers if the labels are fixed. Empty if unknown.
    pub chance: Vec<f64>,
}

static PAPER: LazyLock<AuditColumns> = LazyLock::new(|| AuditColumns {
    tasks: TASKS.iter().filter(|task| task.in_paper).map(|task| AuditTask::new(task.name, task)).collect(),
    accuracy: metric::ACCURACY.id.to_owned(),
    texts: metric::texts(),
    perplexity: metric::PERPLEXITY.id.to_owned(),
});

impl AuditColumns {
    pub fn paper() -> &'static Self {
        &PAPER
    }

    pub(super) fn task(&self, column: &str) -> Option<&AuditTask> {
        self.tasks.iter().find(|task| task.name == column)
    }

    pub(super) fn task_names(&self) -> Vec<&str> {
        self.tasks.iter().map(|task| task.name.as_str()).collect()
    }

    pub(super) fn text_names(&self) -> Vec<&str> {
        self.texts.iter().map(String::as_str).collect()
    }
}

impl AuditTask {
    fn new(column: &str, task: &Task) -> Self {
        Self {
            name: column.to_owned(),
            label: task.label.to_owned(),
            documents: Some(task.documents),
            chance: task.chance.to_vec(),
        }
    }

    /// Parses a column (`arc_easy`), a column and its task (`ARC-e=arc_easy`), or a column and its document count
    /// (`PIQA=1838`). The document count may be followed by a chance accuracy (`PIQA=1838:50`).
    ///
    /// # Errors
    /// Fails if the text after `=` is neither a known task nor a document count with an optional chance accuracy.
    pub fn parse(text: &str) -> Result<Self> {
        let (column, meaning) = text.split_once('=').unwrap_or((text, text));
        if let Some(task) = TASKS.iter().find(|task| task.name == meaning) {
            return Ok(Self::new(column, task));
        }
        let (documents, chance) =
            meaning.split_once(':').map_or((meaning, None), |(documents, chance)| (documents, Some(chance)));
        let documents: Option<usize> = documents.parse().ok().filter(|count| *count > 0);
        let chance = chance.map(|text| text.parse::<f64>().ok().filter(|chance| (0.0..100.0).contains(chance)));
        if documents.is_none() && (text.contains('=') || chance.is_some()) || chance == Some(None) {
            let known: Vec<&str> = TASKS.iter().map(|task| task.name).collect();
            return Err(Error::bad_input("invalid column mapping")
                .at(format!("--tasks {text}"))
                .expected(format!(
                    "COLUMN, COLUMN=TASK with one of {}, COLUMN=DOCUMENTS or COLUMN=DOCUMENTS:CHANCE",
                    known.join(", ")
                ))
                .found(format!("`{meaning}`")));
        }
        Ok(Self {
            name: column.to_owned(),
            label: column.to_owned(),
            documents,
            chance: chance.flatten().into_iter().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_mapping_accepts_a_task_or_a_document_count() {
        assert_eq!((task("arc_easy").documents, task("ARC-e=arc_easy").documents), (Some(2376), Some(2376)));
        assert_eq!((task("ARC-e=arc_easy").name.as_str(), task("PIQA=1838").documents), ("ARC-e", Some(1838)));
        assert_eq!((task("PIQA=1838:50").chance, task("PIQA").documents), (vec![50.0], None));
        for wrong in ["PIQA=many", "PIQA=0", "PIQA=1838:x", "PIQA=1838:200"] {
            assert!(AuditTask::parse(wrong).unwrap_err().to_string().contains("COLUMN=DOCUMENTS"), "{wrong}");
        }
    }

    fn task(text: &str) -> AuditTask {
        AuditTask::parse(text).unwrap()
    }
}
