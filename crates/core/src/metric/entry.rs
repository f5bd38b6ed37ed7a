//! Registry entry for a metric.

use std::fmt;

use serde::{Serialize, Serializer};

use super::savings::Savings;
use crate::evaluate::damage_eval::{Damage, Damages, WindowPart};
use crate::evaluate::perplexity::Losses;
use crate::latency::{DecodeResult, LatencyResult};
use crate::recovery::RepairMetrics;
use crate::style::Style;
use crate::tasks::{Flip, Measure};

/// Direction in which a metric improves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Higher,
    Lower,
    /// Neither higher nor lower values are better.
    Neither,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Percent,
    /// A fraction between 0 and 1.
    Share,
    Milliseconds,
    /// Items per second, such as tokens per second.
    PerSecond,
    /// Units of 10⁶ bytes.
    Megabytes,
    /// Speedup factor.
    Times,
    Bits,
    Nats,
    /// A dimensionless number, such as a perplexity, error or ratio.
    One,
}

/// Whether a difference from a reference value is absolute or relative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DifferenceKind {
    Absolute,
    /// Difference relative to the reference.
    Relative,
}

/// Paired test of two variants on the same items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairedTest {
    /// McNemar's test over the documents that only one of the variants answers correctly.
    Mcnemar,
    /// Sign-flip permutation test over several tasks with equal weights.
    Permutation,
    /// Bootstrap over the window losses.
    Bootstrap,
}

/// Visibility of a metric in the tables of a run. The grid is the YAML file that defines the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricVisibility {
    /// Shown in every table of a run.
    Always,
    /// Shown if the vocabularies of the backbones differ or the grid names the metric.
    IfVocabulariesDiffer,
    /// Shown if the grid names the metric.
    IfNamed,
    /// Shown only if an artifact (table or figure of the paper) requests it. Failed cells are listed without a value.
    OnRequest,
    /// Shown only if an artifact requests it and it has a value.
    IfKnown,
}

/// Measurements of a variant on the windows of a text.
#[derive(Debug, Clone, Copy)]
pub struct TextSample<'a> {
    pub losses: &'a Losses,
    /// Number of tokens per window.
    pub length: usize,
    /// Number of bytes that the predicted tokens decode to, if known.
    pub bytes: Option<usize>,
    /// [`Damage`] metrics relative to the dense model, if the grid requests them.
    pub damages: Option<&'a Damages>,
}

impl TextSample<'_> {
    /// Computes a text metric and its error. Returns `None` if it is undefined or the metric is not measured on texts.
    pub fn estimate(&self, metric: &MetricEntry) -> Option<Measure> {
        match metric.source {
            MetricSource::Text(estimate) => estimate(self),
            MetricSource::Damage(damage, part) => self.damages?.measure(damage, part),
            _ => None,
        }
    }

    /// Returns the per-window values that the metric's paired test compares.
    pub fn by_window(&self, metric: &MetricEntry) -> Vec<f64> {
        match (metric.source, self.damages) {
            (MetricSource::Damage(damage, part), Some(damages)) => damages.by_window(damage, part),
            _ => self.losses.windows.clone(),
        }
    }
}

/// Repair metrics of a variant.
#[derive(Debug)]
pub struct RepairSample<'a> {
    /// Metrics at each boundary, the gap that consecutive removed layers leave. Never empty.
    pub boundaries: Vec<&'a RepairMetrics>,
    /// Metrics of the same cut without repair, if the grid includes that variant.
    pub unrepaired: Option<Vec<&'a RepairMetrics>>,
}

/// Data that a metric is computed from, such as the losses on a text or the answers to a task, with the function that
/// computes the value and its error. The function returns `None` if the value is undefined.
#[derive(Debug, Clone, Copy)]
pub enum MetricSource {
    Text(fn(&TextSample<'_>) -> Option<Measure>),
    /// Comparison of a pruned model with the dense model on a text.
    Damage(Damage, WindowPart),
    /// Aggregate over all texts in a grid.
    Texts(fn(&[TextSample<'_>]) -> Option<Measure>),
    /// Main accuracy of a built-in task.
    Task,
    /// Comparison of a pruned model's answers with those of the dense model on a task.
    Flips(Flip),
    /// Aggregate over the main accuracies of the built-in tasks in a grid, which are fractions.
    Tasks(fn(&[Measure]) -> Option<Measure>),
    Prompt(fn(&LatencyResult) -> Option<Measure>),
    /// Decoding of tokens after a prompt.
    Decode(fn(&DecodeResult) -> Option<Measure>),
    Repair(fn(&RepairSample<'_>) -> Option<f64>),
    /// Size of the variant's program, compared with the dense model's.
    Size(fn(&Savings) -> f64),
    /// Task or group from lm-evaluation-harness. Its definition includes the computation.
    Defined,
}

/// Kind of uncertainty of a value. Each kind has its own column in CSV and Parquet files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Standard error over documents or windows.
    StandardError,
    /// Standard deviation over calibration seeds.
    OverSeeds,
    /// Standard deviation over timing rounds.
    OverRounds,
    /// Half-width of a 95 % confidence interval.
    Interval,
}

impl Spread {
    pub const ALL: [Self; 4] = [Self::StandardError, Self::OverSeeds, Self::OverRounds, Self::Interval];

    /// Returns the name of the column that contains the uncertainty.
    pub fn column(self) -> &'static str {
        match self {
            Self::StandardError => "stderr",
            Self::OverSeeds => "std_seeds",
            Self::OverRounds => "std_rounds",
            Self::Interval => "ci95",
        }
    }
}

/// Registry entry for a metric.
pub struct MetricEntry {
    /// Prefix of the ids, such as `ppl` in `ppl_c4`. Empty if an id consists only of the name of the task.
    pub id: &'static str,
    /// Name in grids and records.
    pub name: &'static str,
    /// Column header in artifact tables. For metrics of texts or tasks, a suffix after the name of the text or task.
    pub label: &'static str,
    /// Prefix before the text, task or prompt in the column header of a run. May be empty.
    pub head: &'static str,
    /// Explanation of the column, as a noun phrase.
    pub note: &'static str,
    pub unit: Unit,
    pub direction: Direction,
    /// Default number of decimals in tables.
    pub decimals: usize,
    pub difference: DifferenceKind,
    /// Kind of uncertainty, if the metric has one.
    pub spread: Option<Spread>,
    pub test: Option<PairedTest>,
    pub visibility: MetricVisibility,
    /// Style in figures that compare several metrics.
    pub style: Option<Style>,
    pub source: MetricSource,
}

impl MetricEntry {
    /// Sets the id, the name and the column header to `id`, and sets the label.
    pub(super) const fn with_name(mut self, id: &'static str, label: &'static str) -> Self {
        (self.id, self.name, self.head, self.label) = (id, id, id, label);
        self
    }

    /// Returns the header of a run's column for a text, task or prompt, such as `ppl c4@512` or `arc_easy`.
    pub fn column_header(&self, item: &dyn fmt::Display) -> String {
        if self.head.is_empty() { item.to_string() } else { format!("{} {item}", self.head) }
    }

    /// Returns whether the results table has a column for this metric. `vocabularies_differ` is true if the compared
    /// models use different vocabularies. `named` lists the metrics requested in the grid.
    pub fn is_column(&self, vocabularies_differ: bool, named: &[String]) -> bool {
        match self.visibility {
            MetricVisibility::Always => true,
            MetricVisibility::IfVocabulariesDiffer if vocabularies_differ => true,
            MetricVisibility::IfVocabulariesDiffer | MetricVisibility::IfNamed => {
                named.iter().any(|name| name == self.name)
            }
            MetricVisibility::OnRequest | MetricVisibility::IfKnown => false,
        }
    }
}

impl Serialize for MetricEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
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

pub(super) const DEFAULTS: MetricEntry = MetricEntry {
    id: "",
    name: "",
    label: "",
    head: "",
    note: "",
    unit: Unit::One,
    direction: Direction::Lower,
    decimals: 2,
    difference: DifferenceKind::Relative,
    spread: None,
    test: None,
    visibility: MetricVisibility::OnRequest,
    style: None,
    source: MetricSource::Repair(|_| None),
};
/// Defaults for text metrics, for which lower is better.
pub(super) const TEXT_DEFAULTS: MetricEntry = MetricEntry { spread: Some(Spread::StandardError), ..DEFAULTS };
/// Defaults for task metrics, which are percentages of documents.
pub(super) const TASK_DEFAULTS: MetricEntry = MetricEntry {
    unit: Unit::Percent,
    direction: Direction::Higher,
    difference: DifferenceKind::Absolute,
    spread: Some(Spread::StandardError),
    ..DEFAULTS
};
/// Defaults for metrics of a prompt's forward pass.
pub(super) const PROMPT_DEFAULTS: MetricEntry =
    MetricEntry { decimals: 1, visibility: MetricVisibility::Always, ..DEFAULTS };
/// Defaults for repair errors.
pub(super) const REPAIR_DEFAULTS: MetricEntry = MetricEntry { decimals: 4, ..DEFAULTS };
/// Defaults for repair metrics that are fractions.
pub(super) const FRACTION_DEFAULTS: MetricEntry = MetricEntry {
    unit: Unit::Share,
    direction: Direction::Neither,
    difference: DifferenceKind::Absolute,
    visibility: MetricVisibility::IfKnown,
    ..REPAIR_DEFAULTS
};

/// Averages a metric over boundaries. Returns `None` if there are none.
pub(super) fn mean_over_boundaries(boundaries: &[&RepairMetrics], metric: fn(&RepairMetrics) -> f64) -> Option<f64> {
    let count = boundaries.len() as f64;
    (!boundaries.is_empty()).then(|| boundaries.iter().map(|boundary| metric(boundary)).sum::<f64>() / count)
}
