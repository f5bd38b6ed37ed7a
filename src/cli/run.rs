//! `ghostlab run GRID.yaml`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use clap::Args;

use super::asked::{Asked, Limits};
use super::progress::{self, JsonLines};
use super::stop;
use crate::error::{Error, Result};
use crate::exec::{self, CellResult, Outcome, Recorder, Reporter};
use crate::files::sha256;
use crate::grid::Grid;
use crate::machine::{self, Machine};
use crate::report::{
    Answers, Measured, Protocol, Provenance, Row, Table, ensure_writable, utc, write_documents, write_lm_eval,
};
use crate::tasks::{Measure, TaskResult, average};

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    asked: Asked,
    #[command(flatten)]
    limits: Limits,
    /// Where the results' folder is made.
    #[arg(long, default_value = "results")]
    results: PathBuf,
    /// Print every event as a line of JSON instead of progress and table.
    #[arg(long)]
    events: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (started, clock) = (SystemTime::now(), Instant::now());
    let grid = arguments.asked.grid()?;
    // Two profiles of a grid are two results.
    let folder = arguments.results.join(&grid.name).join(grid.profile.as_deref().unwrap_or_default());
    ensure_writable(&folder, &Table::FILES)?;
    arguments.asked.start_threads()?;
    let store = arguments.asked.store()?;
    let shown: Box<dyn Reporter> = if arguments.events { Box::new(JsonLines) } else { progress::reporter() };
    let recorder = Recorder::start(&grid, &folder, &store, &*shown)?;
    let stop = stop::on_ctrl_c()?;
    let outcome = exec::run(&grid, arguments.limits.settings(), &store, &recorder, &stop);
    let outcome = outcome.inspect_err(|error| recorder.end(error))?;

    let protocols = protocols(&grid, &outcome);
    let rows: Vec<Row> = outcome.cells.iter().map(row).collect();
    let table = Table::new(&protocols, &rows)?;
    let mut files = table.write(&folder)?;
    files.extend(write_tasks(&folder, &outcome)?);
    let provenance = Provenance {
        ghostlab: env!("CARGO_PKG_VERSION").to_string(),
        crates: crate_versions(),
        commit: Some(env!("GHOSTLAB_COMMIT").to_string()).filter(|commit| !commit.is_empty()),
        dirty: env!("GHOSTLAB_DIRTY") == "true",
        command: std::env::args().collect(),
        grid: grid.resolved()?,
        protocols,
        inputs: outcome.inputs.clone(),
        seeds: seeds(&grid),
        machine: Machine::this(),
        peak_memory_bytes: machine::peak_memory(),
        files: hashes(&files)?,
        started: utc(started),
        finished: utc(SystemTime::now()),
        cells: cells_json(&outcome)?,
    };
    provenance.write(&folder)?;
    if !arguments.events {
        println!("{}", table.on_screen()?);
    }
    let written: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    eprintln!(
        "{} cells in {:.1} s; written: {}, {}",
        rows.len(),
        clock.elapsed().as_secs_f64(),
        written.join(", "),
        folder.join(Provenance::FILE).display()
    );
    if outcome.failed() > 0 {
        eprintln!("{} of {} cells failed; the table tells why", outcome.failed(), rows.len());
        return Ok(ExitCode::from(4));
    }
    Ok(ExitCode::SUCCESS)
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

/// One column for each perplexity, each task, and the average of the tasks where there are several.
fn protocols(grid: &Grid, outcome: &Outcome) -> Vec<Protocol> {
    let windows = grid.evaluate.perplexity.iter().map(|text| {
        let corpus = &grid.corpora[&text.corpus];
        Protocol::Windows {
            corpus: text.corpus.clone(),
            rule: corpus.rule.clone(),
            length: text.length,
            limit: corpus.limit,
        }
    });
    let tasks = outcome.tasks.iter().map(|of| Protocol::MultipleChoice {
        label: of.label.clone(),
        task: of.task.name.to_string(),
        version: of.task.version,
        metric: of.task.column.name().to_string(),
        bos: of.bos.to_string(),
        documents: of.documents,
        original: of.original,
        whole: of.whole,
    });
    let several = Some(outcome.tasks.len()).filter(|&tasks| tasks > 1);
    windows.chain(tasks).chain(several.map(|tasks| Protocol::Average { tasks })).collect()
}

/// Values in the order of [`protocols`]; accuracies in percent.
fn values(result: &CellResult) -> Vec<Option<Measured>> {
    let percent =
        |measure: Measure| Measured { value: 100.0 * measure.value, error: measure.stderr.map(|error| 100.0 * error) };
    let perplexities = result.perplexity.iter().map(|value| value.map(Measured::from));
    let tasks = result.tasks.iter().map(|scores| scores.as_ref().map(|scores| percent(scores.result.column())));
    let mut values: Vec<_> = perplexities.chain(tasks).collect();
    if result.tasks.len() > 1 {
        let all: Option<Vec<TaskResult>> =
            result.tasks.iter().map(|scores| scores.as_ref().map(|scores| scores.result.clone())).collect();
        values.push(all.and_then(|all| average(&all)).map(percent));
    }
    values
}

/// Every choice of every document, and each cell's results for tools that read lm-evaluation-harness' files.
fn write_tasks(folder: &Path, outcome: &Outcome) -> Result<Vec<PathBuf>> {
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

fn row(result: &CellResult) -> Row {
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
        values: values(result),
        seconds: result.seconds,
        notes: result.notes().join("; "),
        status: result.failure.as_ref().map_or("ok".to_string(), |reason| format!("failed: {reason}")),
    }
}

fn cells_json(outcome: &Outcome) -> Result<serde_json::Value> {
    serde_json::to_value(&outcome.cells)
        .map_err(|error| Error::job("the cells have no JSON form").found(error.to_string()))
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
