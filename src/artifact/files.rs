//! What every run leaves beside its tables: each choice of each document, accuracies for other tools, the numbers, and the
//! record of how they were made.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::folder::{ResultsFolder, Staging};
use super::provenance;
use crate::error::{Error, Result};
use crate::exec::{CellResult, GridOutcome};
use crate::files::atomic::write_atomically;
use crate::grid::Grid;
use crate::machine;
use crate::plan::warnings;
use crate::report::{Answers, Measured, Protocol, Provenance, Row, Table, Wide, write_documents, write_lm_eval};
use crate::reproduce::{self, Number, StoredResults};
use crate::tasks::{Measure, TaskResult, average};

/// The table of a grid's run, in the form that was asked for.
#[derive(Debug)]
pub enum TableShape {
    /// A row for each cell.
    Long,
    /// A row for each method, a column for each backbone and depth: one metric, or the usual one.
    Wide { metric: Option<String> },
}

/// Writes the table of a grid's run, and everything beside it, into its folder; the table for a terminal of so many
/// columns, and the files.
///
/// # Errors
/// A metric that the run does not have, or a folder that cannot be written to.
pub fn write_run(
    grid: &Grid,
    outcome: &GridOutcome,
    target: &ResultsFolder,
    started: SystemTime,
    shape: &TableShape,
    width: Option<usize>,
) -> Result<(String, Vec<PathBuf>)> {
    let protocols = Protocol::columns(grid, outcome);
    let rows: Vec<Row> = outcome.cells.iter().map(|result| row(grid, outcome, result)).collect();
    let numbers = reproduce::numbers(grid, outcome, &[]);
    let line = reproduce::protocol_line(grid.profile.as_deref().unwrap_or_default(), &numbers);
    let notes: Vec<String> =
        std::iter::once(format!("Protocol: {line}.")).chain(warnings(grid, &outcome.inputs)).collect();
    let table = Table::new(&protocols, &rows)?.noted(notes.clone());
    let staging = target.stage()?;
    let mut files = table.write(staging.path())?;
    let screen = match shape {
        TableShape::Long => table.on_screen(width)?,
        TableShape::Wide { metric } => {
            let wide = Wide::new(&protocols, &rows, metric.as_deref())?.noted(notes);
            files.push(put(&staging.path().join(Wide::FILE), wide.markdown().as_bytes())?);
            wide.on_screen(width)
        }
    };
    let (files, _) = finish(&grid.name, grid, outcome, false, &numbers, &protocols, files, &staging, started)?;
    staging.publish()?;
    Ok((screen, files))
}

/// Writes what lies beside a table or figure, and last the record of all files; where all of them will be found.
#[allow(clippy::too_many_arguments, reason = "what a record is made of")]
pub(super) fn finish(
    name: &str,
    grid: &Grid,
    outcome: &GridOutcome,
    gated: bool,
    numbers: &[Number],
    protocols: &[Protocol],
    mut files: Vec<PathBuf>,
    staging: &Staging,
    started: SystemTime,
) -> Result<(Vec<PathBuf>, Provenance)> {
    files.extend(write_tasks(staging.path(), outcome)?);
    let stored = StoredResults::of(name, grid, outcome, gated, numbers, &machine::program())?;
    files.push(stored.write(staging.path())?);
    let record = provenance::provenance(grid, outcome, protocols.to_vec(), &files, started)?;
    record.write(staging.path())?;
    files.push(staging.path().join(Provenance::FILE));
    Ok((files.iter().map(|file| staging.published(file)).collect(), record))
}

/// Every choice of every document, and each cell's results for tools that read lm-evaluation-harness' files.
fn write_tasks(folder: &Path, outcome: &GridOutcome) -> Result<Vec<PathBuf>> {
    if outcome.tasks.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<String> = outcome.cells.iter().map(|result| result.cell.to_string()).collect();
    let answers: Vec<Answers<'_>> = outcome
        .cells
        .iter()
        .zip(&names)
        .flat_map(|(result, cell)| result.tasks.iter().flatten().map(move |scores| (cell, scores)))
        .map(|(cell, scores)| Answers { cell, task: &scores.label, documents: &scores.documents })
        .collect();
    let mut results = Vec::new();
    for (result, name) in outcome.cells.iter().zip(&names) {
        results.extend(result.lm_eval()?.into_iter().map(|file| (name.as_str(), file)));
    }
    Ok(vec![write_documents(folder, &answers)?, write_lm_eval(folder, &results)?])
}

/// A file, whole or not at all; its path.
pub(super) fn put(path: &Path, bytes: &[u8]) -> Result<PathBuf> {
    write_atomically(path, |file| file.write_all(bytes).map_err(|error| Error::io("write", path, &error)))?;
    Ok(path.to_owned())
}

/// Values in the order of [`Protocol::columns`]; accuracies in percent.
fn values(grid: &Grid, outcome: &GridOutcome, result: &CellResult) -> Vec<Option<Measured>> {
    let percent =
        |measure: Measure| Measured { value: 100.0 * measure.value, error: measure.stderr.map(|error| 100.0 * error) };
    let perplexities = result.perplexity.iter().map(|value| value.map(Measured::from));
    let tasks = result.tasks.iter().map(|scores| scores.as_ref().map(|scores| percent(scores.result.column())));
    let texts = grid.evaluate.perplexity.iter().enumerate().filter(|_| outcome.unlike_vocabularies(grid));
    let bits = texts.map(|(place, text)| outcome.bits_per_byte(result, place, text.length).map(Measured::from));
    let mut values: Vec<_> = perplexities.chain(bits).chain(tasks).collect();
    if result.tasks.len() > 1 {
        let all: Option<Vec<TaskResult>> =
            result.tasks.iter().map(|scores| scores.as_ref().map(|scores| scores.result.clone())).collect();
        values.push(all.and_then(|all| average(&all)).map(percent));
    }
    values
}

fn row(grid: &Grid, outcome: &GridOutcome, result: &CellResult) -> Row {
    let cell = &result.cell;
    let shown = |value: Option<String>| value.unwrap_or_else(|| Row::NONE.to_string());
    Row {
        backbone: cell.backbone.clone(),
        criterion: shown(cell.criterion.as_ref().map(ToString::to_string)),
        depth: cell.depth,
        layers_removed: result.removed.clone(),
        layers: result.layers,
        recovery: shown(cell.recovery.as_ref().map(ToString::to_string)),
        calibration: shown(cell.calibration.as_ref().map(ToString::to_string)),
        values: values(grid, outcome, result),
        seconds: result.seconds,
        notes: result.notes().join("; "),
        status: result.failure.as_ref().map_or(Row::OK.to_string(), |reason| format!("failed: {reason}")),
    }
}
