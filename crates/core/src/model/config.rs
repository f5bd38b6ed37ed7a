//! `config.json` of a backbone, in both formats used by Hugging Face.
//!
//! The older format has `rope_theta`, `rope_scaling` and `torch_dtype` at the top level. The newer format has a
//! `rope_parameters` map and `dtype`. Settings that would change the forward pass but are not supported are rejected
//! here, before weights are loaded.

use std::path::Path;

use serde_json::{Map, Value};

use super::architecture::{Activation, Architecture, AttentionBias, RopeEntries, activation_names};
use super::attached_form::{ACTIVATION_KEY, Attachment, CONFIG_KEY};
use super::config_fields::Entries;
use super::cut::Cut;
use super::experts::{self, Experts};
use super::gguf_backbone;
use super::rope_config;
pub use super::rope_config::{Llama3Scaling, LongRope, Rope, Scaling, Yarn};
use super::rounding::WeightType;
use super::side_operators::{self, ExportEntries};
use super::sublayer::Sublayer;
use super::tensor_name::{EMBEDDING, HEAD};
use super::weights::Weights;
use super::window::{self, MAX_CONTEXT_LENGTH};
use crate::error::{Error, Result};
use crate::files::gguf::{Gguf, is_gguf};
use crate::files::{self, parts, regular};
use crate::quantity::pluralize;

/// Upper bounds that prevent overflow in products of config values. They are far above the values of real backbones.
/// `check_weights` later compares the values with the weight files.
const MAX_LAYERS: usize = 10_000;
const MAX_CHANNELS: usize = 1 << 20;
const MAX_HEADS: usize = 1 << 16;
const MAX_VOCAB: usize = 1 << 24;

/// Projections that have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Biases {
    /// Whether the projections to queries, keys and values have biases.
    pub inputs: bool,
    /// Whether the output projection of attention has a bias.
    pub output: bool,
    /// Whether the gate, up and down projections have biases.
    pub mlp: bool,
}

/// Parsed config of a backbone.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub architecture: &'static Architecture,
    /// Number of layers `L`.
    pub layers: usize,
    /// Hidden size `C`.
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Width of dense MLPs.
    pub intermediate: usize,
    pub vocab: usize,
    pub norm_eps: f32,
    pub biases: Biases,
    pub rope: Rope,
    /// Rotary embedding of sliding-window layers, if it differs from [`Self::rope`] (Gemma 3).
    pub window_rope: Option<Rope>,
    /// Number of leading channels of a head that the rotary embedding rotates.
    pub rotary_width: usize,
    /// Whether each layer has a rotary embedding.
    pub rotated: Vec<bool>,
    pub activation: Activation,
    /// Scale of attention scores.
    pub scale: f32,
    /// Soft cap on attention scores, `cap·tanh(x/cap)`.
    pub score_cap: Option<f32>,
    pub logit_cap: Option<f32>,
    /// Experts that replace the dense MLP in the layers marked in [`Self::sparse`].
    pub experts: Option<Experts>,
    /// Whether each layer has experts instead of a dense MLP.
    pub sparse: Vec<bool>,
    /// Whether the embedding is also the output projection. The config must declare this, and the weights must contain
    /// only one of the two matrices.
    pub tied_embeddings: bool,
    /// Sliding-window size of each layer in tokens, including the query. `None` if the layer attends to all earlier
    /// tokens.
    pub windows: Vec<Option<usize>>,
    /// Maximum context length in training, in tokens, if known.
    pub max_positions: Option<usize>,
    /// Operators that a ghostlab export stores as extra tensors. Always empty in configs from [`Self::read`], which
    /// rejects such exports.
    pub attachments: Vec<Attachment>,
    /// Sublayers that a ghostlab export removed from its layers. Always empty in configs from [`Self::read`].
    pub dropped: Cut,
    /// Type to which matrices are quantized when they are loaded. Config files never set it.
    pub rounded: Option<WeightType>,
    /// Notes about defaults for missing entries, and about entries that contradict each other or the weights.
    pub notes: Vec<String>,
}

impl Config {
    /// Returns whether the branch of a sublayer ends in a norm, as in OLMo-2 and Gemma.
    pub fn ends_in_norm(&self, sublayer: Sublayer) -> bool {
        self.norm_after(sublayer).is_some()
    }

    /// Returns whether every layer has both sublayers and the checkpoint stores no operators.
    pub fn is_plain(&self) -> bool {
        self.attachments.is_empty() && self.dropped.is_empty()
    }

    /// Describes the operators and dropped sublayers of an export.
    pub fn export_text(&self) -> String {
        let operators = format!("{} stored in the checkpoint", pluralize(self.attachments.len(), "operator"));
        let sublayers = format!("{} removed", pluralize(self.dropped.len(), "sublayer"));
        match (self.attachments.is_empty(), self.dropped.is_empty()) {
            (_, true) => operators,
            (true, false) => sublayers,
            (false, false) => format!("{operators}, {sublayers}"),
        }
    }

    /// Returns the name of the norm that follows a sublayer, if any.
    pub fn norm_after(&self, sublayer: Sublayer) -> Option<&'static str> {
        self.architecture.norms[sublayer.norms()[1]]
    }

    /// Reads `<folder>/config.json`, or the header of a GGUF file.
    ///
    /// # Errors
    /// Fails if the file is missing or malformed, or an entry is missing, mistyped or unsupported. Also fails for
    /// ghostlab exports with operators or removed sublayers, because ignoring either would change the model.
    pub fn read(folder: &Path) -> Result<Self> {
        Self::read_with_attachments(folder)?.reject_export(&parts::config_path(folder))
    }

    /// Reads a config like [`Self::read`], but accepts exports with operators or removed sublayers. Such a backbone
    /// must be run with its [`folder_program`](super::folder_program).
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::read`], except that operators and removed sublayers are accepted.
    pub fn read_with_attachments(folder: &Path) -> Result<Self> {
        if is_gguf(folder) {
            let map = gguf_backbone::read_config(&Gguf::open(folder)?)?;
            let entries = Entries { map: &map, prefix: "" };
            return Self::parse(&entries).map_err(|error| error.at(folder.display()));
        }
        if !folder.is_dir() {
            return Err(Error::missing("backbone folder not found")
                .at(folder.display())
                .hint("use a folder with config.json, tokenizer.json and *.safetensors, or a .gguf file"));
        }
        if !folder.join("config.json").exists() {
            return Err(no_backbone_error(folder));
        }
        let mut config = Self::parse_file(&folder.join("config.json"))?;
        if config.tied_embeddings && has_embedding_and_head(folder) {
            config.tied_embeddings = false;
            config.notes.push(
                "config.json sets tie_word_embeddings, but the weights contain lm_head.weight: using lm_head.weight, as in transformers 5"
                    .into(),
            );
        }
        Ok(config)
    }

    /// Reads a config from a file of any name.
    ///
    /// # Errors
    /// See [`Self::read`].
    pub fn read_file(path: &Path) -> Result<Self> {
        Self::parse_file(path)?.reject_export(path)
    }

    /// Returns the config, or an error if it belongs to an export with operators or removed sublayers.
    fn reject_export(self, path: &Path) -> Result<Self> {
        if self.is_plain() {
            return Ok(self);
        }
        Err(Error::bad_input("the model is a ghostlab export with operators or removed sublayers")
            .at(path.display())
            .expected("a model without operators and with all sublayers")
            .found(self.export_text())
            .hint("use the model that it was exported from; only `ghostlab score` and dense grid cells accept exports"))
    }

    fn parse_file(path: &Path) -> Result<Self> {
        let location = path.display().to_string();
        let text = regular::read(path)?;
        let value: Value = serde_json::from_slice(&text)
            .map_err(|error| Error::bad_input("malformed JSON").at(&location).found(error))?;
        let Value::Object(map) = value else {
            return Err(Error::bad_input("a config must be a JSON object").at(location));
        };
        Self::parse(&Entries { map: &map, prefix: "" }).map_err(|error| error.at(location))
    }

    fn parse(entries: &Entries<'_>) -> Result<Self> {
        let (architecture, is_export) = Architecture::from_entries(entries)?;
        let mut notes = Vec::new();
        let mut map = with_defaults(entries.map, architecture, &mut notes)?;
        if let Some(activation) =
            map.get(CONFIG_KEY).and_then(|section| section.get(ACTIVATION_KEY)).filter(|_| is_export).cloned()
        {
            map.insert(architecture.activation.0.to_owned(), activation);
        }
        let entries = &Entries { map: &map, prefix: entries.prefix };
        let layers = entries.count("num_hidden_layers", MAX_LAYERS)?;
        reject_unsupported(entries, architecture)?;
        let hidden = entries.count("hidden_size", MAX_CHANNELS)?;
        let AttentionShape { heads, kv_heads, head_dim } = AttentionShape::read(entries, hidden)?;
        let biases = Biases::read(entries, architecture)?;
        let ropes = rope_config::parse(entries, architecture, layers, head_dim, &mut notes)?;
        let windows = window::parse(entries, architecture, layers, &ropes.rotated, &mut notes)?;
        let scale = architecture.scale.map_or(Ok(None), |key| entries.optional_number(key, 1e-6..=1e9))?;
        let [score_cap, logit_cap] = architecture.caps.map(|key| read_cap(entries, key));
        let (experts, mut sparse) = experts::parse(entries, architecture, layers)?;
        let ExportEntries { attachments, dropped } = if is_export {
            side_operators::parse_export_entries(entries, architecture, layers)?
        } else {
            ExportEntries::default()
        };
        sparse.iter_mut().enumerate().for_each(|(layer, sparse)| *sparse &= !dropped.contains(layer, Sublayer::Mlp));
        Ok(Self {
            architecture,
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim,
            intermediate: entries.count("intermediate_size", MAX_CHANNELS)?,
            vocab: entries.count("vocab_size", MAX_VOCAB)?,
            norm_eps: entries.number("rms_norm_eps", 1e-30..=1.0)? as f32,
            biases,
            rope: ropes.rope,
            window_rope: ropes.window_rope,
            rotary_width: ropes.width,
            rotated: ropes.rotated,
            activation: architecture.activation.1,
            scale: 1.0 / scale.map_or(head_dim as f32, |dimension| dimension as f32).sqrt(),
            score_cap: score_cap?,
            logit_cap: logit_cap?,
            experts,
            sparse,
            tied_embeddings: entries.flag("tie_word_embeddings")?.unwrap_or_else(|| {
                notes.push("config.json does not set tie_word_embeddings: using false".into());
                false
            }),
            windows,
            rounded: None,
            max_positions: entries.optional_count("max_position_embeddings", MAX_CONTEXT_LENGTH)?,
            attachments,
            dropped,
            notes,
        })
    }
}

impl Biases {
    fn read(entries: &Entries<'_>, architecture: &Architecture) -> Result<Self> {
        let attention =
            read_bias_flag(architecture.attention_bias == AttentionBias::Configurable, "attention_bias", entries)?;
        Ok(Self {
            inputs: attention || architecture.attention_bias == AttentionBias::Inputs,
            output: attention,
            mlp: read_bias_flag(architecture.mlp_bias, "mlp_bias", entries)?,
        })
    }
}

/// Numbers of query heads and key/value heads, and the head dimension.
struct AttentionShape {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl AttentionShape {
    fn read(entries: &Entries<'_>, hidden: usize) -> Result<Self> {
        let heads = entries.count("num_attention_heads", MAX_HEADS)?;
        let kv_heads = entries.optional_count("num_key_value_heads", MAX_HEADS)?.unwrap_or(heads);
        if heads % kv_heads != 0 {
            return Err(Error::bad_input(
                "the number of query heads is not a multiple of the number of key/value heads",
            )
            .at("num_key_value_heads")
            .expected(format!("a divisor of num_attention_heads = {heads}"))
            .found(kv_heads));
        }
        let head_dim = match entries.optional_count("head_dim", MAX_CHANNELS)? {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                return Err(Error::bad_input(
                    "the config has no head_dim, and num_attention_heads does not divide hidden_size",
                )
                .expected("head_dim, or a hidden_size divisible by num_attention_heads")
                .found(format!("hidden_size {hidden}, num_attention_heads {heads}")));
            }
        };
        if head_dim % 2 != 0 {
            return Err(Error::bad_input("the rotary embedding needs an even number of channels per head")
                .at("head_dim")
                .expected("an even number")
                .found(head_dim));
        }
        Ok(Self { heads, kv_heads, head_dim })
    }
}

/// Reads a soft cap. Returns `None` if the architecture has none.
fn read_cap(entries: &Entries<'_>, key: Option<&str>) -> Result<Option<f32>> {
    let cap = key.map_or(Ok(None), |key| entries.optional_number(key, 1e-3..=1e9))?;
    Ok(cap.map(|cap| cap as f32))
}

/// Reads an entry that enables a bias. Returns `false` if it is absent or the architecture ignores it.
fn read_bias_flag(is_configurable: bool, key: &str, entries: &Entries<'_>) -> Result<bool> {
    Ok(is_configurable && entries.flag(key)?.unwrap_or(false))
}

/// Fills in the defaults of transformers' config class for missing entries, and adds a note that lists them.
fn with_defaults(
    entries: &Map<String, Value>,
    architecture: &Architecture,
    notes: &mut Vec<String>,
) -> Result<Map<String, Value>> {
    let mut map: Map<String, Value> =
        serde_json::from_str(architecture.defaults).map_err(|error: serde_json::Error| {
            Error::job("the defaults of an architecture are not valid JSON").found(error)
        })?;
    map.retain(|key, _| !entries.contains_key(key));
    let used_defaults: Vec<String> =
        map.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| format!("{key} {value}")).collect();
    if !used_defaults.is_empty() {
        notes.push(format!(
            "config.json omits entries: using {}, the defaults of transformers",
            used_defaults.join(", ")
        ));
    }
    map.extend(entries.clone());
    Ok(map)
}

/// Returns whether the weights contain both an embedding and a separate output projection. Returns `false` for
/// unreadable files, which cause an error when they are loaded.
fn has_embedding_and_head(folder: &Path) -> bool {
    Weights::open(folder).is_ok_and(|weights| weights.contains(EMBEDDING) && weights.contains(HEAD))
}

/// Rejects settings that would change the forward pass but are not implemented.
fn reject_unsupported(entries: &Entries<'_>, architecture: &Architecture) -> Result<()> {
    let (key, activation) = architecture.activation;
    let names = activation_names(activation);
    if let Some(found) = entries.get(key).filter(|found| !names.iter().any(|name| *found == name)) {
        return Err(entries.unsupported_error(key, found, names[0]));
    }
    let neutral = [
        ("attention_bias", Value::from(false), architecture.attention_bias != AttentionBias::Configurable),
        ("mlp_bias", Value::from(false), !architecture.mlp_bias),
        ("clip_qkv", Value::Null, true),
        ("partial_rotary_factor", Value::from(1.0), architecture.rope != RopeEntries::Partial),
        ("quantization_config", Value::Null, true),
        // Set for embedding models, in which tokens also attend to later tokens.
        ("use_bidirectional_attention", Value::from(false), true),
        // Set for models whose layers have different shapes, or share keys and values.
        ("per_layer_config", Value::Null, true),
        ("num_kv_shared_layers", Value::from(0), true),
    ];
    for (key, neutral, _) in neutral.into_iter().filter(|(.., is_rejected)| *is_rejected) {
        if let Some(found) = entries.get(key)
            && *found != neutral
            && found.as_f64().is_none_or(|number| Some(number) != neutral.as_f64())
        {
            return Err(entries.unsupported_error(key, found, &neutral.to_string()));
        }
    }
    Ok(())
}

/// Creates the error for a folder without a config. It lists up to five entries of the folder, and suggests a subfolder
/// that contains a config.
fn no_backbone_error(folder: &Path) -> Error {
    let paths = files::entries(folder).unwrap_or_default();
    let names = paths
        .iter()
        .take(5)
        .map(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default())
        .collect::<Vec<_>>()
        .join(", ");
    let found = match paths.len().saturating_sub(5) {
        0 if names.is_empty() => "an empty folder".to_owned(),
        0 => names,
        unlisted => format!("{names} and {unlisted} more"),
    };
    let error = Error::missing("the folder contains no model (no config.json)")
        .at(folder.display())
        .expected("config.json, tokenizer.json and *.safetensors")
        .found(found);
    match paths.iter().find(|path| path.join("config.json").is_file()) {
        Some(model) => error.hint(format!("did you mean `{}`?", model.display())),
        None => error.hint("use the folder of a model in the Hugging Face format"),
    }
}

#[cfg(test)]
mod tests;
