//! Rows of all cells, one per number. Cells may have been skipped by the gate ([`Gate`](crate::artifact::Gate)).

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::number_record::Record;
use super::settings::{OPERATOR_SEQUENCES, SEED, select_settings};
use super::{MeasuredProgram, Protocol, Settings};
use crate::corpus::ShardOrder;
use crate::distill::Finetune;
use crate::files::sha256;
use crate::grid::{Calibration, Cell};
use crate::metric::{Metric, Spread};
use crate::model::Cut;
use crate::pipeline::identity::{Canonical, Identity, MeasureId};

#[derive(Debug, Clone, Default)]
pub struct Results {
    /// Cells and their numbers, in grid order.
    pub cells: Vec<CellSummary>,
    /// Protocols of the columns in the run's table: one per evaluation, and one for the average over tasks.
    pub protocols: Vec<Protocol>,
}

#[derive(Debug, Clone, Default)]
pub struct CellSummary {
    /// Grid cell. If several seeds are merged, this is the cell for the first seed.
    pub cell: Cell,
    /// Removed layers or sublayers, counted from 0.
    pub removed: Cut,
    /// Removed layers and operators, one entry per averaged seed; empty if the cell failed or did not finish.
    pub programs: Vec<MeasuredProgram>,
    pub layers: usize,
    /// Calibration label that lists all merged seeds; `None` for the dense backbone.
    pub calibration: Option<String>,
    pub settings: Arc<Settings>,
    pub seconds: f64,
    pub notes: Vec<String>,
    pub failure: Option<String>,
    /// First stored object that is missing, if the cell is incomplete.
    pub missing: Option<String>,
    /// Numbers, one per column.
    pub numbers: Vec<Arc<ResultRow>>,
}

/// Row of the results: one number for a cell. `numbers.json` stores all fields except `metric` and `setup`.
#[derive(Debug, Clone, PartialEq)]
pub struct ResultRow {
    pub record: Record,
    /// Metric of the record, with its direction and format.
    pub metric: Metric,
    /// Cell name, as in `plan` and `explain`.
    pub cell: String,
    /// Column in the run's table, such as `ppl c4@512`: the metric and what it is measured on. Two backbones may
    /// measure the same column differently, because each has its own context length. If no run's table shows the
    /// number, this is the metric id.
    pub column: String,
    /// Reason why the value is missing.
    pub failure: Option<String>,
    pub sample: Sample,
    /// Inputs from which the number was computed. Empty if the row was read from a file.
    pub setup: Setup,
}

/// Items from which a number is computed, such as answers or losses. Their order is the same for the dense model and
/// all pruned variants of a backbone.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Sample {
    #[default]
    None,
    /// For each task, whether each document was answered correctly or, for a flip metric, whether its answer flips
    /// relative to the dense model. Only an average has several tasks.
    Answers(Vec<Vec<bool>>),
    /// Loss of each window in nats per token, or the window values that the metric averages. For a perplexity from a
    /// task definition, the loss of each document in nats.
    Losses(Vec<f64>),
    /// No value, because the measurement ran out of memory.
    OutOfMemory,
    /// Speedup computed from noisy times.
    NoisyTimes,
    /// Rows averaged over calibration seeds. The error of the mean is their standard deviation.
    Seeds(Vec<Arc<ResultRow>>),
}

impl Sample {
    /// Creates the answers to one task.
    pub fn of_task(answers: Vec<bool>) -> Self {
        Self::Answers(vec![answers])
    }

    /// Parses the answers to a task from a string of digits, where `1` stands for a correct answer.
    #[cfg(test)]
    pub(super) fn from_bits(bits: &str) -> Self {
        Self::of_task(bits.chars().map(|bit| bit == '1').collect())
    }
}

/// Inputs from which a number was computed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Setup {
    /// Settings of the cell.
    pub variant: Arc<Settings>,
    /// Settings of the measurement.
    pub measure: Settings,
    /// Names of the cell settings that the record's condition contains.
    pub named_settings: Arc<BTreeSet<String>>,
    /// Identity of the dense or pruned model, which does not depend on names; `None` for a cell that the gate skipped.
    pub identity: Option<Arc<Identity>>,
    /// Identities of the measurements from which the number is computed; several for an average.
    pub measures: Vec<Arc<MeasureId>>,
    /// Protocols of the scored data. An average has the protocols of everything it averages.
    pub scored: Vec<Protocol>,
    /// Calibration; `None` for the dense backbone.
    pub calibration: Option<CalibrationSummary>,
    /// Reason why the backbone could not be identified as the published one. `None` if it was identified or if this was
    /// not checked.
    pub unidentified: Option<String>,
    /// Whether the calibration data is insufficient to determine the repair. Such numbers are not ranked, and no other
    /// number is tested against them.
    pub undetermined: bool,
}

/// Calibration of a cell, with the settings of its corpus and whether its repair was computed or fine-tuned.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibrationSummary {
    pub calibration: Calibration,
    pub rule: String,
    pub shards: Option<ShardOrder>,
    pub generated: bool,
    /// Whether an operator was computed to repair the cut.
    pub repaired: bool,
    pub finetune: Option<Finetune>,
}

impl Setup {
    /// Adds a measurement to the setup of an average. `measure` are its settings.
    pub(super) fn add_averaged(&mut self, measured: Self, measure: Settings) {
        self.measure.extend(measure);
        self.scored.extend(measured.scored);
        self.measures.extend(measured.measures);
    }
}

impl CellSummary {
    /// Returns the number in the same column as `other`, a number of another cell.
    pub fn number(&self, other: &ResultRow) -> Option<&Arc<ResultRow>> {
        self.numbers.iter().find(|number| number.has_same_column(other))
    }
}

impl ResultRow {
    /// Creates a row without items and setup, whose column is the metric id.
    #[cfg(test)]
    pub fn new(record: Record, cell: impl Into<String>) -> Self {
        Self {
            metric: Metric::find_or_task(&record.metric),
            column: record.metric.clone(),
            record,
            cell: cell.into(),
            failure: None,
            sample: Sample::None,
            setup: Setup::default(),
        }
    }

    /// Returns the losses from which the number is computed. Returns `None` if any of them is not finite, because JSON
    /// and paired tests do not support such losses.
    pub fn losses(&self) -> Option<&[f64]> {
        match &self.sample {
            Sample::Losses(losses) if losses.iter().all(|loss| loss.is_finite()) => Some(losses),
            _ => None,
        }
    }

    /// Returns the answers from which the number is computed, as one list per task.
    pub fn answers(&self) -> Option<&[Vec<bool>]> {
        match &self.sample {
            Sample::Answers(tasks) => Some(tasks),
            _ => None,
        }
    }

    /// Returns the answers from which the number of a single task is computed.
    pub fn task_answers(&self) -> Option<&[bool]> {
        match self.answers()? {
            [answers] => Some(answers),
            _ => None,
        }
    }

    /// Returns the value, or `None` if it is not finite or the cell failed.
    pub fn valid_value(&self) -> Option<f64> {
        self.record.value.filter(|value| value.is_finite() && self.failure.is_none())
    }

    /// Returns the calibration seed of the cell, or 0 if it has none.
    pub fn seed(&self) -> u64 {
        self.setup.variant.get(SEED).and_then(Value::as_u64).unwrap_or_default()
    }

    /// Returns the number of seeds with a value and the number of all seeds, if this is a mean over seeds.
    pub fn seed_counts(&self) -> Option<(usize, usize)> {
        match &self.sample {
            Sample::Seeds(rows) => Some((rows.iter().filter(|row| row.valid_value().is_some()).count(), rows.len())),
            _ => None,
        }
    }

    /// Returns how the number's uncertainty was estimated.
    pub fn spread(&self) -> Spread {
        match self.sample {
            Sample::Seeds(_) => Spread::OverSeeds,
            _ => self.metric.spread.unwrap_or(Spread::StandardError),
        }
    }

    /// Returns the uncertainty if it was estimated in the given way.
    pub fn error_if(&self, kind: Spread) -> Option<f64> {
        self.record.error.filter(|_| self.spread() == kind)
    }

    /// Returns whether the number is a noisy timing or a speedup computed from noisy timings. A mean over seeds never
    /// counts as noisy.
    pub fn is_noise(&self) -> bool {
        match self.sample {
            Sample::NoisyTimes => true,
            Sample::Seeds(_) => false,
            _ => self.record.noise().is_some(),
        }
    }

    /// Returns whether two numbers belong to the same column of the run's table. The metrics are compared too, because
    /// a task may have the same name as a metric.
    pub(super) fn has_same_column(&self, other: &Self) -> bool {
        self.column == other.column && *self.metric == *other.metric
    }

    /// Returns whether two numbers have the same layer selection, that is, the same criterion and calibration. Numbers
    /// without an identity are compared by their settings.
    pub(super) fn same_selection(&self, other: &Self) -> bool {
        let operator_sequences = |number: &Self| number.setup.variant.get(OPERATOR_SEQUENCES).cloned();
        match (&self.setup.identity, &other.setup.identity) {
            (Some(one), Some(two)) => {
                (&one.cut, &one.calibration) == (&two.cut, &two.calibration)
                    && operator_sequences(self) == operator_sequences(other)
            }
            _ => {
                let [ours, theirs] = [self, other].map(|number| {
                    let settings = select_settings(&number.setup.variant, |name| {
                        name.starts_with("criterion.") || name.starts_with("calibration.")
                    });
                    (&number.record.condition.criterion, settings)
                });
                ours == theirs
            }
        }
    }

    /// Returns the SHA-256 of the number's identity: its variants, measurements and metric. Returns `None` if the gate
    /// skipped its cell.
    pub fn identity(&self) -> Option<String> {
        let variants: Vec<&Identity> = match &self.sample {
            Sample::Seeds(rows) => rows.iter().map(|row| row.setup.identity.as_deref()).collect::<Option<_>>()?,
            _ => vec![self.setup.identity.as_deref()?],
        };
        let measures: Vec<&MeasureId> = self.setup.measures.iter().map(AsRef::as_ref).collect();
        Some(number_id(&variants, &measures, &self.record.metric))
    }
}

/// Returns the SHA-256 of a number's variants, measurements and metric, in hexadecimal.
pub(super) fn number_id(variants: &[&Identity], measures: &[&MeasureId], metric: &str) -> String {
    let all = json!({"variants": variants, "measures": measures, "metric": metric});
    sha256::of_bytes(Canonical::from_value(&all).as_str())
}

impl Results {
    pub fn numbers(&self) -> impl Iterator<Item = &Arc<ResultRow>> {
        self.cells.iter().flat_map(|cell| &cell.numbers)
    }

    pub fn rows(&self) -> Vec<Arc<ResultRow>> {
        self.numbers().cloned().collect()
    }
}
