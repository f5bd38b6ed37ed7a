//! Shapes of the tiny backbones: one size, three architectures.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use ghostlab_core::error::{Error, Result};
use ghostlab_core::model::Config;
use ghostlab_core::model::architecture::{ARCHITECTURES, Architecture};

/// Entries of `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Hugging Face's `model_type`: `llama`, `qwen3`, `olmo2`.
    pub architecture: String,
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub intermediate: usize,
    pub vocab: usize,
    /// `max_position_embeddings`
    pub context: usize,
    pub rope_theta: f64,
    pub norm_eps: f64,
    pub tied_embeddings: bool,
    /// Whether the tokenizer adds the end-of-text token before every text, like Llama's BOS.
    pub begins: bool,
}

/// Returns the architectures for which this crate has gradients.
pub fn trained() -> impl Iterator<Item = &'static Architecture> {
    ARCHITECTURES.iter().filter(|architecture| ["llama", "qwen3", "olmo2"].contains(&architecture.model_type))
}

impl Shape {
    /// Returns the size of the bundled backbones, with each architecture's usual constants.
    pub fn tiny(architecture: &Architecture) -> Self {
        let llama = architecture.model_type == "llama";
        let olmo2 = architecture.model_type == "olmo2";
        Self {
            architecture: architecture.model_type.into(),
            layers: 16,
            hidden: 128,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            intermediate: 384,
            vocab: 2048,
            context: 512,
            rope_theta: 10_000.0,
            norm_eps: if llama { 1e-5 } else { 1e-6 },
            // Like real models of this size: small Llamas and Qwens are tied, OLMo-2 is not.
            tied_embeddings: !olmo2,
            begins: llama,
        }
    }

    /// Returns the architecture, if it can be trained.
    pub fn known(&self) -> Option<&'static Architecture> {
        trained().find(|architecture| architecture.model_type == self.architecture)
    }

    /// Returns the Hugging Face `config.json`. `end` is the id of the end-of-text token.
    pub fn config(&self, end: u32) -> Value {
        let class = self.known().map_or("", |architecture| architecture.class);
        let shared = json!({
            "architectures": [class],
            "model_type": self.architecture,
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "hidden_act": "silu",
            "max_position_embeddings": self.context,
            "initializer_range": 0.02,
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": null,
            "tie_word_embeddings": self.tied_embeddings,
            "attention_bias": false,
            "attention_dropout": 0.0,
            "use_cache": true,
            "bos_token_id": end,
            "eos_token_id": end,
            "dtype": "float16",
            // Name used by transformers before 4.56.
            "torch_dtype": "float16"
        });
        let own = match self.architecture.as_str() {
            "llama" => json!({"head_dim": self.head_dim, "mlp_bias": false, "pretraining_tp": 1}),
            "qwen3" => json!({
                "head_dim": self.head_dim, "sliding_window": null, "use_sliding_window": false,
                "max_window_layers": self.layers
            }),
            // OLMo-2 has no `head_dim`, which is always hidden / heads.
            _ => json!({"pad_token_id": end}),
        };
        let mut map = Map::new();
        for part in [shared, own] {
            if let Value::Object(part) = part {
                map.extend(part);
            }
        }
        Value::Object(map)
    }
}

/// Parses a `config.json` with the decoder's parser.
///
/// # Errors
/// Fails if the decoder does not support the config.
pub fn parsed(config: &Value) -> Result<Config> {
    // The decoder only reads files.
    let file =
        tempfile::NamedTempFile::new().map_err(|error| Error::missing("no temporary file can be made").found(error))?;
    std::fs::write(file.path(), config.to_string()).map_err(|error| Error::io("write", file.path(), &error))?;
    Config::read_file(file.path())
}
