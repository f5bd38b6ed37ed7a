//! Content hash of a backbone, which covers everything that its forward pass reads. It depends neither on unused config
//! entries, nor on the sharding of the weights, nor on other files in the folder.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;

use rayon::prelude::*;
use serde_json::{Value, json};

use super::architecture::{Activation, Architecture, QueryKeyNorm};
use super::attached_form::AttachedForm;
use super::attached_form::Attachment;
use super::config::{Biases, Config, Llama3Scaling, LongRope, Rope, Scaling, Yarn};
use super::experts::Experts;
use super::resident_weights::TensorInfo;
use super::shard::Shard;
use super::tensors;
use crate::error::{Error, Result};
use crate::files::sha256;

/// Descriptions of the tensors in a weight file, keyed by tensor name. A description contains the element type, shape,
/// row order and SHA-256 hash of a tensor.
pub type TensorHashes = BTreeMap<String, String>;

/// Hashes the tensors in a weight file.
///
/// # Errors
/// Fails if the file is not a weight file, cannot be read, or changes while it is hashed.
pub fn tensor_hashes(path: &Path) -> Result<TensorHashes> {
    let shard = Shard::open(path)?;
    let tensors: Vec<(String, TensorInfo)> =
        shard.tensors.iter().map(|(name, info)| (name.clone(), info.clone())).collect();
    let hashes = tensors.into_par_iter().map(|tensor| describe_tensor(path, &shard, tensor)).collect::<Result<_>>()?;
    shard.check_unchanged()?;
    Ok(hashes)
}

/// Returns the [`TensorHashes`] entry for a tensor.
fn describe_tensor(path: &Path, shard: &Shard, (name, info): (String, TensorInfo)) -> Result<(String, String)> {
    let mut reader = TensorReader { shard, name: &name, info: &info, position: 0, error: None };
    let hashed = sha256::of_reader(&mut reader);
    let (hash, _) = hashed.map_err(|error| reader.error.take().unwrap_or_else(|| Error::io("read", path, &error)))?;
    let row_order = info.interleaved.map_or(String::new(), |rows| format!(" {rows} rows by turns"));
    let offset = if info.offset_by_one { " one more" } else { "" };
    let description = format!("{} {:?}{row_order}{offset} {hash}", info.encoding, info.shape);
    Ok((name, description))
}

/// Reader for the stored bytes of a tensor.
struct TensorReader<'a> {
    shard: &'a Shard,
    name: &'a str,
    info: &'a TensorInfo,
    /// Offset of the next byte to read.
    position: usize,
    /// Error of a failed read, which [`io::Error`] cannot represent.
    error: Option<Error>,
}

impl Read for TensorReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(self.info.bytes as usize - self.position);
        if let Err(error) = self.shard.read(self.name, self.info, self.position, &mut buffer[..length]) {
            self.error = Some(error);
            return Err(io::ErrorKind::Other.into());
        }
        self.position += length;
        Ok(length)
    }
}

/// Computes the content hash of a backbone with SHA-256. `hashes` returns the [`tensor_hashes`] of a weight file.
///
/// # Errors
/// Fails if [`super::check_weights`] or `hashes` fails.
pub fn content(config: &Config, folder: &Path, hashes: impl Fn(&Path) -> Result<TensorHashes>) -> Result<String> {
    let mut tensors: BTreeMap<String, String> = BTreeMap::new();
    let mut files: BTreeMap<&Path, TensorHashes> = BTreeMap::new();
    let weights = tensors::open_checked_weights(config, folder)?;
    for (name, stored, file) in weights.checked_tensors() {
        if !files.contains_key(file) {
            files.insert(file, hashes(file)?);
        }
        tensors.insert(
            name.to_owned(),
            files[file]
                .get(stored)
                .ok_or_else(|| Error::bad_input("a weight file changed while it was hashed").at(file.display()))?
                .clone(),
        );
    }
    Ok(sha256::of_bytes(json!({"config": canonical_json(config), "tensors": tensors}).to_string()))
}

/// Converts a config to canonical JSON. All structs are destructured completely, so that new fields cannot be
/// forgotten.
fn canonical_json(config: &Config) -> Value {
    let Config {
        architecture,
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim,
        intermediate,
        vocab,
        norm_eps,
        biases: Biases { inputs, output: _, mlp: _ },
        rope: Rope { theta, scaling },
        tied_embeddings,
        windows,
        // Added by `optional_properties`.
        window_rope: _,
        rotary_width: _,
        rotated: _,
        activation: _,
        scale: _,
        score_cap: _,
        logit_cap: _,
        experts: _,
        sparse: _,
        dropped: _,
        // The training context length does not affect the computation.
        max_positions: _,
        attachments,
        // Quantization is stored separately in cache keys.
        rounded: _,
        notes: _,
    } = config;
    let mut value = json!({
        "norms": architecture.norms, "query_key_norm": query_key_norm_name(architecture.query_key_norm),
        "projection_bias": inputs, "layers": layers,
        "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "intermediate": intermediate,
        "vocab": vocab, "norm_eps": norm_eps, "rope_theta": theta, "rope_scaling": scaling.as_ref().map(scaling_json),
        "tied": tied_embeddings, "windows": windows,
        "attachments": attachments.iter().map(attachment_json).collect::<Vec<_>>(),
    });
    if let Value::Object(map) = &mut value {
        map.extend(optional_properties(config).filter_map(|(key, value)| Some((key.to_owned(), value?))));
    }
    value
}

/// Returns the properties that were added after the first five architectures. A property with its default value is
/// `None` and omitted from the hash, so that existing cache keys stay valid. The pattern lists all fields of an
/// architecture, so that new ones cannot be forgotten.
fn optional_properties(config: &Config) -> impl Iterator<Item = (&'static str, Option<Value>)> {
    let &Architecture {
        norms_add_one,
        scaled_embedding,
        // Added by `canonical_json`.
        norms: _,
        query_key_norm: _,
        // Names and parsing rules do not affect the computation.
        class: _,
        model_type: _,
        transformers_names: _,
        attention_bias: _,
        mlp_bias: _,
        window: _,
        rope: _,
        activation: _,
        fused: _,
        experts: _,
        scale: _,
        caps: _,
        defaults: _,
        gguf: _,
    } = config.architecture;
    let Config { head_dim, biases, window_rope, rotary_width, rotated, scale, experts, sparse, dropped, .. } = config;
    let experts = experts.map(|Experts { count, used, width, normalized }| {
        // Stored keys contain the British spelling.
        json!({"count": count, "used": used, "width": width, "normalised": normalized, "layers": sparse})
    });
    let gelu = config.activation == Activation::Gelu;
    [
        ("output_bias", biases.output.then_some(Value::Bool(true))),
        ("mlp_bias", biases.mlp.then_some(Value::Bool(true))),
        ("norms_add_one", norms_add_one.then_some(Value::Bool(true))),
        ("scaled_embedding", scaled_embedding.then_some(Value::Bool(true))),
        ("activation", gelu.then(|| json!("gelu tanh"))),
        (
            "window_rope",
            window_rope.as_ref().map(|Rope { theta, scaling }| json!([theta, scaling.as_ref().map(scaling_json)])),
        ),
        ("rotary_width", (rotary_width != head_dim).then(|| json!(rotary_width))),
        ("rotated", rotated.contains(&false).then(|| json!(rotated))),
        ("scale", (*scale != 1.0 / (*head_dim as f32).sqrt()).then(|| json!(scale))),
        ("score_cap", config.score_cap.map(|cap| json!(cap))),
        ("logit_cap", config.logit_cap.map(|cap| json!(cap))),
        ("experts", experts),
        ("dropped", (!dropped.is_empty()).then(|| json!(dropped))),
        // Invalidates results of older versions, which computed other values because they mixed sequences of different
        // RoPE length regimes.
        ("lengths", config.has_length_regimes().then(|| json!("apart"))),
    ]
    .into_iter()
}

/// Returns the stored name of the norm of queries and keys.
fn query_key_norm_name(query_key_norm: QueryKeyNorm) -> &'static str {
    match query_key_norm {
        QueryKeyNorm::None => "none",
        QueryKeyNorm::PerHead => "per head",
        QueryKeyNorm::WholeProjection => "whole projection",
    }
}

/// Converts the declaration of an exported operator to JSON. The flag `diagonal` alone describes the forms `diagonal`
/// and `dense`, so that existing cache keys stay valid.
fn attachment_json(attachment: &Attachment) -> Value {
    let &Attachment { layer, place, form, bias } = attachment;
    let diagonal = form == AttachedForm::Diagonal;
    let mut value = json!({"layer": layer, "place": place.name(), "diagonal": diagonal, "bias": bias});
    if !matches!(form, AttachedForm::Diagonal | AttachedForm::Dense) {
        value["form"] = form.name().into();
    }
    value
}

/// Converts the parameters of RoPE scaling to JSON.
fn scaling_json(scaling: &Scaling) -> Value {
    match scaling {
        Scaling::Linear { factor } => json!({"linear": factor}),
        Scaling::Dynamic { factor, positions } => json!({"dynamic": [json!(factor), json!(positions)]}),
        &Scaling::Llama3(scaling) => {
            let Llama3Scaling { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } = scaling;
            json!([factor, low_freq_factor, high_freq_factor, original_max_position_embeddings])
        }
        &Scaling::Yarn(scaling) => {
            let Yarn { factor, beta_fast, beta_slow, original_max_position_embeddings, truncate, attention } = scaling;
            let numbers = [factor, beta_fast, beta_slow, original_max_position_embeddings, attention];
            json!({"yarn": numbers, "truncate": truncate})
        }
        Scaling::LongRope(LongRope { short, long, original_max_position_embeddings, attention }) => json!({
            "longrope": {"short": short, "long": long}, "original": original_max_position_embeddings, "attention": attention,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn fixture() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/arch/llama-gqa")
    }

    fn content_hash(folder: &Path) -> String {
        content(&Config::read(folder).unwrap(), folder, tensor_hashes).unwrap()
    }

    #[test]
    fn content_hash_covers_only_what_the_forward_pass_reads() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path();
        let bytes = fs::read(fixture().join("model.safetensors")).unwrap();
        let config: Value = serde_json::from_slice(&fs::read(fixture().join("config.json")).unwrap()).unwrap();
        write_config(&config, folder);
        fs::write(folder.join("model.safetensors"), &bytes).unwrap();
        let first = content_hash(folder);
        assert_eq!(first, content_hash(&fixture()), "the order of config entries must not matter");
        // Entries that do not affect the forward pass.
        let mut other = config.clone();
        for (name, value) in
            [("transformers_version", json!("9")), ("use_cache", json!(false)), ("max_position_embeddings", json!(512))]
        {
            other[name] = value;
        }
        write_config(&other, folder);
        assert_eq!(content_hash(folder), first);
        // Entries that affect the forward pass.
        for (name, value) in
            [("rms_norm_eps", json!(1e-6)), ("rope_parameters", json!({"rope_type": "default", "rope_theta": 10000.0}))]
        {
            let mut other = config.clone();
            other[name] = value;
            write_config(&other, folder);
            assert_ne!(content_hash(folder), first, "{name}");
        }
        write_config(&config, folder);
        // The same tensors, split into two files.
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut all: Vec<_> = tensors.iter().collect();
        all.sort_by_key(|(name, _)| name.to_string());
        let (one, two) = all.split_at(all.len() / 3);
        let mut map = serde_json::Map::new();
        for (file, part) in [("one.safetensors", one), ("two.safetensors", two)] {
            safetensors::serialize_to_file(part.iter().cloned(), None, &folder.join(file)).unwrap();
            map.extend(part.iter().map(|(name, _)| ((*name).to_owned(), json!(file))));
        }
        fs::write(folder.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
        fs::remove_file(folder.join("model.safetensors")).unwrap();
        assert_eq!(content_hash(folder), first, "sharding must not change the hash");
        // Flip one bit of a weight.
        let mut two = fs::read(folder.join("two.safetensors")).unwrap();
        *two.last_mut().unwrap() ^= 1;
        fs::write(folder.join("two.safetensors"), two).unwrap();
        assert_ne!(content_hash(folder), first, "a changed weight must change the hash");
    }

    fn write_config(config: &Value, folder: &Path) {
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
    }
}
