use super::*;
use crate::model::architecture::ARCHITECTURES;
use serde_json::{Map, json};

fn parse(change: impl FnOnce(&mut Map<String, Value>)) -> Result<Config> {
    let Value::Object(mut map) = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 112, "num_attention_heads": 4,
        "num_hidden_layers": 2, "rms_norm_eps": 1e-5, "vocab_size": 320, "rope_theta": 500000.0, "tie_word_embeddings": false
    }) else {
        unreachable!()
    };
    change(&mut map);
    Config::parse(&Entries { map: &map, prefix: "" })
}

#[test]
fn missing_config_entries_are_derived_or_defaulted_with_a_note() {
    let config = parse(|map| {
        map.remove("rope_theta");
    })
    .unwrap();
    assert_eq!((config.head_dim, config.kv_heads), (16, 4));
    assert_eq!(config.rope.theta, 10_000.0);
    assert_eq!(config.notes, ["config.json has no rope_theta: using 10000"]);
}

/// The expected values are the default attributes of each config class in transformers 5.24.0.
#[test]
fn missing_config_entries_use_transformers_defaults() {
    for (model_type, expected) in [
        ("llama", json!({"rms_norm_eps": 1e-6})),
        ("qwen3", json!({"rms_norm_eps": 1e-6, "head_dim": 128, "num_key_value_heads": 32})),
        ("olmo2", json!({"rms_norm_eps": 1e-5})),
        ("mistral", json!({"rms_norm_eps": 1e-6, "num_key_value_heads": 8})),
        ("qwen2", json!({"rms_norm_eps": 1e-6, "num_key_value_heads": 32})),
        ("phi3", json!({"rms_norm_eps": 1e-5})),
        ("smollm3", json!({"rms_norm_eps": 1e-6, "num_key_value_heads": 4})),
        ("gemma2", json!({"rms_norm_eps": 1e-6, "head_dim": 256})),
        ("gemma3_text", json!({"rms_norm_eps": 1e-6, "head_dim": 256, "num_key_value_heads": 4})),
        ("mixtral", json!({"rms_norm_eps": 1e-5, "num_key_value_heads": 8})),
        ("qwen3_moe", json!({"rms_norm_eps": 1e-6, "num_key_value_heads": 4})),
    ] {
        let architecture = ARCHITECTURES.iter().find(|candidate| candidate.model_type == model_type).unwrap();
        let used_defaults = with_defaults(&Map::new(), architecture, &mut Vec::new()).unwrap();
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(&used_defaults[key], value, "{model_type} {key}");
        }
    }
    let config = parse(|map| {
        map.remove("rms_norm_eps");
    })
    .unwrap();
    assert_eq!(config.norm_eps, 1e-6);
    assert_eq!(config.notes, ["config.json omits entries: using rms_norm_eps 1e-6, the defaults of transformers"]);
}

#[test]
fn unknown_architecture_error_lists_known_names() {
    let text = parse(|map| {
        map.insert("architectures".into(), json!(["GPT2LMHeadModel"]));
    })
    .unwrap_err()
    .to_string();
    assert!(text.contains("GPT2LMHeadModel") && text.contains("Olmo2ForCausalLM"), "{text}");
}

#[test]
fn unknown_rope_type_is_rejected_under_both_config_keys() {
    for (key, value) in [
        ("rope_scaling", json!({"type": "spiral", "factor": 2.0})),
        ("rope_parameters", json!({"rope_type": "spiral", "rope_theta": 10000.0})),
    ] {
        let text = parse(|map| {
            map.insert(key.into(), value);
        })
        .unwrap_err()
        .to_string();
        assert!(text.contains("spiral") && text.contains(key), "{text}");
    }
}

/// The expected values are `AutoConfig.from_pretrained(folder).rope_parameters` in transformers 5.23.0.
#[test]
fn rope_config_precedence_matches_transformers() {
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128});
    let plain = json!({"rope_type": "default", "rope_theta": 77.0});
    for (scaling, parameters, theta, expected) in [
        (llama3.clone(), plain.clone(), json!(null), (10_000.0, true)),
        (llama3.clone(), plain.clone(), json!(5.0), (5.0, true)),
        (json!(null), json!({"rope_type": "default"}), json!(5.0), (5.0, false)),
        (json!(null), plain.clone(), json!(5.0), (77.0, false)),
        (json!({}), plain.clone(), json!(null), (77.0, false)),
        (plain.clone(), llama3.clone(), json!(4.0), (77.0, false)),
        (
            json!({"rope_type": "llama3", "type": "default", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0}),
            json!(null),
            json!(5.0),
            (5.0, true),
        ),
    ] {
        let config = parse(|map| {
            map.insert("max_position_embeddings".into(), json!(512));
            map.insert("rope_scaling".into(), scaling.clone());
            map.insert("rope_parameters".into(), parameters.clone());
            map.insert("rope_theta".into(), theta);
        })
        .unwrap();
        assert_eq!((config.rope.theta, config.rope.scaling.is_some()), expected, "{scaling} {parameters}");
        let has_original_length = scaling.get("original_max_position_embeddings").is_some();
        match config.rope.scaling {
            None => (),
            Some(Scaling::Llama3(scaling)) => {
                assert_eq!(scaling.original_max_position_embeddings, if has_original_length { 128.0 } else { 512.0 });
            }
            Some(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn unsupported_config_values_are_rejected_with_their_key() {
    for (key, value) in [
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!("yes")),
        ("use_bidirectional_attention", json!(true)),
        ("layer_types", json!(["full_attention", "sliding_attention"])),
        ("layer_types", json!("sliding_attention")),
        ("layer_types", json!(["full_attention"])),
        ("sliding_window", json!(16)),
        ("use_sliding_window", json!(true)),
        ("use_sliding_window", json!("no")),
        ("quantization_config", json!({"bits": 4})),
        ("architectures", json!("LlamaForCausalLM")),
        ("model_type", json!("qwen3")),
        ("num_key_value_heads", json!(3)),
        ("rms_norm_eps", json!("small")),
        ("rms_norm_eps", json!(1e39)),
        ("rms_norm_eps", json!(1e-60)),
        ("rope_theta", json!(1e-300)),
        ("rope_scaling", json!({"factor": 2.0})),
        ("rope_scaling", json!({"rope_type": 3, "factor": 2.0})),
        ("rope_scaling", json!("llama3")),
        ("rope_parameters", json!({"full_attention": {"rope_theta": 3.0}})),
        ("rope_parameters", json!({"partial_rotary_factor": 0.5})),
        ("num_hidden_layers", json!(10_000_000)),
        ("hidden_size", json!(u64::MAX)),
        ("head_dim", json!(1u64 << 40)),
        ("vocab_size", json!(1u64 << 40)),
        ("max_position_embeddings", json!(u64::MAX)),
    ] {
        let text = parse(|map| {
            map.insert(key.into(), value);
        })
        .unwrap_err()
        .to_string();
        assert!(text.contains(key), "{text}");
    }
}
