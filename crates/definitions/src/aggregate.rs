//! Aggregation of per-document values into one score with a standard error, as in lm-evaluation-harness.

use ghostlab_core::corpus::PythonRandom;
use ghostlab_core::error::{Error, Result};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::edits::ter;
use crate::translation::{bleu, chrf};
use crate::value::Value;

/// Number of bootstrap samples that lm-evaluation-harness draws for a standard error by default.
pub const BOOTSTRAP_DRAWS: usize = 100_000;
const SLOW_METRIC_BOOTSTRAP_DRAWS: usize = 100;

/// Value of a metric for one document.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    Number(f64),
    /// Log-likelihood, and the number of words or bytes by which it is divided.
    Weighted(f64, f64),
    /// Gold label, and index of the predicted choice.
    Labels(Value, i64),
    /// Index of the gold choice, and the probability of each choice.
    Probabilities(usize, Vec<f64>),
    /// Reference text, and generated text.
    Texts(String, String),
}

/// Converts items to booleans, where 1 is true. Returns `None` if any item is neither 0 nor 1.
pub fn bits(items: &[Item]) -> Option<Vec<bool>> {
    let bits = items.iter().map(|item| match item {
        Item::Number(number) if *number == 0.0 || *number == 1.0 => Some(*number == 1.0),
        _ => None,
    });
    bits.collect()
}

impl Item {
    /// Returns 1 for a correct answer and 0 for a wrong one.
    pub(crate) fn hit(hit: bool) -> Self {
        Self::Number(f64::from(u8::from(hit)))
    }

    fn number(&self) -> Option<f64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }
}

/// Function that aggregates the items of a metric into one score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregation {
    Mean,
    /// Median. For an even number of values, it is the larger of the two middle values.
    Median,
    /// Mean that ignores NaN values.
    NanMean,
    /// `exp(-mean)`.
    Perplexity,
    /// `exp(-sum / sum of weights)`.
    WeightedPerplexity,
    /// `-sum / sum of weights`, in bits.
    BitsPerByte,
    /// F1 score for label 1.
    F1,
    /// Mean of the F1 scores for all labels, weighted by label frequency. In lm-evaluation-harness, tasks define it as
    /// a Python hook.
    WeightedF1,
    /// Matthews correlation coefficient.
    Matthews,
    Brier,
    Bleu,
    Chrf,
    Ter,
}

ghostlab_core::named!(
    Aggregation:
    Mean = "mean",
    Median = "median",
    NanMean = "nanmean",
    Perplexity = "perplexity",
    WeightedPerplexity = "weighted_perplexity",
    BitsPerByte = "bits_per_byte",
    F1 = "f1",
    WeightedF1 = "weighted_f1",
    Matthews = "matthews_corrcoef",
    Brier = "brier_score",
    Bleu = "bleu",
    Chrf = "chrf",
    Ter = "ter",
);

impl Aggregation {
    /// Returns whether both aggregations accept the same variant of [`Item`].
    pub fn has_same_items(self, other: Self) -> bool {
        self.item_kind() == other.item_kind()
    }

    /// Returns an id of the [`Item`] variant that the aggregation accepts.
    fn item_kind(self) -> usize {
        match self {
            Self::Mean | Self::Median | Self::NanMean | Self::Perplexity => 0,
            Self::WeightedPerplexity | Self::BitsPerByte => 1,
            Self::F1 | Self::WeightedF1 | Self::Matthews => 2,
            Self::Brier => 3,
            Self::Bleu | Self::Chrf | Self::Ter => 4,
        }
    }

    /// Computes the score.
    ///
    /// # Errors
    /// Fails if `items` is empty, if the labels for F1 are not binary, or if the choices for the Brier score differ in
    /// number or lack a correct one.
    pub fn score(self, items: &[Item]) -> Result<f64> {
        let all: Vec<&Item> = items.iter().collect();
        self.aggregate(&all)
    }

    fn aggregate(self, items: &[&Item]) -> Result<f64> {
        if items.is_empty() {
            return Err(Error::bad_input("no documents to score"));
        }
        let numbers = items.iter().filter_map(|item| item.number());
        let count = items.len() as f64;
        Ok(match self {
            Self::Mean => numbers.sum::<f64>() / count,
            Self::Median => {
                let mut sorted: Vec<f64> = numbers.collect();
                sorted.sort_by(f64::total_cmp);
                sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
            }
            Self::NanMean => {
                let valid: Vec<f64> = numbers.filter(|number| !number.is_nan()).collect();
                valid.iter().sum::<f64>() / valid.len() as f64
            }
            Self::Perplexity => (-(numbers.sum::<f64>() / count)).exp(),
            Self::WeightedPerplexity => (-weighted_mean(items)).exp(),
            Self::BitsPerByte => -weighted_mean(items) / std::f64::consts::LN_2,
            Self::F1 => binary_f1(&label_pairs(items))?,
            Self::WeightedF1 => weighted_f1(&label_pairs(items)),
            Self::Matthews => matthews(&label_pairs(items)),
            Self::Brier => brier(items)?,
            Self::Bleu => bleu(&text_pairs(items)),
            Self::Chrf => chrf(&text_pairs(items)),
            Self::Ter => ter(&text_pairs(items)),
        })
    }

    /// Returns the loss of each document in nats, and the divisor of their sum: the total number of documents, words or
    /// bytes. Returns `None` for aggregations other than perplexity and bits per byte.
    pub fn losses(self, items: &[Item]) -> Option<(Vec<f64>, f64)> {
        let parts: Vec<(f64, f64)> = items
            .iter()
            .map(|item| match (self, item) {
                (Self::Perplexity, Item::Number(number)) => Some((-number, 1.0)),
                (Self::WeightedPerplexity | Self::BitsPerByte, Item::Weighted(number, weight)) => {
                    Some((-number, *weight))
                }
                _ => None,
            })
            .collect::<Option<_>>()?;
        let (losses, weights): (Vec<f64>, Vec<f64>) = parts.into_iter().unzip();
        Some((losses, weights.iter().sum()))
    }

    /// Converts a mean loss in nats to bits per byte if the aggregation is [`Self::BitsPerByte`], and to a perplexity
    /// otherwise.
    pub fn score_from_loss(self, nats: f64) -> f64 {
        if self == Self::BitsPerByte { nats / std::f64::consts::LN_2 } else { nats.exp() }
    }

    /// Returns whether the standard error has to be bootstrapped, which is slow.
    pub fn needs_bootstrap(self) -> bool {
        match self {
            Self::Median | Self::NanMean | Self::Perplexity | Self::F1 | Self::Matthews => true,
            Self::Bleu | Self::Chrf | Self::Ter => true,
            Self::Mean | Self::WeightedPerplexity | Self::BitsPerByte | Self::WeightedF1 | Self::Brier => false,
        }
    }

    /// Computes the standard error. Returns `None` where lm-evaluation-harness reports `N/A`. [`Mean`](Self::Mean) has
    /// a closed form. The other aggregations use `draws` bootstrap samples, but at most 100 for BLEU, chrF and TER. As
    /// in lm-evaluation-harness, which draws [`BOOTSTRAP_DRAWS`] samples, chunk `i` of at most 1,000 samples is drawn
    /// with Python's `Random(i)`.
    ///
    /// # Errors
    /// Fails if a bootstrap sample cannot be scored.
    pub fn error(self, items: &[Item], draws: usize) -> Result<Option<f64>> {
        if items.len() < 2 || draws == 0 {
            return Ok(None);
        }
        let draws = match self {
            Self::Mean => {
                let numbers: Vec<f64> = items.iter().filter_map(Item::number).collect();
                return Ok(Some(standard_deviation(&numbers) / (items.len() as f64).sqrt()));
            }
            Self::Bleu | Self::Chrf | Self::Ter => draws.min(SLOW_METRIC_BOOTSTRAP_DRAWS),
            Self::Median | Self::NanMean | Self::Perplexity | Self::F1 | Self::Matthews => draws,
            Self::WeightedPerplexity | Self::BitsPerByte | Self::WeightedF1 | Self::Brier => return Ok(None),
        };
        let chunk = draws.min(1000);
        let chunks = (0..draws / chunk).into_par_iter();
        let scores: Vec<Vec<f64>> =
            chunks.map(|seed| self.score_resamples(items, seed as u64, chunk)).collect::<Result<_>>()?;
        Ok(Some(standard_deviation(&scores.concat())))
    }

    /// Scores `count` bootstrap samples of `items`, each drawn with replacement.
    fn score_resamples(self, items: &[Item], seed: u64, count: usize) -> Result<Vec<f64>> {
        let mut random = PythonRandom::new(seed);
        let mut drawn: Vec<&Item> = Vec::with_capacity(items.len());
        let scores = (0..count).map(|_| {
            drawn.clear();
            drawn.extend((0..items.len()).map(|_| &items[(random.random() * items.len() as f64) as usize]));
            self.aggregate(&drawn)
        });
        scores.collect()
    }
}

fn text_pairs<'a>(items: &[&'a Item]) -> Vec<(&'a str, &'a str)> {
    let pairs = items
        .iter()
        .filter_map(|item| if let Item::Texts(reference, text) = item { Some((&**reference, &**text)) } else { None });
    pairs.collect()
}

fn standard_deviation(numbers: &[f64]) -> f64 {
    let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
    (numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / (numbers.len() as f64 - 1.0)).sqrt()
}

fn weighted_mean(items: &[&Item]) -> f64 {
    let mut sum = 0.0;
    let mut weights = 0.0;
    for item in items {
        if let Item::Weighted(number, weight) = item {
            sum += number;
            weights += weight;
        }
    }
    sum / weights
}

/// Returns pairs of gold and predicted label as numbers. A gold label that is not an integer becomes -100.
fn label_pairs(items: &[&Item]) -> Vec<(i64, i64)> {
    items
        .iter()
        .filter_map(|item| match item {
            Item::Labels(gold, predicted) => Some((gold.as_int().unwrap_or(-100), *predicted)),
            _ => None,
        })
        .collect()
}

/// Returns how often a label is predicted correctly, how often it is the gold label, and how often it is predicted.
fn count_label(labels: &[(i64, i64)], label: i64) -> (f64, f64, f64) {
    (
        count_pairs(&|(gold, predicted)| *gold == label && *predicted == label, labels),
        count_pairs(&|(gold, _)| *gold == label, labels),
        count_pairs(&|(_, predicted)| *predicted == label, labels),
    )
}

fn count_pairs(is_counted: &dyn Fn(&(i64, i64)) -> bool, labels: &[(i64, i64)]) -> f64 {
    labels.iter().filter(|pair| is_counted(pair)).count() as f64
}

fn f1(labels: &[(i64, i64)], label: i64) -> f64 {
    let (both, gold, predicted) = count_label(labels, label);
    if gold + predicted == 0.0 { 0.0 } else { 2.0 * both / (gold + predicted) }
}

fn distinct_labels(labels: &[(i64, i64)]) -> Vec<i64> {
    let mut all: Vec<i64> = labels.iter().flat_map(|(gold, predicted)| [*gold, *predicted]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn binary_f1(labels: &[(i64, i64)]) -> Result<f64> {
    let all = distinct_labels(labels);
    if all.len() > 2 || all.len() == 2 && !all.contains(&1) {
        return Err(Error::bad_input("`f1` requires the labels 0 and 1")
            .found(format!("labels {all:?}"))
            .hint("use `aggregation: weighted_f1` for more labels"));
    }
    Ok(f1(labels, 1))
}

fn weighted_f1(labels: &[(i64, i64)]) -> f64 {
    let mut sum = 0.0;
    let mut weights = 0.0;
    for label in distinct_labels(labels) {
        let gold = count_label(labels, label).1;
        sum += f1(labels, label) * gold;
        weights += gold;
    }
    sum / weights
}

fn matthews(labels: &[(i64, i64)]) -> f64 {
    let n = labels.len() as f64;
    let mut both = 0.0;
    let mut cross = 0.0;
    let mut gold = 0.0;
    let mut predicted = 0.0;
    for label in distinct_labels(labels) {
        let (b, g, p) = count_label(labels, label);
        both += b;
        cross += g * p;
        gold += g * g;
        predicted += p * p;
    }
    let product = (n * n - gold) * (n * n - predicted);
    if product == 0.0 { 0.0 } else { (both * n - cross) / product.sqrt() }
}

fn brier(items: &[&Item]) -> Result<f64> {
    let mut sum = 0.0;
    let mut classes = None;
    for item in items {
        let Item::Probabilities(gold, all) = item else { continue };
        if classes.is_some_and(|classes| classes != all.len()) || *gold >= all.len() {
            return Err(Error::bad_input(
                "`brier_score` requires an equal number of choices and a correct choice for every document",
            ));
        }
        classes = Some(all.len());
        sum += all.iter().enumerate().map(|(index, p)| (p - f64::from(u8::from(index == *gold))).powi(2)).sum::<f64>();
    }
    Ok(sum / items.len() as f64)
}

/// Metric of a group, with the settings for its aggregation over tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupMetric {
    pub metric: String,
    /// Filters whose scores are aggregated, or `None` for all filters.
    pub filters: Option<Vec<String>>,
    /// Whether tasks are weighted by their number of documents.
    pub by_size: bool,
}

/// Score of a task under one metric and filter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TaskScore {
    pub score: f64,
    /// Standard error, or `None` if it is unknown.
    pub error: Option<f64>,
    pub documents: usize,
}

/// Aggregates task scores into a group score, with a standard error if every task has one. As in lm-evaluation-harness,
/// the error is pooled by task size even if the score is unweighted. Returns `None` if there are no tasks.
pub fn aggregate_group(parts: &[TaskScore], metric: &GroupMetric) -> Option<(f64, Option<f64>)> {
    let total: f64 = parts.iter().map(document_count).sum();
    let score = parts.iter().map(|part| part.score * task_weight(part, metric)).sum::<f64>()
        / parts.iter().map(|part| task_weight(part, metric)).sum::<f64>();
    let errors: Option<Vec<f64>> = parts.iter().map(|part| part.error).collect();
    let pooled = errors.map(|errors| {
        let sum: f64 = parts
            .iter()
            .zip(errors)
            .map(|(part, error)| (document_count(part) - 1.0) * error.powi(2) * document_count(part))
            .sum();
        (sum / (total - parts.len() as f64) / total).sqrt()
    });
    (!parts.is_empty()).then_some((score, pooled))
}

fn task_weight(part: &TaskScore, metric: &GroupMetric) -> f64 {
    if metric.by_size { document_count(part) } else { 1.0 }
}

fn document_count(part: &TaskScore) -> f64 {
    part.documents as f64
}
