//! The tensors of a backbone: which they are, and their shapes in the weight files.

use std::path::Path;

use super::architecture::QueryKeyNorm;
use super::attached::{BranchPlace, norm_name};
use super::config::Config;
use super::tensor_name::{BIASES, EMBEDDING, FINAL_NORM, HEAD, KEY_NORM, QUERY_NORM, name};
use super::weights::Weights;
use crate::error::Result;

/// Compares a config with the headers of a folder's weight files: every tensor that it asks for is there in its shape,
/// and no other. Nothing else is read, so that a wrong number in a config is found before anything is made of it.
///
/// # Errors
/// A tensor that is missing, misshapen, of no float type, or left over, named with its file.
pub fn check_weights(config: &Config, folder: &Path) -> Result<()> {
    checked(config, folder).map(drop)
}

/// The weights of a folder, compared with a config as in [`check_weights`].
pub(crate) fn checked(config: &Config, folder: &Path) -> Result<Weights> {
    let mut weights = Weights::open(folder)?;
    for of in &config.attachments {
        if let BranchPlace::Norm(norm) = of.place {
            weights.call(&norm_name(of.layer, norm), &name(of.layer, norm));
        }
        of.check(config.hidden, &mut weights)?;
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
