//! One number of a table, wherever it comes from: the paper's tables and ours are compared as lists of these.
//!
//! The words are those of the paper's tables as data (`data/paper/*.csv`), in both profiles.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::latency::TimeSpread;
use crate::metric::{DECODE, Metric, PREFILL};

/// The criterion of the dense backbone.
pub const DENSE: &str = crate::criterion::DENSE.name;

/// What a number was measured on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Condition {
    /// `llama-3-8b`, `tiny-llama`, …
    pub backbone: String,
    /// Layers of the dense backbone.
    pub layers: usize,
    /// Layers removed; 0 for the dense backbone.
    pub depth: usize,
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
    /// The corpus of the calibration, and the number of its sequences where it is named.
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
    /// The part of a time that its deviation is, where that is so large that nothing can be said by it.
    pub fn noise(&self) -> Option<f64> {
        let timed = |metric: Metric| [PREFILL.id, DECODE.id].contains(&metric.family());
        let timed = Metric::find(&self.metric).is_ok_and(timed);
        let spread = TimeSpread { mean: self.value?, deviation: self.error? };
        (timed && spread.is_noise()).then(|| spread.relative())
    }
}
