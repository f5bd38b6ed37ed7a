//! Answer keys for tasks. They are stored with the token ids, so that accuracies can be computed from scores without
//! reading or tokenizing the documents.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::builtin_tasks::Task;
use super::non_finite_score::NonFiniteScore;
use super::task_result::{ChoiceResult, DocumentResult, Score, TaskResult};
use crate::error::{Error, Result};

/// Answer key for the documents of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Solutions {
    task: String,
    /// Number of documents in the split, before the limit.
    pub original: usize,
    documents: Vec<Questions>,
}

/// Answer key for one document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Questions {
    /// Index of the document in the split.
    pub id: usize,
    /// Index of the correct choice. An invalid index, such as -1 for hidden answers, never matches. lm-eval silently
    /// counts these documents as wrong. [`TaskResult::unanswered`] reports their number.
    pub gold: i64,
    /// Numbers of characters, bytes, continuation tokens and truncated tokens for each choice.
    pub choices: Vec<[usize; 4]>,
}

impl Solutions {
    /// Creates the answer key for the scored documents. `original` is the number of documents in the split.
    pub fn new(task: &Task, original: usize, documents: Vec<Questions>) -> Self {
        Self { task: task.name.to_owned(), original, documents }
    }

    /// Returns the answer key of the documents at the given positions. Skips positions that are out of range.
    #[must_use]
    pub fn subset(&self, documents: &[usize]) -> Self {
        let documents = documents.iter().filter_map(|&document| self.documents.get(document).cloned()).collect();
        Self { task: self.task.clone(), original: self.original, documents }
    }

    /// Returns the task definition.
    ///
    /// # Errors
    /// Fails if the task is unknown.
    pub fn task(&self) -> Result<&'static Task> {
        Task::find(&self.task)
    }

    pub fn documents(&self) -> usize {
        self.documents.len()
    }

    pub fn requests(&self) -> usize {
        self.documents.iter().map(|document| document.choices.len()).sum()
    }

    /// Evaluates all documents. `scores` must contain one score per request, in order.
    ///
    /// # Errors
    /// Fails if the number of scores differs from the number of requests, or if the task is unknown.
    pub fn judge(&self, scores: &[Score]) -> Result<Vec<DocumentResult>> {
        if scores.len() != self.requests() {
            return Err(Error::job("the number of scores does not match the number of requests")
                .at(format!("task {}", self.task))
                .expected(format!("{} scores", self.requests()))
                .found(scores.len()));
        }
        Ok(self.evaluate_documents(scores, self.task()?.non_finite).collect())
    }

    /// Evaluates each document. `scores` must contain one score per request.
    fn evaluate_documents(&self, scores: &[Score], non_finite: NonFiniteScore) -> impl Iterator<Item = DocumentResult> {
        let mut scores = scores.iter();
        self.documents.iter().map(move |document| {
            let choices = document.choices.iter().zip(scores.by_ref()).map(|(lengths, score)| {
                let [characters, bytes, tokens, truncated_left] = *lengths;
                let Score { log_likelihood, greedy } = *score;
                ChoiceResult { log_likelihood, characters, bytes, tokens, truncated_left, greedy }
            });
            DocumentResult::new(document.id, document.gold, choices.collect(), non_finite)
        })
    }

    /// Computes the accuracies from evaluated documents.
    ///
    /// # Errors
    /// Fails if there are no documents.
    pub fn result(&self, documents: &[DocumentResult]) -> Result<TaskResult> {
        TaskResult::from_documents(self.task()?, self.original, documents)
    }
}

/// Scores of a model on a task. All models share the answer key.
#[derive(Debug, Clone)]
pub struct ScoredTask {
    key: Arc<Solutions>,
    scores: Vec<Score>,
    pub result: TaskResult,
}

impl ScoredTask {
    /// Combines `scores` with the answer key and computes the accuracies. There must be one score per request, in
    /// order.
    ///
    /// # Errors
    /// Fails if the number of scores differs from the number of requests.
    pub fn new(key: &Arc<Solutions>, scores: Vec<Score>) -> Result<Self> {
        let result = key.result(&key.judge(&scores)?)?;
        Ok(Self { key: Arc::clone(key), scores, result })
    }

    /// Iterates over the evaluated documents.
    pub fn documents(&self) -> impl Iterator<Item = DocumentResult> {
        self.key.evaluate_documents(&self.scores, self.result.task.non_finite)
    }

    /// Returns, for each document, whether the metric in the paper counts its answer as correct.
    pub fn right(&self) -> Vec<bool> {
        let kind = self.result.task.paper_metric;
        self.documents().map(|document| document.is_correct(kind)).collect()
    }
}
