//! Scores of a variant on a task, and the answers that they are computed from.

use std::borrow::Cow;

use ghostlab_definitions::aggregate::{self, Aggregation, Item};
use ghostlab_definitions::results::Score;
use ghostlab_definitions::{Answer, Value as Chosen};
use serde_json::{Map, Value, json};

use crate::metric::{MetricEntry, Unit};
use crate::tasks::{AccuracyKind, Flip, Measure, ScoredTask};

/// Name of the filter pipeline that leaves answers unchanged.
pub const NO_FILTER: &str = "none";

/// Scores of a variant on a task.
#[derive(Debug, Clone)]
pub struct TaskScores {
    /// Task with its options, as written in the grid.
    pub label: String,
    /// Number of documents in the split. Only `effective` of them are scored.
    pub original: usize,
    pub effective: usize,
    /// Number of texts whose context was truncated.
    pub truncated: usize,
    /// Number of documents with a likelihood that is not finite.
    pub non_finite: usize,
    pub unanswered: usize,
    /// Scores for each metric and filter pipeline.
    pub scores: Vec<Score>,
    pub answers: Answers,
}

/// Answers to the documents of a task.
#[derive(Debug, Clone)]
pub enum Answers {
    /// Answers to a built-in task.
    Builtin(ScoredTask),
    /// Answers to a user-defined task, by `[document][request]`. `items[score][document]` is the metric's value for a
    /// document, computed from the answer `chosen[score][document]`.
    Defined { answers: Vec<Vec<Answer>>, items: Vec<Vec<Item>>, chosen: Vec<Vec<Chosen>> },
}

impl Answers {
    /// Returns the answers to a built-in task, or `None` for a user-defined task.
    pub fn builtin(&self) -> Option<&ScoredTask> {
        match self {
            Self::Builtin(answered) => Some(answered),
            Self::Defined { .. } => None,
        }
    }
}

impl TaskScores {
    /// Creates the scores of a built-in task from its answers.
    pub fn builtin(label: String, answered: ScoredTask) -> Self {
        let key = answered.key();
        let effective = key.documents();
        let score = |kind: &AccuracyKind| {
            let Measure { value: score, stderr: error } = answered.accuracy(*kind);
            Score { metric: kind.name().to_owned(), filter: NO_FILTER.to_owned(), score, error, documents: effective }
        };
        Self {
            label,
            original: key.original,
            effective,
            truncated: answered.truncated,
            non_finite: answered.non_finite,
            unanswered: answered.unanswered,
            scores: key.task.metrics.iter().map(score).collect(),
            answers: Answers::Builtin(answered),
        }
    }

    /// Returns the score for a metric and filter.
    pub fn score(&self, metric: &str, filter: &str) -> Option<&Score> {
        self.scores.iter().find(|score| score.metric == metric && score.filter == filter)
    }

    /// Returns the score that represents the task: the metric in the paper for a built-in task, or else the first one.
    pub fn main_score(&self) -> Option<&Score> {
        match self.answers.builtin() {
            Some(answered) => self.score(answered.key().task.paper_metric.name(), NO_FILTER),
            None => self.scores.first(),
        }
    }

    /// Returns the metric's value and the scored answer for each document of a user-defined task.
    fn items(&self, metric: &str, filter: &str) -> Option<(&Score, &[Item], &[Chosen])> {
        let Answers::Defined { items, chosen, .. } = &self.answers else { return None };
        let index = self.scores.iter().position(|score| score.metric == metric && score.filter == filter)?;
        Some((&self.scores[index], items.get(index)?, chosen.get(index)?))
    }

    /// Returns, for each document, the answer that is scored by a metric and filter, and whether the answer is correct.
    /// Returns `None` if there is no such score, or if the metric does not score each answer as right or wrong.
    fn judged_answers(&self, metric: &str, filter: &str) -> Option<Vec<(Cow<'_, Chosen>, bool)>> {
        if let Some(answered) = self.answers.builtin() {
            let kind = *answered.key().task.metrics.iter().find(|kind| kind.name() == metric)?;
            let each = answered.documents().map(|document| {
                let choice = document.prediction(kind).and_then(|choice| i64::try_from(choice).ok());
                (Cow::Owned(choice.map_or(Chosen::None, Chosen::Int)), document.is_correct(kind))
            });
            return Some(each.collect());
        }
        let (score, items, chosen) = self.items(metric, filter)?;
        Some(chosen.iter().map(Cow::Borrowed).zip(right_answers(score, items)?).collect())
    }

    /// Returns for each document whether a metric and filter score its answer as correct. Returns `None` if there is no
    /// such score, or if the metric does not score each answer as right or wrong.
    pub fn right(&self, metric: &str, filter: &str) -> Option<Vec<bool>> {
        Some(self.judged_answers(metric, filter)?.into_iter().map(|(_, is_right)| is_right).collect())
    }

    /// Returns the losses of the documents from which `aggregation` computes the score for a metric and filter. Returns
    /// `None` if there is no such score, or if it is not computed from losses.
    pub fn losses(&self, metric: &str, filter: &str, aggregation: Aggregation) -> Option<Vec<f64>> {
        Some(aggregation.losses(self.items(metric, filter)?.1)?.0)
    }

    /// Returns for each document whether its answer flips relative to the dense model, for one metric and filter.
    /// Returns `None` if there is no such score, if the metric does not score each answer as right or wrong, or if the
    /// numbers of documents differ.
    pub fn flips(&self, dense: &Self, flip: Flip, metric: &str, filter: &str) -> Option<Vec<bool>> {
        let dense = dense.judged_answers(metric, filter)?;
        let variant = self.judged_answers(metric, filter)?;
        let pairs = dense.iter().zip(&variant).map(|(dense, variant)| flip.matches_answers(dense, variant));
        (dense.len() == variant.len()).then(|| pairs.collect())
    }
}

/// Returns whether each document is answered correctly. Returns `None` unless the score is the mean of zeros and ones.
fn right_answers(score: &Score, items: &[Item]) -> Option<Vec<bool>> {
    let bits = aggregate::bits(items)?;
    let mean = bits.iter().filter(|bit| **bit).count() as f64 / bits.len().max(1) as f64;
    ((mean - score.score).abs() < 1e-12).then_some(bits)
}

/// Returns a score and its standard error in the unit of the metric. Proportions are in percent.
pub fn displayed_score(score: &Score, metric: &MetricEntry) -> Measure {
    let scale = if metric.unit == Unit::Percent { 100.0 } else { 1.0 };
    let error = score.error.filter(|error| error.is_finite());
    Measure { value: scale * score.score, stderr: error.map(|error| scale * error) }
}

/// Returns the scores with the keys that lm-evaluation-harness uses, such as `acc,none` and `acc_stderr,none`.
pub fn harness_scores(scores: &[Score]) -> Map<String, Value> {
    let each = scores.iter().flat_map(|score| {
        let error = score.error.filter(|error| error.is_finite()).map_or(json!("N/A"), |error| json!(error));
        [
            (format!("{},{}", score.metric, score.filter), json!(score.score)),
            (format!("{}_stderr,{}", score.metric, score.filter), error),
        ]
    });
    each.collect()
}
