//! The registry entry of a metric.

use std::fmt;

use super::savings::Savings;
use crate::evaluate::damage::{Damage, Damages, Stretch};
use crate::evaluate::perplexity::Losses;
use crate::latency::{DecodeResult, LatencyResult};
use crate::recovery::RepairMetrics;
use crate::style::Style;
use crate::tasks::{Answered, Flip, Measure, TaskResult};

/// Which way a metric is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Higher,
    Lower,
    /// A share of something of which neither much nor little is good.
    Neither,
}

/// Unit of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Percent,
    /// A share of one.
    Share,
    Milliseconds,
    /// How many in a second.
    PerSecond,
    /// Millions of bytes.
    Megabytes,
    /// How many times as fast.
    Times,
    Bits,
    Nats,
    /// A bare number: perplexities, errors, ratios.
    One,
}

/// How it is measured whether two values are near each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nearness {
    /// Compares by difference.
    Difference,
    /// Compares by difference relative to the reference.
    Relative,
}

/// Paired test of two variants on the same items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairedTest {
    /// The documents that one answers rightly and the other does not.
    Mcnemar,
    /// Sign-flip test over several tasks with equal weight.
    Permutation,
    /// Windows drawn again, by their losses.
    Bootstrap,
}

/// Where a run shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// In a column of each table of a run.
    Always,
    /// In each table of a run if vocabularies differ or the grid names it.
    OfUnlikeVocabularies,
    /// In each table of a run if the grid names it.
    IfNamed,
    /// Where an artifact asks for it; it has no value where the cell failed.
    Besides,
    /// If an artifact asks for it and it has a value.
    IfKnown,
}

/// The windows of a text under one variant.
#[derive(Debug, Clone, Copy)]
pub struct TextSample<'a> {
    pub losses: &'a Losses,
    /// Tokens of a window.
    pub length: usize,
    /// Bytes of text behind the predicted tokens, if known.
    pub bytes: Option<usize>,
    /// Comparison with the dense model, if the grid asks for it.
    pub damages: Option<&'a Damages>,
}

impl TextSample<'_> {
    /// Computes a metric of a text: its value and error. `None` if undefined, or for metrics of other objects.
    pub fn estimate(&self, metric: &MetricEntry) -> Option<Measure> {
        match metric.of {
            Of::Text(estimate) => estimate(self),
            Of::Damage(damage, stretch) => self.damages?.measure(damage, stretch),
            _ => None,
        }
    }

    /// Returns the value of each window that a paired test of a metric compares.
    pub fn by_window(&self, metric: &MetricEntry) -> Vec<f64> {
        match (metric.of, self.damages) {
            (Of::Damage(damage, stretch), Some(damages)) => damages.by_window(damage, stretch),
            _ => self.losses.windows.clone(),
        }
    }
}

/// The documents of a task under one variant.
#[derive(Debug, Clone, Copy)]
pub struct TaskSample<'a> {
    pub result: &'a TaskResult,
    pub answers: &'a Answered,
    /// Answers of the dense model, if the run has them.
    pub dense: Option<&'a Answered>,
}

impl TaskSample<'_> {
    /// Computes a metric of a task: its value and error. `None` if undefined, or for metrics of other objects.
    pub fn estimate(&self, metric: &MetricEntry) -> Option<Measure> {
        match metric.of {
            Of::Task(estimate) => estimate(self),
            Of::Flips(_) => {
                let values: Vec<f64> =
                    self.by_document(metric)?.into_iter().map(|holds| f64::from(u8::from(holds))).collect();
                Measure::of(&values).map(Measure::in_percent)
            }
            _ => None,
        }
    }

    /// Returns whether each document is answered correctly.
    pub fn right(&self) -> Vec<bool> {
        let kind = self.result.task.column;
        self.answers.documents().map(|document| document.right(kind)).collect()
    }

    /// Returns the bit of each document that a paired test of a metric compares: whether it flips, or whether it is answered
    /// correctly. `None` without the dense model's answers to the same documents.
    pub fn by_document(&self, metric: &MetricEntry) -> Option<Vec<bool>> {
        let Of::Flips(flip) = metric.of else { return Some(self.right()) };
        let kind = self.result.task.column;
        let pairs = self.dense?.documents().zip(self.answers.documents());
        pairs.map(|(dense, variant)| (dense.id == variant.id).then(|| flip.holds(&dense, &variant, kind))).collect()
    }
}

/// Repair metrics by boundary.
#[derive(Debug)]
pub struct RepairSample<'a> {
    /// One or more.
    pub boundaries: Vec<&'a RepairMetrics>,
    /// Metrics of the same cut without a repair, if the grid has it.
    pub unrepaired: Option<Vec<&'a RepairMetrics>>,
}

/// The kind of measured object, and the function that computes value and error from it. `None` if undefined.
#[derive(Debug, Clone, Copy)]
pub enum Of {
    Text(fn(&TextSample<'_>) -> Option<Measure>),
    /// A text on which a variant is compared with the dense model.
    Damage(Damage, Stretch),
    /// All texts of a grid together.
    Texts(fn(&[TextSample<'_>]) -> Option<Measure>),
    Task(fn(&TaskSample<'_>) -> Option<Measure>),
    /// A task whose answers are compared with the dense model's.
    Flips(Flip),
    Tasks(fn(&[TaskSample<'_>]) -> Option<Measure>),
    Prompt(fn(&LatencyResult) -> Option<Measure>),
    /// Tokens decoded after a prompt.
    Decode(fn(&DecodeResult) -> Option<Measure>),
    Repair(fn(&RepairSample<'_>) -> Option<f64>),
    /// The program itself, compared with the dense model.
    Size(fn(&Savings) -> f64),
    /// A task or group by a definition of lm-evaluation-harness, which says itself how that is.
    Defined,
}

/// Kind of uncertainty of a number. Each kind has a column of its own in CSV and Parquet files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Standard error over documents or windows.
    StandardError,
    /// Standard deviation over calibration seeds.
    OverSeeds,
    /// Standard deviation over rounds of a timing.
    OverRounds,
    /// Half the width of a 95 % confidence interval.
    Interval,
}

impl Spread {
    pub const ALL: [Self; 4] = [Self::StandardError, Self::OverSeeds, Self::OverRounds, Self::Interval];

    /// Returns the name of its column.
    pub fn column(self) -> &'static str {
        match self {
            Self::StandardError => "stderr",
            Self::OverSeeds => "std_seeds",
            Self::OverRounds => "std_rounds",
            Self::Interval => "ci95",
        }
    }
}

/// All that is known of a metric.
pub struct MetricEntry {
    /// Word of its ids: `ppl` of `ppl_c4`. Empty if an id is the name of the measured object.
    pub id: &'static str,
    /// Name in grids and records.
    pub name: &'static str,
    /// Column header in an artifact's table; for metrics of texts or tasks, the suffix after their name.
    pub label: &'static str,
    /// Prefix before text, task or prompt in the header of a run's column; may be empty.
    pub head: &'static str,
    /// Explanation of the column, as a sentence without a subject.
    pub note: &'static str,
    pub unit: Unit,
    pub direction: Direction,
    /// Digits after the point, where a table does not say otherwise.
    pub decimals: usize,
    pub nearness: Nearness,
    /// Kind of uncertainty, if the metric has one.
    pub spread: Option<Spread>,
    pub test: Option<PairedTest>,
    pub shown: Shown,
    /// Style in figures that compare metrics.
    pub style: Option<Style>,
    pub of: Of,
}

impl MetricEntry {
    /// Sets one name for id, grid, head and label.
    pub(super) const fn called(mut self, id: &'static str, label: &'static str) -> Self {
        (self.id, self.name, self.head, self.label) = (id, id, id, label);
        self
    }

    /// Returns whether a run has a column for the metric. `unlike` says that vocabularies differ; `named` are the metrics
    /// that the grid names.
    pub fn is_column(&self, unlike: bool, named: &[String]) -> bool {
        match self.shown {
            Shown::Always => true,
            Shown::OfUnlikeVocabularies if unlike => true,
            Shown::OfUnlikeVocabularies | Shown::IfNamed => named.iter().any(|name| name == self.name),
            Shown::Besides | Shown::IfKnown => false,
        }
    }
}

impl PartialEq for MetricEntry {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for MetricEntry {}

impl fmt::Debug for MetricEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Defaults of an entry.
pub(super) const BARE: MetricEntry = MetricEntry {
    id: "",
    name: "",
    label: "",
    head: "",
    note: "",
    unit: Unit::One,
    direction: Direction::Lower,
    decimals: 2,
    nearness: Nearness::Relative,
    spread: None,
    test: None,
    shown: Shown::Besides,
    style: None,
    of: Of::Repair(|_| None),
};
/// Defaults of a metric of a text, where less is better.
pub(super) const OF_TEXT: MetricEntry = MetricEntry { spread: Some(Spread::StandardError), ..BARE };
/// In percent of the documents.
pub(super) const OF_TASK: MetricEntry = MetricEntry {
    unit: Unit::Percent,
    direction: Direction::Higher,
    nearness: Nearness::Difference,
    spread: Some(Spread::StandardError),
    ..BARE
};
/// Defaults of a metric of a pass over a prompt.
pub(super) const OF_PROMPT: MetricEntry = MetricEntry { decimals: 1, shown: Shown::Always, ..BARE };
/// Defaults of an error after a repair.
pub(super) const OF_REPAIR: MetricEntry = MetricEntry { decimals: 4, ..BARE };
/// A share of something of a repair.
pub(super) const SHARE: MetricEntry = MetricEntry {
    unit: Unit::Share,
    direction: Direction::Neither,
    nearness: Nearness::Difference,
    shown: Shown::IfKnown,
    ..OF_REPAIR
};

/// Averages over boundaries. `None` without one.
pub(super) fn mean(boundaries: &[&RepairMetrics], part: fn(&RepairMetrics) -> f64) -> Option<f64> {
    let count = boundaries.len() as f64;
    (!boundaries.is_empty()).then(|| boundaries.iter().map(|boundary| part(boundary)).sum::<f64>() / count)
}
