//! Numbers, cells and documents as recorded in a results folder.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::model::Cut;
use crate::pipeline::identity::MeasureId;
use crate::results::{DOCUMENTS, Provenance, ResultRow, StoredResults, damaged_frame_error, read_frame};
use crate::tasks::{ChoiceResult, DocumentResult};

/// Cells in `run.json`.
#[derive(Debug, Deserialize)]
struct RunCells {
    #[serde(default)]
    cells: Vec<RunCell>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RunCell {
    cell: RunCellName,
    #[serde(default)]
    pub(super) removed: Cut,
    #[serde(default)]
    pub(super) boundaries: Vec<RunBoundary>,
}

#[derive(Debug, Deserialize)]
struct RunCellName {
    name: String,
}

/// Diagnostics recorded for one boundary ([`BoundaryResult`](crate::pipeline::stage::boundary_result::BoundaryResult)).
#[derive(Debug, Deserialize)]
pub(super) struct RunBoundary {
    pub(super) region: (usize, usize),
    #[serde(default)]
    pub(super) condition: Option<f64>,
    pub(super) boundary_mae: f64,
    pub(super) delta_norm: f64,
    pub(super) m_norm: f64,
    pub(super) m_symmetric_norm: f64,
    pub(super) m_antisymmetric_norm: f64,
}

#[derive(Debug)]
pub(super) struct ReferenceRun {
    pub(super) numbers: StoredResults,
    pub(super) cells: Vec<RunCell>,
    /// Documents by cell name and column name; `None` if the folder contains none.
    pub(super) documents: Option<HashMap<(String, String), Vec<DocumentResult>>>,
}

impl ReferenceRun {
    /// Reads a results folder.
    ///
    /// # Errors
    /// Fails if the folder contains no stored results or a file is damaged.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let numbers = StoredResults::read(folder)?;
        let RunCells { cells } = Provenance::read(folder)?;
        let path = folder.join(DOCUMENTS);
        let documents = path.exists().then(|| read_documents(&path)).transpose()?;
        Ok(Self { numbers, cells, documents })
    }

    /// Returns the measurement behind a number, or `None` for means and derived numbers.
    pub(super) fn measure(&self, number: &ResultRow) -> Option<&MeasureId> {
        match self.numbers.measures(number) {
            [one] => Some(one),
            _ => None,
        }
    }

    pub(super) fn run_cell(&self, name: &str) -> Option<&RunCell> {
        self.cells.iter().find(|cell| cell.cell.name == name)
    }
}

fn read_documents(path: &Path) -> Result<HashMap<(String, String), Vec<DocumentResult>>> {
    let frame = read_frame(path)?;
    let bad = |error: polars::prelude::PolarsError| damaged_frame_error(path, &error.to_string());
    let column = |name: &str| frame.column(name).map_err(bad);
    let texts = |name: &str| Ok::<_, Error>(column(name)?.str().map_err(bad)?.clone());
    let counts = |name: &str| Ok::<_, Error>(column(name)?.u64().map_err(bad)?.clone());
    let cells = texts("cell")?;
    let tasks = texts("task")?;
    let ids = counts("document")?;
    let characters = counts("characters")?;
    let bytes = counts("bytes")?;
    let choices = counts("choice")?;
    let tokens = counts("tokens")?;
    let cut = counts("truncated_left")?;
    let gold = column("gold")?.i64().map_err(bad)?;
    let values = column("log_likelihood")?.f64().map_err(bad)?;
    let greedy = column("greedy")?.bool().map_err(bad)?;
    let mut all: HashMap<(String, String), Vec<DocumentResult>> = HashMap::new();
    for row in 0..frame.height() {
        let (Some(cell), Some(task)) = (cells.get(row), tasks.get(row)) else { continue };
        let documents = all.entry((cell.to_owned(), task.to_owned())).or_default();
        if to_count(choices.get(row)) == 0 {
            let gold = gold.get(row).unwrap_or(-1);
            documents.push(DocumentResult { id: to_count(ids.get(row)), gold, choices: Vec::new() });
        }
        if let Some(document) = documents.last_mut() {
            document.choices.push(ChoiceResult {
                log_likelihood: values.get(row).unwrap_or(f64::NAN),
                characters: to_count(characters.get(row)),
                bytes: to_count(bytes.get(row)),
                tokens: to_count(tokens.get(row)),
                truncated_left: to_count(cut.get(row)),
                greedy: greedy.get(row).unwrap_or_default(),
            });
        }
    }
    Ok(all)
}

fn to_count(count: Option<u64>) -> usize {
    count.unwrap_or_default() as usize
}
