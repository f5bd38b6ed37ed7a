//! What came of a grid.

use std::collections::{BTreeMap, BTreeSet};

use super::cell_result::CellResult;
use crate::grid::{Grid, TaskUse};
use crate::model::EngineId;
use crate::tasks::Task;

/// What came of a grid.
#[derive(Debug)]
pub struct GridOutcome {
    /// In the order of the grid's cells.
    pub cells: Vec<CellResult>,
    /// SHA-256 of every file that was read, by path.
    pub inputs: BTreeMap<String, String>,
    /// What each backbone read of each perplexity's text, in the grid's order; none where it is not tokenised.
    pub texts: BTreeMap<String, Vec<Option<TextProtocol>>>,
    /// How each task was scored, in the grid's order.
    pub tasks: Vec<TaskProtocol>,
    /// What ran each backbone.
    pub engines: BTreeMap<String, EngineId>,
    /// What latencies are measured on, in words; empty where none are.
    pub machine: String,
}

impl GridOutcome {
    /// Whether backbones with unlike vocabularies stand beside each other: their perplexities are of other tokens.
    pub fn unlike_vocabularies(&self, grid: &Grid) -> bool {
        let of = |cell: &CellResult| {
            let folder = &grid.backbones.get(&cell.cell.backbone)?.path;
            self.inputs.get(&folder.join("tokenizer.json").display().to_string())
        };
        self.cells.iter().filter_map(of).collect::<BTreeSet<_>>().len() > 1
    }

    /// The bits per byte of a cell on the perplexity at `place`, of windows of `length` tokens: what the model needs for a
    /// byte of the predicted text, whatever its tokens are.
    pub fn bits_per_byte(&self, result: &CellResult, place: usize, length: usize) -> Option<f64> {
        let read = self.texts.get(&result.cell.backbone)?.get(place).copied().flatten()?;
        let losses = result.losses.get(place)?.as_ref()?;
        let nats = losses.iter().sum::<f64>() * (length - 1) as f64;
        (read.bytes > 0).then(|| nats / std::f64::consts::LN_2 / read.bytes as f64).filter(|bits| bits.is_finite())
    }

    /// How a task of the grid was scored; none where nothing of it is stored.
    pub fn task(&self, used: &TaskUse) -> Option<&TaskProtocol> {
        self.tasks.iter().find(|of| of.used == *used)
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

/// How much of a text was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextProtocol {
    /// Windows that are scored, and windows that there are.
    pub windows: usize,
    pub all: usize,
    /// Of the text that the predicted tokens stand for.
    pub bytes: usize,
}

/// How a task was scored, whatever the variant.
#[derive(Debug, Clone)]
pub struct TaskProtocol {
    /// The task as the grid asks for it.
    pub used: TaskUse,
    pub task: &'static Task,
    /// Documents scored, and documents in the files.
    pub documents: usize,
    pub original: usize,
    /// Whether all documents of the published split are scored.
    pub whole: bool,
}
