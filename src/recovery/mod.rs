//! Floor 2: what is put at the boundary of a removed region (design §7). One method, one file, one line in [`ENTRIES`].

mod boundary;
mod ghosted;
mod linearpatch;
mod none;
mod numbers;

use std::sync::Arc;

use crate::error::Result;
use crate::model::Operator;
use crate::options::{self, Options};

pub use boundary::Boundary;
pub use numbers::Numbers;

/// A method that repairs a boundary without training.
pub trait Recovery: Send + Sync {
    /// Refuses a backbone that the method cannot repair, before anything runs. `channels` is its hidden size `C`.
    fn check(&self, channels: usize) -> Result<()> {
        let _ = channels;
        Ok(())
    }

    /// Whether [`Self::solve`] reads the boundary's activations.
    fn reads_activations(&self) -> bool {
        true
    }

    /// The operator for one region, or none where the layers are only removed.
    ///
    /// # Errors
    /// The activations do not determine an operator.
    fn solve(&self, boundary: &Boundary<'_>) -> Result<Option<Arc<Operator>>>;
}

type Build = fn(&Options) -> Result<Box<dyn Recovery>>;

/// Every recovery by its name in a grid.
const ENTRIES: &[(&str, Build)] = &[
    (none::NAME, none::build),
    (linearpatch::DIAG, linearpatch::build_diag),
    (linearpatch::ROTATE, linearpatch::build_rotate),
    (ghosted::NAME, ghosted::build),
];

/// The recovery of a name, with its options.
///
/// # Errors
/// An unknown name (with the nearest), an unknown option or a wrong value.
pub fn build(name: &str, options: &Options) -> Result<Box<dyn Recovery>> {
    options::lookup("recovery", name, ENTRIES)?(options)
}
