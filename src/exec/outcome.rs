//! What came of a grid.

use std::collections::{BTreeMap, BTreeSet};

use super::cell_result::CellResult;
use crate::files::parts;
use crate::grid::{DefinitionUse, Grid, Perplexity, TaskUse};
use crate::metric::TextSample;
use crate::model::EngineId;
use crate::tasks::Task;

/// What came of a grid.
#[derive(Debug)]
pub struct GridOutcome {
    /// In the order of the grid's cells.
    pub cells: Vec<CellResult>,
    /// SHA-256 of every file that was read, by path.
    pub inputs: BTreeMap<String, String>,
    /// What each backbone read of each text that is tokenised.
    pub texts: Vec<TextRead>,
    /// How each task was scored.
    pub tasks: Vec<TaskProtocol>,
    /// How each task of a definition was.
    pub definitions: Vec<DefinedProtocol>,
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

    /// What a cell's backbone read of a text; none where it is not tokenised.
    pub fn text_read(&self, result: &CellResult, text: &Perplexity) -> Option<TextProtocol> {
        let own = self.texts.iter().find(|of| of.backbone == result.cell.backbone && of.text == *text);
        own.map(|of| of.read)
    }

    /// The windows of a cell on a text.
    pub fn sample<'a>(&self, result: &'a CellResult, text: &Perplexity) -> Option<TextSample<'a>> {
        let losses = result.text(text)?.sample.as_ref()?;
        Some(TextSample { losses, length: text.length, bytes: self.text_read(result, text).map(|read| read.bytes) })
    }

    /// How a task of the grid was scored; none where nothing of it is stored.
    pub fn task(&self, used: &TaskUse) -> Option<&TaskProtocol> {
        self.tasks.iter().find(|of| of.used == *used)
    }

    /// How a definition's task was scored; none where nothing of it is stored.
    pub fn defined(&self, used: &DefinitionUse) -> Option<&DefinedProtocol> {
        self.definitions.iter().find(|of| of.used == *used)
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

/// What a backbone read of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextRead {
    pub backbone: String,
    pub text: Perplexity,
    pub read: TextProtocol,
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

/// How a task of a definition was scored, whatever the variant.
#[derive(Debug, Clone)]
pub struct DefinedProtocol {
    /// As the grid asks for it.
    pub used: DefinitionUse,
    /// Documents scored, and documents of the split.
    pub documents: usize,
    pub original: usize,
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
