//! Data for judging a task's answers without its documents. Small enough to be stored with the token ids, so that
//! scores become accuracies without reading or tokenizing.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::result::{ChoiceResult, DocumentResult, Score, TaskResult};
use super::task::Task;
use crate::error::{Error, Result};

/// A task's documents as they are judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Solutions {
    task: String,
    /// Documents of the split, before the limit.
    pub original: usize,
    documents: Vec<Questions>,
}

/// A document as it is judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Questions {
    /// The document's number in the split.
    pub id: usize,
    /// The index of the right choice. An index that there is not, such as -1 in a split with hidden answers, is never
    /// matched (the harness counts such a document as wrong in silence; here it is counted, see [`TaskResult::unanswered`]).
    pub gold: i64,
    /// Characters, bytes, tokens of the continuation, and tokens cut off at the left, of each choice.
    pub choices: Vec<[usize; 4]>,
}

impl Solutions {
    /// Creates the solutions of the scored documents, out of `original` in the split.
    pub fn new(task: &Task, original: usize, documents: Vec<Questions>) -> Self {
        Self { task: task.name.to_owned(), original, documents }
    }

    /// Selects documents by index.
    #[must_use]
    pub fn only(&self, documents: &[usize]) -> Self {
        let documents = documents.iter().filter_map(|&document| self.documents.get(document).cloned()).collect();
        Self { task: self.task.clone(), original: self.original, documents }
    }

    /// # Errors
    /// A task that this program does not know.
    pub fn task(&self) -> Result<&'static Task> {
        Task::find(&self.task)
    }

    /// Returns the number of scored documents.
    pub fn documents(&self) -> usize {
        self.documents.len()
    }

    /// Requests, of all documents together.
    pub fn requests(&self) -> usize {
        self.documents.iter().map(|document| document.choices.len()).sum()
    }

    /// Returns whether all documents of the published split are scored.
    pub fn whole(&self) -> bool {
        self.task().is_ok_and(|task| task.documents == self.original) && self.documents.len() == self.original
    }

    /// Judges all documents; `scores` are the answers to the requests, in their order.
    ///
    /// # Errors
    /// When there are not as many scores as requests.
    pub fn judge(&self, scores: &[Score]) -> Result<Vec<DocumentResult>> {
        if scores.len() != self.requests() {
            return Err(Error::job("the answers do not fit the questions")
                .at(format!("task {}", self.task))
                .expected(format!("{} scores", self.requests()))
                .found(scores.len()));
        }
        Ok(self.judged(scores).collect())
    }

    /// Judges each document, if there are as many scores as requests.
    fn judged(&self, scores: &[Score]) -> impl Iterator<Item = DocumentResult> {
        let mut scores = scores.iter();
        self.documents.iter().map(move |document| {
            let choices = document.choices.iter().zip(scores.by_ref()).map(|(lengths, score)| {
                let [characters, bytes, tokens, truncated_left] = *lengths;
                let Score { log_likelihood, greedy } = *score;
                ChoiceResult { log_likelihood, characters, bytes, tokens, truncated_left, greedy }
            });
            DocumentResult::new(document.id, document.gold, choices.collect())
        })
    }

    /// Computes the accuracies of judged documents.
    ///
    /// # Errors
    /// Without documents.
    pub fn result(&self, documents: &[DocumentResult]) -> Result<TaskResult> {
        TaskResult::of(self.task()?, self.original, documents)
    }
}

/// A model's answers to all questions of a task: the numbers alone, as the questions are the same for every model.
#[derive(Debug, Clone)]
pub struct Answered {
    key: Arc<Solutions>,
    scores: Vec<Score>,
}

impl Answered {
    /// Combines `scores`, the answers to the requests in order, with their accuracies.
    ///
    /// # Errors
    /// When there are not as many scores as requests.
    pub fn new(key: &Arc<Solutions>, scores: Vec<Score>) -> Result<(Self, TaskResult)> {
        let result = key.result(&key.judge(&scores)?)?;
        Ok((Self { key: Arc::clone(key), scores }, result))
    }

    /// Iterates over every choice of every document.
    pub fn documents(&self) -> impl Iterator<Item = DocumentResult> {
        self.key.judged(&self.scores)
    }
}
