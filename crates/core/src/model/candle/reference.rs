//! Models from candle-transformers. `doctor --check` compares ghostlab's models with this independent implementation.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Result as Candle, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Llama, LlamaConfig};
use candle_transformers::models::smol::smollm3;
use candle_transformers::models::{gemma2, mistral, mixtral, olmo2, phi3, qwen2, qwen3, qwen3_moe};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::super::config::{Biases, Config, Scaling};
use super::super::weights::Weights;
use crate::error::{Error, Result};
use crate::files::gguf::is_gguf;

/// Context length of the models in tokens. The compared texts are shorter.
const MAX_POSITIONS: usize = 1 << 12;

type Forward = Box<dyn Fn(&Tensor) -> Candle<Tensor>>;

/// A candle-transformers model in f32 on the CPU.
pub struct CandleReference(Forward);

impl CandleReference {
    /// Loads the model in a backbone folder.
    ///
    /// # Errors
    /// Fails if candle-transformers does not support a property of the backbone, or cannot read the files. The error
    /// names the property.
    pub fn load(config: &Config, folder: &Path) -> Result<Self> {
        if !config.attachments.is_empty() {
            return Err(unsupported_error("exports with operators"));
        }
        if !config.dropped.is_empty() {
            return Err(unsupported_error("exports with removed sublayers"));
        }
        if is_gguf(folder) {
            return Err(unsupported_error("GGUF tensor names"));
        }
        let entries = config_entries(config)?;
        let mut tensors = HashMap::new();
        for file in Weights::files(folder)? {
            let read = candle_core::safetensors::load(&file, &Device::Cpu)?;
            for (name, tensor) in read {
                tensors.insert(name, tensor.to_dtype(DType::F32)?);
            }
        }
        let from = (entries, tensors);
        Ok(Self(match config.architecture.class {
            "LlamaForCausalLM" => {
                model_runner(from, load_llama, |(model, cache), ids, position| model.forward(ids, position, cache))
            }
            "MistralForCausalLM" => model_runner(from, mistral::Model::new, mistral::Model::forward),
            "Qwen2ForCausalLM" => model_runner(from, qwen2::ModelForCausalLM::new, qwen2::ModelForCausalLM::forward),
            "Qwen3ForCausalLM" => model_runner(from, qwen3::ModelForCausalLM::new, qwen3::ModelForCausalLM::forward),
            "Qwen3MoeForCausalLM" => {
                model_runner(from, qwen3_moe::ModelForCausalLM::new, qwen3_moe::ModelForCausalLM::forward)
            }
            "Olmo2ForCausalLM" => model_runner(from, olmo2::Model::new, olmo2::Model::forward),
            "Gemma2ForCausalLM" => {
                model_runner(from, |config, vb| gemma2::Model::new(false, config, vb), gemma2::Model::forward)
            }
            "Phi3ForCausalLM" => model_runner(from, phi3::Model::new, phi3::Model::forward),
            "MixtralForCausalLM" => model_runner(from, mixtral::Model::new, mixtral::Model::forward),
            "SmolLM3ForCausalLM" => {
                model_runner(from, smollm3::ModelForCausalLM::new, smollm3::ModelForCausalLM::forward)
            }
            // Gemma 3 is not supported on the CPU, because its model copies keys into the cache with an operation that
            // candle only implements for other devices.
            other => return Err(unsupported_error(other)),
        }?))
    }

    /// Computes the logits `[vocab]` after the last token of a text.
    ///
    /// # Errors
    /// Propagates errors from candle.
    pub fn logits(&self, ids: &[u32]) -> Result<Vec<f32>> {
        let ids = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?; // [1, tokens]
        let logits = (self.0)(&ids)?; // [1, vocab] or [1, 1, vocab]
        Ok(logits.flatten_all()?.to_vec1()?)
    }
}

/// Creates a function that runs a model. It creates a new model for each text, because some models cannot clear their
/// KV cache.
fn model_runner<C: DeserializeOwned + 'static, M: 'static>(
    (entries, tensors): (Map<String, Value>, HashMap<String, Tensor>),
    new: fn(&C, VarBuilder<'_>) -> Candle<M>,
    forward: fn(&mut M, &Tensor, usize) -> Candle<Tensor>,
) -> Result<Forward> {
    let config: C =
        serde_json::from_value(Value::Object(entries)).map_err(|error| Error::bad_input(error.to_string()))?;
    Ok(Box::new(move |ids| {
        let weights = VarBuilder::from_tensors(tensors.clone(), DType::F32, &Device::Cpu);
        forward(&mut new(&config, weights)?, ids, 0)
    }))
}

fn load_llama(config: &LlamaConfig, weights: VarBuilder<'_>) -> Candle<(Llama, Cache)> {
    let config = config.clone().into_config(false);
    Ok((Llama::load(weights, &config)?, Cache::new(false, DType::F32, &config, &Device::Cpu)?))
}

/// Returns the config entries that candle-transformers deserializes. Rejects settings that it would ignore.
fn config_entries(config: &Config) -> Result<Map<String, Value>> {
    let Config { heads, head_dim, hidden, layers, rope, biases, .. } = config;
    let scaled = rope_scaling(config)?;
    reject_unsupported(config)?;
    let gemma = config.architecture.class == "Gemma2ForCausalLM";
    let experts = config.experts;
    let scalar = (1.0 / f64::from(config.scale).powi(2)).round();
    let activation = if gemma { "gelu_pytorch_tanh" } else { "silu" };
    let config_json = json!({
        "attention_bias": biases.inputs, "head_dim": head_dim, "hidden_size": hidden,
        "hidden_act": activation, "hidden_activation": activation,
        "intermediate_size": config.intermediate, "num_attention_heads": heads, "num_key_value_heads": config.kv_heads,
        "num_hidden_layers": layers, "vocab_size": config.vocab, "tie_word_embeddings": config.tied_embeddings,
        "rms_norm_eps": config.norm_eps, "rope_theta": rope.theta, "rope_scaling": scaled,
        "query_pre_attn_scalar": scalar as usize,
        "attn_logit_softcapping": config.score_cap, "final_logit_softcapping": config.logit_cap,
        "partial_rotary_factor": config.rotary_width as f64 / *head_dim as f64,
        "max_position_embeddings": MAX_POSITIONS, "max_window_layers": layers,
        "sliding_window": MAX_POSITIONS, "use_sliding_window": false, "use_flash_attn": false,
        "no_rope_layers": config.rotated.iter().map(|&has| usize::from(has)).collect::<Vec<_>>(),
        "decoder_sparse_step": 1, "norm_topk_prob": experts.is_some_and(|experts| experts.normalized),
        "num_experts": experts.map(|experts| experts.count), "num_local_experts": experts.map(|experts| experts.count),
        "num_experts_per_tok": experts.map(|experts| experts.used),
        "moe_intermediate_size": experts.map(|experts| experts.width),
    });
    match config_json {
        Value::Object(map) => Ok(map),
        _ => Err(Error::job("the config is not an object")),
    }
}

/// Returns the `rope_scaling` entry, which is null without scaling.
fn rope_scaling(config: &Config) -> Result<Value> {
    let class = config.architecture.class;
    match &config.rope.scaling {
        None => Ok(json!(null)),
        Some(Scaling::Llama3(scaling)) if class == "LlamaForCausalLM" => Ok(json!({
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position_embeddings as usize,
        })),
        Some(scaling) => Err(unsupported_error(&format!("RoPE type {} for {class}", scaling.name()))),
    }
}

/// Rejects settings that candle-transformers' config structs cannot represent.
fn reject_unsupported(config: &Config) -> Result<()> {
    let class = config.architecture.class;
    let Config { heads, head_dim, hidden, biases, .. } = config;
    let input_biases = Biases { inputs: true, ..Biases::default() };
    let supports_biases = match class {
        "Qwen2ForCausalLM" => *biases == input_biases,
        "LlamaForCausalLM" | "MistralForCausalLM" | "Phi3ForCausalLM" => *biases == Biases::default(),
        _ => !biases.mlp && biases.inputs == biases.output,
    };
    let classes_without_head_dim =
        ["Llama", "Qwen2", "Olmo2", "Phi3", "Mixtral", "SmolLM3"].map(|name| format!("{name}ForCausalLM"));
    if heads * head_dim != *hidden && classes_without_head_dim.iter().any(|name| name == class) {
        return Err(unsupported_error(&format!(
            "heads of {head_dim} channels for {class}, where head_dim is hidden_size / heads"
        )));
    }
    if (f64::from(config.scale) * (*head_dim as f64).sqrt() - 1.0).abs() > 1e-6 {
        return Err(unsupported_error(&format!("attention scales other than 1/√head_dim for {class}")));
    }
    if !supports_biases {
        return Err(unsupported_error(&format!("this combination of biases for {class}")));
    }
    let one_table = config.tied_embeddings;
    let gemma = class == "Gemma2ForCausalLM";
    if gemma && !one_table || ["MistralForCausalLM", "MixtralForCausalLM"].contains(&class) && one_table {
        let found = if one_table { "tied embeddings" } else { "an untied head" };
        return Err(unsupported_error(&format!("{class} with {found}")));
    }
    if config.rotary_width != *head_dim && class != "Phi3ForCausalLM" {
        return Err(unsupported_error(&format!("partial rotary embeddings for {class}")));
    }
    let experts = config.experts;
    if experts.is_some_and(|experts| class == "MixtralForCausalLM" && !experts.normalized) {
        return Err(unsupported_error(&format!("expert weights without normalization for {class}")));
    }
    if config.sparse.contains(&false) && experts.is_some() {
        return Err(unsupported_error("experts in only some layers"));
    }
    Ok(())
}

fn unsupported_error(property: &str) -> Error {
    Error::bad_input(format!("candle-transformers does not support {property}"))
}
