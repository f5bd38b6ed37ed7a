//! Conversion of a model's answers to accuracies.

use std::sync::Arc;

use super::builtin_tasks::AccuracyKind;
use super::solutions::Solutions;
use super::task_result::{DocumentResult, Measure, Score};
use crate::error::{Error, Result};

/// Scores of a model on a task, with the accuracies. All models share the answer key.
#[derive(Debug, Clone)]
pub struct ScoredTask {
    key: Arc<Solutions>,
    scores: Vec<Score>,
    pub acc: Measure,
    /// Accuracy according to [`AccuracyKind::AccNorm`]. It is computed for every task, but reported only for some (see
    /// [`Task::metrics`](super::Task::metrics)).
    pub acc_norm: Measure,
    /// Number of scored documents with a non-finite log-likelihood. A nonzero count means that something is wrong with
    /// the model, for example an overflow in half precision.
    pub non_finite: usize,
    /// Number of scored documents whose correct choice is not among the choices, as in a split with hidden answers.
    /// These documents are counted as wrong.
    pub unanswered: usize,
    /// Number of requests with a truncated context.
    pub truncated: usize,
}

impl ScoredTask {
    /// Combines `scores` with the answer key and computes the accuracies. There must be one score per request, in
    /// order.
    ///
    /// # Errors
    /// Fails if the number of scores differs from the number of requests, or if there are no documents.
    pub fn new(key: &Arc<Solutions>, scores: Vec<Score>) -> Result<Self> {
        if scores.len() != key.requests() {
            return Err(Error::job("the number of scores does not match the number of requests")
                .at(format!("task {}", key.task.name))
                .expected(format!("{} scores", key.requests()))
                .found(scores.len()));
        }
        let documents: Vec<DocumentResult> = key.scored_documents(&scores).collect();
        let measure = |metric| {
            let values: Vec<f64> =
                documents.iter().map(|document| f64::from(u8::from(document.is_correct(metric)))).collect();
            Measure::from_values(&values).ok_or_else(|| {
                Error::job("a task has no scored documents")
                    .at(format!("task {}", key.task.name))
                    .expected("at least one document")
            })
        };
        let choices = documents.iter().flat_map(|document| &document.choices);
        Ok(Self {
            acc: measure(AccuracyKind::Acc)?,
            acc_norm: measure(AccuracyKind::AccNorm)?,
            non_finite: documents.iter().filter(|document| !document.is_finite()).count(),
            unanswered: documents.iter().filter(|document| !document.has_valid_gold()).count(),
            truncated: choices.filter(|choice| choice.truncated_left > 0).count(),
            key: Arc::clone(key),
            scores,
        })
    }

    /// Returns the answer key: the task, and the numbers of documents in its split and in the scored part of it.
    pub fn key(&self) -> &Solutions {
        &self.key
    }

    /// Iterates over the scored documents.
    pub fn documents(&self) -> impl Iterator<Item = DocumentResult> {
        self.key.scored_documents(&self.scores)
    }

    /// Returns the accuracy of the given kind.
    pub fn accuracy(&self, metric: AccuracyKind) -> Measure {
        match metric {
            AccuracyKind::Acc => self.acc,
            AccuracyKind::AccNorm => self.acc_norm,
        }
    }

    /// Returns the accuracy that the paper reports for the task.
    pub fn paper_accuracy(&self) -> Measure {
        self.accuracy(self.key.task.paper_metric)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Questions, TASKS, Task, average};
    use super::*;

    type Choices<'a> = &'a [(f64, usize)];

    /// Scores documents of a task, each given by its correct choice, and the log-likelihoods and lengths of its
    /// choices.
    fn scored(task: &'static Task, original: usize, documents: &[(i64, Choices<'_>)]) -> Result<ScoredTask> {
        let scores = documents.iter().flat_map(|(_, choices)| *choices);
        let scores = scores.map(|&(log_likelihood, _)| Score { log_likelihood, greedy: false }).collect();
        let questions = documents.iter().enumerate().map(|(id, (gold, choices))| Questions {
            id,
            gold: *gold,
            choices: choices.iter().map(|&(_, characters)| [characters, characters, 1, 0]).collect(),
        });
        ScoredTask::new(&Arc::new(Solutions::new(task, original, questions.collect())), scores)
    }

    #[test]
    fn nonfinite_and_unanswered_documents_count_as_wrong() {
        let documents: [(i64, Choices<'_>); 4] = [
            (0, &[(f64::NAN, 1), (-1.0, 1)]),
            (0, &[(-1.0, 1), (-2.0, 1)]),
            (-1, &[(-1.0, 1), (-2.0, 1)]),
            (2, &[(-1.0, 1), (-2.0, 1)]),
        ];
        let answered = scored(&TASKS[0], 9, &documents).unwrap();
        assert_eq!((answered.acc.value, answered.key().documents(), answered.key().original), (0.25, 4, 9));
        assert_eq!((answered.non_finite, answered.unanswered), (1, 2));
        assert!(scored(&TASKS[0], 9, &[]).is_err());
    }

    #[test]
    fn task_average_weighs_tasks_equally() {
        // The column for arc_easy shows acc_norm, which selects choice 0 in these documents. The column for rte shows
        // acc, which selects choice 1.
        let choices: Choices<'_> = &[(-3.0, 9), (-2.0, 1)];
        let paper_accuracy = |name, documents: &[_]| {
            scored(Task::find(name).unwrap(), documents.len(), documents).unwrap().paper_accuracy()
        };
        let easy = paper_accuracy("arc_easy", &[(0, choices), (1, choices)]);
        let rte = paper_accuracy("rte", &[(1, choices); 3]);
        assert_eq!((easy.value, rte.value), (0.5, 1.0));
        let mean = average(&[easy, rte]).unwrap();
        assert_eq!((mean.value, mean.stderr), (0.75, Some(0.25)));
        assert_eq!(average(&[]), None);
        let single = paper_accuracy("rte", &[(1, choices)]);
        assert_eq!(average(&[easy, single]).unwrap().stderr, None);
    }
}
