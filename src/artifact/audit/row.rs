//! One row of a table, and what its columns mean.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::artifact::paper::PaperNumber;
use crate::error::{Error, Result};
use crate::results::record::{Condition, DENSE};
use crate::tasks::{TASKS, Task};
use crate::{metric, recovery};

/// For sums of decimal fractions, which a binary number does not hold exactly.
pub(super) const EPSILON: f64 = 1e-9;

/// The numbers that one table gives for one condition.
#[derive(Debug)]
pub(super) struct AuditRow<'a> {
    pub(super) artifact: &'a str,
    pub(super) condition: &'a Condition,
    /// Meaning of its columns.
    pub(super) columns: &'a AuditColumns,
    /// In the table's order; a metric that is given twice is here twice.
    pub(super) cells: Vec<&'a PaperNumber>,
    /// The first cell of each metric, by its name.
    first: HashMap<&'a str, &'a PaperNumber>,
    /// The score columns with a value, in the same order for all rows: every row is compared with every other.
    scores: Vec<Option<&'a PaperNumber>>,
}

impl<'a> AuditRow<'a> {
    /// Groups entries into rows, in the order of their first cells.
    pub(super) fn group(entries: &'a [PaperNumber], columns: &'a AuditColumns) -> Vec<Self> {
        let mut rows: Vec<Self> = Vec::new();
        let mut known: HashMap<(&str, &Condition), usize> = HashMap::new();
        for entry in entries {
            let artifact = entry.artifact.as_str();
            let condition = &entry.record.condition;
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

    /// Returns the first cell of a metric with its value. `None` if it is absent or empty.
    pub(super) fn get(&self, metric: &str) -> Option<(&'a PaperNumber, f64)> {
        let cell = *self.first.get(metric)?;
        Some((cell, cell.record.value?))
    }

    /// Returns the cells of these metrics with their values. `None` unless all exist.
    pub(super) fn all(&self, metrics: &[&str]) -> Option<Vec<(&'a PaperNumber, f64)>> {
        metrics.iter().map(|metric| self.get(metric)).collect()
    }

    /// Pairs the scores of one metric in two rows, each once.
    pub(super) fn shared_scores(&self, other: &AuditRow<'a>) -> Vec<(&'a PaperNumber, &'a PaperNumber)> {
        self.scores.iter().zip(&other.scores).filter_map(|(one, two)| (*one).zip(*two)).collect()
    }
}

/// Returns whether two cells have the same value.
pub(super) fn agree(one: &PaperNumber, other: &PaperNumber) -> bool {
    matches!((one.record.value, other.record.value), (Some(a), Some(b)) if (a - b).abs() < EPSILON)
}

/// Describes a row in words.
pub(super) fn words(condition: &Condition) -> String {
    let Condition { backbone, layers, depth, unit: _, criterion, recovery, finetuned, calibration } = condition;
    if criterion == DENSE {
        return format!("{backbone}, dense");
    }
    // In a table with one row per method, only the name is known.
    if criterion.is_empty() {
        return backbone.clone();
    }
    let recovery = if recovery == recovery::NONE { "pruned" } else { recovery };
    let finetuned = if *finetuned { ", finetuned" } else { "" };
    format!("{backbone}, {depth}/{layers}, {criterion}, {recovery}{finetuned}, {calibration}")
}

/// Removes settings that cannot change a value: the dense backbone is not calibrated.
pub(super) fn exact(condition: &Condition) -> Condition {
    let mut exact = condition.clone();
    if exact.criterion == DENSE {
        exact.calibration.clear();
    }
    exact
}

/// Default number of calibration sequences for the operator in the paper's code.
const DEFAULT_SIZE: &str = "32";

/// Removes settings that should not change a value: the solver of the ghost layer, and the default number of calibration
/// sequences.
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

/// Metadata of a table's columns.
#[derive(Debug, Clone)]
pub struct AuditColumns {
    /// In the order of the table.
    pub tasks: Vec<AuditTask>,
    /// The column of their mean.
    pub accuracy: String,
    /// Perplexities, and the column of their mean.
    pub texts: Vec<String>,
    pub perplexity: String,
}

/// A column of accuracies in percent.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditTask {
    /// Column name.
    pub name: String,
    pub label: String,
    /// Documents in its split; `None` if not given.
    pub documents: Option<usize>,
    /// Accuracies by chance, and of a constant answer if labels are few; empty if not given.
    pub chance: Vec<f64>,
}

static PAPER: LazyLock<AuditColumns> = LazyLock::new(|| AuditColumns {
    tasks: TASKS.iter().filter(|task| task.in_paper).map(|task| AuditTask::of(task.name, task)).collect(),
    accuracy: metric::ACCURACY.id.to_owned(),
    texts: metric::texts(),
    perplexity: metric::PERPLEXITY.id.to_owned(),
});

impl AuditColumns {
    /// Returns the columns of the paper's tables.
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
    fn of(column: &str, task: &Task) -> Self {
        Self {
            name: column.to_owned(),
            label: task.label.to_owned(),
            documents: Some(task.documents),
            chance: task.chance.to_vec(),
        }
    }

    /// Parses a column of a command: `arc_easy`, `ARC-e=arc_easy`, `PIQA=1838` with its documents, `PIQA=1838:50` also with
    /// the accuracy by chance.
    ///
    /// # Errors
    /// What is neither a known task nor a number of documents.
    pub fn parse(text: &str) -> Result<Self> {
        let (column, meaning) = text.split_once('=').unwrap_or((text, text));
        if let Some(task) = TASKS.iter().find(|task| task.name == meaning) {
            return Ok(Self::of(column, task));
        }
        let (documents, chance) =
            meaning.split_once(':').map_or((meaning, None), |(documents, chance)| (documents, Some(chance)));
        let documents: Option<usize> = documents.parse().ok().filter(|count| *count > 0);
        let chance = chance.map(|text| text.parse::<f64>().ok().filter(|chance| (0.0..100.0).contains(chance)));
        if documents.is_none() && (text.contains('=') || chance.is_some()) || chance == Some(None) {
            let known: Vec<&str> = TASKS.iter().map(|task| task.name).collect();
            return Err(Error::bad_input("the meaning of a column cannot be used")
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
    fn a_column_is_a_known_task_or_has_its_documents_said() {
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
