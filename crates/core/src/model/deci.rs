//! Reader for GGUF files of llama.cpp's `deci` architecture, which ghostlab writes when it exports a model with removed
//! attention or MLP sublayers. Such files contain layers with or without attention, all-zero MLPs, and linear maps of
//! the normalized stream. The reader converts them to layers with missing sublayers and to operators, as in ghostlab's
//! safetensors exports.

use serde_json::{Map, Value, json};

use super::architecture::{ARCHITECTURES, Architecture, CLASS_PREFIX, GgufForm};
use super::attached_form::{
    AttachedForm, Attachment, BranchPlace, CONFIG_KEY, bias_name, export_section, input_norm_name,
};
use super::cut::Cut;
use super::sublayer::Sublayer;
use super::tensor_name::name;
use crate::error::{Error, Result};
use crate::files::gguf::Gguf;

/// Name of the architecture in GGUF files.
pub const DECI: &str = "deci";
/// Maximum number of layers, which limits the size of per-layer lists.
const MAX_BLOCKS: u64 = 10_000;

/// Returns the backbone's architecture and the conventions of its GGUF files. Qwen2 has a query bias but no attention
/// output bias, whereas Llama has both or neither.
pub(super) fn detect_architecture(file: &Gguf) -> Result<(&'static Architecture, GgufForm)> {
    let is_qwen2 = file.has_bias("attn_q") && !file.has_bias("attn_output");
    let model_type = if is_qwen2 { "qwen2" } else { "llama" };
    let architecture = ARCHITECTURES.iter().find(|known| known.model_type == model_type);
    let architecture = architecture.ok_or_else(|| Error::job("unknown architecture in the registry").at(model_type))?;
    Ok((architecture, GgufForm::uniform(DECI, true)))
}

/// A layer in a GGUF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    has_attention: bool,
    has_mlp: bool,
    /// Whether a linear map of the normalized stream replaces the attention sublayer.
    is_linear: bool,
    /// Whether the layer's all-zero MLP adds a constant bias.
    has_constant: bool,
}

impl Block {
    /// Returns the operator of the block with index `layer`, if any.
    fn operator(self, layer: usize) -> Option<Attachment> {
        let form = match (self.is_linear, self.has_constant) {
            (true, _) => AttachedForm::Normed { weighted: true },
            (false, true) => AttachedForm::Bias,
            (false, false) => return None,
        };
        Some(Attachment { layer, place: BranchPlace::Before, form, bias: self.has_constant })
    }
}

/// Layers in a `deci` file, and the head counts and MLP width of complete layers.
pub(super) struct DeciLayers {
    pub(super) heads: u64,
    pub(super) kv_heads: u64,
    pub(super) intermediate: u64,
    blocks: Vec<Block>,
}

/// Hugging Face name of a GGUF tensor.
pub(super) enum FolderName {
    /// The name follows from the GGUF name, as in other architectures.
    Usual,
    /// Tensor of an operator, with its complete name.
    Operator(String),
    /// The tensor is a placeholder for a missing sublayer and is never read.
    Filler,
}

impl DeciLayers {
    /// Reads the layers from a file.
    ///
    /// # Errors
    /// Fails if counts are missing, or vary between layers in a way that ghostlab's exports never do.
    pub(super) fn read(file: &Gguf) -> Result<Self> {
        let blocks = file.count("deci.block_count")?.filter(|blocks| (1..=MAX_BLOCKS).contains(blocks));
        let blocks = blocks.ok_or_else(|| value_error(file, "deci.block_count", "1 to 10000 layers"))?;
        let heads = read_counts(file, "deci.attention.head_count", blocks)?;
        let kv_heads = read_counts(file, "deci.attention.head_count_kv", blocks)?;
        let widths = read_counts(file, "deci.feed_forward_length", blocks)?;
        let [max_heads, max_kv, max_width] =
            [&heads, &kv_heads, &widths].map(|counts| counts.iter().copied().max().unwrap_or(0));
        let kv_heads_or_heads = if max_kv == 0 { max_heads } else { max_kv };
        let mut layers =
            Self { heads: max_heads, kv_heads: kv_heads_or_heads, intermediate: max_width, blocks: Vec::new() };
        for index in 0..blocks as usize {
            for (key, found, max) in [
                ("deci.attention.head_count", heads[index], max_heads),
                ("deci.attention.head_count_kv", kv_heads[index], max_kv),
            ] {
                if found != 0 && found != max {
                    return Err(value_error(file, key, "the same number of heads in each layer that has attention"));
                }
            }
            let has_attention = kv_heads[index] > 0;
            let has_mlp = widths[index] == max_width;
            if !has_mlp && !is_all_zero(file, &format!("blk.{index}.ffn_down.weight"))? {
                return Err(value_error(
                    file,
                    "deci.feed_forward_length",
                    "the same width in each layer that has an MLP",
                ));
            }
            let has_constant = !has_mlp && file.tensors.contains_key(&format!("blk.{index}.ffn_down.bias"));
            let is_linear = !has_attention && heads[index] > 0;
            layers.blocks.push(Block { has_attention, has_mlp, is_linear, has_constant });
        }
        Ok(layers)
    }

    /// Returns the config entries `architectures` and `ghostlab` that describe the layers. The map is empty if all
    /// layers are complete.
    pub(super) fn entries(&self, architecture: &Architecture) -> Map<String, Value> {
        let blocks = self.blocks.iter().enumerate();
        let sublayers = blocks.clone().flat_map(|(layer, block)| {
            let has = [(Sublayer::Attention, block.has_attention), (Sublayer::Mlp, block.has_mlp)];
            has.into_iter().filter(|&(_, has)| !has).map(move |(sublayer, _)| (layer, sublayer))
        });
        let dropped: Cut = sublayers.collect();
        if dropped.is_empty() {
            return Map::new();
        }
        let class = format!("{CLASS_PREFIX}{}", architecture.class);
        let operators = blocks.filter_map(|(layer, block)| block.operator(layer));
        let section = export_section(operators, &dropped, architecture.activation.1);
        [("architectures".to_owned(), json!([class])), (CONFIG_KEY.to_owned(), section)].into_iter().collect()
    }

    /// Returns the Hugging Face name for a GGUF tensor such as `blk.3.attn_output.weight`.
    pub(super) fn folder_name(&self, tensor: &str) -> FolderName {
        let place = tensor.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let place = place.and_then(|(layer, part)| Some((layer.parse::<usize>().ok()?, part)));
        let Some((layer, part)) = place else { return FolderName::Usual };
        let Some(block) = self.blocks.get(layer) else { return FolderName::Usual };
        let module = BranchPlace::Before.module();
        match part {
            "attn_output.weight" if block.is_linear => FolderName::Operator(name(layer, &module)),
            "attn_norm.weight" if block.is_linear => FolderName::Operator(input_norm_name(layer, &module)),
            "ffn_down.bias" if block.has_constant => FolderName::Operator(bias_name(layer, &module)),
            "ffn_norm.weight" | "ffn_gate.weight" | "ffn_up.weight" | "ffn_down.weight" if !block.has_mlp => {
                FolderName::Filler
            }
            _ => FolderName::Usual,
        }
    }
}

/// Reads a count for each layer. A single number in the file applies to all layers.
fn read_counts(file: &Gguf, key: &str, blocks: u64) -> Result<Vec<u64>> {
    let found = file.counts(key)?.ok_or_else(|| value_error(file, key, "a whole number for each layer"))?;
    match found[..] {
        [one] => Ok(vec![one; blocks as usize]),
        _ if found.len() as u64 == blocks => Ok(found),
        _ => Err(value_error(file, key, &format!("{blocks} whole numbers, one for each layer"))),
    }
}

/// Returns whether a tensor exists and all of its values are zero.
fn is_all_zero(file: &Gguf, tensor: &str) -> Result<bool> {
    Ok(file.values(tensor)?.is_some_and(|values| values.iter().all(|&value| value == 0.0)))
}

fn value_error(file: &Gguf, key: &str, expected: &str) -> Error {
    Error::bad_input("unsupported layers in a `deci` file")
        .at(file.location(key))
        .expected(expected)
        .found(file.describe_entry(key))
        .hint("use a file written by `ghostlab export --gguf`; other `deci` files are not supported")
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::GgmlDType;
    use candle_core::quantized::gguf_file::Value as Entry;

    use super::*;
    use crate::files::gguf_writer::{GgufInfo, header};

    /// Writes a file with three layers and reads them. `weight` is an element of the last down projection.
    fn read(heads: &[u32], widths: &[u32], weight: f32) -> Result<DeciLayers> {
        let entries = [
            ("general.architecture".to_owned(), Entry::String(DECI.to_owned())),
            ("deci.block_count".to_owned(), Entry::U32(3)),
            ("deci.attention.head_count".to_owned(), list(heads)),
            ("deci.attention.head_count_kv".to_owned(), list(&[2, 2, 0])),
            ("deci.feed_forward_length".to_owned(), list(widths)),
        ];
        let info =
            |part: &str, shape: Vec<usize>| GgufInfo { name: format!("blk.2.{part}"), dtype: GgmlDType::F32, shape };
        let infos = [info("ffn_down.weight", vec![8, 1]), info("ffn_down.bias", vec![8])];
        let mut bytes = header(&entries, &infos.iter().collect::<Vec<_>>()).unwrap();
        bytes.extend([0.0, 0.0, weight].map(f32::to_le_bytes).concat());
        bytes.resize(bytes.len() + 20 + 32, 0);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        std::fs::write(&path, bytes).unwrap();
        DeciLayers::read(&Gguf::open(&path).unwrap())
    }

    #[test]
    fn deci_layers_are_read_from_head_and_width_arrays() {
        let layers = read(&[4, 4, 4], &[16, 16, 1], 0.0).unwrap();
        assert_eq!((layers.heads, layers.kv_heads, layers.intermediate), (4, 2, 16));
        let entries = layers.entries(&ARCHITECTURES[0]);
        assert_eq!(entries["architectures"], json!(["GhostedLlamaForCausalLM"]));
        let operator = json!({"layer": 2, "at": "before", "form": "normed", "bias": true});
        assert_eq!(entries[CONFIG_KEY], json!({"operators": [operator], "dropped": [2], "activation": "silu"}));
        let operator = json!({"layer": 2, "at": "before", "form": "bias", "bias": true});
        let entries = read(&[4, 4, 0], &[16, 16, 1], 0.0).unwrap().entries(&ARCHITECTURES[0]);
        assert_eq!(entries[CONFIG_KEY]["operators"], json!([operator]));
        for (name, expected) in
            [("blk.2.ffn_up.weight", true), ("blk.1.ffn_up.weight", false), ("output.weight", false)]
        {
            assert_eq!(matches!(layers.folder_name(name), FolderName::Filler), expected, "{name}");
        }
    }

    #[test]
    fn inconsistent_deci_layers_are_rejected() {
        for (heads, widths, weight) in [
            (&[4, 8, 4][..], &[16, 16, 1][..], 0.0),
            (&[4, 4], &[16, 16, 1], 0.0),
            (&[4, 4, 4], &[16, 16, 1, 1], 0.0),
            (&[4, 4, 4], &[16, 8, 16], 0.0),
            (&[4, 4, 4], &[16, 16, 1], 0.5),
        ] {
            let error = read(heads, widths, weight).err().unwrap().to_string();
            assert!(error.contains("deci") && error.contains("a.gguf"), "{heads:?} {widths:?}: {error}");
        }
    }

    fn list(counts: &[u32]) -> Entry {
        Entry::Array(counts.iter().map(|&count| Entry::U32(count)).collect())
    }
}
