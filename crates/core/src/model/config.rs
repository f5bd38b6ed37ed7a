//! `config.json` of a backbone, in both dialects that Hugging Face has written.
//!
//! The hub's older dialect has `rope_theta` and `rope_scaling` at the top level and `torch_dtype`; the newer one has one map
//! `rope_parameters` and `dtype`. Whatever this program cannot compute faithfully is an error here, before weights load.

use std::path::Path;

use serde_json::{Map, Value};

use super::program::Half;
use crate::error::{Error, Result};

/// Where a decoder layer has its norms, and how queries and keys are normed: all that tells the architectures apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The `architectures` entry of the config.
    pub class: &'static str,
    pub model_type: &'static str,
    /// Names of a layer's norm weights: before and after attention, before and after the MLP.
    pub norms: [Option<&'static str>; 4],
    pub query_key_norm: QueryKeyNorm,
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
pub const LAYOUTS: [Layout; 3] = [
    Layout {
        class: "LlamaForCausalLM",
        model_type: "llama",
        norms: [Some("input_layernorm"), None, Some("post_attention_layernorm"), None],
        query_key_norm: QueryKeyNorm::None,
    },
    Layout {
        class: "Qwen3ForCausalLM",
        model_type: "qwen3",
        norms: [Some("input_layernorm"), None, Some("post_attention_layernorm"), None],
        query_key_norm: QueryKeyNorm::PerHead,
    },
    Layout {
        class: "Olmo2ForCausalLM",
        model_type: "olmo2",
        norms: [None, Some("post_attention_layernorm"), None, Some("post_feedforward_layernorm")],
        query_key_norm: QueryKeyNorm::WholeProjection,
    },
];

/// Frequencies of the rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    pub theta: f64,
    pub scaling: Option<Llama3Scaling>,
}

/// The `llama3` rope type: long wavelengths are stretched by `factor`, short ones kept, those between blended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Llama3Scaling {
    pub factor: f64,
    pub low_freq_factor: f64,
    pub high_freq_factor: f64,
    pub original_max_position_embeddings: f64,
}

/// The shape of a backbone.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub layout: Layout,
    /// `L`
    pub layers: usize,
    /// `C`
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    pub vocab: usize,
    pub norm_eps: f32,
    pub rope: Rope,
    pub tied_embeddings: bool,
    /// The longest context of its training, in tokens, where the config tells.
    pub max_positions: Option<usize>,
    /// What was assumed because the config does not say it.
    pub notes: Vec<String>,
}

impl Config {
    /// Whether a norm stands between the last weights of a half of a layer and the residual stream (OLMo-2).
    pub fn ends_in_norm(&self, half: Half) -> bool {
        let after = match half {
            Half::Attention => 1,
            Half::Mlp => 3,
        };
        self.layout.norms[after].is_some()
    }

    /// Reads `<folder>/config.json`.
    ///
    /// # Errors
    /// A missing or malformed file; a missing, mistyped or unsupported entry, named with what was expected and found.
    pub fn read(folder: &Path) -> Result<Self> {
        if !folder.is_dir() {
            return Err(Error::missing("no such backbone folder")
                .at(folder.display().to_string())
                .hint("a backbone is a folder with config.json, tokenizer.json and *.safetensors"));
        }
        Self::read_file(&folder.join("config.json"))
    }

    /// Reads a config from a file of any name.
    pub fn read_file(path: &Path) -> Result<Self> {
        let place = path.display().to_string();
        let text = std::fs::read(path).map_err(|error| Error::io("read", path, &error))?;
        let value: Value = serde_json::from_slice(&text)
            .map_err(|error| Error::bad_input("malformed JSON").at(&place).found(error.to_string()))?;
        let Value::Object(map) = value else {
            return Err(Error::bad_input("a config must be a JSON object").at(place));
        };
        Self::parse(&Entries { map: &map, prefix: "" }).map_err(|error| error.at(place))
    }

    fn parse(entries: &Entries<'_>) -> Result<Self> {
        let layout = layout_of(entries)?;
        refuse_unsupported(entries)?;
        let mut notes = Vec::new();
        let hidden = entries.count("hidden_size")?;
        let heads = entries.count("num_attention_heads")?;
        let kv_heads = entries.optional_count("num_key_value_heads")?.unwrap_or(heads);
        if heads % kv_heads != 0 {
            return Err(Error::bad_input("query heads do not divide among the key/value heads")
                .at("num_key_value_heads")
                .expected(format!("a divisor of num_attention_heads = {heads}"))
                .found(kv_heads.to_string()));
        }
        let head_dim = match entries.optional_count("head_dim")? {
            Some(head_dim) => head_dim,
            None if hidden % heads == 0 => hidden / heads,
            None => {
                return Err(Error::bad_input(
                    "the config has no head_dim and hidden_size / num_attention_heads is no whole number",
                )
                .expected("head_dim, or a hidden_size that the heads divide")
                .found(format!("hidden_size {hidden}, num_attention_heads {heads}")));
            }
        };
        if head_dim % 2 != 0 {
            return Err(Error::bad_input("the rotary embedding needs an even head_dim").found(head_dim.to_string()));
        }
        Ok(Self {
            layout,
            layers: entries.count("num_hidden_layers")?,
            hidden,
            heads,
            kv_heads,
            head_dim,
            intermediate: entries.count("intermediate_size")?,
            vocab: entries.count("vocab_size")?,
            norm_eps: entries.number("rms_norm_eps")? as f32,
            rope: rope_of(entries, &mut notes)?,
            tied_embeddings: entries.flag("tie_word_embeddings")?.unwrap_or_else(|| {
                notes.push("config.json does not say tie_word_embeddings: taken as false".into());
                false
            }),
            max_positions: entries.optional_count("max_position_embeddings")?,
            notes,
        })
    }
}

fn layout_of(entries: &Entries<'_>) -> Result<Layout> {
    let class = entries.map.get("architectures").and_then(|v| v.get(0)).and_then(Value::as_str);
    let model_type = entries.map.get("model_type").and_then(Value::as_str);
    let found = LAYOUTS.into_iter().find(|layout| match class {
        Some(class) => class == layout.class,
        None => model_type == Some(layout.model_type),
    });
    found.ok_or_else(|| {
        Error::bad_input("unknown architecture")
            .at("architectures")
            .expected(LAYOUTS.map(|layout| layout.class).join(", "))
            .found(class.or(model_type).unwrap_or("neither architectures nor model_type").to_string())
            .hint("only these decoders are computed faithfully; another of the same build is one entry in src/model/config.rs")
    })
}

/// Refuses settings that would change the forward pass and that the decoder does not compute.
fn refuse_unsupported(entries: &Entries<'_>) -> Result<()> {
    let unsupported = |key: &str, found: &Value, expected: &str| {
        Err(Error::bad_input("the config asks for something that the decoder does not compute")
            .at(key)
            .expected(expected)
            .found(found.to_string()))
    };
    for (key, neutral) in [
        ("hidden_act", Value::from("silu")),
        ("attention_bias", Value::from(false)),
        ("mlp_bias", Value::from(false)),
        ("use_sliding_window", Value::from(false)),
        ("clip_qkv", Value::Null),
        ("partial_rotary_factor", Value::from(1.0)),
    ] {
        if let Some(found) = entries.get(key)
            && *found != neutral
        {
            return unsupported(key, found, &neutral.to_string());
        }
    }
    if let Some(Value::Array(types)) = entries.get("layer_types")
        && let Some(other) = types.iter().find(|t| t.as_str() != Some("full_attention"))
    {
        return unsupported("layer_types", other, "full_attention in every layer");
    }
    Ok(())
}

fn rope_of(entries: &Entries<'_>, notes: &mut Vec<String>) -> Result<Rope> {
    if let Some(inner) = entries.map_at("rope_parameters")? {
        return Ok(Rope { theta: inner.number("rope_theta")?, scaling: scaling_of(&inner)? });
    }
    let theta = match entries.optional_number("rope_theta")? {
        Some(theta) => theta,
        None => {
            // transformers' own default for Llama; Llama-2's hub config relies on it. Said, not silent.
            notes.push("config.json has no rope_theta: taken as 10000".into());
            10_000.0
        }
    };
    let scaling = match entries.map_at("rope_scaling")? {
        Some(inner) => scaling_of(&inner)?,
        None => None,
    };
    Ok(Rope { theta, scaling })
}

fn scaling_of(entries: &Entries<'_>) -> Result<Option<Llama3Scaling>> {
    // "type" is what configs before `rope_type` wrote.
    let key = if entries.get("rope_type").is_some() { "rope_type" } else { "type" };
    match entries.get(key).and_then(Value::as_str) {
        None | Some("default") => Ok(None),
        Some("llama3") => Ok(Some(Llama3Scaling {
            factor: entries.number("factor")?,
            low_freq_factor: entries.number("low_freq_factor")?,
            high_freq_factor: entries.number("high_freq_factor")?,
            original_max_position_embeddings: entries.number("original_max_position_embeddings")?,
        })),
        Some(other) => Err(Error::bad_input("unknown rope type")
            .at(entries.path(key))
            .expected("default or llama3")
            .found(other.to_string())),
    }
}

/// Typed access to a JSON object, with errors that name the entry.
struct Entries<'a> {
    map: &'a Map<String, Value>,
    prefix: &'static str,
}

impl<'a> Entries<'a> {
    fn path(&self, key: &str) -> String {
        if self.prefix.is_empty() { key.to_string() } else { format!("{}.{key}", self.prefix) }
    }

    /// The entry, unless absent or null.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn wrong(&self, key: &str, expected: &str) -> Error {
        let found = self.get(key).map_or("nothing".to_string(), Value::to_string);
        Error::bad_input("a missing or mistyped entry").at(self.path(key)).expected(expected).found(found)
    }

    fn optional_count(&self, key: &str) -> Result<Option<usize>> {
        self.get(key)
            .map(|value| value.as_u64().filter(|&n| n > 0).map(|n| n as usize))
            .map(|n| n.ok_or_else(|| self.wrong(key, "a whole number above 0")))
            .transpose()
    }

    fn count(&self, key: &str) -> Result<usize> {
        self.optional_count(key)?.ok_or_else(|| self.wrong(key, "a whole number above 0"))
    }

    fn optional_number(&self, key: &str) -> Result<Option<f64>> {
        self.get(key)
            .map(|value| value.as_f64().filter(|x| x.is_finite() && *x > 0.0))
            .map(|x| x.ok_or_else(|| self.wrong(key, "a number above 0")))
            .transpose()
    }

    fn number(&self, key: &str) -> Result<f64> {
        self.optional_number(key)?.ok_or_else(|| self.wrong(key, "a number above 0"))
    }

    fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.get(key).map(|value| value.as_bool().ok_or_else(|| self.wrong(key, "true or false"))).transpose()
    }

    fn map_at(&self, key: &'static str) -> Result<Option<Entries<'a>>> {
        self.get(key)
            .map(|value| value.as_object().ok_or_else(|| self.wrong(key, "a map")))
            .transpose()
            .map(|map| map.map(|map| Entries { map, prefix: key }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
    fn what_the_config_leaves_out_is_derived_or_noted() {
        let config = parse(|map| {
            map.remove("rope_theta");
        })
        .unwrap();
        assert_eq!((config.head_dim, config.kv_heads), (16, 4));
        assert_eq!(config.rope.theta, 10_000.0);
        assert_eq!(config.notes, ["config.json has no rope_theta: taken as 10000"]);
    }

    #[test]
    fn an_unknown_architecture_is_named_beside_the_known() {
        let text = parse(|map| {
            map.insert("architectures".into(), json!(["GPT2LMHeadModel"]));
        })
        .unwrap_err()
        .to_string();
        assert!(text.contains("GPT2LMHeadModel") && text.contains("Olmo2ForCausalLM"), "{text}");
    }

    #[test]
    fn an_unknown_rope_type_is_refused_in_both_dialects() {
        for (key, value) in [
            ("rope_scaling", json!({"type": "yarn", "factor": 2.0})),
            ("rope_parameters", json!({"rope_type": "yarn", "rope_theta": 10000.0})),
        ] {
            let text = parse(|map| {
                map.insert(key.into(), value);
            })
            .unwrap_err()
            .to_string();
            assert!(text.contains("yarn") && text.contains(key), "{text}");
        }
    }

    #[test]
    fn settings_that_change_the_forward_pass_are_refused() {
        for (key, value) in [
            ("hidden_act", json!("gelu")),
            ("attention_bias", json!(true)),
            ("layer_types", json!(["full_attention", "sliding_attention"])),
            ("num_key_value_heads", json!(3)),
            ("rms_norm_eps", json!("small")),
        ] {
            let text = parse(|map| {
                map.insert(key.into(), value);
            })
            .unwrap_err()
            .to_string();
            assert!(text.contains(key), "{text}");
        }
    }
}
