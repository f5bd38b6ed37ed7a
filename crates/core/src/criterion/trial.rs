//! Trials: pruned backbones that a criterion measures on the calibration windows.

use std::sync::Arc;

use crate::error::Result;
use crate::evaluate::logit_distance::LogitDistance;
use crate::model::{Cut, MergedLayer, Program, Repairs};

/// Quantity by which trials are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrialMetric {
    /// `exp(total negative log-likelihood / predicted tokens)`.
    Perplexity,
    /// Mean distance between the logits and those of the dense backbone, over all tokens.
    Distance(LogitDistance),
    /// Mean cosine between the outputs of the final norm and those of the dense backbone, over all windows.
    Cosine,
}

/// Backbone without the layers or sublayers of a cut, optionally with merged layers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trial {
    pub removed: Cut,
    /// Remaining layers whose weights are merged with those of removed layers.
    pub merged: Vec<MergedLayer>,
}

impl From<Cut> for Trial {
    fn from(removed: Cut) -> Self {
        Self { removed, merged: Vec::new() }
    }
}

impl Trial {
    /// Returns the program of the trial on a backbone with `layers` layers.
    pub fn program(&self, layers: usize) -> Program {
        let merged = self.merged.iter().map(|merged| (merged.layer(), Arc::new(merged.clone()))).collect();
        Program::repaired(layers, &self.removed, &Repairs { merged, ..Repairs::default() })
    }
}

/// Function that measures the given metric for each trial and returns one value per trial.
pub type Trials<'a> = dyn FnMut(TrialMetric, &[Trial]) -> Result<Vec<f64>> + 'a;
