//! Scores of choices and documents, and accuracies with their standard errors.

use serde::{Deserialize, Serialize};

use super::builtin_tasks::{AccuracyKind, Task};

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
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChoiceResult {
    /// Log-likelihood in nats.
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

impl ChoiceResult {
    /// Returns the length by which a metric divides the log-likelihood.
    pub fn length(&self, metric: AccuracyKind) -> usize {
        match metric {
            AccuracyKind::Acc => 1,
            AccuracyKind::AccNorm => self.characters,
        }
    }
}

/// A scored document. [`ScoredTask::non_finite`](super::ScoredTask::non_finite) counts the documents with a
/// log-likelihood that is not finite.
#[derive(Debug, Clone, PartialEq)]
pub struct DocumentResult {
    /// Index of the document in the split.
    pub id: usize,
    /// Index of the correct choice. An invalid index never matches.
    pub gold: i64,
    pub choices: Vec<ChoiceResult>,
}

impl DocumentResult {
    /// Returns whether the metric's prediction is correct.
    pub fn is_correct(&self, metric: AccuracyKind) -> bool {
        self.prediction(metric).is_some_and(|pred| i64::try_from(pred) == Ok(self.gold))
    }

    /// Returns the choice that a metric predicts: the one with the highest log-likelihood per unit of length. Ties go
    /// to the first choice.
    pub fn prediction(&self, metric: AccuracyKind) -> Option<usize> {
        let choices = self.choices.iter().map(|choice| (choice.log_likelihood, choice.length(metric)));
        Task::NON_FINITE.best_choice(choices)
    }

    /// Returns whether every log-likelihood is finite.
    pub fn is_finite(&self) -> bool {
        self.choices.iter().all(|choice| choice.log_likelihood.is_finite())
    }

    /// Returns whether the index of the correct choice is valid.
    pub(super) fn has_valid_gold(&self) -> bool {
        usize::try_from(self.gold).is_ok_and(|gold| gold < self.choices.len())
    }
}

/// Computes the paper's average: the unweighted mean of the tasks' columns. Its standard error is sqrt(Σ se²) / tasks,
/// assuming that the tasks are independent. Returns `None` if there are no tasks.
#[allow(clippy::cast_precision_loss, reason = "there are nine tasks")]
pub fn average(columns: &[Measure]) -> Option<Measure> {
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
    use super::*;

    type Choices<'a> = &'a [(f64, usize)];

    fn document(id: usize, gold: i64, scores: Choices<'_>) -> DocumentResult {
        let choices = scores.iter().map(|(log_likelihood, characters)| ChoiceResult {
            log_likelihood: *log_likelihood,
            characters: *characters,
            bytes: *characters,
            tokens: 1,
            truncated_left: 0,
            greedy: false,
        });
        DocumentResult { id, gold, choices: choices.collect() }
    }

    fn predictions(scores: Choices<'_>) -> (Option<usize>, Option<usize>) {
        let document = document(0, 0, scores);
        (document.prediction(AccuracyKind::Acc), document.prediction(AccuracyKind::AccNorm))
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
