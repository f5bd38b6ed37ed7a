//! Mixture-of-experts layers (Mixtral, Qwen3-MoE): a router assigns weights to the experts for each token, and the MLP
//! output is the weighted sum of the top-k experts.
//!
//! Applying a linear map `T` to the sum equals applying it to the output of each expert: `(Σ wₑ·yₑ)·T = Σ wₑ·(yₑ·T)`
//! for scalar weights. Therefore a map that can be folded into the down projection of a dense MLP, such as ReplaceMe's
//! matrix or Prune&Comp's factors, can be folded into the down projection of every expert regardless of the routing.

use serde_json::Value;

use super::architecture::Architecture;
use super::config_fields::Entries;
use super::window::MAX_CONTEXT_LENGTH;
use crate::error::{Error, Result};
use crate::linalg::simd;

/// Upper bound on the number of experts, higher than in any known model.
const MAX_EXPERTS: usize = 1 << 14;
const MAX_WIDTH: usize = 1 << 20;
const EXPERTS_PER_TOKEN_KEY: &str = "num_experts_per_tok";
/// Config keys that select the layers with a dense MLP.
pub(crate) const DENSE_LAYERS_KEY: &str = "mlp_only_layers";
pub(crate) const SPARSE_STEP_KEY: &str = "decoder_sparse_step";

/// Mixture-of-experts settings of a backbone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    /// Number of experts, `E`.
    pub count: usize,
    /// Number of experts per token.
    pub used: usize,
    /// Intermediate size of an expert's MLP.
    pub width: usize,
    /// Whether the weights of the selected experts are normalized to sum to 1.
    pub normalized: bool,
}

/// Parses the expert settings of a config, and determines which layers have experts.
///
/// # Errors
/// Fails if an entry is missing or invalid, or if a token uses more experts than a layer has.
pub(super) fn parse(
    entries: &Entries<'_>,
    architecture: &Architecture,
    layers: usize,
) -> Result<(Option<Experts>, Vec<bool>)> {
    let Some(names) = architecture.experts else { return Ok((None, vec![false; layers])) };
    // The default of 128 is that of `Qwen3MoeConfig`, which accepts both names.
    let key = names.count.iter().find(|key| entries.get(key).is_some());
    let count = key.map_or(Ok(128), |key| entries.count(key, MAX_EXPERTS))?;
    let used = entries.count(EXPERTS_PER_TOKEN_KEY, MAX_EXPERTS)?;
    if used > count {
        return Err(Error::bad_input("`num_experts_per_tok` exceeds the number of experts")
            .at(EXPERTS_PER_TOKEN_KEY)
            .expected(format!("at most {count}"))
            .found(used));
    }
    let normalized = names.normalized.map_or(Ok(None), |key| entries.flag(key))?.unwrap_or(true);
    let experts = Experts { count, used, width: entries.count(names.width, MAX_WIDTH)?, normalized };
    let every = entries.optional_count(SPARSE_STEP_KEY, MAX_CONTEXT_LENGTH)?.unwrap_or(1);
    let dense: Vec<u64> = match entries.get(DENSE_LAYERS_KEY) {
        None => Vec::new(),
        Some(value) => value
            .as_array()
            .and_then(|items| items.iter().map(Value::as_u64).collect::<Option<_>>())
            .ok_or_else(|| entries.value_error(DENSE_LAYERS_KEY, "a list of layer indices"))?,
    };
    let sparse = (0..layers).map(|layer| !dense.contains(&(layer as u64)) && (layer + 1).is_multiple_of(every));
    Ok((Some(experts), sparse.collect()))
}

/// Assignment of tokens to experts.
#[derive(Debug, PartialEq)]
pub(super) struct Routes {
    /// For each expert, the indices of the tokens routed to it, in ascending order, and their weights.
    pub(super) per_expert: Vec<(Vec<u32>, Vec<f32>)>,
}

impl Experts {
    /// Routes each token to its top-k experts using an f32 softmax over all experts. Ties go to the lower index.
    ///
    /// # Shapes
    /// `logits [tokens, E]`.
    pub(super) fn route_tokens(&self, logits: &[f32]) -> Routes {
        let mut per_expert = vec![(Vec::new(), Vec::new()); self.count];
        let mut weights = vec![0.0; self.count];
        for (token, logits) in logits.chunks_exact(self.count).enumerate() {
            weights.copy_from_slice(logits);
            let sum = simd::softmax_numerators(&mut weights);
            weights.iter_mut().for_each(|weight| *weight /= sum);
            let mut order: Vec<usize> = (0..self.count).collect();
            order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
            order.truncate(self.used);
            let total: f32 = if self.normalized { order.iter().map(|&expert| weights[expert]).sum() } else { 1.0 };
            for expert in order {
                let (tokens, weights_of_expert): &mut (Vec<u32>, Vec<f32>) = &mut per_expert[expert];
                tokens.push(token as u32);
                weights_of_expert.push(weights[expert] / total);
            }
        }
        Routes { per_expert }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are computed by hand: the softmax of (ln 1, ln 2, ln 5) is (1, 2, 5)/8.
    #[test]
    fn tokens_are_routed_to_the_top_k_experts() {
        let logits = [1f32.ln(), 2f32.ln(), 5f32.ln(), 0.0, 0.0, 0.0];
        for (normalized, expected) in [(true, [2.0 / 7.0, 5.0 / 7.0]), (false, [2.0 / 8.0, 5.0 / 8.0])] {
            let experts = Experts { count: 3, used: 2, width: 1, normalized };
            let routes = experts.route_tokens(&logits).per_expert;
            assert_eq!([&routes[0].0, &routes[1].0, &routes[2].0], [&vec![1], &vec![0, 1], &vec![0]]);
            let half = if normalized { 0.5 } else { 1.0 / 3.0 };
            assert!(is_near(routes[1].1[0], expected[0]) && is_near(routes[2].1[0], expected[1]), "{routes:?}");
            assert!(is_near(routes[0].1[0], half) && is_near(routes[1].1[1], half), "{routes:?}");
        }
    }

    fn is_near(found: f32, expected: f32) -> bool {
        (found - expected).abs() < 1e-6
    }
}
