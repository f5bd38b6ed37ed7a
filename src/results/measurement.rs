//! The tidy table: each cell with its measurements.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use super::factors::OPERATOR_SEQUENCES;
use super::record::Record;
use super::{Factors, MeasuredProgram, Protocol, Question};
use crate::corpus::ShardOrder;
use crate::criterion::Depth;
use crate::distill::Finetune;
use crate::files::sha256;
use crate::grid::Calibration;
use crate::identity::{Canonical, Identity, MeasureId};
use crate::metric::{Metric, Spread};
use crate::model::Cut;
use crate::model::EngineId;

/// Everything that the cells of a grid measured.
#[derive(Debug, Clone, Default)]
pub struct Results {
    /// In the grid's order, each with its numbers.
    pub cells: Vec<CellSummary>,
    /// The columns of the run's own table: evaluations, and the average of the tasks.
    pub protocols: Vec<Protocol>,
}

/// A cell and its numbers.
#[derive(Debug, Clone, Default)]
pub struct CellSummary {
    /// Same as in `plan` and `explain`.
    pub name: String,
    pub backbone: String,
    /// `None` for the dense backbone, like recovery and calibration.
    pub criterion: Option<String>,
    /// How many layers or sublayers are removed; 0 for the dense backbone.
    pub depth: Depth,
    /// What is removed, counted from 0.
    pub removed: Cut,
    /// Programs by seed that the value is a mean over; empty for a cell that failed or is not made yet.
    pub programs: Vec<MeasuredProgram>,
    /// How many layers the dense backbone has.
    pub layers: usize,
    pub recovery: Option<String>,
    pub calibration: Option<String>,
    /// All of its settings.
    pub factors: Arc<Factors>,
    /// Method options that the grid states.
    pub written: BTreeSet<String>,
    pub seconds: f64,
    /// Remarks on this cell for readers.
    pub notes: Vec<String>,
    pub failure: Option<String>,
    /// The missing parts.
    pub missing: Option<String>,
    /// Its measurements, one per question.
    pub numbers: Vec<Arc<Measurement>>,
}

/// A number and where it comes from.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// The cell by its name.
    pub cell: String,
    /// The question that it answers.
    pub asked: Question,
    pub record: Record,
    /// The record's metric with its direction and its print.
    pub metric: Metric,
    /// How it was made.
    pub setup: Setup,
    pub sample: Sample,
    /// Why there is no value.
    pub failure: Option<String>,
}

/// The items behind a number, in the same order for every variant of a backbone.
#[derive(Debug, Clone, PartialEq)]
pub enum Sample {
    None,
    /// Whether each document was answered rightly.
    Right(Vec<bool>),
    /// Same as above, for each task of an average.
    Tasks(Vec<Vec<bool>>),
    /// The loss of each window.
    Losses(Vec<f64>),
    /// Memory did not suffice for a number.
    OutOfMemory,
    /// A speedup that rests on times that are noise.
    NoisyTimes,
    /// A mean over calibration seeds, whose error is their standard deviation.
    Seeds(Vec<OfSeed>),
}

/// A cell's value under one seed.
#[derive(Debug, Clone, PartialEq)]
pub struct OfSeed {
    pub seed: u64,
    pub cell: String,
    /// Identity of its cell; `None` if it was never planned.
    pub identity: Option<Arc<Identity>>,
    /// `None` if it failed.
    pub value: Option<f64>,
}

/// Inputs of a number besides its condition.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Setup {
    /// The settings of its cell.
    pub variant: Arc<Factors>,
    /// The settings of what is measured.
    pub measure: Factors,
    /// The settings of its cell that its condition states.
    pub named_settings: Arc<BTreeSet<String>>,
    /// Identity independent of names: the variant, and the measurement. `None` for a cell that was never planned.
    pub identity: Option<Arc<Identity>>,
    pub measures: Vec<Arc<MeasureId>>,
    /// Engine of its backbone, if known.
    pub engine: Option<EngineId>,
    /// Scored data; for an average, all its parts.
    pub scored: Vec<Protocol>,
    /// `None` for the dense backbone.
    pub calibration: Option<Calibrated>,
    /// Why the backbone is not known to be the published one, where that was looked into and is not known.
    pub unidentified: Option<String>,
    /// Whether its calibration cannot determine its repair: it is neither the best nor anybody's rival.
    pub undetermined: bool,
}

/// A calibration with what the grid says of its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibrated {
    pub calibration: Calibration,
    pub rule: String,
    /// The order of its shards, where it is streamed.
    pub shards: Option<ShardOrder>,
    pub generated: bool,
    /// Whether something was computed for the cut.
    pub repaired: bool,
    /// The training of the operator, if it was trained.
    pub finetune: Option<Finetune>,
}

impl CellSummary {
    /// Returns the cell's number for a question.
    pub fn number(&self, asked: &Question) -> Option<&Arc<Measurement>> {
        self.numbers.iter().find(|number| number.asked == *asked)
    }
}

impl Measurement {
    /// Returns the kind of its error.
    pub fn spread(&self) -> Spread {
        match self.sample {
            Sample::Seeds(_) => Spread::OverSeeds,
            _ => self.metric.spread.unwrap_or(Spread::StandardError),
        }
    }

    /// Returns its error if it is of this kind.
    pub fn error_of(&self, kind: Spread) -> Option<f64> {
        self.record.error.filter(|_| self.spread() == kind)
    }

    /// Returns whether it is a time within noise, or a speedup of such times. Over seeds its error is their deviation.
    pub fn is_noise(&self) -> bool {
        match self.sample {
            Sample::NoisyTimes => true,
            Sample::Seeds(_) => false,
            _ => self.record.noise().is_some(),
        }
    }

    /// Returns whether both have the same selection, by rule and calibration. Unplanned ones are compared by settings.
    pub(super) fn same_selection(&self, other: &Self) -> bool {
        let solved = |measurement: &Self| measurement.setup.variant.get(OPERATOR_SEQUENCES).cloned();
        match (&self.setup.identity, &other.setup.identity) {
            (Some(one), Some(two)) => {
                (&one.cut, &one.calibration) == (&two.cut, &two.calibration) && solved(self) == solved(other)
            }
            _ => {
                let settings = |measurement: &Self| -> Factors {
                    let is_own =
                        |name: &str| ["criterion.", "calibration."].iter().any(|prefix| name.starts_with(prefix));
                    let settings_of = measurement.setup.variant.iter().filter(|(name, _)| is_own(name));
                    settings_of.map(|(name, value)| (name.clone(), value.clone())).collect()
                };
                let criterion = |measurement: &Self| measurement.record.condition.criterion.clone();
                criterion(self) == criterion(other) && settings(self) == settings(other)
            }
        }
    }

    /// Returns the SHA-256 of the number's identity: its variants, measurements and metric. `None` if it was never planned.
    pub fn identity(&self) -> Option<String> {
        let variants: Vec<&Identity> = match &self.sample {
            Sample::Seeds(seeds) => seeds.iter().map(|seed| seed.identity.as_deref()).collect::<Option<_>>()?,
            _ => vec![self.setup.identity.as_deref()?],
        };
        let measures: Vec<&MeasureId> = self.setup.measures.iter().map(AsRef::as_ref).collect();
        Some(number_id(&variants, &measures, &self.record.metric))
    }
}

/// Computes the SHA-256 of a number's identity in hexadecimal.
pub(super) fn number_id(variants: &[&Identity], measures: &[&MeasureId], metric: &str) -> String {
    let all = json!({"variants": variants, "measures": measures, "metric": metric});
    sha256::of_bytes(Canonical::of(&all).as_str())
}

impl Results {
    /// Iterates over the numbers of all cells.
    pub fn numbers(&self) -> impl Iterator<Item = &Arc<Measurement>> {
        self.cells.iter().flat_map(|cell| &cell.numbers)
    }

    pub fn measurements(&self) -> Vec<Arc<Measurement>> {
        self.numbers().cloned().collect()
    }
}
