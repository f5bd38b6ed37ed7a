//! Layer merging (LaCo, arXiv 2402.11187): computes the factors by which merged layers sum the weights of their source
//! layers.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;
use super::merged_layer::MergedLayer;
use crate::error::{Error, Result};

/// Merge of later layers into a layer. Layers that result from earlier merges enter with their merged weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerMerge {
    /// Layer that receives the merged weights.
    pub layer: usize,
    /// Layers that are removed, in ascending order.
    pub absorbed: Vec<usize>,
}

/// Formula for the merged weights of a layer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MergeForm {
    /// Matrices and biases `θ + Σ (θ_k − θ)` over the removed layers `k`. The norms are unchanged.
    #[default]
    Paper,
    /// Formula of the published notebook, which subtracts the running sum instead of `θ`. The result equals the weights
    /// of the last layer.
    Released,
    /// Like `paper`, but also merges the norms.
    Norms,
}

impl MergeForm {
    /// Rejects a backbone whose layers cannot be merged.
    ///
    /// # Errors
    /// Fails if some layers have experts.
    pub fn check(config: &Config) -> Result<()> {
        if config.experts.is_none() {
            return Ok(());
        }
        Err(Error::bad_input("layers with experts cannot be merged")
            .expected("a backbone with dense MLPs")
            .found(config.architecture.class))
    }

    /// Applies the merges in order. Returns the resulting merged layers in ascending order.
    pub fn apply(self, merges: &[LayerMerge]) -> Vec<MergedLayer> {
        // Maps each merged layer to the factors of its source layers.
        let mut merged: BTreeMap<usize, BTreeMap<usize, i64>> = BTreeMap::new();
        for LayerMerge { layer, absorbed } in merges {
            let mut factors = BTreeMap::new();
            let own_factor = 1 - absorbed.len() as i64;
            let last = absorbed.last();
            for (term, multiplier) in [(layer, own_factor)].into_iter().chain(absorbed.iter().map(|term| (term, 1))) {
                let multiplier = match self {
                    Self::Paper | Self::Norms => multiplier,
                    Self::Released => i64::from(Some(term) == last),
                };
                for (source, factor) in merged.remove(term).unwrap_or_else(|| [(*term, 1)].into()) {
                    *factors.entry(source).or_default() += multiplier * factor;
                }
            }
            factors.retain(|_, factor| *factor != 0);
            merged.insert(*layer, factors);
        }
        let layers = merged.into_iter();
        layers
            .map(|(layer, factors)| MergedLayer::new(layer, factors.into_iter().collect(), self == Self::Norms))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected factors were obtained by expanding the formulas by hand.
    #[test]
    fn repeated_merges_expand_to_factors_of_source_layers() {
        let merges = [(7, vec![8, 9]), (3, vec![4]), (6, vec![7, 10])];
        let merges = merges.map(|(layer, absorbed)| LayerMerge { layer, absorbed });
        // θ7' = −θ7 + θ8 + θ9 and θ6' = −θ6 + θ7' + θ10.
        let summed = vec![(6, -1), (7, -1), (8, 1), (9, 1), (10, 1)];
        for (form, factors) in
            [(MergeForm::Paper, summed.clone()), (MergeForm::Norms, summed), (MergeForm::Released, vec![(10, 1)])]
        {
            let norms = form == MergeForm::Norms;
            let expected = [MergedLayer::new(3, vec![(4, 1)], norms), MergedLayer::new(6, factors, norms)];
            assert_eq!(form.apply(&merges), expected, "{form:?}");
        }
        let nested = [(7, vec![8, 9]), (6, vec![7])].map(|(layer, absorbed)| LayerMerge { layer, absorbed });
        assert_eq!(MergeForm::Released.apply(&nested), [MergedLayer::new(6, vec![(9, 1)], false)]);
    }
}
