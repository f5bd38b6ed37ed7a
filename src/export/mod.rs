//! Floor 4: a cell as a folder that transformers, lm-evaluation-harness and other programs load (design §16).
//!
//! | file | noun |
//! | --- | --- |
//! | `folder` | the folder: weights, config, tokenizer, whatever else the backbone has, put in its place whole |
//! | `gguf` | the same as one GGUF file |
//! | `card` | its model card |

mod card;
mod folder;
mod gguf;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

pub use folder::{Exported, Form, MARK, check};
pub use gguf::{check_gguf, gguf_texts};

use crate::checkpoint::Layout;
use crate::error::{Error, Result};
use crate::exec::{self, CellResult, GridOutcome, Reporter, RunSettings, stored_program};
use crate::grid::{Cell, Grid};
use crate::model::{Deployed, deployed, merged};
use crate::plan::{BackbonePlan, Plan};
use crate::results::{collect, long, markdown};
use crate::work::inputs::Inputs;
use ghostlab_store::Store;

/// Writes the checkpoints of cells.
pub struct Exporter<'a> {
    pub store: &'a Store,
    pub settings: RunSettings,
    pub form: Form,
    pub reporter: &'a dyn Reporter,
    pub stop: &'a AtomicBool,
    /// How a cell was chosen, in Markdown: the report of a search.
    pub evidence: Option<String>,
}

impl Exporter<'_> {
    /// Writes one cell of a grid into a folder. Layers and operators that are not stored are computed first.
    ///
    /// # Errors
    /// A cell that fails, weights that are not those that were hashed, something else in the folder's place, or a disk
    /// that is full: nothing is left then.
    pub fn export(&self, grid: &Grid, cell: usize, folder: &Path) -> Result<Exported> {
        let output = folder::check(folder)?;
        let numbers = self.numbers(grid, &grid.cells[cell])?;
        self.made(grid, cell, &mut |MadeCell { layout, backbone, result, deployed, inputs }| {
            let card = card::card(&card::CardFacts {
                grid,
                result,
                backbone,
                layout,
                deployed,
                form: &self.form,
                numbers: numbers.clone(),
                evidence: self.evidence.clone(),
            })?;
            let made =
                folder::FolderContents { layout, config: &backbone.config, source: &backbone.folder, card, result };
            inputs.guarded(&[&backbone.folder], || folder::write(&output, &made, &self.form, self.stop))
        })
    }

    /// Makes what a cell consists of, as far as that is not stored, and hands it on.
    fn made<T>(&self, grid: &Grid, cell: usize, then: &mut dyn FnMut(MadeCell<'_>) -> Result<T>) -> Result<T> {
        let cell = &grid.cells[cell];
        let own = made_of(grid, cell);
        let Self { store, settings, reporter, stop, .. } = self;
        let outcome = exec::run(&own, *settings, store, *reporter, stop)?;
        let result = outcome.cells.first().ok_or_else(|| Error::job("a cell has no outcome").at(cell.to_string()))?;
        result.ok()?;
        let plan = Plan::new(&own, store, settings.engine, settings.batch_tokens)?;
        let Some((backbone, variant)) = plan.variants().next() else {
            return Err(Error::job("a cell is not planned").at(cell.to_string()));
        };
        let deployed = deployed(&stored_program(store, backbone, variant)?, &backbone.config);
        let deployed = merged(deployed, &backbone.config)?;
        let layout = Layout::of(&backbone.config, &backbone.folder, &deployed, self.form.dtype)?;
        then(MadeCell { layout: &layout, backbone, result, deployed: &deployed, inputs: &plan.inputs })
    }

    /// The cell's numbers beside its dense backbone's, as far as they are stored; none where the cell was not scored.
    fn numbers(&self, grid: &Grid, cell: &Cell) -> Result<Option<String>> {
        let mut scored = grid.clone();
        scored.cells.retain(|of| of == cell || (of.is_dense() && of.backbone == cell.backbone));
        scored.evaluate.latency.clear();
        if scored.evaluate.perplexity.is_empty() && scored.evaluate.tasks.is_empty() {
            return Ok(None);
        }
        narrow(&mut scored, cell);
        let plan = Plan::new(&scored, self.store, self.settings.engine, self.settings.batch_tokens)?;
        let outcome = GridOutcome::read(&plan, self.store, &BTreeMap::new())?;
        let complete = outcome.failed() + outcome.unmade() == 0;
        let profile = grid.profile.as_deref().unwrap_or_default();
        Ok(complete.then(|| markdown(&long(&collect(&scored, &outcome, &[]), profile, Vec::new()))))
    }
}

/// What a cell is written from.
struct MadeCell<'a> {
    layout: &'a Layout,
    backbone: &'a BackbonePlan,
    result: &'a CellResult,
    deployed: &'a Deployed,
    inputs: &'a Inputs,
}

/// A grid of one cell that scores nothing: what it needs is what its checkpoint is made of.
fn made_of(grid: &Grid, cell: &Cell) -> Grid {
    let mut own = grid.clone();
    own.cells = vec![cell.clone()];
    own.evaluate.perplexity.clear();
    own.evaluate.tasks.clear();
    own.evaluate.latency.clear();
    own.tasks.clear();
    narrow(&mut own, cell);
    own.corpora.retain(|name, _| cell.calibration.as_ref().is_some_and(|of| of.corpus == *name));
    own
}

/// Leaves other backbones out, whose files need not be read.
fn narrow(grid: &mut Grid, cell: &Cell) {
    grid.backbones.retain(|name, _| *name == cell.backbone);
}
