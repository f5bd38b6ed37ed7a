//! What has to be known of a task's documents to judge answers, without the documents: small enough to be kept beside
//! the token ids, so that stored scores become accuracies without reading or tokenising anything.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::item::Items;
use super::request::Request;
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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Questions {
    id: usize,
    gold: i64,
    /// Characters, bytes, tokens of the continuation, and tokens cut off at the left, of each choice.
    choices: Vec<[usize; 4]>,
}

impl Solutions {
    /// # Errors
    /// When the requests are not those of these documents.
    pub fn of(items: &Items, requests: &[Request]) -> Result<Self> {
        let mut rest = requests.iter();
        let mut questions = |document: &super::item::Document| {
            let mut choices = Vec::with_capacity(document.prompt.choices.len());
            for (index, choice) in document.prompt.choices.iter().enumerate() {
                let request = rest.next().filter(|request| (request.document, request.choice) == (document.id, index));
                let request = request.ok_or_else(|| {
                    Error::job("the requests are not those of the documents")
                        .at(format!("task {}, {}", items.task.name, document.place))
                        .expected(format!("a request for choice {index}"))
                })?;
                choices.push([
                    choice.text.chars().count(),
                    choice.text.len(),
                    request.continuation_ids.len(),
                    request.truncated_left,
                ]);
            }
            Ok(Questions { id: document.id, gold: document.prompt.gold, choices })
        };
        let documents = items.documents.iter().map(&mut questions).collect::<Result<_>>()?;
        match rest.next() {
            Some(request) => Err(Error::job("the requests are not those of the documents")
                .at(format!("task {}", items.task.name))
                .found(format!("a further request, for document {}", request.document))),
            None => Ok(Self { task: items.task.name.to_string(), original: items.original, documents }),
        }
    }

    /// The same of some documents, by their places.
    #[must_use]
    pub fn only(&self, documents: &[usize]) -> Self {
        let documents = documents.iter().filter_map(|&at| self.documents.get(at).cloned()).collect();
        Self { task: self.task.clone(), original: self.original, documents }
    }

    /// # Errors
    /// A task that this program does not know.
    pub fn task(&self) -> Result<&'static Task> {
        Task::find(&self.task)
    }

    /// Documents that are scored.
    pub fn documents(&self) -> usize {
        self.documents.len()
    }

    /// Requests, of all documents together.
    pub fn requests(&self) -> usize {
        self.documents.iter().map(|document| document.choices.len()).sum()
    }

    /// Whether all documents of the published split are here.
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
                .found(scores.len().to_string()));
        }
        Ok(self.judged(scores).collect())
    }

    /// Each document judged, if there are as many scores as requests.
    fn judged(&self, scores: &[Score]) -> impl Iterator<Item = DocumentResult> {
        let mut scores = scores.iter();
        self.documents.iter().map(move |document| {
            let choices = document.choices.iter().zip(scores.by_ref()).map(|(of, score)| {
                let [characters, bytes, tokens, truncated_left] = *of;
                let Score { log_likelihood, greedy } = *score;
                ChoiceResult { log_likelihood, characters, bytes, tokens, truncated_left, greedy }
            });
            DocumentResult::new(document.id, document.gold, choices.collect())
        })
    }

    /// The accuracies of judged documents.
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
    /// `scores` are the answers to the requests, in their order; with the accuracies that they come to.
    ///
    /// # Errors
    /// When there are not as many scores as requests.
    pub fn new(key: &Arc<Solutions>, scores: Vec<Score>) -> Result<(Self, TaskResult)> {
        let result = key.result(&key.judge(&scores)?)?;
        Ok((Self { key: Arc::clone(key), scores }, result))
    }

    /// Every choice of every document.
    pub fn documents(&self) -> impl Iterator<Item = DocumentResult> {
        self.key.judged(&self.scores)
    }
}

/// Judges all documents of a task; `scores` are the answers to `requests`, in their order.
///
/// # Errors
/// When requests or scores are not those of these documents.
pub fn document_results(items: &Items, requests: &[Request], scores: &[Score]) -> Result<Vec<DocumentResult>> {
    Solutions::of(items, requests)?.judge(scores)
}
