//! Record of one number in a table. The paper's tables and ours consist of these records, so they can be compared.
//!
//! All profiles use the names from the paper's tables in `data/paper/*.csv`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::criterion::{Depth, DepthUnit};
use crate::latency::TimeSpread;
use crate::metric::{DECODE, Metric, PREFILL};

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
