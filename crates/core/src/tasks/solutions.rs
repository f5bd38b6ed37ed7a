//! Answer keys for tasks. They are stored with the token ids, so that accuracies can be computed from scores without
//! reading or tokenizing the documents.

use serde::{Deserialize, Serialize};

use super::builtin_tasks::Task;
use super::task_result::{ChoiceResult, DocumentResult, Score};

/// Answer key for the documents of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Solutions {
    pub task: &'static Task,
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
    /// counts these documents as wrong. [`ScoredTask::unanswered`](super::ScoredTask::unanswered) reports their number.
    pub gold: i64,
    /// Numbers of characters, bytes, continuation tokens and truncated tokens for each choice.
    pub choices: Vec<[usize; 4]>,
}

impl Solutions {
    /// Creates the answer key for the scored documents. `original` is the number of documents in the split.
    pub fn new(task: &'static Task, original: usize, documents: Vec<Questions>) -> Self {
        Self { task, original, documents }
    }

    /// Returns the answer key of the documents at the given positions. Skips positions that are out of range.
    #[must_use]
    pub fn subset(&self, documents: &[usize]) -> Self {
        let documents = documents.iter().filter_map(|&document| self.documents.get(document).cloned()).collect();
        Self { documents, ..*self }
    }

    pub fn documents(&self) -> usize {
        self.documents.len()
    }

    pub fn requests(&self) -> usize {
        self.documents.iter().map(|document| document.choices.len()).sum()
    }

    /// Combines each document with its scores. `scores` must contain one score per request.
    pub(super) fn scored_documents(&self, scores: &[Score]) -> impl Iterator<Item = DocumentResult> {
        let mut scores = scores.iter();
        self.documents.iter().map(move |document| {
            let choices = document.choices.iter().zip(scores.by_ref()).map(|(lengths, score)| {
                let [characters, bytes, tokens, truncated_left] = *lengths;
                let Score { log_likelihood, greedy } = *score;
                ChoiceResult { log_likelihood, characters, bytes, tokens, truncated_left, greedy }
            });
            DocumentResult { id: document.id, gold: document.gold, choices: choices.collect() }
        })
    }
}
