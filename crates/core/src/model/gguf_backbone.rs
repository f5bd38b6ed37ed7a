//! Reads backbones from GGUF files. Metadata is converted to a `config.json`, and tensors get their Hugging Face names.
//!
//! Keys and names follow llama.cpp's converter (`conversion/base.py`, `gguf-py/gguf/constants.py`).

mod entry_reader;

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::quantized::GgmlDType;
use safetensors::Dtype;
use serde_json::Value;

use super::architecture::{ARCHITECTURES, Architecture, GgufForm};
use super::deci::{self, DECI, DeciLayers, FolderName};
use super::resident_weights::{ElementEncoding, TensorInfo};
use super::tensor_name::{EMBEDDING, FINAL_NORM, HEAD};
use crate::error::{Error, Result};
use crate::files::gguf::Gguf;
pub(super) use entry_reader::read_config;

/// Name of the tensor that stores the divisors of the RoPE frequencies (`llama3`). It is the only tensor that contains
/// a config setting instead of weights.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";
/// Pairs of GGUF and Hugging Face names for the tensors outside the layers.
const GLOBAL_TENSORS: [(&str, &str); 3] =
    [("token_embd.weight", EMBEDDING), ("output_norm.weight", FINAL_NORM), ("output.weight", HEAD)];
/// Pairs of GGUF and Hugging Face names for the modules of a layer. All architectures use these names. Norms are listed
/// in [`NORM_NAMES`].
const MODULE_NAMES: [(&str, &str); 11] = [
    // `attn_qkv` and the second `ffn_up` are Phi-3's fused matrices. The plain `ffn_up` comes first, so that other
    // architectures find it.
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_up", "mlp.gate_up_proj"),
    ("ffn_down", "mlp.down_proj"),
];
/// Names of a layer's norms, in the order of [`Architecture::norms`].
const NORM_NAMES: [&str; 4] = ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"];
/// Metadata entries that have no effect if they have one of the listed values. Other values are rejected. An empty list
/// accepts any value.
const NEUTRAL_ENTRIES: [(&str, &[&str]); 9] = [
    ("vocab_size", &[]),
    ("rope.scaling.finetuned", &[]),
    ("attention.causal", &["true"]),
    ("use_parallel_residual", &["false"]),
    ("attention.sliding_window", &["0"]),
    ("expert_count", &["0"]),
    ("expert_used_count", &["0"]),
    ("attention.clamp_kqv", &["0"]),
    ("logit_scale", &["0", "1"]),
];

/// Returns the architecture of the model in a file, and its GGUF conventions.
fn read_architecture(file: &Gguf) -> Result<(&'static Architecture, GgufForm)> {
    let name = file.text("general.architecture")?;
    if name == Some(DECI) {
        return deci::detect_architecture(file);
    }
    let candidates = || ARCHITECTURES.iter().filter_map(|candidate| Some((candidate, candidate.gguf?)));
    candidates().find(|(_, form)| Some(form.name) == name).ok_or_else(|| {
        let mut names: Vec<&str> = candidates().map(|(_, form)| form.name).collect();
        names.push(DECI);
        names.sort_unstable();
        names.dedup();
        Error::bad_input("unsupported architecture in a GGUF file")
            .at(file.location("general.architecture"))
            .expected(names.join(", "))
            .found(file.describe_entry("general.architecture"))
            .hint("use a model with one of the listed architectures")
    })
}

/// Returns the GGUF name of a layer's module, or `None` if it is unknown.
fn gguf_module_name(architecture: &Architecture, part: &str) -> Option<&'static str> {
    let norm = architecture.norms.iter().position(|norm| *norm == Some(part)).map(|index| NORM_NAMES[index]);
    norm.or_else(|| MODULE_NAMES.iter().find(|(_, known_part)| *known_part == part).map(|(name, _)| *name))
}

/// Converts a Hugging Face tensor name to the GGUF name. Returns `None` for unknown tensors.
pub(crate) fn name_in_gguf(architecture: &Architecture, tensor: &str) -> Option<String> {
    if let Some((name, _)) = GLOBAL_TENSORS.iter().find(|(_, known)| *known == tensor) {
        return Some((*name).to_owned());
    }
    let (layer, part) = tensor.strip_prefix("model.layers.")?.split_once('.')?;
    let (part, kind) = part.rsplit_once('.')?;
    Some(format!("blk.{layer}.{}.{kind}", gguf_module_name(architecture, part)?))
}

/// Converts a GGUF tensor name to the Hugging Face name. Returns `None` for unknown tensors.
fn name_in_folder(architecture: &Architecture, tensor: &str) -> Option<String> {
    if let Some((_, name)) = GLOBAL_TENSORS.iter().find(|(known, _)| *known == tensor) {
        return Some((*name).to_owned());
    }
    let (layer, rest) = tensor.strip_prefix("blk.")?.split_once('.')?;
    let (name, kind) = rest.rsplit_once('.')?;
    layer.parse::<u32>().ok()?;
    let norm = NORM_NAMES.iter().position(|known| *known == name).and_then(|index| architecture.norms[index]);
    let part = norm.or_else(|| {
        MODULE_NAMES
            .iter()
            .find(|(known, part)| {
                *known == name && (*part == "mlp.gate_up_proj" || !architecture.fused || name != "ffn_up")
            })
            .map(|(_, part)| *part)
    })?;
    Some(format!("model.layers.{layer}.{part}.{kind}"))
}

/// Returns whether GGUF files store a tensor with 1 added, as for Gemma's norms, which multiply by 1 plus the weight.
pub(crate) fn is_offset_by_one(architecture: &Architecture, tensor: &str) -> bool {
    architecture.norms_add_one && tensor.ends_with("norm.weight")
}

/// Returns the factor that llama.cpp applies to attention scores: `1/√head_dim`, or `1/√(hidden/heads)` in the largest
/// Gemma models, which are recognized by their number of layers.
pub(crate) fn attention_scale_in_gguf(
    form: GgufForm,
    layers: usize,
    hidden: usize,
    heads: usize,
    head_dim: usize,
) -> f32 {
    let uses_hidden_size = [("gemma2", 46), ("gemma3", 62)].contains(&(form.name, layers));
    let divisor = if uses_hidden_size { hidden / heads.max(1) } else { head_dim };
    1.0 / (divisor as f32).sqrt()
}

/// Returns whether files with the conventions `form` interleave the rows of a tensor. Only query and key projections
/// can be interleaved.
pub(crate) fn is_interleaved(form: GgufForm, tensor: &str) -> bool {
    let part = tensor.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')).map(|(_, part)| part);
    form.interleaved
        && part.is_some_and(|part| {
            ["self_attn.q_proj", "self_attn.k_proj"].iter().any(|projection| part.starts_with(projection))
        })
}

/// Reads the metadata of the tensors in a file, keyed by Hugging Face name. Unknown tensors keep their GGUF names.
/// Omits [`ROPE_FACTORS`] and placeholders for missing sublayers.
pub(super) fn read_tensors(file: &Gguf) -> Result<BTreeMap<String, TensorInfo>> {
    let (architecture, form) = read_architecture(file)?;
    let deci = read_deci_layers(file, form)?;
    let head_dim = read_head_dim(file, form, deci.as_ref())? as usize;
    let mut tensors = BTreeMap::new();
    for (stored_name, tensor) in file.tensors.iter().filter(|(name, _)| *name != ROPE_FACTORS) {
        let name = match deci.as_ref().map_or(FolderName::Usual, |layers| layers.folder_name(stored_name)) {
            FolderName::Usual => name_in_folder(architecture, stored_name).unwrap_or_else(|| stored_name.clone()),
            FolderName::Operator(name) => name,
            FolderName::Filler => continue,
        };
        let interleaved = is_interleaved(form, &name).then_some(head_dim);
        let rows = tensor.shape.first().copied().unwrap_or(0);
        if interleaved.is_some_and(|head_rows| head_rows == 0 || head_rows % 2 != 0 || rows % head_rows != 0) {
            return Err(Error::bad_input("the rows of a query or key tensor cannot be split into heads")
                .at(format!("{}, tensor {stored_name}", file.path.display()))
                .expected("an even head size that divides the number of rows")
                .found(format!("head size {head_dim}, shape {:?}", tensor.shape)));
        }
        let encoding = match tensor.dtype {
            GgmlDType::F32 => ElementEncoding::Plain(Dtype::F32),
            GgmlDType::F16 => ElementEncoding::Plain(Dtype::F16),
            GgmlDType::BF16 => ElementEncoding::Plain(Dtype::BF16),
            dtype => ElementEncoding::Blocks(dtype),
        };
        let offset_by_one = is_offset_by_one(architecture, &name);
        if offset_by_one && tensor.dtype != GgmlDType::F32 {
            return Err(Error::bad_input("unsupported element type of a norm in a GGUF file")
                .at(format!("{}, tensor {stored_name}", file.path.display()))
                .expected("F32")
                .found(format!("{:?}", tensor.dtype)));
        }
        let start = tensor.start;
        let bytes = tensor.bytes;
        let info = TensorInfo { encoding, shape: tensor.shape.clone(), interleaved, offset_by_one, start, bytes };
        if tensors.insert(name.clone(), info).is_some() {
            return Err(Error::bad_input("duplicate tensor in a GGUF file").at(file.path.display()).found(name));
        }
    }
    Ok(tensors)
}

/// Reads a required unsigned integer from the metadata.
fn read_count(file: &Gguf, key: &str) -> Result<u64> {
    file.count(key)?.ok_or_else(|| missing_key_error(file, key, "a whole number"))
}

fn missing_key_error(file: &Gguf, key: &str, expected: &str) -> Error {
    Error::bad_input("missing entry in a GGUF file").at(file.location(key)).expected(expected).found("nothing")
}

/// Reads the layers from a `deci` file. Returns `None` for other architectures.
fn read_deci_layers(file: &Gguf, form: GgufForm) -> Result<Option<DeciLayers>> {
    (form.name == DECI).then(|| DeciLayers::read(file)).transpose()
}

fn read_head_dim(file: &Gguf, form: GgufForm, deci: Option<&DeciLayers>) -> Result<u64> {
    let name = form.name;
    if let Some(width) = file.count(&format!("{name}.attention.key_length"))? {
        return Ok(width);
    }
    let heads = match deci {
        Some(layers) => layers.heads,
        None => read_count(file, &format!("{name}.attention.head_count"))?,
    };
    Ok(read_count(file, &format!("{name}.embedding_length"))? / heads.max(1))
}

/// Opens a GGUF file and converts its metadata to a `config.json`.
///
/// # Errors
/// Fails if [`Gguf::open`] fails, or an entry is missing, mistyped or unsupported.
pub fn gguf_config(path: &Path) -> Result<Value> {
    read_config(&Gguf::open(path)?).map(Value::Object)
}

/// Computes the divisors that the RoPE type `llama3` applies to the frequencies of `half` channel pairs, as in
/// llama.cpp's converter (`conversion/llama.py`) and transformers. The array contains the scaling factor, the low and
/// high frequency factors, and the original context length.
pub(crate) fn llama3_divisors(theta: f64, half: usize, [factor, low, high, context]: [f64; 4]) -> Vec<f64> {
    let divisors = (0..half).map(|i| {
        let wavelength = std::f64::consts::TAU * theta.powf(i as f64 / half as f64);
        if wavelength < context / high {
            1.0
        } else if wavelength > context / low {
            factor
        } else {
            let smooth = (context / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    });
    divisors.collect()
}
