//! One number of a table from any source: the paper's tables and ours are compared as lists of these. Also the question
//! that it answers, as the grid asks it: the columns of a run. For two backbones one question may be two measures (each
//! reads a task in its own length), so a number is identified by its cell and question.
//!
//! The words are those of the paper's tables as data (`data/paper/*.csv`), in both profiles.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::criterion::DepthUnit;
use crate::grid::{DefinedColumn, Latency, Perplexity, TaskUse};
use crate::latency::TimeSpread;
use crate::metric::{DECODE, Metric, MetricEntry, PREFILL};

/// The criterion of the dense backbone.
pub const DENSE: &str = crate::criterion::DENSE.name;

/// The condition of a measurement.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Condition {
    /// `llama-3-8b`, `tiny-llama`, …
    pub backbone: String,
    /// Layers of the dense backbone.
    pub layers: usize,
    /// Layers removed; 0 for the dense backbone. Sublayers if `unit` says so.
    pub depth: usize,
    /// What the depth counts; absent for whole layers.
    #[serde(default, skip_serializing_if = "DepthUnit::is_layers")]
    pub unit: DepthUnit,
    /// `llm-streamline`, …, or `dense` for the dense backbone.
    pub criterion: String,
    /// `none`, `ghosted`, `ghosted:svd`, …; `none` for the dense backbone.
    pub recovery: String,
    /// Whether weights were trained after the repair, which only the paper does.
    pub finetuned: bool,
    /// The corpus, and after a colon the number of sequences where a table varies it: `c4`, `c4:32`.
    pub calibration: String,
}

impl Condition {
    /// Returns the calibration corpus, and the number of its sequences if named.
    pub fn calibrated(&self) -> (&str, Option<&str>) {
        self.calibration.split_once(':').map_or((&self.calibration, None), |(corpus, size)| (corpus, Some(size)))
    }
}

/// A number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    #[serde(flatten)]
    pub condition: Condition,
    /// The metric's id: a task by its name (percent), `acc_average` (percent), `ppl_NAME`, `ppl_average`, `prefill_ms`, ….
    pub metric: String,
    /// Null where the cell failed or was not run.
    pub value: Option<f64>,
    /// Its standard error (ours) or standard deviation (the paper's latencies), where it has one.
    pub error: Option<f64>,
}

impl Record {
    /// Returns the relative deviation of an unstable time.
    pub fn noise(&self) -> Option<f64> {
        let timed = Metric::find(&self.metric).is_ok_and(|metric| [PREFILL.id, DECODE.id].contains(&metric.family()));
        let spread = TimeSpread { mean: self.value?, deviation: self.error? };
        (timed && spread.is_noise()).then(|| spread.relative())
    }
}

/// A question asked of every cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Question {
    Text(&'static MetricEntry, Perplexity),
    Task(&'static MetricEntry, TaskUse),
    /// A task or a group of tasks with definitions.
    Defined(DefinedColumn),
    /// All tasks together.
    Tasks(&'static MetricEntry),
    Prompt(&'static MetricEntry, Latency),
    /// The size of the variant.
    Size(&'static MetricEntry),
    /// A number that is in no table of a run, by its metric's id.
    Besides(String),
}

impl Question {
    pub fn besides(metric: &Metric) -> Self {
        Self::Besides(metric.id.clone())
    }
}

/// The column's head: `ppl wikitext2-test@512`, `arc_easy`, `average`.
impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut write = |metric: &MetricEntry, item: &dyn fmt::Display| match metric.head {
            "" => item.fmt(f),
            head => write!(f, "{head} {item}"),
        };
        match self {
            Self::Text(metric, text) => write(metric, text),
            Self::Task(metric, used) => write(metric, used),
            Self::Prompt(metric, prompt) => write(metric, prompt),
            Self::Defined(column) => f.write_str(&column.metric().label),
            Self::Tasks(metric) | Self::Size(metric) => f.write_str(metric.head),
            Self::Besides(metric) => f.write_str(metric),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::protocol::{Protocol, ScoredOn};
    use super::*;
    use crate::metric;
    use crate::tasks::Bos;

    fn text(length: usize, windows: usize) -> Protocol {
        Protocol::Windows {
            corpus: "c4".into(),
            rule: "c4".into(),
            shards: None,
            length,
            limit: None,
            windows: Some(windows),
            all: Some(windows),
            generated: false,
        }
    }

    #[test]
    fn extent_is_not_part_of_a_metric_key_but_length_is() {
        assert_eq!(text(64, 5).asked(), text(64, 9).asked());
        assert_ne!(text(64, 5).asked(), text(48, 5).asked());
        let bits = Protocol::Derived {
            metric: &metric::BITS_PER_BYTE,
            scored_on: ScoredOn::Text(Perplexity { corpus: "c4".into(), length: 64, damage: false, draw: None }),
        };
        assert_ne!(text(64, 5).asked(), bits.asked());
        assert_eq!(bits.asked().to_string(), "bits/byte c4@64");
        assert_eq!(text(64, 5).asked().to_string(), "ppl c4@64");
    }

    #[test]
    fn two_protocols_of_a_task_are_two_keys_of_one_metric() {
        assert_ne!(
            Question::Task(&metric::TASK, used(Bos::Tokenizer)),
            Question::Task(&metric::TASK, used(Bos::Never))
        );
        assert_eq!(Question::Task(&metric::TASK, used(Bos::Never)).to_string(), "copa(bos=never)");
        // A metric may be called as a task is.
        assert_ne!(
            Question::Task(&metric::TASK, used(Bos::Tokenizer)),
            Question::besides(&metric::Metric::task("copa"))
        );
    }

    fn used(bos: Bos) -> TaskUse {
        TaskUse { name: "copa".into(), limit: None, bos, max_length: None, draw: None }
    }
}
