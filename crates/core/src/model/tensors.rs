//! Names and shapes of the tensors in a backbone.
//!
//! The decoder requests each projection under its own name. If the files of an architecture fuse several projections
//! (Phi-3) or use other names (Mixtral), [`open_checked_weights`] registers the mapping.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::quantized::GgmlDType;
use half::{bf16, f16};
use safetensors::Dtype;

use super::architecture::{Architecture, QueryKeyNorm};
use super::attached_form::{BranchPlace, norm_name};
use super::config::Config;
use super::rounding::{WeightType, ggml_type_name};
use super::sublayer::Sublayer;
use super::tensor_name::{
    DOWN, EMBEDDING, FINAL_NORM, GATED_PROJECTIONS, HEAD, INPUTS, KEY_NORM, MLP, OUTPUT, QUERY_NORM, ROUTER, bias,
    expert, name,
};
use super::weights::{Rows, Weights};
use crate::error::Result;

/// Checks that the weight files in a folder contain exactly the tensors that a config requires, with the expected
/// shapes. Only the headers are read, so config errors are detected before the weights are loaded.
///
/// # Errors
/// Fails if a tensor is missing, unexpected, has the wrong shape or is not a float tensor. The message names the tensor
/// and its file.
pub fn check_weights(config: &Config, folder: &Path) -> Result<()> {
    open_checked_weights(config, folder).map(drop)
}

/// Opens the weights in a folder, and checks them like [`check_weights`].
pub(crate) fn open_checked_weights(config: &Config, folder: &Path) -> Result<Weights> {
    let mut weights = Weights::open(folder)?;
    for attachment in &config.attachments {
        if let BranchPlace::Norm(norm) = attachment.place {
            weights.alias(&norm_name(attachment.layer, norm), None, &name(attachment.layer, norm));
        }
        for (_, name, shape) in attachment.tensors(config.hidden) {
            weights.check(&name, &shape)?;
        }
    }
    let c = config.hidden;
    let vocab = config.vocab;
    let tied = config.tied_embeddings;
    if tied && !weights.contains(EMBEDDING) && weights.contains(HEAD) {
        // Weight files of tied models may contain either of the two matrices.
        weights.alias(HEAD, None, EMBEDDING);
    }
    weights.check(EMBEDDING, &[vocab, c])?;
    for layer in 0..config.layers {
        for part in stored_tensors(config, layer) {
            check_part(layer, &part, &mut weights)?;
        }
    }
    weights.check(FINAL_NORM, &[c])?;
    if !tied {
        weights.check(HEAD, &[vocab, c])?;
    }
    // Older files also contain the RoPE frequencies, which are computed from the config.
    weights.finish(|name| name.ends_with("rotary_emb.inv_freq"))?;
    if let Some(rounded) = config.rounded {
        weights.quantize(quantized_matrices(config, rounded));
        // Also register the matrices under their names in the files, because exports request them by these names.
        for layer in 0..config.layers {
            let matrices = stored_tensors(config, layer).into_iter().filter(|part| part.shape.len() == 2);
            let matrices = matrices.filter(|part| part.holds.iter().all(|(stored_name, _)| stored_name != ROUTER));
            weights.quantize(
                matrices.map(|part| (name(layer, &part.name), rounded.ggml_dtype(part.shape[1], false))).collect(),
            );
        }
    }
    Ok(weights)
}

/// Checks a stored tensor of a layer, and registers the names under which the decoder requests its rows.
fn check_part(layer: usize, part: &StoredPart, weights: &mut Weights) -> Result<()> {
    let tensor = name(layer, &part.name);
    if let Some((stored_name, rows)) = &part.stacked {
        let stacked = format!("model.layers.{layer}.{stored_name}");
        // transformers may save all experts of a layer as one stacked tensor.
        if !weights.contains(&tensor) && weights.contains(&stacked) {
            for requested in [&tensor, &name(layer, &part.holds[0].0)] {
                weights.alias(&stacked, Some(rows.clone()), requested);
            }
            return weights.check(&tensor, &part.shape);
        }
    }
    weights.check(&tensor, &part.shape)?;
    match part.holds.as_slice() {
        [(one, _)] if *one == part.name => (),
        [(one, _)] => weights.alias(&tensor, None, &name(layer, one)),
        several => {
            let mut first = 0;
            for (one, rows) in several {
                weights.alias(&tensor, Some(Rows { shape: part.shape.clone(), first }), &name(layer, one));
                first += rows;
            }
        }
    }
    Ok(())
}

/// Name, relative to the layer, and shape of a tensor in a layer: a projection, norm or bias. Matrices are `[out, in]`.
pub(crate) type Part = (String, Vec<usize>);

/// Returns the tensors of a layer as the decoder requests them, including norms and biases. Dropped sublayers have no
/// tensors.
pub(crate) fn layer_parts(config: &Config, layer: usize) -> Vec<Part> {
    let c = config.hidden;
    let q = config.heads * config.head_dim;
    let kv = config.kv_heads * config.head_dim;
    let mut parts: Vec<Part> = Vec::new();
    for (part, width) in INPUTS.into_iter().zip([q, kv, kv]) {
        push_part(part.to_owned(), [width, c], config.biases.inputs, &mut parts);
    }
    push_part(OUTPUT.to_owned(), [c, q], config.biases.output, &mut parts);
    let mut gated = |prefix: &str, f: usize, biased: bool| {
        GATED_PROJECTIONS.iter().for_each(|part| push_part(format!("{prefix}.{part}"), [f, c], biased, &mut parts));
        push_part(format!("{prefix}.{DOWN}"), [c, f], biased, &mut parts);
    };
    match config.experts.filter(|_| config.sparse[layer]) {
        None => gated(MLP, config.intermediate, config.biases.mlp),
        Some(layer_experts) => {
            (0..layer_experts.count).for_each(|number| gated(&expert(number), layer_experts.width, false));
            push_part(ROUTER.to_owned(), [layer_experts.count, c], false, &mut parts);
        }
    }
    let (query, key) = match config.architecture.query_key_norm {
        QueryKeyNorm::None => (None, None),
        QueryKeyNorm::PerHead => (Some(config.head_dim), Some(config.head_dim)),
        QueryKeyNorm::WholeProjection => (Some(q), Some(kv)),
    };
    let norms = [(QUERY_NORM, query), (KEY_NORM, key)].into_iter();
    parts.extend(norms.filter_map(|(part, width)| Some((part.to_owned(), vec![width?]))));
    parts.extend(config.architecture.norms.into_iter().flatten().map(|part| (part.to_owned(), vec![c])));
    parts.retain(|(part, _)| !config.dropped.contains(layer, sublayer_of(config.architecture, part)));
    parts
}

/// Returns the sublayer to which a matrix, norm or bias of a layer belongs.
pub(crate) fn sublayer_of(architecture: &Architecture, part: &str) -> Sublayer {
    let is_mlp_norm = Sublayer::Mlp.norms().iter().any(|&norm| architecture.norms[norm] == Some(part));
    if is_mlp_norm || part.split('.').next() == Some(MLP) { Sublayer::Mlp } else { Sublayer::Attention }
}

fn push_part(part: String, shape: [usize; 2], biased: bool, parts: &mut Vec<Part>) {
    if biased {
        parts.push((bias(&part), vec![shape[0]]));
    }
    parts.push((part, shape.to_vec()));
}

/// Returns the names and quantized types of the matrices to quantize. As in llama.cpp, routers are not quantized.
fn quantized_matrices(config: &Config, weight_type: WeightType) -> Vec<(String, GgmlDType)> {
    let mut matrices = vec![(EMBEDDING.to_owned(), weight_type.ggml_dtype(config.hidden, config.tied_embeddings))];
    matrices.extend((!config.tied_embeddings).then(|| (HEAD.to_owned(), weight_type.ggml_dtype(config.hidden, true))));
    for layer in 0..config.layers {
        let parts = layer_parts(config, layer).into_iter().filter(|(part, shape)| shape.len() == 2 && part != ROUTER);
        matrices.extend(parts.map(|(part, shape)| (name(layer, &part), weight_type.ggml_dtype(shape[1], false))));
    }
    matrices
}

/// Returns a description of a backbone's quantization, or `None` if weights are read as stored.
pub fn describe_quantization(config: &Config) -> Option<String> {
    let weight_type = config.rounded?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    quantized_matrices(config, weight_type)
        .into_iter()
        .for_each(|(_, dtype)| *counts.entry(ggml_type_name(dtype)).or_default() += 1);
    let counts: Vec<String> = counts.iter().map(|(dtype, count)| format!("{count} to {dtype}")).collect();
    Some(format!("weights rounded to {} (matrices: {})", weight_type.name(), counts.join(", ")))
}

/// Tensor of a layer as stored in weight files. It may concatenate several [`Part`]s, which are the tensors that the
/// decoder requests.
pub(crate) struct StoredPart {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    /// Names and row counts of the requested tensors in this tensor, in the order of their rows.
    pub(crate) holds: Vec<(String, usize)>,
    /// Sublayer whose branch ends with this projection, into which operators on the branch are folded.
    pub(crate) ends: Option<Sublayer>,
    /// For files with stacked experts: name of the stacked tensor, and this tensor's rows in it.
    stacked: Option<(String, Rows)>,
}

/// Returns the tensors in a layer as stored in the architecture's weight files.
pub(crate) fn stored_tensors(config: &Config, layer: usize) -> Vec<StoredPart> {
    let parts = layer_parts(config, layer);
    let fused: Vec<(&str, Vec<String>)> = if config.architecture.fused {
        let gated = GATED_PROJECTIONS.iter().map(|part| format!("{MLP}.{part}")).collect();
        vec![("self_attn.qkv_proj", INPUTS.map(str::to_owned).to_vec()), ("mlp.gate_up_proj", gated)]
    } else {
        Vec::new()
    };
    let mut stored: Vec<StoredPart> = Vec::new();
    for (part, shape) in &parts {
        if let Some((name, members)) = fused.iter().find(|(_, members)| members.contains(part)) {
            if members[0] == *part {
                let holds: Vec<(String, usize)> = members
                    .iter()
                    .filter_map(|part| parts.iter().find(|(known, _)| known == part))
                    .map(|(part, shape)| (part.clone(), shape[0]))
                    .collect();
                let rows = holds.iter().map(|(_, rows)| rows).sum();
                let shape = vec![rows, shape[1]];
                stored.push(StoredPart { name: (*name).to_owned(), shape, holds, ends: None, stacked: None });
            }
            continue;
        }
        let holds = vec![(part.clone(), shape[0])];
        let (name, stacked) = expert_name(config, part, shape);
        stored.push(StoredPart { name, shape: shape.clone(), holds, ends: ending_sublayer(part), stacked });
    }
    stored
}

/// Returns the sublayer whose branch ends with the given projection or bias, if any.
fn ending_sublayer(part: &str) -> Option<Sublayer> {
    let matrix = part.strip_suffix(".bias").unwrap_or(part);
    if matrix == OUTPUT {
        return Some(Sublayer::Attention);
    }
    let mlp = matrix.starts_with(MLP) && matrix.strip_suffix(DOWN).is_some_and(|prefix| prefix.ends_with('.'));
    mlp.then_some(Sublayer::Mlp)
}

/// Returns the name of an expert's tensor in the files, and its location in the stacked tensor of all experts.
fn expert_name(config: &Config, part: &str, shape: &[usize]) -> (String, Option<(String, Rows)>) {
    let plain = (part.to_owned(), None);
    let (Some(experts), Some(names)) = (config.experts, config.architecture.experts) else { return plain };
    if part == ROUTER {
        // In files with stacked experts, Mixtral's router has a different name.
        let stacked =
            (names.router != ROUTER).then(|| (format!("{ROUTER}.weight"), Rows { shape: shape.to_vec(), first: 0 }));
        return (names.router.to_owned(), stacked);
    }
    let expert =
        part.strip_prefix(MLP).and_then(|text| text.strip_prefix(".experts.")).and_then(|text| text.split_once('.'));
    let Some((number, matrix)) = expert else { return plain };
    let Ok(index) = number.parse::<usize>() else { return plain };
    let c = config.hidden;
    let f = experts.width;
    let count = experts.count;
    let (matrix_index, stacked) = match GATED_PROJECTIONS.iter().position(|matrix_name| *matrix_name == matrix) {
        Some(half) => (half, ("gate_up_proj", vec![count, 2 * f, c], (2 * index + half) * f)),
        None => (2, ("down_proj", vec![count, c, f], index * c)),
    };
    let (stacked_name, shape, first) = stacked;
    let name = format!("{}.{number}.{}", names.experts, names.matrices[matrix_index]);
    (name, Some((format!("{MLP}.experts.{stacked_name}"), Rows { shape, first })))
}

/// Reads the weight of a norm. If the architecture's norms multiply by `1 + weight`, adds 1 to the stored values.
///
/// # Errors
/// See [`Weights::take`].
pub(crate) fn read_norm(config: &Config, weights: &Weights, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
    let mut values = weights.take(name, shape)?;
    if config.architecture.norms_add_one {
        values.iter_mut().for_each(|weight| *weight += 1.0);
    }
    Ok(values)
}

/// Returns the factor √C if the architecture scales embeddings by it. As in transformers, the factor is rounded to the
/// stored type, except for GGUF files, for which llama.cpp uses f32.
pub(crate) fn embedding_factor(config: &Config, weights: &Weights) -> Option<f32> {
    let root = (config.hidden as f64).sqrt() as f32;
    config.architecture.scaled_embedding.then(|| match weights.dtype(EMBEDDING).filter(|_| !weights.is_gguf()) {
        Some(Dtype::BF16) => bf16::from_f32(root).to_f32(),
        Some(Dtype::F16) => f16::from_f32(root).to_f32(),
        _ => root,
    })
}
