//! Names of tensors and modules in weight files. The modules of a layer are named relative to the layer.

pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
pub(crate) const FINAL_NORM: &str = "model.norm.weight";
pub(crate) const HEAD: &str = "lm_head.weight";
pub(crate) const QUERY_NORM: &str = "self_attn.q_norm";
pub(crate) const KEY_NORM: &str = "self_attn.k_norm";
/// Query, key and value projections.
pub(super) const INPUTS: [&str; 3] = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
pub(crate) const OUTPUT: &str = "self_attn.o_proj";
/// Gate and up projections, named relative to the MLP.
pub(super) const GATED_PROJECTIONS: [&str; 2] = ["gate_proj", "up_proj"];
pub(crate) const DOWN: &str = "down_proj";
pub(crate) const MLP: &str = "mlp";
pub(super) const ROUTER: &str = "mlp.gate";

/// Returns the tensor name for a module or bias of a layer.
pub(crate) fn name(layer: usize, part: &str) -> String {
    let suffix = if part.ends_with(".bias") { "" } else { ".weight" };
    format!("model.layers.{layer}.{part}{suffix}")
}

pub(crate) fn expert(number: usize) -> String {
    format!("{MLP}.experts.{number}")
}

pub(crate) fn bias(part: &str) -> String {
    format!("{part}.bias")
}
