//! What came of a grid.

use std::collections::{BTreeMap, BTreeSet};

use super::cell_result::CellResult;
use super::extent::{DefinedExtent, TaskExtent, TextExtent};
use crate::files::parts;
use crate::grid::{DefinitionUse, Grid, Perplexity, TaskUse};
use crate::model::EngineId;

/// What came of a grid.
#[derive(Debug)]
pub struct GridOutcome {
    /// In the order of the grid's cells.
    pub cells: Vec<CellResult>,
    /// SHA-256 of every file that was read, by path.
    pub inputs: BTreeMap<String, String>,
    /// What ran each backbone.
    pub engines: BTreeMap<String, EngineId>,
    /// What the weights of backbones are rounded to, in words, by their names; those that are as stored are not among them.
    pub rounded: BTreeMap<String, String>,
    /// What latencies are measured on, in words; empty where none are.
    pub machine: String,
}

impl GridOutcome {
    /// Whether backbones with unlike vocabularies stand beside each other: their perplexities are of other tokens.
    pub fn unlike_vocabularies(&self, grid: &Grid) -> bool {
        let of = |cell: &CellResult| {
            let folder = &grid.backbones.get(&cell.cell.backbone)?.path;
            self.inputs.get(&parts::tokenizer(folder).display().to_string())
        };
        self.cells.iter().filter_map(of).collect::<BTreeSet<_>>().len() > 1
    }

    /// What a cell's backbone reads of a text, which may be known of another cell alone; none where it is not tokenised.
    pub fn text_read(&self, result: &CellResult, text: &Perplexity) -> Option<TextExtent> {
        let mut others = self.cells.iter().filter(|of| of.cell.backbone == result.cell.backbone);
        let known = |of: &CellResult| of.text(text)?.extent;
        known(result).or_else(|| others.find_map(known))
    }

    /// What all cells read of a text.
    pub fn text_reads(&self, text: &Perplexity) -> impl Iterator<Item = TextExtent> {
        self.cells.iter().filter_map(|of| of.text(text)?.extent)
    }

    /// How much of a task is scored, which the first backbone tells of all; none where nothing of it is stored.
    pub fn task(&self, used: &TaskUse) -> Option<&TaskExtent> {
        self.cells.first()?.task(used)?.extent.as_ref()
    }

    /// The same of a definition's task.
    pub fn defined(&self, used: &DefinitionUse) -> Option<&DefinedExtent> {
        self.cells.first()?.defined(used)?.extent.as_ref()
    }

    /// How many cells did not fail and are not made, or not wholly.
    pub fn unmade(&self) -> usize {
        self.cells.iter().filter(|cell| cell.failure.is_none() && cell.missing.is_some()).count()
    }

    /// How many cells failed.
    pub fn failed(&self) -> usize {
        self.cells.iter().filter(|cell| cell.failure.is_some()).count()
    }
}
