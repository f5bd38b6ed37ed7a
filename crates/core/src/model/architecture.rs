//! The registry of architectures: decoders of one build, told apart by where their norms stand, by biases and by windows.

pub use ghostlab_kernels::forward::Activation;
use serde_json::Value;

use super::entries::Entries;
use crate::error::{Error, Result};

/// Prefix of the class of a folder with operators next to its weights ([`Attachment`](super::Attachment)); the
/// architecture's own name follows.
pub(crate) const CLASS: &str = "Ghosted";
/// Former prefix of its model type.
const MODEL_TYPE: &str = "ghostlab_";

/// Where a decoder layer has its norms, how queries and keys are normed, what its projections add, how far its attention
/// sees, and what its MLP is: all that tells the architectures apart. [`LLAMA`] is what the others differ from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Architecture {
    /// The `architectures` entry of the config.
    pub class: &'static str,
    /// Its name in every config.
    pub model_type: &'static str,
    /// Prefix of transformers' other classes and their folder, if they differ from `class` and `model_type`.
    pub python: Option<(&'static str, &'static str)>,
    /// Names of a layer's norm weights: before and after attention, before and after the MLP.
    pub norms: [Option<&'static str>; 4],
    /// Whether norms multiply by one more than their weights (Gemma).
    pub norms_add_one: bool,
    pub query_key_norm: QueryKeyNorm,
    pub attention_bias: AttentionBias,
    /// Whether `mlp_bias` gives the MLP's projections a bias each.
    pub mlp_bias: bool,
    pub window: SlidingWindow,
    pub rope: RopeEntries,
    /// The entry that names the MLP's activation, and transformers' name of it.
    pub activation: (&'static str, Activation),
    /// Whether weight files hold queries, keys and values as one matrix, and gate and up as another (Phi-3).
    pub fused: bool,
    pub experts: Option<ExpertNames>,
    /// Whether embeddings are multiplied by √C, rounded to the type that they are stored in (Gemma).
    pub scaled_embedding: bool,
    /// The entry whose inverse root attention's scores are scaled by; `head_dim` where there is none.
    pub scale: Option<&'static str>,
    /// The entries that bound scores and logits by `cap·tanh(x/cap)`.
    pub caps: [Option<&'static str>; 2],
    /// Entries that a config may leave out, a JSON object: what transformers' class takes then.
    pub defaults: &'static str,
    /// How llama.cpp's files have it; none where they cannot.
    pub gguf: Option<GgufForm>,
}

/// Which of attention's projections have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionBias {
    /// No bias; a config that asks for one is rejected.
    Never,
    /// Queries, keys and values (Qwen2).
    Inputs,
    /// Biases of queries, keys, values and output if `attention_bias` says so (Llama).
    Asked,
}

/// Location of the rotary embedding's settings in a config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeEntries {
    /// One for all layers, over whole heads.
    One,
    /// All layers except those with a 0 in `no_rope_layers` (SmolLM3).
    SomeLayers,
    /// Over the part of a head that `partial_rotary_factor` says, plain or `longrope` (Phi-3).
    Partial,
    /// One for layers with a window, another for those without (Gemma 3).
    ByWindow,
}

/// Returns the config names of an activation, transformers' own first.
pub(crate) fn activation_names(activation: Activation) -> &'static [&'static str] {
    match activation {
        Activation::Silu => &["silu"],
        Activation::Gelu => &["gelu_pytorch_tanh", "gelu_new"],
    }
}

/// Names of the parts of a mixture of experts in weight files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertNames {
    pub router: &'static str,
    /// Prefix before an expert's number.
    pub experts: &'static str,
    /// Gate, up and down of an expert.
    pub matrices: [&'static str; 3],
    /// Entries of the config: how many there are, and the width of each.
    pub count: &'static [&'static str],
    pub width: &'static str,
    /// The entry that says whether the weights of the chosen ones are made to sum to 1; where there is none they are.
    pub normalised: Option<&'static str>,
}

/// An architecture in GGUF files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgufForm {
    /// The `general.architecture` of GGUF files, which is the prefix of its keys. The first of several architectures with one name is read.
    pub name: &'static str,
    /// Whether the rows of queries and keys stand as llama.cpp's rotary embedding of neighbours wants them: the first and
    /// the second half of a head by turns.
    pub turns: bool,
    /// Properties that llama.cpp derives from layer indices.
    pub places: GgufPlaces,
}

/// Which layers llama.cpp computes otherwise than others, whatever a file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufPlaces {
    /// No windows in llama.cpp.
    Alike,
    /// All but every n-th have a window (Gemma).
    Windows(usize),
    /// Every n-th has no rotary embedding (SmolLM3).
    Unrotated(usize),
}

impl GgufForm {
    /// Returns a form whose layers are all equal.
    pub(crate) const fn alike(name: &'static str, turns: bool) -> Self {
        Self { name, turns, places: GgufPlaces::Alike }
    }
}

/// Attention to the last tokens only: which layers have it, as transformers reads a config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlidingWindow {
    /// No windows; a config that asks for one is rejected.
    Never,
    /// Every layer, unless the config says null (Mistral).
    Always,
    /// Off unless `use_sliding_window` is set; then the layers from `max_window_layers` on, or those in `layer_types`
    /// (Qwen2, Qwen3). Configs have a width in any case.
    Switched,
    /// Off unless `use_sliding_window` says otherwise; then every layer (Qwen3-MoE).
    SwitchedWhole,
    /// The layers that `layer_types` names; where the config has none, all but every n-th (Gemma).
    Patterned {
        every: usize,
        /// The entry that may give another n.
        key: Option<&'static str>,
    },
    /// Off unless `use_sliding_window` says otherwise; then those that `layer_types` names, or else the layers without a
    /// rotary embedding (SmolLM3).
    Unrotated,
}

/// A root-mean-square norm on queries and keys, before the rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryKeyNorm {
    None,
    /// Over the channels of each head (Qwen3).
    PerHead,
    /// Over the whole projection (OLMo-2).
    WholeProjection,
}

/// Llama, which the others differ from in what their entries say.
const LLAMA: Architecture = Architecture {
    class: "LlamaForCausalLM",
    model_type: "llama",
    norms: [Some("input_layernorm"), None, Some("post_attention_layernorm"), None],
    norms_add_one: false,
    query_key_norm: QueryKeyNorm::None,
    attention_bias: AttentionBias::Asked,
    mlp_bias: true,
    window: SlidingWindow::Never,
    rope: RopeEntries::One,
    activation: ("hidden_act", Activation::Silu),
    fused: false,
    experts: None,
    scaled_embedding: false,
    scale: None,
    python: None,
    caps: [None; 2],
    defaults: r#"{"rms_norm_eps": 1e-6}"#,
    gguf: None,
};

/// Gemma 2, which Gemma 3 differs from.
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
    gguf: Some(GgufForm { name: "gemma2", turns: false, places: GgufPlaces::Windows(2) }),
    caps: [Some("attn_logit_softcapping"), Some("final_logit_softcapping")],
    defaults: r#"{"head_dim": 256, "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "rope_theta": 10000.0}"#,
    ..LLAMA
};

/// Every architecture that the decoder knows. A new one of the same build is one entry.
pub static ARCHITECTURES: &[Architecture] = &[
    Architecture { gguf: Some(GgufForm::alike("llama", true)), ..LLAMA },
    Architecture {
        class: "Qwen3ForCausalLM",
        model_type: "qwen3",
        query_key_norm: QueryKeyNorm::PerHead,
        mlp_bias: false,
        window: SlidingWindow::Switched,
        gguf: Some(GgufForm::alike("qwen3", false)),
        defaults: r#"{"rms_norm_eps": 1e-6, "head_dim": 128, "num_key_value_heads": 32}"#,
        ..LLAMA
    },
    Architecture {
        class: "Olmo2ForCausalLM",
        model_type: "olmo2",
        norms: [None, Some("post_attention_layernorm"), None, Some("post_feedforward_layernorm")],
        query_key_norm: QueryKeyNorm::WholeProjection,
        mlp_bias: false,
        gguf: Some(GgufForm::alike("olmo2", false)),
        defaults: r#"{"rms_norm_eps": 1e-5}"#,
        ..LLAMA
    },
    Architecture {
        class: "MistralForCausalLM",
        model_type: "mistral",
        attention_bias: AttentionBias::Never,
        mlp_bias: false,
        window: SlidingWindow::Always,
        gguf: Some(GgufForm::alike("llama", true)),
        defaults: r#"{"rms_norm_eps": 1e-6, "num_key_value_heads": 8}"#,
        ..LLAMA
    },
    Architecture {
        class: "Qwen2ForCausalLM",
        model_type: "qwen2",
        attention_bias: AttentionBias::Inputs,
        mlp_bias: false,
        window: SlidingWindow::Switched,
        gguf: Some(GgufForm::alike("qwen2", false)),
        defaults: r#"{"rms_norm_eps": 1e-6, "num_key_value_heads": 32}"#,
        ..LLAMA
    },
    // Phi-4 and Phi-4-mini are of this class too.
    Architecture {
        class: "Phi3ForCausalLM",
        model_type: "phi3",
        attention_bias: AttentionBias::Never,
        mlp_bias: false,
        window: SlidingWindow::Always,
        rope: RopeEntries::Partial,
        fused: true,
        gguf: Some(GgufForm::alike("phi3", false)),
        defaults: r#"{"sliding_window": null, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096, "tie_word_embeddings": false, "rope_theta": 10000.0}"#,
        ..LLAMA
    },
    Architecture {
        class: "SmolLM3ForCausalLM",
        model_type: "smollm3",
        window: SlidingWindow::Unrotated,
        rope: RopeEntries::SomeLayers,
        gguf: Some(GgufForm { name: "smollm3", turns: true, places: GgufPlaces::Unrotated(4) }),
        defaults: r#"{"rms_norm_eps": 1e-6, "tie_word_embeddings": true, "rope_theta": 2000000.0, "sliding_window": null,
            "no_rope_layer_interval": 4, "num_key_value_heads": 4}"#,
        ..LLAMA
    },
    GEMMA2,
    Architecture {
        class: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        python: Some(("Gemma3Text", "gemma3")),
        query_key_norm: QueryKeyNorm::PerHead,
        window: SlidingWindow::Patterned { every: 6, key: Some("sliding_window_pattern") },
        rope: RopeEntries::ByWindow,
        gguf: Some(GgufForm { name: "gemma3", turns: false, places: GgufPlaces::Windows(6) }),
        // `attn_logit_softcapping` is in its configs, and nothing reads it.
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
            normalised: None,
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
            // transformers 5 writes the first.
            count: &["num_local_experts", "num_experts"],
            width: "moe_intermediate_size",
            normalised: Some("norm_topk_prob"),
        }),
        defaults: r#"{"rms_norm_eps": 1e-6, "tie_word_embeddings": false, "rope_theta": 10000.0, "num_experts_per_tok": 8,
            "moe_intermediate_size": 768, "norm_topk_prob": false, "decoder_sparse_step": 1, "num_key_value_heads": 4,
            "sliding_window": 4096, "max_position_embeddings": 32768}"#,
        ..LLAMA
    },
];

impl Architecture {
    /// Returns the architecture that a config names, and whether the config is an export with operators next to its
    /// weights.
    ///
    /// # Errors
    /// An unknown one, or two.
    pub(super) fn of(entries: &Entries<'_>) -> Result<(&'static Self, bool)> {
        let class = match entries.get("architectures") {
            None => None,
            Some(Value::Array(classes)) if classes.len() == 1 && classes[0].is_string() => classes[0].as_str(),
            Some(_) => return Err(entries.wrong("architectures", "a list of one name")),
        };
        let model_type = entries.text("model_type")?;
        let ours =
            class.map_or(model_type.is_some_and(|text| text.starts_with(MODEL_TYPE)), |text| text.starts_with(CLASS));
        let plain = model_type.map(|text| if ours { text.strip_prefix(MODEL_TYPE).unwrap_or(text) } else { text });
        let found = ARCHITECTURES.iter().find(|candidate| match class {
            Some(class) => class.strip_prefix(if ours { CLASS } else { "" }) == Some(candidate.class),
            None => plain == Some(candidate.model_type),
        });
        let architecture = found.ok_or_else(|| {
        Error::bad_input("unknown architecture")
            .at("architectures")
            .expected(ARCHITECTURES.iter().map(|candidate| candidate.class).collect::<Vec<_>>().join(", "))
            .found(class.or(model_type).unwrap_or("neither architectures nor model_type"))
            .hint("only these decoders are computed faithfully; another of the same build is one entry in crates/core/src/model/architecture.rs")
    })?;
        // transformers goes by model_type alone: which of the two is right cannot be told from here.
        match plain {
            Some(other) if other != architecture.model_type => {
                Err(Error::bad_input("the config names two architectures")
                    .at("model_type")
                    .expected(format!(
                        "`{}`, as architectures says {}",
                        architecture.model_type,
                        class.unwrap_or(architecture.class)
                    ))
                    .found(format!("`{other}`")))
            }
            _ => Ok((architecture, ours)),
        }
    }

    /// Returns whether the output projection is tied to the embedding by default.
    pub(crate) fn is_tied(&self) -> bool {
        self.defaults.contains(r#""tie_word_embeddings": true"#)
    }
}
