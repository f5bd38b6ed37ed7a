//! Floor 1: cells to keys: what a grid needs, what is stored, what is missing and why, and what that will cost. Nothing
//! is made here.

mod cost;
mod inputs;
mod kept;
pub mod payload;
mod reason;
mod recipe;
mod state;

pub use cost::{Estimate, Trials, held_weights, place_holder};
pub use inputs::{Inputs, warnings};
pub use kept::KeptKeys;
use payload::{FIGURES, selection};
pub use reason::{Change, Reason, Reasons};
pub use recipe::{BackbonePlan, CalibrationPlan, ENGINE, Evaluation, Subject, TrainingPlan, Variant};
pub use state::{KeyState, StoreState};

use crate::error::Result;
use crate::grid::Grid;
use crate::store::Store;

/// Every artifact that a grid asks for.
pub struct Plan<'g> {
    pub grid: &'g Grid,
    pub inputs: Inputs,
    /// In the order of the grid's cells.
    pub backbones: Vec<BackbonePlan>,
    /// Tokens of a batch: part of the keys of scores, whose last digits depend on it.
    pub batch_tokens: usize,
}

impl<'g> Plan<'g> {
    /// Reads the inputs' hashes and builds all keys.
    ///
    /// # Errors
    /// An input that cannot be read.
    pub fn new(grid: &'g Grid, store: &Store, batch_tokens: usize) -> Result<Self> {
        let inputs = Inputs::read(grid, store)?;
        let mut names: Vec<&str> = grid.cells.iter().map(|cell| cell.backbone.as_str()).collect();
        names.dedup();
        let backbones =
            names.iter().map(|name| BackbonePlan::new(grid, name, &inputs, batch_tokens)).collect::<Result<_>>()?;
        Ok(Self { grid, inputs, backbones, batch_tokens })
    }

    /// Each cell with its backbone and variant, in the grid's order.
    pub fn variants(&self) -> impl Iterator<Item = (&BackbonePlan, &Variant)> {
        self.backbones.iter().flat_map(|backbone| backbone.variants.iter().map(move |variant| (backbone, variant)))
    }
}
