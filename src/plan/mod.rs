//! Floor 1: cells to keys: what a grid needs, what is stored, what is missing and why, and what that will cost. Nothing
//! is made here.

mod contents;
mod cost;
mod kept;
mod outline;
mod quota;
mod reason;
mod recipe;
mod state;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use crate::stage::Job;
pub use cost::{Estimate, JobCost, TrialCount, batch_bytes, job_costs, place_holder, weights_budget};
pub use kept::{KeepSet, engines_of};
pub use outline::{JobProgress, Outline, OutlineCell, OutlineJob, OutlineProgress};
pub use quota::Quota;
pub use reason::{Change, Reason, Reasons};
pub use state::{ObjectState, StoreState};

pub use crate::work::backbone::{BackbonePlan, CalibrationPlan, Evaluation, Subject, TrainingPlan, Variant};
use crate::work::inputs::Given;
pub use crate::work::inputs::{Inputs, warnings};

use crate::error::Result;
use crate::grid::Grid;
use crate::machine;
use crate::model::EngineRequest;
use ghostlab_store::{Key, Store};

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
    /// An input that cannot be read, or an engine that does not run here.
    pub fn new(grid: &'g Grid, store: &Store, engine: EngineRequest, batch_tokens: usize) -> Result<Self> {
        let inputs = Inputs::read(grid, store)?;
        let mut names: Vec<&str> = grid.cells.iter().map(|cell| cell.backbone.as_str()).collect();
        names.dedup();
        let planned = names.iter().map(|name| BackbonePlan::new(grid, name, &inputs, engine, batch_tokens));
        let backbones = planned.collect::<Result<_>>()?;
        Ok(Self { grid, inputs, backbones, batch_tokens })
    }

    pub(crate) fn given(&self) -> Given<'_> {
        Given { grid: self.grid, inputs: &self.inputs }
    }

    /// What runs the backbones, in words: mostly one engine.
    pub fn engines(&self) -> String {
        let ids: BTreeSet<String> = self.backbones.iter().map(|backbone| backbone.engine.id().to_string()).collect();
        ids.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// The machine with each device that computes, as [`machine::identity`] has it: of two GPUs each is another.
    pub fn machine(&self) -> String {
        let of = |backbone: &BackbonePlan| machine::identity(backbone.engine.device()).to_string();
        let all: BTreeSet<String> = self.backbones.iter().map(of).collect();
        all.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// All artifacts that its backbones name.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.backbones.iter().flat_map(BackbonePlan::keys)
    }

    /// Each cell with its backbone and variant, in the grid's order.
    pub fn variants(&self) -> impl Iterator<Item = (&BackbonePlan, &Variant)> {
        self.backbones.iter().flat_map(|backbone| backbone.variants.iter().map(move |variant| (backbone, variant)))
    }
}
