//! What is said of a metric.

use std::fmt;

use crate::evaluate::perplexity::Losses;
use crate::latency::{DecodeResult, LatencyResult};
use crate::recovery::RepairMetrics;
use crate::style::Style;
use crate::tasks::{Answered, Measure, TaskResult};

/// Which way a metric is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Higher,
    Lower,
    /// A share of something of which neither much nor little is good.
    Neither,
}

/// What one of it is.
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
    /// A bare number: perplexities, errors, ratios.
    One,
}

/// How it is measured whether two values are near each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nearness {
    /// By their difference.
    Difference,
    /// By their difference as a part of the reference.
    Relative,
}

/// How two variants are told apart on the same items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairedTest {
    /// The documents that one answers rightly and the other does not.
    Mcnemar,
    /// The same of several tasks, each with the same weight.
    Permutation,
    /// Windows drawn again, by their losses.
    Bootstrap,
}

/// Where a run shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// In a column of each table of a run.
    Always,
    /// The same where backbones with unlike vocabularies stand beside each other, or where the grid names it.
    OfUnlikeVocabularies,
    /// The same where the grid names it.
    IfNamed,
    /// Where an artifact asks for it; it has no value where the cell failed.
    Besides,
    /// The same, and it is not there where there is nothing to tell.
    IfKnown,
}

/// The windows of a text under one variant.
#[derive(Debug, Clone, Copy)]
pub struct TextSample<'a> {
    pub losses: &'a Losses,
    /// Tokens of a window.
    pub length: usize,
    /// Of the text that the predicted tokens stand for, where that is known.
    pub bytes: Option<usize>,
}

/// The documents of a task under one variant.
#[derive(Debug, Clone, Copy)]
pub struct TaskSample<'a> {
    pub result: &'a TaskResult,
    pub answers: &'a Answered,
}

/// What is known of a repair, boundary by boundary.
#[derive(Debug)]
pub struct RepairSample<'a> {
    /// One or more.
    pub boundaries: Vec<&'a RepairMetrics>,
    /// Those of the same cut without a repair, where the grid has it.
    pub unrepaired: Option<Vec<&'a RepairMetrics>>,
}

/// What it is a number of, and how that is worked out: a value, and its error where it has one. None of what cannot be told.
#[derive(Debug, Clone, Copy)]
pub enum Of {
    Text(fn(&TextSample<'_>) -> Option<Measure>),
    /// All texts of a grid together.
    Texts(fn(&[TextSample<'_>]) -> Option<Measure>),
    Task(fn(&TaskSample<'_>) -> Option<Measure>),
    Tasks(fn(&[TaskSample<'_>]) -> Option<Measure>),
    Prompt(fn(&LatencyResult) -> Option<Measure>),
    /// Of what is decoded behind a prompt.
    Decode(fn(&DecodeResult) -> Option<Measure>),
    Repair(fn(&RepairSample<'_>) -> Option<f64>),
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
    /// The word in its ids: `ppl` of `ppl_c4`. Empty where an id is the name of what it is measured on.
    pub id: &'static str,
    /// What a grid and a run's record call it.
    pub name: &'static str,
    /// A column's head in an artifact's table; of what is measured on texts or tasks, what stands behind their names.
    pub label: &'static str,
    /// What stands before the text, the task or the prompt in the head of a run's column; may be empty.
    pub head: &'static str,
    /// What a reader has to know of such a column, in a sentence without its subject.
    pub note: &'static str,
    pub unit: Unit,
    pub direction: Direction,
    /// Digits after the point, where a table does not say otherwise.
    pub decimals: usize,
    pub nearness: Nearness,
    /// What its uncertainty is; none of a metric without one.
    pub spread: Option<Spread>,
    pub test: Option<PairedTest>,
    pub shown: Shown,
    /// How figures draw it beside other metrics.
    pub style: Option<Style>,
    pub of: Of,
}

impl MetricEntry {
    /// The same under one word everywhere, but for an artifact's table.
    pub(super) const fn called(mut self, id: &'static str, label: &'static str) -> Self {
        (self.id, self.name, self.head, self.label) = (id, id, id, label);
        self
    }

    /// Whether a run has a column for it. `unlike` tells that backbones with unlike vocabularies stand beside each other,
    /// `named` are the metrics that the grid names.
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

/// A metric with no more than a look; its entry says what it is.
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
/// Of a text, of which less is better.
pub(super) const OF_TEXT: MetricEntry = MetricEntry { spread: Some(Spread::StandardError), ..BARE };
/// In percent of the documents.
pub(super) const OF_TASK: MetricEntry = MetricEntry {
    unit: Unit::Percent,
    direction: Direction::Higher,
    nearness: Nearness::Difference,
    spread: Some(Spread::StandardError),
    ..BARE
};
/// Of a pass over a prompt.
pub(super) const OF_PROMPT: MetricEntry = MetricEntry { decimals: 1, shown: Shown::Always, ..BARE };
/// Of what is left wrong behind a cut.
pub(super) const OF_REPAIR: MetricEntry = MetricEntry { decimals: 4, ..BARE };
/// A share of something of a repair.
pub(super) const SHARE: MetricEntry = MetricEntry {
    unit: Unit::Share,
    direction: Direction::Neither,
    nearness: Nearness::Difference,
    shown: Shown::IfKnown,
    ..OF_REPAIR
};

/// The mean over some boundaries; none without one.
pub(super) fn mean(boundaries: &[&RepairMetrics], of: fn(&RepairMetrics) -> f64) -> Option<f64> {
    let count = boundaries.len() as f64;
    (!boundaries.is_empty()).then(|| boundaries.iter().map(|boundary| of(boundary)).sum::<f64>() / count)
}
