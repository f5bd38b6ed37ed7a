//! Layer 1: the identity of a number. Contains everything that it depends on, with all defaults, and nothing else: no
//! name, path or position. It is made once, when a grid is planned, and stays with the results; nothing is looked up by
//! a label.

mod aspect;
mod beside;

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use aspect::{Aspect, Canonical, Difference, Leaves, aspects, differs, leaves};
pub use beside::beside;

use crate::corpus::ShardOrder;
use crate::criterion::Depth;
use crate::distill::Finetune;
use crate::grid::Draw;
use crate::model::{self, DeviceName, EngineName, EngineRequest, KernelFamily};
use ghostlab_store::About;

/// The identity of a number except for the metric. Without a measure it identifies a variant; without a cut, the whole
/// backbone. Shared parts are stored once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    #[serde(with = "part")]
    #[schemars(with = "ModelId")]
    pub model: Arc<ModelId>,
    #[serde(with = "part")]
    #[schemars(with = "ComputeId")]
    pub engine: Arc<ComputeId>,
    /// Which layers are removed.
    #[serde(with = "perhaps", default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<CutId>")]
    pub cut: Option<Arc<CutId>>,
    /// The repair at the cut.
    #[serde(with = "perhaps", default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<RepairId>")]
    pub repair: Option<Arc<RepairId>>,
    /// The text that layers are chosen by and repairs are solved on.
    #[serde(with = "perhaps", default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<CalibrationId>")]
    pub calibration: Option<Arc<CalibrationId>>,
    /// The measurement.
    #[serde(with = "perhaps", default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<MeasureId>")]
    pub measure: Option<Arc<MeasureId>>,
}

/// A backbone: the inputs of its forward pass, independent of its name and path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelId {
    /// SHA-256 over what of config and weights it computes with.
    pub content: String,
    /// SHA-256 of its tokenizer.
    pub tokenizer: String,
    /// Type to which its matrices are rounded; `None` if they are as stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
}

/// The engine and its settings.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ComputeId {
    pub name: String,
    /// The float type that it computes in.
    pub dtype: String,
    /// The class of device.
    pub device: String,
}

impl ComputeId {
    /// Returns the engine request, or `None` for an unknown engine.
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

/// How layers are chosen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CutId {
    pub criterion: String,
    /// Version of the criterion's result.
    pub version: u32,
    /// With every default filled in.
    pub options: Canonical,
    /// How many layers or sublayers are removed.
    pub depth: Depth,
    /// Prior information of the rule about the backbone: a published order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<Canonical>,
    /// The repair after each removal, if layers are removed one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repaired: Option<RepairId>,
}

/// How a cut is repaired.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepairId {
    pub recovery: String,
    /// Version of the recovery's result.
    pub version: u32,
    /// With every default filled in, but for its training.
    pub options: Canonical,
    /// Sequences of the calibration that it is solved on, the first ones.
    pub fitted: usize,
    /// How its operator is trained after it is solved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<Finetune>,
}

/// The windows that activations come from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CalibrationId {
    pub text: TextId,
    pub sequences: usize,
    /// Tokens of a sequence.
    pub length: usize,
    pub seed: u64,
    /// Type to which the weights are rounded for the activations; `None` if they are as stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
}

/// A text as it is read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextId {
    /// SHA-256 of its file, or over those of the shards that are read.
    pub bytes: String,
    pub format: String,
    /// The column that is read, where it is not the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    /// How windows are cut from it.
    pub rule: String,
    /// Its shards, where it is streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<ShardsId>,
}

/// The shards of a text that is streamed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShardsId {
    /// In which order their rows come.
    pub order: ShardOrder,
    /// How many there are, which decides in which order they are opened.
    #[serde(rename = "of")]
    pub count: usize,
    /// SHA-256 of those that are read, in that order.
    pub read: Vec<String>,
}

/// A measurement. `batch` is included if the last digits depend on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum MeasureId {
    /// The losses of a text's windows.
    Windows {
        text: TextId,
        /// Tokens of a window.
        length: usize,
        /// Most windows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<usize>,
        /// The scored subset, if not all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        draw: Option<Draw>,
        /// Tokens of a batch.
        batch: usize,
    },
    /// The log-likelihoods of a task's choices.
    Task {
        task: String,
        version: u32,
        /// SHA-256 of each file of documents.
        rows: Vec<String>,
        formats: Vec<String>,
        /// Most documents, or a part of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<Canonical>,
        /// The scored subset, if not all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        draw: Option<Draw>,
        bos: String,
        /// Tokens of a context.
        max_length: usize,
        /// The token that stands for an empty context, as the backbone's files write it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<Canonical>,
        /// Tokens of a batch.
        batch: usize,
    },
    /// The log-likelihoods that a definition of lm-evaluation-harness asks for.
    Defined {
        /// SHA-256 over what of the definition requests are made by, with includes and overrides resolved.
        asks: String,
        /// SHA-256 of each file of documents.
        rows: Vec<String>,
        formats: Vec<String>,
        /// Examples before a question.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shots: Option<ShotsId>,
        /// How the model's chat template is used.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        chat: Option<ChatId>,
        /// SHA-256 of a text before all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        system: Option<String>,
        /// Most documents, or a part of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<Canonical>,
        bos: String,
        /// Tokens of a context.
        max_length: usize,
        /// The token that stands for an empty context, as the backbone's files write it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<Canonical>,
        /// Generation settings of the backbone's files that change answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<Canonical>,
        /// Tokens of a batch.
        batch: usize,
    },
    /// The time of a pass over a prompt, and of what is decoded behind it.
    Prefill {
        /// Tokens of a sequence.
        length: usize,
        /// Sequences that are read together.
        batch: usize,
        /// New tokens of each sequence.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        decode: Option<usize>,
        warmups: usize,
        rounds: usize,
        machine: Canonical,
        /// A hash over the variants measured together with it, by their differences from its own.
        among: String,
    },
    /// How far the repaired stream is from the dense one, at the cut.
    Boundary,
}

/// Examples before a question.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShotsId {
    pub count: usize,
    /// Seed for drawing.
    pub seed: u64,
    /// SHA-256 of each file that they are from.
    pub rows: Vec<String>,
    pub formats: Vec<String>,
}

/// A chat template in use.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatId {
    /// SHA-256 over the template and the special tokens that it may print.
    pub template: String,
    /// Whether examples are messages of their own.
    pub multiturn: bool,
}

impl Identity {
    /// Returns the variant with a measurement.
    #[must_use]
    pub fn measured(&self, measure: &Arc<MeasureId>) -> Self {
        Self { measure: Some(Arc::clone(measure)), ..self.clone() }
    }

    /// Returns the measured variant.
    #[must_use]
    pub fn variant(&self) -> Self {
        Self { measure: None, ..self.clone() }
    }

    /// Returns every setting by path.
    pub fn leaves(&self) -> Leaves {
        leaves(&self.json())
    }

    /// Returns the settings in which two identities differ.
    pub fn differs(&self, other: &Self) -> Vec<Difference> {
        differs(&self.leaves(), &other.leaves())
    }
}

impl MeasureId {
    /// Returns the machine of a time. `None` for results independent of machines.
    pub fn machine(&self) -> Option<&Canonical> {
        match self {
            Self::Prefill { machine, .. } => Some(machine),
            _ => None,
        }
    }
}

impl About for Identity {
    fn json(&self) -> Value {
        // Serialization cannot fail: maps have text keys, and numbers are integers.
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// A part behind an `Arc`, serialized by value.
mod part {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(part: &Arc<T>, to: S) -> Result<S::Ok, S::Error> {
        T::serialize(part, to)
    }

    pub(super) fn deserialize<'de, T, D>(from: D) -> Result<Arc<T>, D::Error>
    where
        T: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        T::deserialize(from).map(Arc::new)
    }
}

/// One that may be absent.
mod perhaps {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[allow(clippy::ref_option, reason = "serde calls it so")]
    pub(super) fn serialize<T, S>(part: &Option<Arc<T>>, to: S) -> Result<S::Ok, S::Error>
    where
        T: Serialize,
        S: Serializer,
    {
        part.as_deref().serialize(to)
    }

    pub(super) fn deserialize<'de, T, D>(from: D) -> Result<Option<Arc<T>>, D::Error>
    where
        T: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Ok(Option::<T>::deserialize(from)?.map(Arc::new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compute_id_asks_for_the_kernels_that_it_names() {
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
        assert_eq!(compute_id("cpu", "bf16", "cpu-neon").request(), None, "a family that this program does not know");
    }

    fn compute_id(name: &str, dtype: &str, device: &str) -> ComputeId {
        ComputeId { name: name.to_owned(), dtype: dtype.to_owned(), device: device.to_owned() }
    }
}
