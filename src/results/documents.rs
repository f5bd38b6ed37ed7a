//! Parquet files with the data from which numbers are computed: all choices for all documents, and the error of each
//! channel after each region of removed layers (boundary).

use std::path::{Path, PathBuf};

use polars::df;
use polars::prelude::DataFrame;

use super::atomic_file::{polars_error, write_row_groups};
use crate::error::Result;
use crate::pipeline::outcome::CellResult;
use crate::tasks::{ChoiceResult, DocumentResult};

/// Name of the file in a results directory that contains the answers of all cells.
pub const DOCUMENTS: &str = "documents.parquet";

/// Writes `documents.parquet` into `dir`. It has one row per choice of a built-in task, in order, so that any metric
/// can be derived later.
///
/// # Errors
/// Fails with exit code 3 if the directory is not writable.
pub fn write_documents(dir: &Path, cells: &[CellResult]) -> Result<PathBuf> {
    let path = dir.join(DOCUMENTS);
    write_row_groups(&path, cells, build_frame)?;
    Ok(path)
}

/// Document of a built-in task, with the names of its cell and task.
type AnsweredDocument<'a> = ((&'a str, &'a str), DocumentResult);

fn build_frame(cells: &[CellResult]) -> Result<DataFrame> {
    let names: Vec<String> = cells.iter().map(|cell| cell.cell.to_string()).collect();
    let answered =
        cells.iter().zip(&names).flat_map(|(cell, name)| cell.answered_tasks().map(move |answered| (name, answered)));
    let judged: Vec<AnsweredDocument<'_>> = answered
        .flat_map(|(cell, (task, answers))| answers.documents().map(move |document| ((cell.as_str(), task), document)))
        .collect();
    let choices = || {
        judged.iter().flat_map(|(place, document)| {
            document.choices.iter().enumerate().map(move |(index, choice)| (place, document, index, choice))
        })
    };
    let counts = |value_of: fn(&ChoiceResult) -> usize| {
        choices().map(|(.., choice)| value_of(choice) as u64).collect::<Vec<_>>()
    };
    df!(
        "cell" => choices().map(|((cell, _), ..)| *cell).collect::<Vec<_>>(),
        "task" => choices().map(|((_, task), ..)| *task).collect::<Vec<_>>(),
        "document" => choices().map(|(_, document, ..)| document.id as u64).collect::<Vec<_>>(),
        "gold" => choices().map(|(_, document, ..)| document.gold).collect::<Vec<_>>(),
        "choice" => choices().map(|(.., index, _)| index as u64).collect::<Vec<_>>(),
        "log_likelihood" => choices().map(|(.., choice)| choice.log_likelihood).collect::<Vec<_>>(),
        "greedy" => choices().map(|(.., choice)| choice.greedy).collect::<Vec<_>>(),
        "characters" => counts(|choice| choice.characters),
        "bytes" => counts(|choice| choice.bytes),
        "tokens" => counts(|choice| choice.tokens),
        "truncated_left" => counts(|choice| choice.truncated_left),
    )
    .map_err(|error| polars_error(&error))
}

/// Name of the file in a results directory that contains the error of each channel at each boundary.
pub const CHANNELS_FILE: &str = "channels.parquet";

/// Writes `channels.parquet` into `dir`. It has one row per channel, boundary and cell, in order. A boundary is
/// identified by the first removed layer of its region. `error` is the mean absolute difference between the repaired
/// and the dense residual stream over all tokens, |X̂ − X_post|. If no cell has a boundary, no file is written.
///
/// # Errors
/// Fails with exit code 3 if the directory is not writable.
pub fn write_channels(dir: &Path, cells: &[CellResult]) -> Result<Option<PathBuf>> {
    if cells.iter().all(|cell| cell.boundaries.is_empty()) {
        return Ok(None);
    }
    let path = dir.join(CHANNELS_FILE);
    write_row_groups(&path, cells, channels_frame)?;
    Ok(Some(path))
}

fn channels_frame(cells: &[CellResult]) -> Result<DataFrame> {
    let names: Vec<String> = cells.iter().map(|cell| cell.cell.to_string()).collect();
    let boundaries =
        cells.iter().zip(&names).flat_map(|(cell, name)| cell.boundaries.iter().map(move |boundary| (name, boundary)));
    let rows: Vec<(&str, u64, u64, f64)> = boundaries
        .flat_map(|(name, boundary)| {
            let errors = boundary.numbers.boundary_mae_by_channel.iter().enumerate();
            errors.map(move |(channel, &error)| (name.as_str(), boundary.region.0 as u64, channel as u64, error))
        })
        .collect();
    df!(
        "cell" => rows.iter().map(|(cell, ..)| *cell).collect::<Vec<_>>(),
        "boundary" => rows.iter().map(|(_, boundary, ..)| *boundary).collect::<Vec<_>>(),
        "channel" => rows.iter().map(|(.., channel, _)| *channel).collect::<Vec<_>>(),
        "error" => rows.iter().map(|(.., error)| *error).collect::<Vec<_>>(),
    )
    .map_err(|error| polars_error(&error))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use polars::prelude::{ParquetReader, SerReader};

    use serde_json::json;

    use super::*;
    use crate::grid::{Cell, EvalTask, TaskSettings};
    use crate::pipeline::identity::MeasureId;
    use crate::pipeline::outcome::{EvalResult, TaskScores};
    use crate::tasks::{Score, ScoredTask, Solutions};

    fn answers(count: usize, seed: usize) -> ScoredTask {
        let documents: Vec<_> = (0..count)
            .map(|id| {
                let choices: Vec<_> = (0..id % 4).map(|at| choice_of(4 * id + at)).collect();
                json!({"id": id, "gold": 1, "choices": choices})
            })
            .collect();
        let key: Solutions =
            serde_json::from_value(json!({"task": "copa", "original": count, "documents": documents})).unwrap();
        let scores = (0..key.requests())
            .map(|at| Score { log_likelihood: -((at * 37 + seed) as f64).sqrt(), greedy: at.is_multiple_of(3) })
            .collect();
        ScoredTask::new(&Arc::new(key), scores).unwrap()
    }

    fn choice_of(at: usize) -> [usize; 4] {
        [at % 50, at % 60, at % 9, at % 2]
    }

    /// Builds a cell with answers to the tasks `copa` and `rte`.
    fn cell(name: &str, tasks: Vec<(&str, ScoredTask)>) -> CellResult {
        let answered = tasks.into_iter().map(|(task, answered)| EvalResult {
            requested: EvalTask { name: task.to_owned(), how: TaskSettings::default(), defined: false },
            measure: MeasureId::Boundary.into(),
            extent: None,
            sample: Some(TaskScores::builtin(task.to_owned(), answered)),
        });
        let tasks = answered.collect();
        CellResult { tasks, ..CellResult::unmeasured(Cell::with_name("a", name), 8, None) }
    }

    #[test]
    fn answers_round_trip_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let all = [
            cell("a", vec![("copa", answers(300, 1)), ("rte", answers(20, 2))]),
            cell("none", vec![("copa", answers(1, 2))]),
            cell("b", vec![("copa", answers(300, 1))]),
        ];
        let path = write_documents(folder.path(), &all).unwrap();
        let mut reader = ParquetReader::new(File::open(&path).unwrap());
        let groups: Vec<u64> =
            reader.get_metadata().unwrap().row_groups.iter().map(|group| group.num_rows() as u64).collect();
        let rows =
            |answered: ScoredTask| -> u64 { answered.documents().map(|document| document.choices.len() as u64).sum() };
        let [many, few] = [rows(answers(300, 1)), rows(answers(20, 2))];
        assert_eq!(groups, [many + few, many], "a cell without choices has no rows");
        assert_eq!(reader.finish().unwrap(), build_frame(&all).unwrap());
    }

    #[test]
    fn empty_answers_yield_a_table_without_rows() {
        let folder = tempfile::tempdir().unwrap();
        let path = write_documents(folder.path(), &[]).unwrap();
        assert_eq!(ParquetReader::new(File::open(&path).unwrap()).finish().unwrap(), build_frame(&[]).unwrap());
    }
}

#[cfg(test)]
mod channels_tests {
    use std::fs::File;

    use polars::prelude::{ParquetReader, SerReader};

    use super::*;
    use crate::grid::Cell;
    use crate::pipeline::stage::boundary_result::BoundaryResult;

    fn cell(backbone: &str, boundaries: &[(usize, Vec<f64>)]) -> CellResult {
        let cell = Cell::with_name(backbone, &format!("{backbone}.dense"));
        CellResult {
            boundaries: boundaries
                .iter()
                .map(|(start, errors): &(usize, Vec<f64>)| -> BoundaryResult {
                    serde_json::from_value(serde_json::json!({
                        "region": [start, start + 1], "operator": null, "placed": null, "notes": [], "rank": null,
                        "condition": null, "losses": [], "solve_seconds": 0.0, "boundary_mae": 0.5,
                        "boundary_mae_by_channel": errors, "relative_residual": 0.5, "delta_norm": 1.0, "m_norm": 1.0,
                        "m_symmetric_norm": 1.0, "m_antisymmetric_norm": 1.0
                    }))
                    .unwrap()
                })
                .collect(),
            ..CellResult::unmeasured(cell, 8, None)
        }
    }

    #[test]
    fn channel_errors_round_trip_with_cell_and_boundary() {
        let folder = tempfile::tempdir().unwrap();
        let cells =
            [cell("a", &[(2, errors(0)), (5, errors(70))]), cell("failed", &[]), cell("b", &[(3, errors(140))])];
        let path = write_channels(folder.path(), &cells).unwrap().unwrap();
        let frame = ParquetReader::new(File::open(path).unwrap()).finish().unwrap();
        let text = |at: usize| frame.column("cell").unwrap().str().unwrap().get(at).unwrap().to_owned();
        let count = |name: &str, at: usize| frame.column(name).unwrap().u64().unwrap().get(at).unwrap();
        let error = |at: usize| frame.column("error").unwrap().f64().unwrap().get(at).unwrap();
        assert_eq!(frame.height(), 210);
        for at in 0..210 {
            let (cell, boundary) = [("a.dense", 2), ("a.dense", 5), ("b.dense", 3)][at / 70];
            assert_eq!((text(at).as_str(), count("boundary", at)), (cell, boundary), "row {at}");
            assert_eq!((count("channel", at), error(at)), (at as u64 % 70, (at as f64).sqrt()), "row {at}");
        }
    }

    fn errors(from: usize) -> Vec<f64> {
        (from..from + 70).map(|at| (at as f64).sqrt()).collect::<Vec<f64>>()
    }

    #[test]
    fn channels_file_is_omitted_without_boundaries() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(write_channels(folder.path(), &[cell("a", &[])]).unwrap(), None);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
