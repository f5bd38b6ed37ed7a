//! Registry of architectures: variants of the Llama decoder that differ in norms, biases, attention windows and MLPs.

pub use ghostlab_kernels::forward::Activation;
use serde_json::Value;

use super::config_fields::Entries;
use crate::error::{Error, Result};

/// Prefix of the class name in exports with operators ([`Attachment`](super::Attachment)) or removed sublayers. The
/// class name of the original architecture follows.
pub(crate) const CLASS_PREFIX: &str = "Ghosted";
/// Prefix of `model_type` in older exports.
const MODEL_TYPE_PREFIX: &str = "ghostlab_";

/// Properties in which decoder architectures differ. Each entry of [`ARCHITECTURES`] overrides fields of `LLAMA`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Architecture {
    /// Value of `architectures` in the config.
    pub class: &'static str,
    /// Value of `model_type` in the config.
    pub model_type: &'static str,
    /// Class name prefix and module folder in transformers, if they differ from `class` and `model_type`.
    pub transformers_names: Option<(&'static str, &'static str)>,
    /// Names of a layer's norms: before and after attention, before and after the MLP.
    pub norms: [Option<&'static str>; 4],
    /// Whether norms multiply by `1 + weight` (Gemma).
    pub norms_add_one: bool,
    pub query_key_norm: QueryKeyNorm,
    pub attention_bias: AttentionBias,
    /// Whether the config entry `mlp_bias` can enable biases of the MLP projections.
    pub mlp_bias: bool,
    pub window: SlidingWindow,
    pub rope: RopeEntries,
    /// Config key for the MLP activation, and the default activation.
    pub activation: (&'static str, Activation),
    /// Whether weight files fuse the query, key and value projections, and the gate and up projections (Phi-3).
    pub fused: bool,
    pub experts: Option<ExpertNames>,
    /// Whether embeddings are multiplied by √C, rounded to the stored type (Gemma).
    pub scaled_embedding: bool,
    /// Config key for the number whose inverse square root scales attention scores. If `None`, `head_dim` is used.
    pub scale: Option<&'static str>,
    /// Config keys for the soft caps on attention scores and logits, `cap·tanh(x/cap)`.
    pub caps: [Option<&'static str>; 2],
    /// Defaults of transformers' config class for missing entries, as a JSON object.
    pub defaults: &'static str,
    /// Conventions of llama.cpp's GGUF files for the architecture. `None` if llama.cpp does not support it.
    pub gguf: Option<GgufForm>,
}

/// Attention projections that have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionBias {
    /// No bias. Configs that enable one are rejected.
    Never,
    /// Queries, keys and values (Qwen2).
    Inputs,
    /// Queries, keys, values and output, if `attention_bias` is set (Llama).
    Configurable,
}

/// Layers and channels to which a config's rotary embedding settings apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeEntries {
    /// One rotary embedding for all layers, applied to all channels of a head.
    One,
    /// One embedding for all layers except those with a 0 in `no_rope_layers` (SmolLM3).
    SomeLayers,
    /// One embedding that rotates a fraction `partial_rotary_factor` of the channels in each head. The RoPE type is
    /// `default` or `longrope` (Phi-3).
    Partial,
    /// Separate embeddings for sliding-window layers and full-attention layers (Gemma 3).
    ByWindow,
}

/// Returns the config names of an activation, starting with the name in transformers.
pub(crate) fn activation_names(activation: Activation) -> &'static [&'static str] {
    match activation {
        Activation::Silu => &["silu"],
        Activation::Gelu => &["gelu_pytorch_tanh", "gelu_new"],
    }
}

/// Tensor names and config keys of mixture-of-experts layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertNames {
    pub router: &'static str,
    /// Prefix of the tensor names, up to the expert index.
    pub experts: &'static str,
    /// Names of the gate, up and down projections of an expert.
    pub matrices: [&'static str; 3],
    /// Config keys for the number of experts, in order of precedence.
    pub count: &'static [&'static str],
    pub width: &'static str,
    /// Config key of the flag that normalizes the weights of the selected experts to a sum of 1. If `None`, they are
    /// always normalized.
    pub normalized: Option<&'static str>,
}

/// Conventions of an architecture's GGUF files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgufForm {
    /// Value of `general.architecture` in GGUF files, which prefixes other keys. If several architectures share a name,
    /// files with that name are read as the first of them.
    pub name: &'static str,
    /// Whether the rows for queries and keys are permuted for llama.cpp's interleaved rotary embedding. Permuted rows
    /// alternate between the first and second half of a head.
    pub interleaved: bool,
    /// Layers that llama.cpp treats differently because of their index.
    pub places: GgufPlaces,
}

/// Layers that llama.cpp treats differently from the others. llama.cpp selects them by index, regardless of the
/// metadata in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufPlaces {
    /// All layers use full attention and a rotary embedding.
    Alike,
    /// Every n-th layer uses full attention, and all other layers use a sliding window (Gemma).
    Windows(usize),
    /// Every n-th layer has no rotary embedding (SmolLM3).
    Unrotated(usize),
}

impl GgufForm {
    /// Creates the conventions of an architecture in which llama.cpp treats all layers alike.
    pub(crate) const fn uniform(name: &'static str, interleaved: bool) -> Self {
        Self { name, interleaved, places: GgufPlaces::Alike }
    }
}

/// Rule by which transformers selects the layers with sliding-window attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlidingWindow {
    /// No layers. Configs with a window are rejected.
    Never,
    /// All layers, unless the window is null (Mistral).
    Always,
    /// The sliding layers in `layer_types` if `use_sliding_window` is set, otherwise none (Qwen2, Qwen3). If
    /// `layer_types` is missing, the layers from `max_window_layers` on. Such configs always contain a window size.
    Switched,
    /// All layers if `use_sliding_window` is set, otherwise none (Qwen3-MoE).
    SwitchedWhole,
    /// The sliding layers in `layer_types`. If `layer_types` is missing, all layers except every n-th one (Gemma).
    Patterned {
        every: usize,
        /// Config key that may override `every`.
        key: Option<&'static str>,
    },
    /// The sliding layers in `layer_types` if `use_sliding_window` is set, otherwise none (SmolLM3). If `layer_types`
    /// is missing, the layers without a rotary embedding.
    Unrotated,
}

/// RMS norm applied to queries and keys before the rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryKeyNorm {
    None,
    /// Over the channels of each head (Qwen3).
    PerHead,
    /// Over the whole projection (OLMo-2).
    WholeProjection,
}

/// Llama, the base of all other entries.
const LLAMA: Architecture = Architecture {
    class: "LlamaForCausalLM",
    model_type: "llama",
    norms: [Some("input_layernorm"), None, Some("post_attention_layernorm"), None],
    norms_add_one: false,
    query_key_norm: QueryKeyNorm::None,
    attention_bias: AttentionBias::Configurable,
    mlp_bias: true,
    window: SlidingWindow::Never,
    rope: RopeEntries::One,
    activation: ("hidden_act", Activation::Silu),
    fused: false,
    experts: None,
    scaled_embedding: false,
    scale: None,
    transformers_names: None,
    caps: [None; 2],
    defaults: r#"{"rms_norm_eps": 1e-6}"#,
    gguf: None,
};

/// Gemma 2, the base of Gemma 3.
const GEMMA2: Architecture = Architecture {
    class: "Gemma2ForCausalLM",
    model_type: "gemma2",
    norms: [
        Some("input_layernorm"),
        Some("post_attention_layernorm"),
        Some("pre_feedforward_layernorm"),
        Some("post_feedforward_layernorm"),
    ],
    norms_add_one: true,
    mlp_bias: false,
    window: SlidingWindow::Patterned { every: 2, key: None },
    activation: ("hidden_activation", Activation::Gelu),
    scaled_embedding: true,
    scale: Some("query_pre_attn_scalar"),
    gguf: Some(GgufForm { name: "gemma2", interleaved: false, places: GgufPlaces::Windows(2) }),
    caps: [Some("attn_logit_softcapping"), Some("final_logit_softcapping")],
    defaults: r#"{"head_dim": 256, "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "rope_theta": 10000.0}"#,
    ..LLAMA
};

/// All supported architectures. To support another decoder of the same structure, add an entry.
pub static ARCHITECTURES: &[Architecture] = &[
    Architecture { gguf: Some(GgufForm::uniform("llama", true)), ..LLAMA },
    Architecture {
        class: "Qwen3ForCausalLM",
        model_type: "qwen3",
        query_key_norm: QueryKeyNorm::PerHead,
        mlp_bias: false,
        window: SlidingWindow::Switched,
        gguf: Some(GgufForm::uniform("qwen3", false)),
        defaults: r#"{"rms_norm_eps": 1e-6, "head_dim": 128, "num_key_value_heads": 32}"#,
        ..LLAMA
    },
    Architecture {
        class: "Olmo2ForCausalLM",
        model_type: "olmo2",
        norms: [None, Some("post_attention_layernorm"), None, Some("post_feedforward_layernorm")],
        query_key_norm: QueryKeyNorm::WholeProjection,
        mlp_bias: false,
        gguf: Some(GgufForm::uniform("olmo2", false)),
        defaults: r#"{"rms_norm_eps": 1e-5}"#,
        ..LLAMA
    },
    Architecture {
        class: "MistralForCausalLM",
        model_type: "mistral",
        attention_bias: AttentionBias::Never,
        mlp_bias: false,
        window: SlidingWindow::Always,
        gguf: Some(GgufForm::uniform("llama", true)),
        defaults: r#"{"rms_norm_eps": 1e-6, "num_key_value_heads": 8}"#,
        ..LLAMA
    },
    Architecture {
        class: "Qwen2ForCausalLM",
        model_type: "qwen2",
        attention_bias: AttentionBias::Inputs,
        mlp_bias: false,
        window: SlidingWindow::Switched,
        gguf: Some(GgufForm::uniform("qwen2", false)),
        defaults: r#"{"rms_norm_eps": 1e-6, "num_key_value_heads": 32}"#,
        ..LLAMA
    },
    // Phi-4 and Phi-4-mini also use this class.
    Architecture {
        class: "Phi3ForCausalLM",
        model_type: "phi3",
        attention_bias: AttentionBias::Never,
        mlp_bias: false,
        window: SlidingWindow::Always,
        rope: RopeEntries::Partial,
        fused: true,
        gguf: Some(GgufForm::uniform("phi3", false)),
        defaults: r#"{"sliding_window": null, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096, "tie_word_embeddings": false, "rope_theta": 10000.0}"#,
        ..LLAMA
    },
    Architecture {
        class: "SmolLM3ForCausalLM",
        model_type: "smollm3",
        window: SlidingWindow::Unrotated,
        rope: RopeEntries::SomeLayers,
        gguf: Some(GgufForm { name: "smollm3", interleaved: true, places: GgufPlaces::Unrotated(4) }),
        defaults: r#"{"rms_norm_eps": 1e-6, "tie_word_embeddings": true, "rope_theta": 2000000.0, "sliding_window": null,
            "no_rope_layer_interval": 4, "num_key_value_heads": 4}"#,
        ..LLAMA
    },
    GEMMA2,
    Architecture {
        class: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        transformers_names: Some(("Gemma3Text", "gemma3")),
        query_key_norm: QueryKeyNorm::PerHead,
        window: SlidingWindow::Patterned { every: 6, key: Some("sliding_window_pattern") },
        rope: RopeEntries::ByWindow,
        gguf: Some(GgufForm { name: "gemma3", interleaved: false, places: GgufPlaces::Windows(6) }),
        // Configs contain `attn_logit_softcapping`, but transformers ignores it.
        caps: [None, Some("final_logit_softcapping")],
        defaults: r#"{"head_dim": 256, "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "query_pre_attn_scalar": 256,
            "sliding_window": 4096, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208,
            "max_position_embeddings": 131072}"#,
        ..GEMMA2
    },
    Architecture {
        class: "MixtralForCausalLM",
        model_type: "mixtral",
        attention_bias: AttentionBias::Never,
        mlp_bias: false,
        window: SlidingWindow::Always,
        experts: Some(ExpertNames {
            router: "block_sparse_moe.gate",
            experts: "block_sparse_moe.experts",
            matrices: ["w1", "w3", "w2"],
            count: &["num_local_experts"],
            width: "intermediate_size",
            normalized: None,
        }),
        defaults: r#"{"sliding_window": null, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "rope_theta": 1000000.0,
            "num_experts_per_tok": 2, "num_local_experts": 8, "num_key_value_heads": 8}"#,
        ..LLAMA
    },
    Architecture {
        class: "Qwen3MoeForCausalLM",
        model_type: "qwen3_moe",
        query_key_norm: QueryKeyNorm::PerHead,
        mlp_bias: false,
        window: SlidingWindow::SwitchedWhole,
        experts: Some(ExpertNames {
            router: "mlp.gate",
            experts: "mlp.experts",
            matrices: ["gate_proj", "up_proj", "down_proj"],
            // transformers 5 writes `num_local_experts`.
            count: &["num_local_experts", "num_experts"],
            width: "moe_intermediate_size",
            normalized: Some("norm_topk_prob"),
        }),
        defaults: r#"{"rms_norm_eps": 1e-6, "tie_word_embeddings": false, "rope_theta": 10000.0, "num_experts_per_tok": 8,
            "moe_intermediate_size": 768, "norm_topk_prob": false, "decoder_sparse_step": 1, "num_key_value_heads": 4,
            "sliding_window": 4096, "max_position_embeddings": 32768}"#,
        ..LLAMA
    },
];

impl Architecture {
    /// Returns the architecture named in a config, and whether the config belongs to an export with operators or
    /// removed sublayers.
    ///
    /// # Errors
    /// Fails if the architecture is unknown, or `architectures` and `model_type` disagree.
    pub(super) fn from_entries(entries: &Entries<'_>) -> Result<(&'static Self, bool)> {
        let class = match entries.get("architectures") {
            None => None,
            Some(Value::Array(classes)) if classes.len() == 1 && classes[0].is_string() => classes[0].as_str(),
            Some(_) => return Err(entries.value_error("architectures", "a list of one name")),
        };
        let model_type = entries.text("model_type")?;
        let is_export = class.map_or(model_type.is_some_and(|text| text.starts_with(MODEL_TYPE_PREFIX)), |text| {
            text.starts_with(CLASS_PREFIX)
        });
        let base_model_type =
            model_type.map(|text| if is_export { text.strip_prefix(MODEL_TYPE_PREFIX).unwrap_or(text) } else { text });
        let found = ARCHITECTURES.iter().find(|candidate| match class {
            Some(class) => class.strip_prefix(if is_export { CLASS_PREFIX } else { "" }) == Some(candidate.class),
            None => base_model_type == Some(candidate.model_type),
        });
        let architecture = found.ok_or_else(|| {
            Error::bad_input("unknown architecture")
                .at("architectures")
                .expected(ARCHITECTURES.iter().map(|candidate| candidate.class).collect::<Vec<_>>().join(", "))
                .found(class.or(model_type).unwrap_or("neither architectures nor model_type"))
                .hint("use one of these decoders; to add a similar one, see crates/core/src/model/architecture.rs")
        })?;
        // Reject contradictions, because either entry may be the wrong one. transformers reads only `model_type`.
        match base_model_type {
            Some(other) if other != architecture.model_type => {
                Err(Error::bad_input("`model_type` contradicts `architectures`")
                    .at("model_type")
                    .expected(format!(
                        "`{}`, the model type of {}",
                        architecture.model_type,
                        class.unwrap_or(architecture.class)
                    ))
                    .found(format!("`{other}`")))
            }
            _ => Ok((architecture, is_export)),
        }
    }

    /// Returns whether the output projection is tied to the embedding by default.
    pub(crate) fn is_tied(&self) -> bool {
        self.defaults.contains(r#""tie_word_embeddings": true"#)
    }
}
