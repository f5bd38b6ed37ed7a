//! What the columns of a table mean: which are accuracies of tasks, and of how many documents; which is their mean.

use std::sync::LazyLock;

use crate::error::{Error, Result};
use crate::metric;
use crate::tasks::{TASKS, Task};

/// What is known of a table's columns.
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
    /// As the column is called.
    pub name: String,
    pub label: String,
    /// Documents of its split; none where nobody says.
    pub documents: Option<usize>,
    /// Accuracies by chance, and of a single label where there are few; empty where nobody says.
    pub chance: Vec<f64>,
}

static PAPER: LazyLock<AuditColumns> = LazyLock::new(|| AuditColumns {
    tasks: TASKS.iter().filter(|task| task.in_paper).map(|task| AuditTask::of(task.name, task)).collect(),
    accuracy: metric::ACCURACY.id.to_owned(),
    texts: metric::texts(),
    perplexity: metric::PERPLEXITY.id.to_owned(),
});

impl AuditColumns {
    /// Those of the paper's tables.
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

    /// A column as a command names it: `arc_easy`, `ARC-e=arc_easy`, `PIQA=1838` with its documents, `PIQA=1838:50` also with
    /// the accuracy by chance.
    ///
    /// # Errors
    /// What is neither a known task nor a number of documents.
    pub fn parse(text: &str) -> Result<Self> {
        let (column, meaning) = text.split_once('=').unwrap_or((text, text));
        if let Some(task) = TASKS.iter().find(|task| task.name == meaning) {
            return Ok(Self::of(column, task));
        }
        let (documents, chance) = meaning.split_once(':').map_or((meaning, None), |(of, chance)| (of, Some(chance)));
        let documents: Option<usize> = documents.parse().ok().filter(|count| *count > 0);
        let percent = |text: &str| text.parse::<f64>().ok().filter(|chance| (0.0..100.0).contains(chance));
        let chance = chance.map(percent);
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
        let of = |text| AuditTask::parse(text).unwrap();
        assert_eq!((of("arc_easy").documents, of("ARC-e=arc_easy").documents), (Some(2376), Some(2376)));
        assert_eq!((of("ARC-e=arc_easy").name.as_str(), of("PIQA=1838").documents), ("ARC-e", Some(1838)));
        assert_eq!((of("PIQA=1838:50").chance, of("PIQA").documents), (vec![50.0], None));
        for wrong in ["PIQA=many", "PIQA=0", "PIQA=1838:x", "PIQA=1838:200"] {
            assert!(AuditTask::parse(wrong).unwrap_err().to_string().contains("COLUMN=DOCUMENTS"), "{wrong}");
        }
    }
}
