//! `ghostlab run GRID.yaml`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use clap::Args;

use super::asked::{Asked, Limits};
use super::made;
use super::progress::{self, JsonLines};
use super::stop;
use crate::error::Result;
use crate::exec::{self, CellResult, Outcome, Recorder, Reporter};
use crate::machine;
use crate::report::{Answers, Measured, Provenance, Row, Table, ensure_writable, write_documents, write_lm_eval};
use crate::reproduce;
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

    let protocols = made::protocols(&grid, &outcome);
    let rows: Vec<Row> = outcome.cells.iter().map(row).collect();
    let table = Table::new(&protocols, &rows)?;
    let mut files = table.write(&folder)?;
    files.extend(write_tasks(&folder, &outcome)?);
    let numbers = reproduce::numbers(&grid, &outcome, &[]);
    reproduce::Stored::of(&grid.name, &grid, &outcome, &numbers, &machine::program())?.write(&folder)?;
    let provenance = made::provenance(&grid, &outcome, protocols, &files, started)?;
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

/// Values in the order of [`made::protocols`]; accuracies in percent.
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
