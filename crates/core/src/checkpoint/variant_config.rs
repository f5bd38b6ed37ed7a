//! `config.json` for an exported variant, and the modeling file that applies operators not folded into weights and
//! skips dropped sublayers.

use serde_json::{Map, Value, json};

use super::layout::{AttachedOperator, Layout};
use crate::model::architecture::{self, Architecture, RopeEntries, SlidingWindow};
use crate::model::attached_form::{CONFIG_KEY, export_section};
use crate::model::experts::{DENSE_LAYERS_KEY, SPARSE_STEP_KEY};
use crate::model::window::{first_window_layer, layer_types};
use crate::model::{Config, FloatType};

/// Converts the config of a backbone to the config of a variant. Renumbers the layers and drops the settings of removed
/// layers. Variants with operators that are not folded into weights, or with dropped sublayers, need the modeling file.
/// Their config names this file and an unknown activation, so that loaders that ignore the file fail. `model_type`
/// stays unchanged, so that transformers finds the tokenizer class without remote code.
pub fn variant_config(
    mut config: Map<String, Value>,
    unpruned: &Config,
    layout: &Layout,
    dtype: Option<FloatType>,
) -> Map<String, Value> {
    let architecture = unpruned.architecture;
    retain_layers(&mut config, unpruned, &layout.kept);
    // Some classes tie the embeddings by default. If `tie_word_embeddings` is true and the checkpoint has a separate
    // head, transformers 5 keeps both tables, but other loaders use the embedding for both.
    if layout.has_head() && config.get("tie_word_embeddings").map_or(architecture.is_tied(), |tied| *tied == true) {
        config.insert("tie_word_embeddings".into(), false.into());
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
        // Write both names, because transformers before 4.56 reads `torch_dtype`.
        for key in ["dtype", "torch_dtype"] {
            config.insert(key.into(), name.into());
        }
    }
    if layout.needs_modeling_file() {
        let file = MODELING_FILE.trim_end_matches(".py");
        let qualified_name = |suffix: &str| format!("{file}.{}", class_name(architecture, suffix));
        let key = architecture.activation.0;
        let operators = layout.attached.iter().map(AttachedOperator::declaration);
        config.insert(CONFIG_KEY.into(), export_section(operators, &layout.dropped, unpruned.activation));
        config.insert(key.into(), REMOTE_CODE_HINT.into());
        config.insert("architectures".into(), json!([class_name(architecture, "ForCausalLM")]));
        config.insert("model_type".into(), architecture.model_type.into());
        let map = json!({
            "AutoConfig": qualified_name("Config"),
            "AutoModel": qualified_name("Model"),
            "AutoModelForCausalLM": qualified_name("ForCausalLM"),
        });
        config.insert("auto_map".into(), map);
    }
    config
}

/// Sets the layer count and drops the per-layer settings of removed layers.
fn retain_layers(config: &mut Map<String, Value>, unpruned: &Config, retained: &[usize]) {
    let architecture = unpruned.architecture;
    let layers = config.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0);
    for value in config.values_mut() {
        // Filter every list that has one string per layer, such as `layer_types`.
        if let Value::Array(each) = value
            && each.len() as u64 == layers
            && each.iter().all(Value::is_string)
        {
            *each = retained.iter().filter_map(|&layer| each.get(layer).cloned()).collect();
        }
    }
    config.insert("num_hidden_layers".into(), retained.len().into());
    // `max_window_layers` is the first layer that may have a window. Without it, loaders use a default that assumes the
    // unpruned number of layers.
    if let Some(first) = first_window_layer(config, architecture) {
        let before = retained.iter().filter(|&&layer| (layer as u64) < first).count();
        config.insert("max_window_layers".into(), before.into());
    }
    // transformers derives the attention type from the layer index, which has changed. Write it explicitly for each
    // layer.
    if matches!(architecture.window, SlidingWindow::Patterned { .. } | SlidingWindow::Unrotated) {
        config.insert("layer_types".into(), layer_types(retained.iter().map(|&layer| unpruned.windows[layer])));
        // Some loaders use these keys even if `layer_types` is present.
        for key in ["sliding_window_pattern", "_sliding_window_pattern"] {
            config.remove(key);
        }
    }
    if architecture.rope == RopeEntries::SomeLayers {
        let rotated: Vec<u8> = retained.iter().map(|&layer| unpruned.rotated[layer].into()).collect();
        config.insert("no_rope_layers".into(), rotated.into());
    }
    if [DENSE_LAYERS_KEY, SPARSE_STEP_KEY].iter().any(|key| config.contains_key(*key)) {
        let dense: Vec<usize> = (0..retained.len()).filter(|&layer| !unpruned.sparse[retained[layer]]).collect();
        config.insert(SPARSE_STEP_KEY.into(), 1.into());
        config.insert(DENSE_LAYERS_KEY.into(), dense.into());
    }
}

pub const MODELING_FILE: &str = "modeling_ghostlab.py";
/// Template for the modeling file, in which [`modeling_source`] inserts the names that differ between architectures.
const MODELING_TEMPLATE: &str = include_str!("modeling.py");

/// Value that replaces the activation's name in `config.json`. A loader that does not run the modeling file fails on
/// this value instead of loading an incomplete model.
pub(super) const REMOTE_CODE_HINT: &str = "load this model with trust_remote_code=True: modeling_ghostlab.py applies linear maps that are stored next to the weights";

/// Returns the modeling file for an architecture.
pub fn modeling_source(architecture: &Architecture) -> String {
    let (inner, folder) =
        architecture.transformers_names.unwrap_or((class_prefix(architecture), architecture.model_type));
    let norms = architecture.norms.map(|norm| norm.map_or("None".to_owned(), |norm| format!("\"{norm}\""))).join(", ");
    let names = [
        ("NORM_NAMES", &*format!("({norms})")),
        ("GUARD", REMOTE_CODE_HINT),
        ("ACTIVATION", architecture.activation.0),
        ("BACKBONE", class_prefix(architecture)),
        ("INNER", inner),
        ("FOLDER", folder),
    ];
    names.into_iter().fold(MODELING_TEMPLATE.to_owned(), |text, (name, value)| text.replace(name, value))
}

/// Returns the name of a class in the modeling file, such as `GhostedLlamaModel`.
pub(super) fn class_name(architecture: &Architecture, suffix: &str) -> String {
    format!("{}{}{suffix}", architecture::CLASS_PREFIX, class_prefix(architecture))
}

/// Returns the prefix of the architecture's class names in transformers, such as `Llama`.
fn class_prefix(architecture: &Architecture) -> &'static str {
    architecture.class.trim_end_matches("ForCausalLM")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::checkpoint::Layout;
    use crate::model::architecture::ARCHITECTURES;
    use crate::model::{Config, Operator, Program, deploy};

    /// Builds the config of a variant that removes layers 1 and 2 from a four-layer fixture.
    fn pruned_config(fixture: &str, has_operator: bool, extra: &Value) -> Map<String, Value> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/arch").join(fixture);
        let config = Config::read(&folder).unwrap();
        let program = Program::pruned(4, &[1, 2], |_| {
            has_operator.then(|| Operator::diagonal(vec![2.0; config.hidden]).unwrap())
        });
        let layout = Layout::plan(&config, &folder, &deploy(&program, &config), None).unwrap();
        let text = std::fs::read(folder.join("config.json")).unwrap();
        let mut entries: Map<String, Value> = serde_json::from_slice(&text).unwrap();
        entries.extend(extra.as_object().unwrap().clone());
        variant_config(entries, &config, &layout, Some(FloatType::Bf16))
    }

    #[test]
    fn pruned_config_describes_only_the_kept_layers() {
        let types = json!({"layer_types": ["a", "b", "c", "d"], "max_window_layers": 2, "_name_or_path": "/home/me"});
        let config = pruned_config("qwen3", false, &types);
        assert_eq!((&config["num_hidden_layers"], &config["max_window_layers"]), (&json!(2), &json!(1)));
        assert_eq!(config["layer_types"], json!(["a", "d"]));
        assert_eq!((&config["torch_dtype"], &config["dtype"]), (&json!("bfloat16"), &json!("bfloat16")));
        assert_eq!(config["architectures"], json!(["Qwen3ForCausalLM"]));
        assert!(!config.contains_key("auto_map") && !config.contains_key("_name_or_path"));
    }

    #[test]
    fn default_sliding_windows_follow_the_kept_layers() {
        let text =
            std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/arch/qwen2/config.json"));
        let mut entries: Map<String, Value> = serde_json::from_slice(&text.unwrap()).unwrap();
        entries.extend(
            json!({"num_hidden_layers": 34, "use_sliding_window": true, "sliding_window": 40})
                .as_object()
                .unwrap()
                .clone(),
        );
        for key in ["max_window_layers", "layer_types"] {
            entries.remove(key);
        }
        let folder = tempfile::tempdir().unwrap();
        let unpruned = write_and_read_config(&entries, folder.path());
        // transformers' default applies windows from layer 28 on.
        assert_eq!(unpruned.windows.iter().filter(|window| window.is_some()).count(), 6);
        let retained: Vec<usize> = (0..34).filter(|layer| !(5..25).contains(layer) && *layer != 30).collect();
        let mut config = entries.clone();
        retain_layers(&mut config, &unpruned, &retained);
        let expected: Vec<Option<usize>> = retained.iter().map(|&layer| unpruned.windows[layer]).collect();
        assert_eq!(write_and_read_config(&config, folder.path()).windows, expected);
        let kinds: Vec<&str> =
            (0..34).map(|layer| if layer % 3 == 0 { "sliding_attention" } else { "full_attention" }).collect();
        entries.insert("layer_types".into(), json!(kinds));
        let expected: Vec<Option<usize>> = retained.iter().map(|&layer| (layer % 3 == 0).then_some(40)).collect();
        retain_layers(&mut entries, &unpruned, &retained);
        assert_eq!(write_and_read_config(&entries, folder.path()).windows, expected);
    }

    fn write_and_read_config(config: &Map<String, Value>, folder: &std::path::Path) -> Config {
        let file = folder.join("config.json");
        std::fs::write(&file, serde_json::to_vec(config).unwrap()).unwrap();
        Config::read_file(&file).unwrap()
    }

    /// The pruned config must parse to the settings that the kept layers have in the original config.
    #[test]
    fn position_dependent_settings_follow_the_kept_layers() {
        let base = json!({"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4,
            "head_dim": 8, "vocab_size": 64, "sliding_window": 8, "num_experts": 4, "num_experts_per_tok": 2, "rms_norm_eps": 1e-6});
        let folder = tempfile::tempdir().unwrap();
        for (model_type, class, more) in [
            ("gemma2", "Gemma2ForCausalLM", json!({})),
            ("gemma3_text", "Gemma3ForCausalLM", json!({"sliding_window_pattern": 3})),
            ("smollm3", "SmolLM3ForCausalLM", json!({"use_sliding_window": true, "no_rope_layer_interval": 2})),
            ("qwen3_moe", "Qwen3MoeForCausalLM", json!({"decoder_sparse_step": 2, "mlp_only_layers": [3]})),
        ] {
            let mut entries: Map<String, Value> = base.as_object().unwrap().clone();
            entries.extend(more.as_object().unwrap().clone());
            entries.insert("model_type".into(), model_type.into());
            entries.insert("architectures".into(), json!([class]));
            let unpruned = write_and_read_config(&entries, folder.path());
            for kept in [vec![0, 2, 3, 4, 5], vec![1, 5], vec![0, 1, 2, 5]] {
                let mut config = entries.clone();
                retain_layers(&mut config, &unpruned, &kept);
                let cut = write_and_read_config(&config, folder.path());
                let all: Vec<usize> = (0..kept.len()).collect();
                assert_eq!(
                    layer_settings(&all, &cut),
                    layer_settings(&kept, &unpruned),
                    "{model_type} {kept:?}: {config:?}"
                );
                assert!(!config.contains_key("sliding_window_pattern"));
            }
        }
    }

    fn layer_settings(layers: &[usize], config: &Config) -> Vec<(Option<usize>, bool, bool)> {
        layers.iter().map(|&layer| (config.windows[layer], config.rotated[layer], config.sparse[layer])).collect()
    }

    #[test]
    fn unfolded_operator_is_declared_in_exported_config() {
        let config = pruned_config("olmo2", true, &json!({}));
        assert_eq!(
            (&config["model_type"], &config["architectures"]),
            (&json!("olmo2"), &json!(["GhostedOlmo2ForCausalLM"]))
        );
        assert_eq!(
            (&config["hidden_act"], &config["ghostlab"]["activation"]),
            (&json!(REMOTE_CODE_HINT), &json!("silu"))
        );
        let operator = json!({"layer": 1, "at": "before", "form": "diagonal", "bias": false});
        assert_eq!(config["ghostlab"]["operators"], json!([operator]));
        assert_eq!(config["auto_map"]["AutoModel"], "modeling_ghostlab.GhostedOlmo2Model");
    }

    #[test]
    fn modeling_code_defines_classes_of_each_architecture() {
        for architecture in ARCHITECTURES {
            let text = modeling_source(architecture);
            let left = ["BACKBONE", "INNER", "FOLDER", "GUARD", "ACTIVATION"].iter().find(|name| text.contains(**name));
            assert_eq!(left, None, "{}", architecture.class);
            for suffix in ["Config", "Model", "ForCausalLM"] {
                assert!(text.contains(&format!("class {}(", class_name(architecture, suffix))), "{suffix}");
            }
        }
    }
}
