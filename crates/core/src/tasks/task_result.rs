//! Conversion of a model's answers to accuracies.

use serde::{Deserialize, Serialize};

use super::builtin_tasks::{AccuracyKind, Task};
use super::non_finite_score::NonFiniteScore;
use crate::error::{Error, Result};
use crate::files::number;

/// Score of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// Sum of the log-probabilities of the tokens in the continuation. The log-probabilities are computed by a
    /// log-softmax in f32 and added in f64.
    pub log_likelihood: f64,
    /// Whether every continuation token was the most likely one.
    pub greedy: bool,
}

/// A scored choice, with the raw values from which all metrics are derived.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ChoiceResult {
    /// Log-likelihood in nats. Serialized as `"NaN"`, `"inf"` or `"-inf"` if it is not finite.
    #[serde(with = "number")]
    pub log_likelihood: f64,
    /// Number of code points in the choice without its leading space. `acc_norm` divides by this number.
    pub characters: usize,
    /// Length of the choice in UTF-8 bytes.
    pub bytes: usize,
    /// Number of tokens in the continuation.
    pub tokens: usize,
    /// Number of tokens removed from the start of the context.
    pub truncated_left: usize,
    pub greedy: bool,
}

/// A scored document. [`TaskResult::non_finite`] counts the documents with a log-likelihood that is not finite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DocumentResult {
    /// Index of the document in the split.
    pub id: usize,
    /// Index of the correct choice. An invalid index never matches.
    pub gold: i64,
    pub choices: Vec<ChoiceResult>,
    /// Choice with the highest log-likelihood. Ties go to the first choice.
    pub pred: Option<usize>,
    /// Choice with the highest log-likelihood per character. Ties go to the first choice.
    pub pred_norm: Option<usize>,
}

impl DocumentResult {
    /// Creates a document and derives its predictions from its choices.
    pub fn new(id: usize, gold: i64, choices: Vec<ChoiceResult>, non_finite: NonFiniteScore) -> Self {
        let pred = non_finite.best_choice(choices.iter().map(|choice| (choice.log_likelihood, 1)));
        let pred_norm = non_finite.best_choice(choices.iter().map(|choice| (choice.log_likelihood, choice.characters)));
        Self { id, gold, choices, pred, pred_norm }
    }

    /// Returns whether the metric's prediction is correct.
    pub fn is_correct(&self, metric: AccuracyKind) -> bool {
        self.prediction(metric).is_some_and(|pred| i64::try_from(pred) == Ok(self.gold))
    }

    /// Returns the choice that a metric predicts.
    pub fn prediction(&self, metric: AccuracyKind) -> Option<usize> {
        match metric {
            AccuracyKind::Acc => self.pred,
            AccuracyKind::AccNorm => self.pred_norm,
        }
    }

    /// Returns whether every log-likelihood is finite.
    pub fn is_finite(&self) -> bool {
        self.choices.iter().all(|choice| choice.log_likelihood.is_finite())
    }

    /// Returns whether the index of the correct choice is valid.
    fn has_valid_gold(&self) -> bool {
        usize::try_from(self.gold).is_ok_and(|gold| gold < self.choices.len())
    }
}

/// Accuracies on a task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskResult {
    pub task: &'static Task,
    /// Number of documents in the split.
    pub original: usize,
    /// Number of scored documents.
    pub effective: usize,
    pub acc: Measure,
    /// Accuracy according to [`AccuracyKind::AccNorm`]. It is computed for every task, but reported only for some (see
    /// [`Task::metrics`]).
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

impl TaskResult {
    /// Computes the accuracies on a task. `original` is the number of documents in the split.
    ///
    /// # Errors
    /// Fails if there are no documents.
    pub fn from_documents(task: &'static Task, original: usize, documents: &[DocumentResult]) -> Result<Self> {
        let measure = |metric| {
            let values: Vec<f64> =
                documents.iter().map(|document| f64::from(u8::from(document.is_correct(metric)))).collect();
            Measure::from_values(&values).ok_or_else(|| {
                Error::job("a task has no scored documents")
                    .at(format!("task {}", task.name))
                    .expected("at least one document")
            })
        };
        let choices = documents.iter().flat_map(|document| &document.choices);
        Ok(Self {
            task,
            original,
            effective: documents.len(),
            acc: measure(AccuracyKind::Acc)?,
            acc_norm: measure(AccuracyKind::AccNorm)?,
            non_finite: count_documents(&|document| !document.is_finite(), documents),
            unanswered: count_documents(&|document| !document.has_valid_gold(), documents),
            truncated: choices.filter(|choice| choice.truncated_left > 0).count(),
        })
    }

    /// Returns the accuracy of the given kind.
    pub fn measure(&self, metric: AccuracyKind) -> Measure {
        match metric {
            AccuracyKind::Acc => self.acc,
            AccuracyKind::AccNorm => self.acc_norm,
        }
    }

    /// Returns the accuracy that the paper reports for the task.
    pub fn paper_accuracy(&self) -> Measure {
        self.measure(self.task.paper_metric)
    }
}

fn count_documents(is_counted: &dyn Fn(&DocumentResult) -> bool, documents: &[DocumentResult]) -> usize {
    documents.iter().filter(|document| is_counted(document)).count()
}

/// Computes the paper's average: the unweighted mean of the tasks' columns. Its standard error is sqrt(Σ se²) / tasks,
/// assuming that the tasks are independent. Returns `None` if there are no tasks.
#[allow(clippy::cast_precision_loss, reason = "there are nine tasks")]
pub fn average<'a>(results: impl IntoIterator<Item = &'a TaskResult>) -> Option<Measure> {
    let columns: Vec<Measure> = results.into_iter().map(TaskResult::paper_accuracy).collect();
    let values: Vec<f64> = columns.iter().map(|column| column.value).collect();
    let value = Measure::from_values(&values)?.value;
    let squares: Option<f64> = columns.iter().map(|column| column.stderr.map(|stderr| stderr * stderr)).sum();
    Some(Measure { value, stderr: squares.map(|squares| squares.sqrt() / columns.len() as f64) })
}

/// A mean over documents or tasks, with its standard error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    pub value: f64,
    /// Standard error of the mean, or `None` for a single value.
    pub stderr: Option<f64>,
}

impl Measure {
    /// Computes the mean and its standard error, sqrt(Σ(x − mean)² / (n − 1)) / sqrt(n). Returns `None` if there are no
    /// values.
    #[allow(clippy::cast_precision_loss, reason = "no task has 2⁵³ documents")]
    pub(crate) fn from_values(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        if values.is_empty() {
            return None;
        }
        // Sum sequentially, like lm-evaluation-harness, so that the last digit agrees.
        let value = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|x| (x - value) * (x - value)).sum();
        let stderr = (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt() / count.sqrt());
        Some(Self { value, stderr })
    }

    /// Converts a fraction to percent.
    pub(crate) fn in_percent(self) -> Self {
        Self { value: 100.0 * self.value, stderr: self.stderr.map(|error| 100.0 * error) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{TASKS, average};
    use super::*;

    fn choices(scores: &[(f64, usize)]) -> Vec<ChoiceResult> {
        scores
            .iter()
            .map(|(log_likelihood, characters)| ChoiceResult {
                log_likelihood: *log_likelihood,
                characters: *characters,
                bytes: *characters,
                tokens: 1,
                truncated_left: 0,
                greedy: false,
            })
            .collect()
    }

    fn document(id: usize, gold: i64, scores: &[(f64, usize)]) -> DocumentResult {
        DocumentResult::new(id, gold, choices(scores), NonFiniteScore::CountedWrong)
    }

    fn predictions(scores: &[(f64, usize)]) -> (Option<usize>, Option<usize>) {
        let document = document(0, 0, scores);
        (document.pred, document.pred_norm)
    }

    #[test]
    fn prediction_is_the_first_of_ties_and_skips_empty_choices() {
        assert_eq!(predictions(&[(-3.0, 1), (-2.0, 1), (-2.0, 1)]), (Some(1), Some(1)));
        assert_eq!(predictions(&[(-4.0, 8), (-2.0, 2)]), (Some(1), Some(0)));
        assert_eq!(predictions(&[(-1.0, 0), (-9.0, 1)]), (Some(0), Some(1)));
        assert_eq!(predictions(&[(0.0, 0), (-9.0, 1)]), (Some(0), Some(1)), "an empty choice must not be selected");
        assert_eq!(
            predictions(&[(-1.0, 0), (-0.5, 0)]),
            (Some(1), Some(0)),
            "the first choice is selected if all are −∞"
        );
        assert_eq!(predictions(&[]), (None, None));
    }

    #[test]
    fn nonfinite_document_counts_as_wrong_without_prediction() {
        for nonfinite in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(predictions(&[(nonfinite, 1), (-1.0, 1)]), (None, None));
            assert_eq!(predictions(&[(-1.0, 1), (nonfinite, 1)]), (None, None));
        }
        let documents = [
            document(0, 0, &[(f64::NAN, 1), (-1.0, 1)]),
            document(1, 0, &[(-1.0, 1), (-2.0, 1)]),
            document(2, -1, &[(-1.0, 1), (-2.0, 1)]),
            document(3, 2, &[(-1.0, 1), (-2.0, 1)]),
        ];
        let result = TaskResult::from_documents(&TASKS[0], 9, &documents).unwrap();
        assert_eq!((result.acc.value, result.effective, result.original), (0.25, 4, 9));
        assert_eq!((result.non_finite, result.unanswered), (1, 2));
        assert!(TaskResult::from_documents(&TASKS[0], 9, &[]).is_err());
    }

    #[test]
    fn nonfinite_document_round_trips_through_json() {
        for log_likelihood in [-1.5, -3.0, f64::INFINITY, f64::NEG_INFINITY] {
            let document = document(3, 1, &[(log_likelihood, 4), (-0.1, 7)]);
            let text = serde_json::to_string(&document).unwrap();
            assert_eq!(serde_json::from_str::<DocumentResult>(&text).unwrap(), document, "{text}");
        }
        let text = serde_json::to_string(&choices(&[(f64::NAN, 1)])).unwrap();
        assert!(text.contains("\"NaN\""), "{text}");
        assert!(serde_json::from_str::<Vec<ChoiceResult>>(&text).unwrap()[0].log_likelihood.is_nan());
        assert!(serde_json::from_str::<Vec<ChoiceResult>>(&text.replace("NaN", "none")).is_err());
    }

    #[test]
    fn task_average_weighs_tasks_equally() {
        // The column for arc_easy shows acc_norm, which selects choice 0 in these documents. The column for rte shows
        // acc, which selects choice 1.
        let easy = TaskResult::from_documents(
            Task::find("arc_easy").unwrap(),
            2,
            &[document_with_gold(0), document_with_gold(1)],
        )
        .unwrap();
        let rte = TaskResult::from_documents(
            Task::find("rte").unwrap(),
            3,
            &[document_with_gold(1), document_with_gold(1), document_with_gold(1)],
        )
        .unwrap();
        assert_eq!((easy.paper_accuracy().value, rte.paper_accuracy().value), (0.5, 1.0));
        let mean = average(&[easy.clone(), rte]).unwrap();
        assert_eq!((mean.value, mean.stderr), (0.75, Some(0.25)));
        assert_eq!(average([]), None);
        let single = TaskResult::from_documents(Task::find("rte").unwrap(), 1, &[document_with_gold(1)]).unwrap();
        assert_eq!(average(&[easy, single]).unwrap().stderr, None);
    }

    fn document_with_gold(gold: i64) -> DocumentResult {
        document(0, gold, &[(-3.0, 9), (-2.0, 1)])
    }

    #[test]
    fn standard_error_matches_its_closed_form() {
        let measure = Measure::from_values(&[1.0, 0.0, 0.0, 1.0]).unwrap();
        assert_eq!(measure.value, 0.5);
        // For zeros and ones, the standard error is sqrt(p (1 − p) / (n − 1)).
        assert!((measure.stderr.unwrap() - (0.25_f64 / 3.0).sqrt()).abs() < 1e-15);
        assert_eq!(Measure::from_values(&[1.0]), Some(Measure { value: 1.0, stderr: None }));
        assert_eq!(Measure::from_values(&[]), None);
    }
}
