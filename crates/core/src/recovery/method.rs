//! Interface of a recovery method.

use serde::de::DeserializeOwned;

use super::boundary::{Boundary, Solution, Span};
use crate::calibrate::HookPoint;
use crate::error::Result;
use crate::model::{Config, LayerMerge, MergedLayer, StepForm, Sublayer};
use crate::options::{self, Options};

/// Method that repairs the boundary of removed layers without training.
pub trait Recovery: Send + Sync {
    /// Rejects a backbone that the method cannot repair. Called before anything is computed.
    fn check(&self, config: &Config) -> Result<()> {
        let _ = config;
        Ok(())
    }

    /// Returns whether the method inserts a repair at the cut.
    fn is_repairing(&self) -> bool {
        true
    }

    /// Returns whether the repair is fitted on calibration activations.
    fn is_fitted(&self) -> bool {
        self.is_repairing()
    }

    /// Returns whether the operator can be fine-tuned ([`crate::distill`]). Fine-tuning requires one operator per
    /// region, on the residual stream.
    fn is_tunable(&self) -> bool {
        false
    }

    /// Returns the part of the model that the repair changes.
    fn target(&self) -> RepairTarget {
        RepairTarget::Stream
    }

    /// Returns the form of the operator that an exported checkpoint stores separately, or `None` if the repair can
    /// always be folded into the weights.
    fn step_form(&self, config: &Config) -> Option<StepForm> {
        match self.target() {
            RepairTarget::Nothing | RepairTarget::Rows | RepairTarget::Layer => None,
            RepairTarget::Branch => config.ends_in_norm(Sublayer::Mlp).then_some(StepForm::Branch),
            RepairTarget::Stream => Some(StepForm::Stream),
        }
    }

    /// Rejects a method whose repairs cannot be exported. Called before anything is computed for an export.
    fn check_export(&self) -> Result<()> {
        Ok(())
    }

    /// Returns whether the method replaces removed sublayers, instead of repairing the removal of whole layers.
    fn replaces_sublayers(&self) -> bool {
        false
    }

    /// Splits a removed region into spans that get one operator each. By default, the whole region is one span.
    fn spans(&self, region: Span) -> Vec<Span> {
        vec![region]
    }

    /// Returns the hook points whose activations [`Self::solve`] and the repair metrics read.
    fn sites(&self, span: Span) -> Vec<HookPoint> {
        vec![span.input(), span.output()]
    }

    /// Returns the calibration sequences on which the repairs for a cut are fitted.
    ///
    /// `one_block` is set if the criterion removes one block
    /// ([`Criterion::one_block`](crate::criterion::Criterion::one_block)). The result is part of an operator's cache
    /// key, so it must not depend on the selected layers.
    fn fit_sequences(&self, one_block: bool) -> FitSequences {
        let _ = one_block;
        FitSequences::All
    }

    /// Estimates the cost of [`Self::solve`] on `rows` rows, in units of one f32 multiply-add operation in a matrix
    /// product.
    ///
    /// An f64 operation counts as [`F64_COST`] operations, and an element-wise access as `ELEMENT_COST`. The default
    /// is the cost of a least-squares problem in f64.
    fn estimated_operations(&self, channels: usize, rows: usize) -> f64 {
        least_squares_operations(channels, rows)
    }

    /// Returns the layers with merged weights after the given merges, or `None` if the method does not merge layers.
    fn merged(&self, merges: &[LayerMerge]) -> Option<Vec<MergedLayer>> {
        let _ = merges;
        None
    }

    /// Computes the repair of one span.
    ///
    /// # Errors
    /// Fails if the activations do not determine a repair.
    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution>;
}

/// Cost of an f64 operation relative to an f32 operation in a matrix product.
pub const F64_COST: f64 = 2.0;
/// Cost of reading a number and converting it to f64, relative to an f32 operation in a matrix product. Measured on two
/// cores.
pub(super) const ELEMENT_COST: f64 = 50.0;

/// Estimates the cost of a least-squares problem in f64.
pub(super) fn least_squares_operations(channels: usize, rows: usize) -> f64 {
    let c = channels as f64;
    let rows = rows as f64;
    // The terms are half of XᵀX plus XᵀY, the conversion of X and Y to f64, a factorization with two solves, and the
    // eigenvalues for at most 512 channels.
    let eigenvalues = 350.0 * c.min(512.0).powi(3);
    3.0 * F64_COST * rows * c * c + 6.0 * ELEMENT_COST * rows * c + 3.0 * F64_COST * c.powi(3) + eigenvalues
}

/// Part of a model that a repair changes. It determines for which architectures the repair can be folded into the
/// weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RepairTarget {
    Nothing,
    /// Factors on the output rows of the attention and the MLP in the layer before the cut.
    Rows,
    /// All weights of the layer before the cut.
    Layer,
    /// A map applied to the output of the MLP in the layer before the cut.
    Branch,
    /// An operator on the residual stream.
    Stream,
}

/// Calibration sequences on which a repair is fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FitSequences {
    All,
    /// The first `operator_sequences` calibration sequences.
    First,
}

impl FitSequences {
    /// Returns the number of calibration sequences on which the repair is fitted.
    pub fn count(self, sequences: usize, operator_sequences: usize) -> usize {
        match self {
            Self::All => sequences,
            Self::First => operator_sequences.min(sequences),
        }
    }
}

pub(super) type RecoveryEntry = options::RegistryEntry<dyn Recovery>;

/// Builds a method by deserializing its options into `T`.
pub(super) fn build<T: Recovery + DeserializeOwned + 'static>(
    name: &str,
    options: &Options,
) -> Result<Box<dyn Recovery>> {
    Ok(Box::new(options::read::<T>(name, options)?))
}
