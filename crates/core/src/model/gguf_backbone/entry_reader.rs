//! Conversion of GGUF metadata to the `config.json` of a backbone.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::super::architecture::{AttentionBias, GgufForm, GgufPlaces, RopeEntries};
use super::super::deci::DeciLayers;
use super::{
    NEUTRAL_ENTRIES, ROPE_FACTORS, attention_scale_in_gguf, llama3_divisors, missing_key_error, read_architecture,
    read_count, read_deci_layers, read_head_dim,
};
use crate::error::{Error, Result};
use crate::files::gguf::{Gguf, GgufTensor};

/// Converts the metadata of a GGUF file to a `config.json`.
///
/// # Errors
/// Fails if an entry is missing, mistyped or unsupported.
pub(in crate::model) fn read_config(file: &Gguf) -> Result<Map<String, Value>> {
    let (architecture, form) = read_architecture(file)?;
    let reader =
        EntryReader { file, form, read_names: RefCell::new(BTreeSet::from(["attention.key_length".to_owned()])) };
    let deci = read_deci_layers(file, form)?;
    let shape = LayerShape::read(&reader, deci.as_ref())?;
    let head_dim = shape.head_dim;
    let is_partial = architecture.rope == RopeEntries::Partial;
    let rotary_width = reader.read_rotary_width(head_dim, is_partial)?;
    let embedding = find_embedding(file)?;
    let epsilon = reader.key("attention.layer_norm_rms_epsilon");
    let found = file.number(&epsilon)?;
    let mut config = Map::new();
    let mut set = |key: &str, value: Value| config.insert(key.to_owned(), value);
    set("architectures", json!([architecture.class]));
    set("model_type", architecture.model_type.into());
    set("num_hidden_layers", reader.count("block_count")?.into());
    set("hidden_size", reader.count("embedding_length")?.into());
    set("intermediate_size", shape.intermediate.into());
    set("num_attention_heads", shape.heads.into());
    set("num_key_value_heads", shape.kv_heads.into());
    set("head_dim", head_dim.into());
    set("vocab_size", embedding.shape[0].into());
    set("rms_norm_eps", json!(shortest_f64(found.ok_or_else(|| missing_key_error(file, &epsilon, "a number"))?)));
    set("max_position_embeddings", file.count(&reader.key("context_length"))?.into());
    set("rope_theta", json!(file.number(&reader.key("rope.freq_base"))?.map_or(10_000.0, shortest_f64)));
    set("tie_word_embeddings", (!file.tensors.contains_key("output.weight")).into());
    // GGUF metadata has no entries for biases, so they are inferred from the tensors.
    if architecture.attention_bias == AttentionBias::Configurable && file.has_bias("attn_output") {
        set("attention_bias", true.into());
    }
    if architecture.mlp_bias && file.has_bias("ffn_gate") {
        set("mlp_bias", true.into());
    }
    set("bos_token_id", file.count("tokenizer.ggml.bos_token_id")?.into());
    set("eos_token_id", read_end_tokens(file)?);
    if is_partial && rotary_width < head_dim {
        set("partial_rotary_factor", json!(rotary_width as f64 / head_dim as f64));
    }
    reader.read_windows(&shape, &mut config)?;
    for (cap, name) in architecture.caps.iter().zip(["attn_logit_softcapping", "final_logit_softcapping"]) {
        if let Some(cap) = cap
            && let Some(value) = file.number(&reader.key(name))?
        {
            config.insert((*cap).to_owned(), json!(shortest_f64(value)));
        }
    }
    if architecture.rope == RopeEntries::ByWindow {
        let theta = file.number(&reader.key("rope.freq_base_swa"))?.map_or(10_000.0, shortest_f64);
        config.insert("rope_local_base_freq".to_owned(), json!(theta));
    }
    if let Some(scaling) = read_scaling(file, head_dim, &|name| reader.key(name))? {
        config.insert("rope_scaling".to_owned(), scaling);
    }
    config.extend(deci.map(|layers| layers.entries(architecture)).unwrap_or_default());
    reader.check_unread()?;
    Ok(config)
}

fn find_embedding(file: &Gguf) -> Result<&GgufTensor> {
    let embedding = file.tensors.get("token_embd.weight").filter(|tensor| tensor.shape.len() == 2);
    embedding.ok_or_else(|| {
        Error::bad_input("a GGUF file has no embedding")
            .at(file.path.display())
            .expected("the matrix token_embd.weight")
            .found(format!("{} other tensors", file.tensors.len()))
    })
}

/// Head counts and widths, which are the same in all complete layers.
struct LayerShape {
    heads: u64,
    kv_heads: u64,
    intermediate: u64,
    head_dim: u64,
}

impl LayerShape {
    fn read(reader: &EntryReader<'_>, deci: Option<&DeciLayers>) -> Result<Self> {
        let file = reader.file;
        let keys = ["attention.head_count", "attention.head_count_kv", "feed_forward_length"];
        let keys = keys.map(|name| reader.key(name));
        let [heads, kv_heads, intermediate] = match deci {
            Some(layers) => [layers.heads, layers.kv_heads, layers.intermediate],
            None => {
                let heads = read_count(file, &keys[0])?;
                [heads, file.count(&keys[1])?.unwrap_or(heads), read_count(file, &keys[2])?]
            }
        };
        Ok(Self { heads, kv_heads, intermediate, head_dim: read_head_dim(file, reader.form, deci)? })
    }
}

/// Reader for metadata entries that records which entries were read, so that unread entries can be rejected.
struct EntryReader<'a> {
    file: &'a Gguf,
    form: GgufForm,
    read_names: RefCell<BTreeSet<String>>,
}

impl EntryReader<'_> {
    /// Returns the key of an entry, and records the entry as read.
    fn key(&self, name: &str) -> String {
        self.read_names.borrow_mut().insert(name.to_owned());
        format!("{}.{name}", self.form.name)
    }

    /// Reads a required unsigned integer, and records the entry as read.
    fn count(&self, name: &str) -> Result<u64> {
        read_count(self.file, &self.key(name))
    }

    /// Reads the number of channels per head that RoPE rotates. Rejects files in which keys and values differ in width.
    /// RoPE must rotate the whole head unless `is_partial` is set (Phi-3).
    fn read_rotary_width(&self, head_dim: u64, is_partial: bool) -> Result<u64> {
        let file = self.file;
        let rotated = file.count(&self.key("rope.dimension_count"))?.unwrap_or(head_dim);
        let rotary_width = if is_partial && rotated <= head_dim { rotated } else { head_dim };
        for (name, width) in [("attention.value_length", head_dim), ("rope.dimension_count", rotary_width)] {
            if file.count(&self.key(name))?.is_some_and(|found| found != width) {
                return Err(unsupported_error(file, &self.key(name), &head_dim.to_string()));
            }
        }
        Ok(rotary_width)
    }

    /// Adds the config entries for sliding windows and Gemma's attention scale.
    fn read_windows(&self, shape: &LayerShape, config: &mut Map<String, Value>) -> Result<()> {
        let every = match self.form.places {
            // llama.cpp does not apply windows in these architectures.
            GgufPlaces::Alike | GgufPlaces::Unrotated(_) => {
                config.insert("sliding_window".to_owned(), Value::Null);
                return Ok(());
            }
            GgufPlaces::Windows(every) => every,
        };
        config.insert("sliding_window".to_owned(), self.count("attention.sliding_window")?.into());
        let pattern = self.key("attention.sliding_window_pattern");
        if self.file.count(&pattern)?.is_some_and(|found| found != every as u64) {
            return Err(unsupported_error(self.file, &pattern, &every.to_string()));
        }
        let layers = self.count("block_count")?;
        let hidden = self.count("embedding_length")?;
        let [layers, hidden, heads, width] = [layers, hidden, shape.heads, shape.head_dim].map(|count| count as usize);
        let scale = attention_scale_in_gguf(self.form, layers, hidden, heads, width);
        let scalar = (1.0 / (scale * scale)).round() as u64;
        config.insert("query_pre_attn_scalar".to_owned(), scalar.into());
        Ok(())
    }

    /// Rejects entries that were not read, except those that have no effect.
    fn check_unread(&self) -> Result<()> {
        for key in self.file.keys() {
            let Some(name) = key.strip_prefix(self.form.name).and_then(|rest| rest.strip_prefix('.')) else { continue };
            if self.read_names.borrow().contains(name) {
                continue;
            }
            match NEUTRAL_ENTRIES.iter().find(|(known, _)| *known == name) {
                Some((_, values)) if values.is_empty() || values.contains(&self.file.describe_entry(key).as_str()) => {}
                Some((_, values)) => return Err(unsupported_error(self.file, key, &values.join(" or "))),
                None => return Err(unsupported_error(self.file, key, "a file without this entry")),
            }
        }
        Ok(())
    }
}

/// Returns the ids of the tokens that end a text, turn or message. As in `config.json`, the value is a single id or a
/// list that starts with the main id.
fn read_end_tokens(file: &Gguf) -> Result<Value> {
    let mut ids: Vec<u64> = Vec::new();
    for name in ["eos", "eot", "eom"] {
        let id = file.count(&format!("tokenizer.ggml.{name}_token_id"))?;
        ids.extend(id.filter(|id| !ids.contains(id)));
    }
    Ok(match ids[..] {
        [] => Value::Null,
        [id] => id.into(),
        _ => ids.into(),
    })
}

/// Returns the f64 closest to the shortest decimal representation of an f32 entry, such as 0.00001 instead of
/// 0.000009999999747378752.
fn shortest_f64(value: f64) -> f64 {
    (value as f32).to_string().parse().unwrap_or(value)
}

fn unsupported_error(file: &Gguf, key: &str, expected: &str) -> Error {
    Error::bad_input("unsupported value in the GGUF file")
        .at(file.location(key))
        .expected(expected)
        .found(file.describe_entry(key))
}

/// Reads the `rope_scaling` config entry. `entry` maps the name of a metadata entry to its full key.
fn read_scaling(file: &Gguf, head_dim: u64, entry: &dyn Fn(&str) -> String) -> Result<Option<Value>> {
    let kind = file.text(&scaling_key("type", entry))?.filter(|kind| *kind != "none");
    let factor = file.number(&scaling_key("factor", entry))?;
    let context = file.count(&scaling_key("original_context_length", entry))?;
    if let Some(divisors) = file.values(ROPE_FACTORS)? {
        if let Some(kind) = kind {
            return Err(Error::bad_input("duplicate RoPE scaling in a GGUF file")
                .at(file.location(ROPE_FACTORS))
                .expected(format!("no {}", scaling_key("type", entry)))
                .found(format!("`{kind}`")));
        }
        let invalid_divisor = divisors.iter().find(|divisor| !divisor.is_finite() || **divisor <= 0.0);
        if divisors.len() as u64 != head_dim / 2 || invalid_divisor.is_some() {
            return Err(Error::bad_input("invalid frequency divisors of the rotary embedding")
                .at(file.location(ROPE_FACTORS))
                .expected(format!("{} positive numbers", head_dim / 2))
                .found(invalid_divisor.map_or_else(|| format!("{} numbers", divisors.len()), ToString::to_string)));
        }
        let theta = file.number(&entry("rope.freq_base"))?.map_or(10_000.0, shortest_f64);
        let trained = file.count(&entry("context_length"))?.unwrap_or(0);
        return Ok(Some(scaling_from_divisors(&divisors, theta, trained)));
    }
    Ok(match kind {
        None => None,
        Some("linear") => Some(json!({"rope_type": "linear", "factor": factor})),
        Some("yarn") => {
            let [fast, slow] = ["yarn_beta_fast", "yarn_beta_slow"].map(|name| file.number(&scaling_key(name, entry)));
            let mut map = json!({"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": (context.map_or(Value::Null, Value::from))});
            for (name, value) in [("beta_fast", fast?), ("beta_slow", slow?)] {
                if let Some(value) = value {
                    map[name] = json!(value);
                }
            }
            Some(map)
        }
        Some(_) => return Err(unsupported_error(file, &scaling_key("type", entry), "none, linear or yarn")),
    })
}

fn scaling_key(name: &str, entry: &dyn Fn(&str) -> String) -> String {
    entry(&format!("rope.scaling.{name}"))
}

/// Converts frequency divisors to a `rope_scaling` config entry. The RoPE type is `llama3` if its formula reproduces
/// the divisors, and `longrope` otherwise.
fn scaling_from_divisors(divisors: &[f32], theta: f64, context: u64) -> Value {
    let largest = divisors.iter().copied().fold(1.0_f32, f32::max);
    // Try the context length of Llama 3 first, then other powers of two.
    let contexts = [8192.0].into_iter().chain((4..20).map(|power| f64::from(1_u32 << power)));
    for context in contexts {
        for (low, high) in [(1.0, 4.0), (1.0, 2.0), (1.0, 8.0), (2.0, 4.0)] {
            let factor = f64::from(largest);
            let found = llama3_divisors(theta, divisors.len(), [factor, low, high, context]);
            if divisors.iter().zip(&found).all(|(one, other)| (f64::from(*one) - other).abs() <= 1e-6 * other) {
                return json!({"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                    "original_max_position_embeddings": context as u64});
            }
        }
    }
    json!({"rope_type": "longrope", "short_factor": divisors, "long_factor": divisors, "attention_factor": 1.0,
        "original_max_position_embeddings": context})
}
