//! How the numbers of a results folder were made: the record beside them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::ResultsFolder;
use crate::clock::utc;
use crate::error::{Error, Result};
use crate::exec::{CellResult, GridOutcome, TaskScores};
use crate::files::sha256;
use crate::grid::Grid;
use crate::machine::{self, Machine};
use crate::results::{Protocol, Provenance};

/// The record of a grid's outcome and the files that show it.
pub(super) fn provenance(
    target: &ResultsFolder,
    grid: &Grid,
    outcome: &GridOutcome,
    protocols: Vec<Protocol>,
    files: &[PathBuf],
    started: SystemTime,
) -> Result<Provenance> {
    Ok(Provenance {
        ghostlab: env!("CARGO_PKG_VERSION").to_string(),
        crates: crate_versions(),
        commit: Some(env!("GHOSTLAB_COMMIT").to_string()).filter(|commit| !commit.is_empty()),
        dirty: env!("GHOSTLAB_DIRTY") == "true",
        command: machine::command(),
        description: target.description().clone(),
        recorded: target.records(),
        grid: grid.resolved()?,
        protocols,
        inputs: outcome.inputs.clone(),
        seeds: seeds(grid),
        engines: outcome.engines.clone(),
        machine: Machine::this(),
        peak_memory_bytes: machine::peak_memory(),
        files: hashes(files)?,
        started: utc(started),
        finished: utc(SystemTime::now()),
        cells: cells_json(outcome, target.records())?,
    })
}

/// The record of an artifact's races: what is known of their cells stands in their report.
pub(super) fn of_races(
    target: &ResultsFolder,
    grid: &Grid,
    dense: &GridOutcome,
    files: &[PathBuf],
    started: SystemTime,
) -> Result<Provenance> {
    let record = provenance(target, grid, dense, Vec::new(), files, started)?;
    Ok(Provenance { cells: json!([]), ..record })
}

fn seeds(grid: &Grid) -> Vec<u64> {
    let mut seeds: Vec<u64> = grid.cells.iter().filter_map(|cell| cell.calibration.as_ref()).map(|c| c.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    seeds
}

/// SHA-256 of the written files, by name; folders of files are left out.
fn hashes(files: &[PathBuf]) -> Result<BTreeMap<String, String>> {
    let hash = |file: &PathBuf| {
        let (hash, _) = sha256::of_file(file).map_err(|error| Error::io("read", file, &error))?;
        Ok((file.file_name().unwrap_or_default().to_string_lossy().into_owned(), hash))
    };
    files.iter().filter(|file| file.is_file()).map(hash).collect()
}

/// The cells without the errors of their channels, which are thousands a boundary and stand in a file of their own, and
/// without what follows from their other numbers. Of what a recorded one was made from only the keys are kept, by
/// kind: who made it is said of the whole run.
fn cells_json(outcome: &GridOutcome, recorded: bool) -> Result<Value> {
    let cell = |result: &CellResult| {
        let mut cell = serde_json::to_value(result).map_err(|error| {
            Error::job("a cell has no JSON form").at(result.cell.to_string()).found(error.to_string())
        })?;
        for boundary in cell["boundaries"].as_array_mut().into_iter().flatten() {
            boundary.as_object_mut().and_then(|boundary| boundary.remove("boundary_mae_by_channel"));
        }
        cell["tasks"] = tasks(result);
        if recorded {
            let mut keys: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for part in cell["made_from"].as_array().into_iter().flatten() {
                let of = |name: &str| part[name].as_str().unwrap_or_default();
                keys.entry(of("kind")).or_default().push(of("key"));
            }
            cell["made_from"] = json!(keys);
        }
        Ok(cell)
    };
    outcome.cells.iter().map(cell).collect()
}

/// Both accuracies of each task, and how often something went wrong. What is scored stands in the protocols, standard errors
/// follow from accuracy and documents.
fn tasks(result: &CellResult) -> Value {
    let task = |scores: &TaskScores| {
        let of = &scores.result;
        let mut task = json!({"acc": of.acc.value, "acc_norm": of.acc_norm.value});
        for (name, count) in [("non_finite", of.non_finite), ("unanswered", of.unanswered), ("truncated", of.truncated)]
        {
            if count > 0 {
                task[name] = json!(count);
            }
        }
        (scores.label.clone(), task)
    };
    result.scored().map(task).collect()
}

/// The versions, from the lock file, of the crates whose code makes numbers.
fn crate_versions() -> BTreeMap<String, String> {
    const NUMERIC: [&str; 7] = ["candle-core", "faer", "gemm", "half", "polars", "rand_mt", "tokenizers"];
    let value = |line: &str| line.split('"').nth(1).map(str::to_string);
    let lines: Vec<&str> = include_str!("../../Cargo.lock").lines().collect();
    lines
        .windows(2)
        .filter(|pair| pair[0].starts_with("name = ") && pair[1].starts_with("version = "))
        .filter_map(|pair| Some((value(pair[0])?, value(pair[1])?)))
        .filter(|(name, _)| NUMERIC.contains(&name.as_str()))
        .collect()
}
