//! Fields of store keys that name the backbone and its engine, and the names of leases and journals.

use serde_json::{Map, Value, json};

use super::{ComputeId, Identity};
use crate::model::CPU;

/// Value of `operations` in the keys of all engines except `cpu`. Keys without this field belong to results that were
/// computed with unfused operations.
const FUSED_OPERATIONS: &str = "fused";

impl Identity {
    /// Returns the key fields of the backbone and engine: content hash, float type, device class and, except for the
    /// CPU engine, the engine name.
    pub fn backbone_fields(&self) -> Value {
        let ComputeId { name, dtype, device } = &*self.engine;
        let mut fields = json!({"backbone": self.model.content, "dtype": dtype, "device": device});
        if name != CPU.name {
            fields["engine"] = json!(name);
            fields["operations"] = json!(FUSED_OPERATIONS);
        }
        // If a key lacks `head` or `attention`, that part of the forward pass ran in f32.
        if self.engine.is_half() {
            fields["head"] = json!(dtype);
            fields["attention"] = json!(dtype);
        }
        if let Some(weights) = &self.model.weights {
            fields["weights"] = json!(weights);
        }
        fields
    }

    /// Returns a suffix for lease and journal names. Engines do not share partial scores, so their names must differ.
    /// The suffix is empty for the f32 CPU engine with weights as stored.
    pub fn engine_suffix(&self) -> String {
        let engine = &self.engine;
        let head = if engine.is_half() { " with its head and attention" } else { "" };
        let operations = if engine.name == CPU.name { "" } else { FUSED_OPERATIONS };
        let is_default = **engine == ComputeId::from(CPU);
        let engine = if is_default { String::new() } else { format!(" {engine}{head}{operations}") };
        self.model.weights.as_ref().map_or(engine.clone(), |weights| format!("{engine} in {weights}"))
    }
}

impl ComputeId {
    /// Returns the engine in the fields of a key, as written by [`Identity::backbone_fields`].
    pub fn from_key_fields(fields: &Map<String, Value>) -> Option<Self> {
        let field = |name: &str| Some(fields.get(name)?.as_str()?.to_owned());
        let name = field("engine").unwrap_or_else(|| CPU.name.to_owned());
        Some(Self { name, dtype: field("dtype")?, device: field("device")? })
    }

    /// Returns whether this is the CPU engine with a float type other than f32.
    fn is_half(&self) -> bool {
        self.name == CPU.name && self.dtype != CPU.dtype
    }
}
