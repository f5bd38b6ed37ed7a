//! `ghostlab run GRID.yaml`: runs a grid.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use clap::{Args, ValueEnum};

use super::answer::write_commands::{CellFailure, RunAnswer, display_paths};
use super::answer::{self, Answer};
use super::artifact_report::report_files;
use super::grid_args::{GridArgs, GridSource, LimitArgs};
use super::requested_work::{self, with_job_end};
use super::{directories, plan, progress, stop, terminal};
use crate::artifact::{self, ResultsFolder, TableShape};
use crate::error::Result;
use crate::files::output::check_separate;
use crate::grid::{Grid, Over};
use crate::pipeline::exec::{CellResult, GridOutcome, RunEnv, RunSettings, Runner, SurveyHook};
use crate::pipeline::plan::{Plan, StoreView, StoredKeyIndex};
use crate::quantity::pluralize;
use ghostlab_store::Store;

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    grid_args: GridArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// Parent folder for the results [default: `results/` in the checkout].
    ///
    /// Artifacts, and runs with `--set` or another engine or float type, are written to separate folders there.
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
    /// Use cached results only; do not compute anything.
    ///
    /// Also prints why results are missing, if known.
    #[arg(long)]
    stored: bool,
    /// Repeat latency measurements and replace the cached ones.
    ///
    /// Cells that are timed together are also repeated together. They are listed first. Nothing else is recomputed.
    #[arg(long, conflicts_with = "stored")]
    retime: bool,
    /// Print events as JSON lines instead of progress and the table.
    #[arg(long, conflicts_with = "json")]
    events: bool,
    /// Table layout: one row per cell (`long`) or one row per method (`wide`).
    ///
    /// `wide` has a column for each backbone and depth, and is also written to `wide.md`.
    #[arg(long, value_enum, default_value_t = TableLayout::Long)]
    layout: TableLayout,
    /// Metric shown by `--layout wide` [default: mean task accuracy, or the first].
    #[arg(long, value_name = "COLUMN")]
    metric: Option<String>,
    /// Aggregate over seeds: mean ± standard deviation.
    #[arg(long, value_enum)]
    over: Option<OverArg>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OverArg {
    /// Calibration seeds.
    Seed,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TableLayout {
    Long,
    Wide,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    with_job_end(Some(arguments.grid_args.file()), || run_grid(arguments))
}

/// Runs the grid and returns the exit code.
fn run_grid(arguments: &Arguments) -> Result<u8> {
    let started = SystemTime::now();
    let clock = Instant::now();
    let (source, mut grid) = arguments.grid_args.load()?;
    arguments.grid_args.threads.start()?;
    let store =
        if arguments.stored { arguments.grid_args.open_read_only()? } else { arguments.grid_args.open_store()? };
    match source.submission() {
        Some(submission) => submission.check(&store)?,
        None => artifact::check_pins(&mut grid, &requested_work::file_hasher(&store))?,
    }
    let shape = match arguments.layout {
        TableLayout::Wide => TableShape::Wide { metric: arguments.metric.clone() },
        TableLayout::Long => TableShape::Long,
    };
    let target = check_results_folder(arguments, &source, &grid, &shape, &store)?;
    let reporter = progress::reporter(arguments.events);
    let hashes = source.submission().map(|submission| submission.inputs().clone()).unwrap_or_default();
    if let Some(note) = target.replacement_warning(&grid, &hashes)? {
        note!("{note}");
    }
    let stop = stop::on_ctrl_c(stop::STOPPING_AFTER_BATCH)?;
    let settings =
        RunSettings { retime: arguments.retime, ..arguments.limits.settings(arguments.grid_args.engine.request()) };
    let surveyed: SurveyHook<'_> = &|plan, state| detail!("{}", format_missing(plan, state, &store));
    let env = RunEnv { store: &store, settings, reporter: &*reporter, stop: &stop };
    let runner = Runner { env, stored: arguments.stored, surveyed };
    let outcome = runner.run(&grid, target.path())?;

    let over = arguments.over.map(|OverArg::Seed| Over::Seed);
    let (table, files) = artifact::write_run(&grid, &outcome, &target, started, &shape, over, terminal::width())?;
    let seconds = clock.elapsed().as_secs_f64();
    let ran = RunAnswer {
        grid: grid.name.clone(),
        profile: grid.profile.clone(),
        cells: grid.cells.len(),
        failed: list_cells_without_result(&outcome, |result| result.failure.as_ref()),
        unmade: list_cells_without_result(&outcome, |result| {
            result.missing.as_ref().filter(|_| result.failure.is_none())
        }),
        files: display_paths(&files),
        seconds,
    };
    if !arguments.events {
        answer::print_answer(ran, Answer::Run, |_| println!("{table}"))?;
    }
    if !target.as_described() && !target.description().differs.is_empty() {
        note!(
            "the results are in {} (overridden: {})",
            target.path().display(),
            target.description().differs.join(", ")
        );
    }
    report_files(
        &format!("{} in {}; ", pluralize(grid.cells.len(), "cell"), terminal::format_seconds(seconds)),
        &files,
    );
    Ok(warn_about_missing(&outcome, grid.cells.len()))
}

/// Returns the results folder for a run after checking that its files can be written.
fn check_results_folder(
    arguments: &Arguments,
    source: &GridSource,
    grid: &Grid,
    shape: &TableShape,
    store: &Store,
) -> Result<ResultsFolder> {
    let target = requested_work::run_results_folder(&arguments.grid_args, source, grid, arguments.results.as_ref())?;
    check_separate(target.path(), &directories::list_inputs(grid, store))?;
    target.output().check(&artifact::run_files(grid, shape))?;
    if let Some(submission) = source.submission() {
        requested_work::check_not_newer(arguments.grid_args.file(), submission, &target, grid)?;
    }
    Ok(target)
}

/// Warns about cells without results and returns the exit code.
fn warn_about_missing(outcome: &GridOutcome, cell_count: usize) -> u8 {
    let failed = outcome.failed_count();
    let unmade = outcome.incomplete_count();
    let all = pluralize(cell_count, "cell");
    if unmade > 0 {
        eprintln!("{unmade} of {all} incomplete; run without --stored to compute them");
    }
    if failed > 0 {
        eprintln!("{failed} of {all} failed; see the table for the reasons");
    }
    match (failed, unmade) {
        (0, 0) => 0,
        (0, _) => 3,
        _ => 4,
    }
}

/// Lists the cells for which `get_reason` returns why they have no result.
fn list_cells_without_result(
    outcome: &GridOutcome,
    get_reason: fn(&CellResult) -> Option<&String>,
) -> Vec<CellFailure> {
    let reasons = outcome.cells.iter().filter_map(|result| Some((&result.cell, get_reason(result)?.lines().next())));
    reasons
        .map(|(cell, reason)| CellFailure { cell: cell.to_string(), reason: reason.unwrap_or_default().to_owned() })
        .collect()
}

/// Formats how many of the grid's objects are stored and why the others are missing, in the format used by `plan`.
fn format_missing(plan: &Plan<'_>, state: &StoreView, store: &Store) -> String {
    let counts =
        plan::format_counts(&answer::plan::count_artifacts(plan, state, &StoredKeyIndex::new(store, plan), store));
    counts.trim_end().to_owned()
}
