//! Record of one number in a table. The paper's tables and ours consist of these records, so they can be compared.
//! [`MetricKey`] identifies a column of a run. Two backbones may measure the same metric key differently, because each
//! has its own context length. A number is therefore identified by its cell and metric key together.
//!
//! All profiles use the names from the paper's tables in `data/paper/*.csv`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::criterion::{Depth, DepthUnit};
use crate::grid::{DefinedColumn, EvalTask, Latency, Perplexity};
use crate::latency::TimeSpread;
use crate::metric::{DECODE, Metric, MetricEntry, PREFILL};

/// Criterion name of the dense backbone.
pub const DENSE: &str = crate::criterion::DENSE.name;

/// Condition of a measurement.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Condition {
    /// Backbone name, such as `llama-3-8b` or `tiny-llama`.
    pub backbone: String,
    /// Number of layers of the dense backbone.
    pub layers: usize,
    /// Number of removed layers or sublayers, as counted in `unit`; 0 for the dense backbone.
    pub depth: usize,
    /// Unit of the depth; omitted for whole layers.
    #[serde(default, skip_serializing_if = "DepthUnit::is_layers")]
    pub unit: DepthUnit,
    /// Criterion, such as `llm-streamline`; `dense` for the dense backbone.
    pub criterion: String,
    /// Recovery, such as `none`, `ghosted` or `ghosted:svd`; `none` for the dense backbone.
    pub recovery: String,
    /// Whether weights were trained after the repair. Only results from the paper have this.
    pub finetuned: bool,
    /// Calibration corpus, followed by the number of sequences if a table varies it, such as `c4` or `c4:32`.
    pub calibration: String,
}

impl Condition {
    pub fn cut_depth(&self) -> Depth {
        Depth { count: self.depth, unit: self.unit }
    }

    #[must_use]
    pub fn without_calibration(&self) -> Self {
        Self { calibration: String::new(), ..self.clone() }
    }

    /// Returns the calibration corpus, and the number of sequences if it is part of the label.
    pub fn calibrated(&self) -> (&str, Option<&str>) {
        self.calibration.split_once(':').map_or((&self.calibration, None), |(corpus, size)| (corpus, Some(size)))
    }
}

/// Number measured under a condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    #[serde(flatten)]
    pub condition: Condition,
    /// Metric ID: a task name (percent), `acc_average` (percent), `ppl_NAME`, `ppl_average`, `prefill_ms`, ….
    pub metric: String,
    /// Measured value; null if the cell failed or was not run.
    pub value: Option<f64>,
    /// Standard error, or the standard deviation of the paper's latencies; null if there is none.
    pub error: Option<f64>,
}

impl Record {
    /// Returns the relative deviation of an unstable timing. Returns `None` for all other numbers.
    pub fn noise(&self) -> Option<f64> {
        let timed = Metric::find(&self.metric).is_ok_and(|metric| [PREFILL.id, DECODE.id].contains(&metric.family()));
        let spread = TimeSpread { mean: self.value?, deviation: self.error? };
        (timed && spread.is_noise()).then(|| spread.relative())
    }
}

/// Measurement that a grid requests for every cell.
#[derive(Debug, Clone, PartialEq)]
pub enum MetricKey {
    Text(&'static MetricEntry, Perplexity),
    /// A built-in task.
    Task(&'static MetricEntry, EvalTask),
    /// A metric of a task or task group that is defined in the format of lm-evaluation-harness.
    Defined(DefinedColumn),
    /// Average over all tasks.
    Tasks(&'static MetricEntry),
    Prompt(&'static MetricEntry, Latency),
    /// Size of the pruned model.
    Size(&'static MetricEntry),
    /// Metric id of a number that does not occur in any run's table.
    Untabulated(String),
}

impl MetricKey {
    pub fn without_table(metric: &Metric) -> Self {
        Self::Untabulated(metric.id.clone())
    }
}

/// Formats the column header, such as `ppl wikitext2-test@512`, `arc_easy` or `average`.
impl fmt::Display for MetricKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut write = |metric: &MetricEntry, item: &dyn fmt::Display| match metric.head {
            "" => item.fmt(f),
            head => write!(f, "{head} {item}"),
        };
        match self {
            Self::Text(metric, text) => write(metric, text),
            Self::Task(metric, used) => write(metric, used),
            Self::Prompt(metric, prompt) => write(metric, prompt),
            Self::Defined(column) => write(column.metric().entry(), &column.scored().label),
            Self::Tasks(metric) | Self::Size(metric) => f.write_str(metric.head),
            Self::Untabulated(metric) => f.write_str(metric),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::protocol::Protocol;
    use super::*;
    use crate::grid::TaskSettings;
    use crate::metric;
    use crate::pipeline::env::backbone::EvalTarget;
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
    fn metric_key_includes_length_but_not_window_count() {
        assert_eq!(text(64, 5).key(), text(64, 9).key());
        assert_ne!(text(64, 5).key(), text(48, 5).key());
        let bits = Protocol::Derived {
            metric: &metric::BITS_PER_BYTE,
            scored_on: EvalTarget::Windows(Perplexity { corpus: "c4".into(), length: 64, damage: false, draw: None }),
        };
        assert_ne!(text(64, 5).key(), bits.key());
        assert_eq!(bits.key().to_string(), "bits/byte c4@64");
        assert_eq!(text(64, 5).key().to_string(), "ppl c4@64");
    }

    #[test]
    fn protocols_of_one_task_have_distinct_metric_keys() {
        assert_ne!(
            MetricKey::Task(&metric::TASK, copa_task(Bos::Tokenizer)),
            MetricKey::Task(&metric::TASK, copa_task(Bos::Never))
        );
        assert_eq!(MetricKey::Task(&metric::TASK, copa_task(Bos::Never)).to_string(), "copa(bos=never)");
        // A metric and a task may share a name.
        assert_ne!(
            MetricKey::Task(&metric::TASK, copa_task(Bos::Tokenizer)),
            MetricKey::without_table(&metric::Metric::task("copa"))
        );
    }

    fn copa_task(bos: Bos) -> EvalTask {
        EvalTask { name: "copa".into(), how: TaskSettings { bos, ..TaskSettings::default() }, defined: false }
    }
}
