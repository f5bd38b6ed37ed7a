//! Shapes of real backbones: the entries of their public `config.json` that affect the computation.

use serde_json::{Value, json};

use ghostlab_core::error::{Error, Result};

/// Returns shapes from the Hugging Face repositories named below.
fn shapes() -> [(&'static str, Value); 3] {
    [
        // meta-llama/Llama-3.1-8B
        (
            "llama-3.1-8b",
            json!({
                "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32,
                "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
                "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
                "rope_scaling": {
                    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192
                },
                "mlp_bias": false, "pretraining_tp": 1
            }),
        ),
        // Qwen/Qwen3-14B
        (
            "qwen3-14b",
            json!({
                "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 40,
                "hidden_size": 5120, "intermediate_size": 17408, "num_attention_heads": 40, "num_key_value_heads": 8,
                "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6,
                "rope_theta": 1000000.0, "rope_scaling": null, "sliding_window": null, "use_sliding_window": false
            }),
        ),
        // allenai/OLMo-2-1124-7B
        (
            "olmo-2-7b",
            json!({
                "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "num_hidden_layers": 32,
                "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 32,
                "vocab_size": 100352, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 500000.0,
                "rope_scaling": null
            }),
        ),
    ]
}

/// Returns the config of a real backbone, with its number of layers replaced by `layers` if given.
///
/// # Errors
/// Fails if the name is unknown.
pub fn like(name: &str, layers: Option<usize>) -> Result<Value> {
    let names = shapes().map(|(name, _)| name);
    let Some((_, mut config)) = shapes().into_iter().find(|(known, _)| *known == name) else {
        return Err(Error::bad_input("unknown shape").at("--like").none_of(name, names));
    };
    for (key, value) in [
        ("hidden_act", json!("silu")),
        ("initializer_range", json!(0.02)),
        ("tie_word_embeddings", json!(false)),
        ("attention_bias", json!(false)),
        ("attention_dropout", json!(0.0)),
        ("use_cache", json!(true)),
    ] {
        config[key] = value;
    }
    if let Some(layers) = layers {
        config["num_hidden_layers"] = layers.into();
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::folder::Backbone;

    /// The expected values are the numbers of weights that the hub shows for each model.
    #[test]
    fn each_shape_has_as_many_weights_as_the_real_one() {
        for (name, weights) in
            [("llama-3.1-8b", 8_030_261_248_u64), ("qwen3-14b", 14_768_307_200), ("olmo-2-7b", 7_298_617_344)]
        {
            let backbone = Backbone::new(like(name, None).unwrap(), 0).unwrap();
            assert_eq!(backbone.bytes(), 2 * weights, "{name}");
            let layers = backbone.config["num_hidden_layers"].as_u64().unwrap();
            let one = Backbone::new(like(name, Some(1)).unwrap(), 0).unwrap();
            let two = Backbone::new(like(name, Some(2)).unwrap(), 0).unwrap();
            let layer = two.bytes() - one.bytes();
            assert_eq!(one.bytes() + (layers - 1) * layer, 2 * weights, "{name}");
        }
    }

    #[test]
    fn an_unknown_shape_is_named_beside_the_known() {
        let text = like("llama3-8b", None).unwrap_err().to_string();
        assert!(
            text.contains("`llama3-8b`") && text.contains("olmo-2-7b") && text.contains("`llama-3.1-8b`?"),
            "{text}"
        );
    }
}
