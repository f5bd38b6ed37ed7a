//! Writes the files of a run: tables, stored results, task answers, latencies and the provenance record.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};

use super::results_folder::ResultsFolder;
use crate::clock::format_utc;
use crate::error::{Error, Result};
use crate::files::sha256;
use crate::grid::{Grid, Over};
use crate::machine::{self, Machine};
use crate::pipeline::exec::{CellResult, GridOutcome};
use crate::pipeline::outcome::{TaskScores, harness_scores};
use crate::pipeline::plan::warnings;
use crate::results::{
    CHANNELS_FILE, DOCUMENTS, EVAL_RESULTS, EVERY_EVAL_EVER, LATENCY, LM_EVAL, Protocol, Provenance, Results,
    StoredResults, Table, WARNING, collect, engine_notes, latency_notes, latex, latex_notes, long, markdown,
    notes_file, put, rounding_notes, run_frame, screen, wide, write_channels, write_documents, write_frame,
    write_latencies, write_public_formats,
};

/// Base name of the files with the long table.
const RESULTS: &str = "results";
/// Base name of the files with the wide table.
const WIDE_TABLE: &str = "wide";

/// Layout of the table that a run prints.
#[derive(Debug)]
pub enum TableShape {
    /// One row per cell.
    Long,
    /// One row per method and one column per backbone and depth. `metric` selects the metric. `None` selects the
    /// default metric.
    Wide { metric: Option<String> },
}

pub(super) fn incomplete_note(outcome: &GridOutcome) -> Vec<String> {
    let incomplete = outcome.incomplete_count();
    let all = outcome.cells.len();
    Vec::from_iter((incomplete > 0).then(|| format!("Incomplete: {incomplete} of {all} cells not computed.")))
}

/// Collects the notes that apply to every table of a run.
pub(super) fn run_notes(grid: &Grid, outcome: &GridOutcome) -> Vec<String> {
    let engines = engine_notes(&outcome.engines);
    let rounded = rounding_notes(&outcome.rounded);
    let warnings: Vec<String> =
        warnings(grid, &outcome.inputs).into_iter().map(|text| format!("{WARNING}{text}")).collect();
    [warnings, engines, rounded, latency_notes(outcome)].concat()
}

/// Returns the names of the files that a grid run may write.
pub fn run_files(grid: &Grid, shape: &TableShape) -> Vec<String> {
    let mut names: Vec<String> = ["csv", "parquet", "md", "tex"].map(|ending| format!("{RESULTS}.{ending}")).into();
    names.push(notes_file(RESULTS));
    if matches!(shape, TableShape::Wide { .. }) {
        names.extend(["md", "tex"].map(|ending| format!("{WIDE_TABLE}.{ending}")));
        names.push(notes_file(WIDE_TABLE));
    }
    [names, accompanying_files(grid)].concat()
}

/// Returns the names of the files that a grid run writes in addition to its table or figure.
pub(super) fn accompanying_files(grid: &Grid) -> Vec<String> {
    let mut names: Vec<String> = [Provenance::FILE, StoredResults::FILE].map(str::to_owned).into();
    if grid.evaluate.builtin().next().is_some() {
        names.push(DOCUMENTS.to_owned());
        names.extend(grid.cells.iter().map(|cell| format!("{EVAL_RESULTS}/{cell}.yaml")));
    }
    if !grid.evaluate.tasks.is_empty() {
        names.extend(grid.cells.iter().map(|cell| format!("{LM_EVAL}/{cell}.json")));
    }
    if grid.evaluate.has_scores() {
        names.extend(grid.cells.iter().map(|cell| format!("{EVERY_EVAL_EVER}/{cell}.json")));
    }
    let repaired = grid.cells.iter().any(|cell| cell.recovery.is_some());
    names.extend(repaired.then(|| CHANNELS_FILE.to_owned()));
    names.extend((!grid.evaluate.latency.is_empty()).then(|| LATENCY.to_owned()));
    names
}

/// Writes the table of a grid run and the files that go with it. Returns the table formatted for the terminal and the
/// paths of the files.
///
/// # Errors
/// Fails if the run did not measure the metric, or if the folder is not writable.
pub fn write_run(
    grid: &Grid,
    outcome: &GridOutcome,
    target: &ResultsFolder,
    started: SystemTime,
    shape: &TableShape,
    over: Option<Over>,
    width: Option<usize>,
) -> Result<(String, Vec<PathBuf>)> {
    let results = collect(grid, outcome, &[]);
    // Store the numbers for each seed even if the tables aggregate them.
    let tabled = results.aggregate_over(over);
    let profile = grid.profile.as_deref().unwrap_or_default();
    let notes = [run_notes(grid, outcome), tabled.notes(), incomplete_note(outcome)].concat();
    let table = long(&tabled, profile, notes.clone());
    let staging = target.output().stage()?;
    let mut files = write_frame(staging.path(), RESULTS, run_frame(&table)?)?;
    files.extend(write_run_texts(staging.path(), RESULTS, &grid.name, &table)?);
    let shown = match shape {
        TableShape::Long => screen(&table, width),
        TableShape::Wide { metric } => {
            let table = wide(&tabled, metric.as_deref(), profile, notes)?;
            files.extend(write_run_texts(staging.path(), WIDE_TABLE, &grid.name, &table)?);
            screen(&table, width)
        }
    };
    let run = FinishedRun { target, grid, outcome, started };
    run.finish(false, &results, &mut files, staging.path())?;
    Ok((shown, target.publish(staging, &files)?.files))
}

/// Writes a table of a grid run as Markdown and LaTeX. Returns the paths of the files.
fn write_run_texts(folder: &Path, name: &str, grid: &str, table: &Table) -> Result<Vec<PathBuf>> {
    write_texts(folder, name, table, &[(name.to_owned(), table.printed(grid))], |name| format!("{grid}-{name}"))
}

/// Writes a table as Markdown, and its printed variants and notes as LaTeX. `variants` are tables by file name, and `label`
/// returns the LaTeX label for a file name. Returns the paths of the files.
pub(super) fn write_texts(
    folder: &Path,
    name: &str,
    table: &Table,
    variants: &[(String, Table)],
    label: impl Fn(&str) -> String,
) -> Result<Vec<PathBuf>> {
    let mut files = vec![put(&folder.join(format!("{name}.md")), markdown(table).as_bytes())?];
    for (name, printed) in variants {
        files.push(put(&folder.join(format!("{name}.tex")), latex(printed, &label(name)).as_bytes())?);
    }
    if let Some(notes) = latex_notes(table, &label(name)) {
        files.push(put(&folder.join(notes_file(name)), notes.as_bytes())?);
    }
    Ok(files)
}

/// Finished grid run from which the result files are written.
pub(super) struct FinishedRun<'a> {
    pub(super) target: &'a ResultsFolder,
    pub(super) grid: &'a Grid,
    pub(super) outcome: &'a GridOutcome,
    pub(super) started: SystemTime,
}

impl FinishedRun<'_> {
    /// Writes the task results, channel errors, latencies, stored results and provenance record. Adds their paths to
    /// `files`, and returns the record.
    pub(super) fn finish(
        &self,
        gated: bool,
        results: &Results,
        files: &mut Vec<PathBuf>,
        folder: &Path,
    ) -> Result<Provenance> {
        let Self { target, grid, outcome, .. } = self;
        if grid.evaluate.builtin().any(|task| outcome.task(task).is_some()) {
            files.push(write_documents(folder, &outcome.cells)?);
        }
        files.extend(write_public_formats(folder, &target.description().name, grid, outcome)?);
        files.extend(write_channels(folder, &outcome.cells)?);
        files.extend(write_latencies(folder, &outcome.cells)?);
        let stored =
            StoredResults::new(&target.description().name, grid, outcome, gated, results, &machine::program_version())?;
        files.push(stored.write(folder)?);
        // A recorded run, which is committed to the repository, keeps only the keys of the stored objects from which
        // each cell was computed.
        let cells: Value =
            outcome.cells.iter().map(|result| cell_json(result, target.is_recording())).collect::<Result<_>>()?;
        self.record(results.protocols.clone(), cells, files, folder)
    }

    /// Writes the provenance record of a run with the hashes of `files`, and adds its path to them.
    pub(super) fn record(
        &self,
        protocols: Vec<Protocol>,
        cells: Value,
        files: &mut Vec<PathBuf>,
        folder: &Path,
    ) -> Result<Provenance> {
        let Self { target, grid, outcome, started } = *self;
        let record = Provenance {
            ghostlab: env!("CARGO_PKG_VERSION").to_string(),
            crates: crate_versions(),
            commit: Some(env!("GHOSTLAB_COMMIT").to_string()).filter(|commit| !commit.is_empty()),
            dirty: env!("GHOSTLAB_DIRTY") == "true",
            command: machine::command_line(),
            description: target.description().clone(),
            recorded: target.is_recording(),
            grid: grid.resolved()?,
            protocols,
            inputs: outcome.inputs.clone(),
            seeds: calibration_seeds(grid),
            engines: outcome.engines.clone(),
            machine: Machine::current(),
            peak_memory_bytes: machine::peak_memory(),
            files: hash_files(files)?,
            started: format_utc(started),
            finished: format_utc(SystemTime::now()),
            cells,
        };
        record.write(folder)?;
        files.push(folder.join(Provenance::FILE));
        Ok(record)
    }
}

fn calibration_seeds(grid: &Grid) -> Vec<u64> {
    let seeds = grid.cells.iter().filter_map(|cell| Some(cell.calibration.as_ref()?.seed));
    seeds.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the SHA-256 of each written file by file name.
fn hash_files(files: &[PathBuf]) -> Result<BTreeMap<String, String>> {
    files
        .iter()
        .filter(|file| file.is_file())
        .map(|file| {
            let (hash, _) = sha256::of_file(file).map_err(|error| Error::io("read", file, &error))?;
            Ok((file.file_name().unwrap_or_default().to_string_lossy().into_owned(), hash))
        })
        .collect()
}

fn cell_json(result: &CellResult, recorded: bool) -> Result<Value> {
    let mut cell = serde_json::to_value(result).map_err(|error| {
        Error::job("cannot write the cell as JSON").at(result.cell.to_string()).found(error.to_string())
    })?;
    for boundary in cell["boundaries"].as_array_mut().into_iter().flatten() {
        boundary.as_object_mut().and_then(|boundary| boundary.remove("boundary_mae_by_channel"));
    }
    cell["tasks"] = tasks_json(result);
    let definitions = result.tasks.iter().filter(|task| task.requested.defined);
    let definitions: Vec<Value> =
        definitions.map(|task| json!(task.sample.as_ref().map(defined_scores_json))).collect();
    if !definitions.is_empty() {
        cell["definitions"] = definitions.into();
    }
    if recorded {
        let mut keys: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for part in cell["made_from"].as_array().into_iter().flatten() {
            let [kind, key] = ["kind", "key"].map(|name| part[name].as_str().unwrap_or_default());
            keys.entry(kind).or_default().push(key);
        }
        cell["made_from"] = json!(keys);
    }
    Ok(cell)
}

/// Serializes the accuracies and failure counts for each built-in task.
fn tasks_json(result: &CellResult) -> Value {
    let each = result.answered_tasks().map(|(label, answered)| {
        let mut task = json!({"acc": answered.acc.value, "acc_norm": answered.acc_norm.value});
        for (name, count) in [
            ("non_finite", answered.non_finite),
            ("unanswered", answered.unanswered),
            ("truncated", answered.truncated),
        ] {
            if count > 0 {
                task[name] = json!(count);
            }
        }
        (label.to_owned(), task)
    });
    each.collect()
}

/// Serializes the scores of a task that is defined in lm-evaluation-harness format.
fn defined_scores_json(scores: &TaskScores) -> Value {
    let TaskScores { label, original, effective, truncated, non_finite, .. } = scores;
    json!({
        "label": label, "original": original, "effective": effective, "truncated": truncated, "non_finite": non_finite,
        "scores": harness_scores(&scores.scores),
    })
}

fn crate_versions() -> BTreeMap<String, String> {
    const NUMERIC: [&str; 7] = ["candle-core", "faer", "gemm", "half", "polars", "rand_mt", "tokenizers"];
    let lines: Vec<&str> = include_str!("../../Cargo.lock").lines().collect();
    let pairs = lines.windows(2).filter(|pair| pair[0].starts_with("name = ") && pair[1].starts_with("version = "));
    let pairs = pairs.filter_map(|pair| Some((version_value(pair[0])?, version_value(pair[1])?)));
    pairs.filter(|(name, _)| NUMERIC.contains(&name.as_str())).collect()
}

fn version_value(line: &str) -> Option<String> {
    line.split('"').nth(1).map(str::to_string)
}
