//! The registry of architectures: decoders of one build, told apart by where their norms stand, by biases and by windows.

use serde_json::Value;

use super::entries::Entries;
use crate::error::{Error, Result};

/// What the class and the model type of a folder with operators beside its weights begin with ([`Attachment`](super::Attachment)); behind it stand the architecture's own.
pub(crate) const CLASS: &str = "Ghosted";
pub(crate) const MODEL_TYPE: &str = "ghostlab_";
/// Where a decoder layer has its norms, how queries and keys are normed, and what its attention adds and leaves out: all
/// that tells the architectures apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Architecture {
    /// The `architectures` entry of the config.
    pub class: &'static str,
    /// Its name in every config.
    pub model_type: &'static str,
    /// Names of a layer's norm weights: before and after attention, before and after the MLP.
    pub norms: [Option<&'static str>; 4],
    pub query_key_norm: QueryKeyNorm,
    /// Whether queries, keys and values have a bias each.
    pub projection_bias: bool,
    pub window: SlidingWindow,
    /// How llama.cpp's files have it; none where they cannot.
    pub gguf: Option<GgufForm>,
}

/// An architecture in GGUF files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgufForm {
    /// The `general.architecture`, with which the keys of its entries begin. Of several that share one, the first is read.
    pub name: &'static str,
    /// Whether the rows of queries and keys stand as llama.cpp's rotary embedding of neighbours wants them: the first and
    /// the second half of a head by turns.
    pub turns: bool,
}

/// Attention to the last tokens only: which layers have it, as transformers reads a config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlidingWindow {
    /// None; a config that asks for one is refused.
    Never,
    /// Every layer, unless the config says null (Mistral).
    Always,
    /// Off unless `use_sliding_window` says otherwise; then the layers from `max_window_layers` on, or those that
    /// `layer_types` names (Qwen2, Qwen3). Configs have its width all the same.
    Switched,
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

/// Every architecture that the decoder knows. A new one of the same build is one entry.
pub static ARCHITECTURES: &[Architecture] = &[
    Architecture {
        class: "LlamaForCausalLM",
        model_type: "llama",
        norms: [Some("input_layernorm"), None, Some("post_attention_layernorm"), None],
        query_key_norm: QueryKeyNorm::None,
        projection_bias: false,
        window: SlidingWindow::Never,
        gguf: Some(GgufForm { name: "llama", turns: true }),
    },
    Architecture {
        class: "Qwen3ForCausalLM",
        model_type: "qwen3",
        norms: [Some("input_layernorm"), None, Some("post_attention_layernorm"), None],
        query_key_norm: QueryKeyNorm::PerHead,
        projection_bias: false,
        window: SlidingWindow::Switched,
        gguf: Some(GgufForm { name: "qwen3", turns: false }),
    },
    Architecture {
        class: "Olmo2ForCausalLM",
        model_type: "olmo2",
        norms: [None, Some("post_attention_layernorm"), None, Some("post_feedforward_layernorm")],
        query_key_norm: QueryKeyNorm::WholeProjection,
        projection_bias: false,
        window: SlidingWindow::Never,
        gguf: Some(GgufForm { name: "olmo2", turns: false }),
    },
    Architecture {
        class: "MistralForCausalLM",
        model_type: "mistral",
        norms: [Some("input_layernorm"), None, Some("post_attention_layernorm"), None],
        query_key_norm: QueryKeyNorm::None,
        projection_bias: false,
        window: SlidingWindow::Always,
        gguf: Some(GgufForm { name: "llama", turns: true }),
    },
    Architecture {
        class: "Qwen2ForCausalLM",
        model_type: "qwen2",
        norms: [Some("input_layernorm"), None, Some("post_attention_layernorm"), None],
        query_key_norm: QueryKeyNorm::None,
        projection_bias: true,
        window: SlidingWindow::Switched,
        gguf: Some(GgufForm { name: "qwen2", turns: false }),
    },
];

impl Architecture {
    /// The architecture that a config names, and whether it does so as an export of ours with operators beside its weights.
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
        let ours = class.map_or(model_type.is_some_and(|of| of.starts_with(MODEL_TYPE)), |of| of.starts_with(CLASS));
        let found = ARCHITECTURES.iter().find(|of| match class {
            Some(class) => class.strip_prefix(if ours { CLASS } else { "" }) == Some(of.class),
            None => model_type == Some(&*of.model_type_of(ours)),
        });
        let own = found.ok_or_else(|| {
        Error::bad_input("unknown architecture")
            .at("architectures")
            .expected(ARCHITECTURES.iter().map(|of| of.class).collect::<Vec<_>>().join(", "))
            .found(class.or(model_type).unwrap_or("neither architectures nor model_type").to_string())
            .hint("only these decoders are computed faithfully; another of the same build is one entry in crates/core/src/model/architecture.rs")
    })?;
        // transformers goes by model_type alone: which of the two is right cannot be told from here.
        match model_type {
            Some(other) if other != own.model_type_of(ours) => {
                Err(Error::bad_input("the config names two architectures")
                    .at("model_type")
                    .expected(format!(
                        "`{}`, as architectures says {}",
                        own.model_type_of(ours),
                        class.unwrap_or(own.class)
                    ))
                    .found(format!("`{other}`")))
            }
            _ => Ok((own, ours)),
        }
    }

    /// Its name in a config; that of an export with operators is another one.
    fn model_type_of(&self, ours: bool) -> String {
        format!("{}{}", if ours { MODEL_TYPE } else { "" }, self.model_type)
    }
}
