//! Table of the built-in tasks.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::non_finite_score::NonFiniteScore;
use super::split::Split;
use crate::error::{Error, Result};

/// Accuracy variant: how the predicted choice is picked from the log-likelihoods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AccuracyKind {
    /// The choice with the highest log-likelihood is selected.
    Acc,
    /// The choice with the highest log-likelihood per character is selected.
    AccNorm,
}

crate::names!(AccuracyKind: Acc = "acc", AccNorm = "acc_norm");

/// Built-in task: data source, split and metrics. The task definition describes how rows are rendered as prompts.
#[derive(Debug)]
pub struct Task {
    pub name: &'static str,
    /// Column header in the Ghosted Layers paper.
    pub label: &'static str,
    /// Whether the task has a column in the paper and counts toward the paper's average.
    pub in_paper: bool,
    pub source: &'static str,
    /// Version of the task in lm-eval. 1 means 1.0.
    pub version: u32,
    /// Split to score: the test split if its answers are public, otherwise the validation split.
    pub split: Split,
    /// Number of documents in the published split, used to check the data.
    pub documents: usize,
    /// Chance accuracies in percent. The first results from random choices. For tasks with two fixed answers, the
    /// second results from always giving the first answer, and the third from always giving the second.
    pub chance: &'static [f64],
    /// Metrics that lm-eval reports.
    pub metrics: &'static [AccuracyKind],
    /// Metric shown in the paper.
    pub paper_metric: AccuracyKind,
}

/// Default values for tasks with four choices that are scored by likelihood per character.
const LENGTH_NORMALIZED_TASK: Task = Task {
    name: "",
    label: "",
    in_paper: true,
    source: "",
    version: 1,
    split: Split::Test,
    documents: 0,
    chance: &[25.0],
    metrics: &[AccuracyKind::Acc, AccuracyKind::AccNorm],
    paper_metric: AccuracyKind::AccNorm,
};
/// Default values for tasks that are scored by plain likelihood.
const PLAIN_TASK: Task = Task {
    split: Split::Validation,
    metrics: &[AccuracyKind::Acc],
    paper_metric: AccuracyKind::Acc,
    ..LENGTH_NORMALIZED_TASK
};

/// The nine tasks in the order of the paper's columns, followed by RACE as in lm-eval 0.4.11 and older.
///
/// If the choices are texts, the chance level of both metrics is one divided by the number of choices. WinoGrande has 2
/// choices, and the other tasks have 4. A few ARC documents have 3 or 5. A model that merely prefers short or common
/// words may score above the chance level.
pub static TASKS: &[Task] = &[
    Task {
        name: "arc_easy",
        label: "ARC-E",
        source: "https://huggingface.co/datasets/allenai/ai2_arc",
        documents: 2376,
        ..LENGTH_NORMALIZED_TASK
    },
    Task {
        name: "arc_challenge",
        label: "ARC-C",
        source: "https://huggingface.co/datasets/allenai/ai2_arc",
        documents: 1172,
        ..LENGTH_NORMALIZED_TASK
    },
    Task {
        name: "hellaswag",
        label: "HellaS",
        source: "https://huggingface.co/datasets/Rowan/hellaswag",
        split: Split::Validation,
        documents: 10042,
        ..LENGTH_NORMALIZED_TASK
    },
    Task {
        name: "winogrande",
        label: "WinoG",
        source: "https://huggingface.co/datasets/allenai/winogrande",
        documents: 1267,
        chance: &[50.0],
        ..PLAIN_TASK
    },
    Task {
        name: "boolq",
        label: "BoolQ",
        source: "https://huggingface.co/datasets/aps/super_glue",
        version: 2,
        documents: 3270,
        // The answer is yes in 2033 documents and no in 1237.
        chance: &[50.0, 100.0 * 2033.0 / 3270.0, 100.0 * 1237.0 / 3270.0],
        ..PLAIN_TASK
    },
    Task {
        name: "openbookqa",
        label: "OBQA",
        source: "https://huggingface.co/datasets/allenai/openbookqa",
        documents: 500,
        ..LENGTH_NORMALIZED_TASK
    },
    Task {
        name: "rte",
        label: "RTE",
        source: "https://huggingface.co/datasets/nyu-mll/glue",
        documents: 277,
        // 146 documents are entailments, and 131 are not.
        chance: &[50.0, 100.0 * 146.0 / 277.0, 100.0 * 131.0 / 277.0],
        ..PLAIN_TASK
    },
    Task {
        name: "copa",
        label: "CoPa",
        source: "https://huggingface.co/datasets/aps/super_glue",
        documents: 100,
        // The first choice is correct in 55 documents, and the second in 45.
        chance: &[50.0, 55.0, 45.0],
        ..PLAIN_TASK
    },
    Task {
        name: "race",
        label: "Race",
        source: "https://huggingface.co/datasets/EleutherAI/race",
        version: 3,
        split: Split::Test,
        documents: 1045,
        chance: &[25.0],
        ..PLAIN_TASK
    },
    Task {
        name: "race_v2",
        label: "Race (v2)",
        in_paper: false,
        source: "https://huggingface.co/datasets/EleutherAI/race",
        version: 2,
        split: Split::Test,
        documents: 1045,
        chance: &[25.0],
        ..PLAIN_TASK
    },
];

impl Task {
    /// Rule of all built-in tasks for documents without a finite score.
    pub const NON_FINITE: NonFiniteScore = NonFiniteScore::CountedWrong;

    /// Returns the files that contain the task's split at `path`, which is a file or a folder.
    ///
    /// # Errors
    /// Fails if there are no such files, or if a file is named after another split.
    pub fn files(&self, path: &Path) -> Result<Vec<PathBuf>> {
        self.split.files(path).map_err(|error| error.at(format!("task {}", self.name)))
    }

    /// Returns the name of the scored split: `test` or `validation`.
    pub fn split_name(&self) -> &'static str {
        self.split.names()[0]
    }

    /// Returns the task with this name.
    ///
    /// # Errors
    /// Fails if the name is unknown. The message lists the known names and suggests the closest match.
    pub fn find(name: &str) -> Result<&'static Self> {
        TASKS.iter().find(|task| task.name == name).ok_or_else(|| {
            Error::bad_input(format!("unknown task `{name}`")).none_of(name, TASKS.iter().map(|task| task.name))
        })
    }
}

impl PartialEq for Task {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Serializes a task as its name, which identifies an entry in [`TASKS`].
impl Serialize for Task {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

impl<'de> Deserialize<'de> for &'static Task {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Task::find(&String::deserialize(deserializer)?).map_err(|error| de::Error::custom(error.one_line()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_task_is_rejected_with_similar_name() {
        for task in TASKS {
            assert!(std::ptr::eq(Task::find(task.name).unwrap(), task));
        }
        let message = Task::find("arc-easy").unwrap_err().to_string();
        assert!(message.contains("did you mean `arc_easy`?") && message.contains("race_v2"), "{message}");
    }

    #[test]
    fn every_task_reports_the_metric_of_the_paper() {
        let normed: Vec<&str> =
            TASKS.iter().filter(|task| task.paper_metric == AccuracyKind::AccNorm).map(|task| task.name).collect();
        assert_eq!(normed, ["arc_easy", "arc_challenge", "hellaswag", "openbookqa"]);
        assert!(TASKS.iter().all(|task| task.metrics.contains(&task.paper_metric)));
    }
}
