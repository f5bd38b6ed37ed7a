//! The tensors of a backbone: their names and shapes in the weight files.

use std::path::Path;

use super::architecture::QueryKeyNorm;
use super::attached::{Place, norm_name};
use super::config::Config;
use super::weights::Weights;
use crate::error::Result;

pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
pub(crate) const FINAL_NORM: &str = "model.norm.weight";
pub(crate) const HEAD: &str = "lm_head.weight";
pub(super) const QUERY_NORM: &str = "self_attn.q_norm";
pub(super) const KEY_NORM: &str = "self_attn.k_norm";
/// Of queries, keys and values.
pub(super) const BIASES: [&str; 3] = ["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"];

/// Compares a config with the headers of a folder's weight files: every tensor that it asks for is there in its shape,
/// and no other. Nothing else is read, so that a wrong number in a config is found before anything is made of it.
///
/// # Errors
/// A tensor that is missing, misshapen, of no float type, or left over, named with its file.
pub fn check_weights(config: &Config, folder: &Path) -> Result<()> {
    checked(config, folder).map(drop)
}

/// Whether a folder's weights hold an embedding and an output projection beside it. Files that cannot be read hold nothing:
/// whoever loads them says why.
pub(super) fn has_both_tables(folder: &Path) -> bool {
    Weights::open(folder).is_ok_and(|weights| weights.holds(EMBEDDING) && weights.holds(HEAD))
}

/// The weights of a folder, compared with a config as in [`check_weights`].
pub(crate) fn checked(config: &Config, folder: &Path) -> Result<Weights> {
    let mut weights = Weights::open(folder)?;
    for of in &config.attachments {
        if let Place::Norm(norm) = of.place {
            weights.call(&norm_name(of.layer, norm), &name(of.layer, norm));
        }
        of.check(config, &mut weights)?;
    }
    let (c, vocab, tied) = (config.hidden, config.vocab, config.tied_embeddings);
    if tied && !weights.holds(EMBEDDING) && weights.holds(HEAD) {
        // Of tied tables a file may hold either.
        weights.call(HEAD, EMBEDDING);
    }
    weights.check(EMBEDDING, &[vocab, c])?;
    let parts = parts(config);
    for layer in 0..config.layers {
        parts.iter().try_for_each(|(part, shape)| weights.check(&name(layer, part), shape))?;
    }
    weights.check(FINAL_NORM, &[c])?;
    if !tied {
        weights.check(HEAD, &[vocab, c])?;
    }
    // Old files hold the rotary table.
    weights.finish(|name| name.ends_with("rotary_emb.inv_freq"))?;
    Ok(weights)
}

pub(crate) fn name(layer: usize, part: &str) -> String {
    let of = if BIASES.contains(&part) { "" } else { ".weight" };
    format!("model.layers.{layer}.{part}{of}")
}

/// The tensors of a layer with the shapes that they are stored in: matrices `[out, in]`, and those norms and
/// biases that the architecture has.
pub(crate) fn parts(config: &Config) -> Vec<(&'static str, Vec<usize>)> {
    let (c, f) = (config.hidden, config.intermediate);
    let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let matrices = [
        ("self_attn.q_proj", q, c),
        ("self_attn.k_proj", kv, c),
        ("self_attn.v_proj", kv, c),
        ("self_attn.o_proj", c, q),
        ("mlp.gate_proj", f, c),
        ("mlp.up_proj", f, c),
        ("mlp.down_proj", c, f),
    ];
    let (query, key) = match config.architecture.query_key_norm {
        QueryKeyNorm::None => (None, None),
        QueryKeyNorm::PerHead => (Some(config.head_dim), Some(config.head_dim)),
        QueryKeyNorm::WholeProjection => (Some(q), Some(kv)),
    };
    let norms =
        [(QUERY_NORM, query), (KEY_NORM, key)].into_iter().filter_map(|(part, width)| Some((part, vec![width?])));
    let matrices = matrices.into_iter().map(|(part, outer, inner)| (part, vec![outer, inner]));
    let biases = BIASES.into_iter().zip([q, kv, kv]).filter(|_| config.architecture.projection_bias);
    let biases = biases.map(|(part, width)| (part, vec![width]));
    matrices
        .chain(biases)
        .chain(norms)
        .chain(config.architecture.norms.into_iter().flatten().map(|part| (part, vec![c])))
        .collect()
}
