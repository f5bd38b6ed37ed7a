//! Identity of a measured number (layer 1 of the architecture). It contains everything that the number depends on, with
//! all defaults filled in, but no names, paths or positions in the grid. It is built once, when the run is planned, and
//! stored with the results.

mod flat_settings;
mod key_fields;
mod timing_cohort;

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use flat_settings::{
    Canonical, FlatSettings, SettingDifference, SettingOwner, SettingPath, flatten, setting_differences, setting_paths,
    visit_leaves,
};
pub use timing_cohort::timing_cohort;

use crate::corpus::ShardOrder;
use crate::criterion::Depth;
use crate::distill::Finetune;
use crate::grid::Draw;
use crate::model::{self, DeviceName, EngineName, EngineRequest, KernelFamily};
use ghostlab_store::KeyDescription;

/// Identity of a measured number, without its metric. An identity without a `measure` identifies a variant, and one
/// without a `cut` identifies the dense backbone. Parts are shared through `Arc`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    pub model: Arc<ModelId>,
    pub engine: Arc<ComputeId>,
    /// Removed layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<Arc<CutId>>,
    /// Repair of the cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<Arc<RepairId>>,
    /// Text on which layers are selected and repairs are solved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Arc<CalibrationId>>,
    /// Measurement of the variant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measure: Option<Arc<MeasureId>>,
}

/// Backbone, identified by the inputs of its forward pass, regardless of name and path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelId {
    /// SHA-256 over the config fields and weights that the forward pass uses.
    pub content: String,
    /// SHA-256 of the tokenizer.
    pub tokenizer: String,
    /// Type to which the matrices are rounded; absent if they are used as stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
}

/// Engine, with its float type and device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ComputeId {
    pub name: String,
    /// Floating-point type of the computation.
    pub dtype: String,
    /// Device class.
    pub device: String,
}

impl ComputeId {
    /// Returns the request that selects this engine, or `None` if this program does not know the engine.
    pub fn request(&self) -> Option<EngineRequest> {
        let Self { name, dtype, device } = self;
        let engine = name.parse().ok()?;
        let dtype = dtype.parse().ok()?;
        let (device, kernels) = match device.strip_prefix("cpu-") {
            Some(kernels) => (DeviceName::Cpu, Some(kernels.parse().ok()?)),
            None => (device.parse().ok()?, (engine == EngineName::Cpu).then_some(KernelFamily::Portable)),
        };
        Some(EngineRequest { engine: Some(engine), device: Some(device), dtype: Some(dtype), kernels })
    }
}

impl fmt::Display for ComputeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} on {}", self.name, self.dtype, self.device)
    }
}

impl From<model::EngineId> for ComputeId {
    fn from(id: model::EngineId) -> Self {
        let model::EngineId { name, dtype, device } = id;
        Self { name: name.to_owned(), dtype: dtype.to_owned(), device: device.to_owned() }
    }
}

/// Layer selection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CutId {
    pub criterion: String,
    /// Version of the criterion's implementation, incremented when its results change.
    pub version: u32,
    /// Options, with all defaults filled in.
    pub options: Canonical,
    /// Number of removed layers or sublayers.
    pub depth: Depth,
    /// Data about the backbone that is built into the criterion, such as a published layer order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<Canonical>,
    /// Repair applied after each removal, if layers are removed one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repaired: Option<RepairId>,
}

/// Repair of a cut.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepairId {
    pub recovery: String,
    /// Version of the recovery's implementation, incremented when its results change.
    pub version: u32,
    /// Options except for the training, with all defaults filled in.
    pub options: Canonical,
    /// Number of leading calibration sequences on which the repair is solved.
    pub fitted: usize,
    /// Training of the operator after it is solved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<Finetune>,
}

/// Calibration windows from which activations are collected.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CalibrationId {
    pub text: TextId,
    pub sequences: usize,
    /// Tokens per sequence.
    pub length: usize,
    pub seed: u64,
    /// Type to which the weights are rounded when activations are collected; absent if they are used as stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
}

/// Text, its file format, and the rule that cuts it into windows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextId {
    /// SHA-256 of the file. For a streamed text, SHA-256 over the hashes of all shards that are read.
    pub bytes: String,
    pub format: String,
    /// Column that contains the text, if it is not the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    /// Rule that cuts the text into windows.
    pub rule: String,
    /// Shards, if the text is streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<ShardsId>,
}

/// Shards of a streamed text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShardsId {
    /// Order in which rows are read from the shards.
    pub order: ShardOrder,
    /// Number of shards, which determines the order in which they are opened.
    #[serde(rename = "of")]
    pub count: usize,
    /// SHA-256 of each shard that is read, in reading order.
    pub read: Vec<String>,
}

/// Measurement. `batch` is included because the batch size can change the last digits of scores.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum MeasureId {
    /// Per-window losses on a text.
    Windows {
        text: TextId,
        /// Tokens per window.
        length: usize,
        /// Maximum number of windows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<usize>,
        /// Scored subset; absent if everything is scored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        draw: Option<Draw>,
        /// Tokens per batch.
        batch: usize,
    },
    /// Log-likelihoods of the choices in a built-in task.
    Task {
        task: String,
        version: u32,
        /// SHA-256 of each document file.
        rows: Vec<String>,
        formats: Vec<String>,
        /// Maximum number of documents, or a fraction of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<Canonical>,
        /// Scored subset; absent if everything is scored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        draw: Option<Draw>,
        bos: String,
        /// Context length in tokens.
        max_length: usize,
        /// Token used in place of an empty context, as given in the backbone's files.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<Canonical>,
        /// Tokens per batch.
        batch: usize,
    },
    /// Requests from an lm-evaluation-harness task definition.
    Defined {
        /// SHA-256 over the parts of the definition that determine its requests, with includes and overrides resolved.
        asks: String,
        /// SHA-256 of each document file.
        rows: Vec<String>,
        formats: Vec<String>,
        /// Few-shot examples.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shots: Option<ShotsId>,
        /// Chat template settings.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        chat: Option<ChatId>,
        /// SHA-256 of the system prompt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        system: Option<String>,
        /// Maximum number of documents, or a fraction of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<Canonical>,
        bos: String,
        /// Context length in tokens.
        max_length: usize,
        /// Token used in place of an empty context, as given in the backbone's files.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<Canonical>,
        /// Generation settings in the backbone's files that affect answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<Canonical>,
        /// Tokens per batch.
        batch: usize,
    },
    /// Latency of the forward pass over a prompt, and of the decoding after it.
    Prefill {
        /// Tokens per sequence.
        length: usize,
        /// Sequences per batch.
        batch: usize,
        /// New tokens per sequence.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        decode: Option<usize>,
        warmups: usize,
        rounds: usize,
        machine: Canonical,
        /// Hash over the variants timed together with this one. Each is represented by its differences from this one.
        among: String,
    },
    /// Distance between the repaired and the dense residual stream at the cut.
    Boundary,
}

/// Few-shot examples.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShotsId {
    pub count: usize,
    /// Seed for drawing examples.
    pub seed: u64,
    /// SHA-256 of each file that examples are drawn from.
    pub rows: Vec<String>,
    pub formats: Vec<String>,
}

/// Chat template settings.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatId {
    /// SHA-256 over the template and the special tokens it may print.
    pub template: String,
    /// Whether few-shot examples are separate chat messages.
    pub multiturn: bool,
}

impl Identity {
    /// Returns the identity of a dense backbone.
    pub fn dense(model: ModelId, engine: ComputeId) -> Self {
        Self {
            model: Arc::new(model),
            engine: Arc::new(engine),
            cut: None,
            repair: None,
            calibration: None,
            measure: None,
        }
    }

    /// Returns the identity of a measurement of this variant.
    #[must_use]
    pub fn with_measure(&self, measure: &Arc<MeasureId>) -> Self {
        Self { measure: Some(Arc::clone(measure)), ..self.clone() }
    }

    /// Returns the values of all settings, by path.
    pub fn flat_settings(&self) -> FlatSettings {
        flatten(&self.json())
    }
}

impl MeasureId {
    /// Returns the machine of a latency measurement, or `None` for measurements that do not depend on the machine.
    pub fn machine(&self) -> Option<&Canonical> {
        match self {
            Self::Prefill { machine, .. } => Some(machine),
            _ => None,
        }
    }
}

#[cfg(test)]
impl Identity {
    /// Returns the identity of a small dense backbone on the default engine.
    pub(crate) fn tiny() -> Self {
        let model = ModelId { content: "c0ffee".into(), tokenizer: String::new(), weights: None };
        Self::dense(model, model::CPU.into())
    }
}

impl KeyDescription for Identity {
    fn json(&self) -> Value {
        // Serialization cannot fail, because map keys are strings and numbers are integers.
        serde_json::to_value(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compute_id_round_trips_through_its_engine_request() {
        for (name, dtype, device, kernels) in [
            ("cpu", "f32", "cpu", Some(KernelFamily::Portable)),
            ("cpu", "bf16", "cpu", Some(KernelFamily::Portable)),
            ("cpu", "bf16", "cpu-amx", Some(KernelFamily::Amx)),
            ("candle", "bf16", "cpu", None),
        ] {
            let id = compute_id(name, dtype, device);
            let request = id.request().unwrap();
            assert_eq!((request.kernels, request.device), (kernels, Some(DeviceName::Cpu)), "{id}");
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/arch/llama-gqa");
            assert_eq!(ComputeId::from(request.choose(&folder).unwrap().id()), id);
        }
        assert_eq!(compute_id("cpu", "bf16", "cpu-neon").request(), None, "an unknown kernel family");
    }

    fn compute_id(name: &str, dtype: &str, device: &str) -> ComputeId {
        ComputeId { name: name.to_owned(), dtype: dtype.to_owned(), device: device.to_owned() }
    }
}
