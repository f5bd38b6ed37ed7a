//! What the tensors of a backbone are called in its weight files.

pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
pub(crate) const FINAL_NORM: &str = "model.norm.weight";
pub(crate) const HEAD: &str = "lm_head.weight";
pub(super) const QUERY_NORM: &str = "self_attn.q_norm";
pub(super) const KEY_NORM: &str = "self_attn.k_norm";
/// Of queries, keys and values.
pub(super) const BIASES: [&str; 3] = ["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"];

/// Of a part of a layer.
pub(crate) fn name(layer: usize, part: &str) -> String {
    let of = if BIASES.contains(&part) { "" } else { ".weight" };
    format!("model.layers.{layer}.{part}{of}")
}
