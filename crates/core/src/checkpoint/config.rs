//! The `config.json` of a variant: the backbone's own, with fewer layers.

use serde_json::{Map, Value, json};

use super::layout::Layout;
use super::modeling::{MODELING, class, model_type};
use crate::model::FloatType;
use crate::model::architecture::Architecture;

/// A backbone's config as that of a variant: layers counted anew, and what speaks of each layer without those that went.
/// Where operators stand beside the weights it names the file that applies them, under a model type of its own: a loader
/// that does not run that file refuses the model, and never computes another one.
pub fn trimmed(
    mut config: Map<String, Value>,
    architecture: &Architecture,
    layout: &Layout,
    dtype: Option<FloatType>,
) -> Map<String, Value> {
    let count = layout.kept.len();
    for value in config.values_mut() {
        // `layer_types` above all; whatever else has an entry for each layer.
        if let Value::Array(each) = value
            && layout.kept.iter().all(|&layer| layer < each.len())
            && each.len() > layout.kept.len()
            && each.iter().all(Value::is_string)
        {
            *each = layout.kept.iter().map(|&layer| each[layer].clone()).collect();
        }
    }
    config.insert("num_hidden_layers".into(), count.into());
    if let Some(most) = config.get("max_window_layers").and_then(Value::as_u64) {
        config.insert("max_window_layers".into(), most.min(count as u64).into());
    }
    for key in ["_name_or_path", "auto_map"] {
        config.remove(key);
    }
    if let Some(dtype) = dtype {
        let name = match dtype {
            FloatType::F32 => "float32",
            FloatType::F16 => "float16",
            FloatType::Bf16 => "bfloat16",
        };
        // Both names: transformers before 4.56 reads the second.
        for key in ["dtype", "torch_dtype"] {
            config.insert(key.into(), name.into());
        }
    }
    if !layout.attached.is_empty() {
        let operator = |of: &super::Attached| {
            let form = if of.operator.is_diagonal() { "diagonal" } else { "dense" };
            json!({"layer": of.layer, "at": of.place.name(), "form": form})
        };
        let operators: Vec<Value> = layout.attached.iter().map(operator).collect();
        let file = MODELING.trim_end_matches(".py");
        let named = |suffix: &str| format!("{file}.{}", class(architecture, suffix));
        config.insert("ghostlab".into(), json!({ "operators": operators }));
        config.insert("architectures".into(), json!([class(architecture, "ForCausalLM")]));
        config.insert("model_type".into(), model_type(architecture).into());
        let map = json!({"AutoConfig": named("Config"), "AutoModel": named("Model"), "AutoModelForCausalLM": named("ForCausalLM")});
        config.insert("auto_map".into(), map);
    }
    config
}
