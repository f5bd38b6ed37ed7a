//! `ghostlab search MODEL --budget …`: searches for the layers to remove and the best recovery. Also runs the searches
//! of artifacts, whose budgets come from the cells of another artifact.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use clap::Args;

use super::answer::write_commands::{ExportedCell, ReproducedArtifact, SearchAnswer, display_path, display_paths};
use super::answer::{self, Answer};
use super::artifact_report::report_files;
use super::grid_args::ComputeArgs;
use super::search_grid::SearchArgs;
use super::terminal::{format_bytes, format_columns, format_seconds};
use super::{directories, fetch, progress, requested_work, stop};
use crate::artifact::{self, Artifact, PublishedFiles, ResultsFolder, SearchResults, search_file_names, search_files};
use crate::error::{Error, Result, command_line};
use crate::export::{self, Exporter, WeightFormat};
use crate::files::output::{OutputFolder, check_separate};
use crate::grid::{self, Grid, RacesEntry, Search};
use crate::pipeline::exec::{self, DistinctNotes, GridOutcome, RunEnv, Runner};
use crate::quantity::pluralize;
use crate::results::{StoredResults, put};
use crate::search::{SearchEnv, SearchOutcome, measured_latency, search, split_searches};

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    search_args: SearchArgs,
    /// Export the winner as a Hugging Face model.
    ///
    /// The model card contains the search results.
    #[arg(long, value_name = "FOLDER")]
    export: Option<PathBuf>,
    /// Download missing inputs from the Hugging Face hub first.
    #[arg(long)]
    fetch: bool,
    /// Override a value in a grid file, e.g. `--set search.seed=1`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Parent folder for the report [default: `results/` in the checkout].
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Base name of the output files.
const BASE_NAME: &str = "search";

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let clock = Instant::now();
    let model = Path::new(&arguments.search_args.model);
    let store = arguments.compute.start(Some(model).filter(|model| model.exists()))?;
    let stop = stop::on_ctrl_c(stop::STOPPING_AFTER_BATCH)?;
    let settings = arguments.compute.settings();
    let progress = progress::reporter(false);
    let reporter = DistinctNotes::new(&*progress);
    let run_env = RunEnv { store: &store, settings, reporter: &reporter, stop: &stop };
    let runner = Runner { env: run_env, stored: false, surveyed: &|_, _| () };
    if let Some(folder) = &arguments.export {
        export::check_folder(folder)?;
    }
    let mut grid = load_search_grid(arguments, &runner)?;
    artifact::check_pins(&mut grid, &requested_work::file_hasher(&store))?;
    let spec = grid.search.clone().ok_or_else(|| {
        Error::bad_input("the grid has no `search`")
            .at(grid.file.display().to_string())
            .expected("`search:` with a budget, instead of `evaluate:`")
            .found("a grid with `evaluate`")
            .hint("use `ghostlab run` for a grid without `search`")
    })?;
    let searches = split_searches(&grid);
    if arguments.export.is_some() && searches.len() != 1 {
        return Err(Error::bad_input("only one winner can be exported")
            .at("--export")
            .expected("one backbone and one budget")
            .found(format!("{} searches", searches.len())));
    }
    let near = Some(model).filter(|model| grid::is_yaml(model));
    let target = output_folder(arguments, &grid, &spec, near);
    check_separate(target.path(), &directories::list_inputs(&grid, &store))?;
    target.precheck(&search_file_names(BASE_NAME))?;
    let run = |grid: &Grid| runner.run(grid, target.path());
    let env = SearchEnv { run_env, run: &run, can_time: true };
    let found = searches.iter().map(|one| search(one, &env)).collect::<Result<Vec<SearchOutcome>>>()?;
    let written = write_files(&target, &found)?;
    let exported = match (&arguments.export, searches.first(), found.first()) {
        (Some(folder), Some(grid), Some(found)) if found.winner.is_some() => {
            Some(export_winner(grid, found, folder, &runner)?)
        }
        _ => None,
    };
    let command = (found.len() == 1 && exported.is_none() && found[0].winner.is_some()).then(build_export_command);
    let answer = SearchAnswer {
        sentences: found.iter().map(SearchOutcome::sentence).collect(),
        searches: found,
        files: display_paths(&written),
        exported,
        export: command,
        seconds: clock.elapsed().as_secs_f64(),
    };
    let missed = answer.searches.iter().any(|search| search.winner.is_none());
    answer::print_answer(answer, Answer::Search, print_searches)?;
    Ok(if missed { ExitCode::from(4) } else { ExitCode::SUCCESS })
}

/// Loads the grid of a search from a grid file, or builds it from the command-line options.
fn load_search_grid(arguments: &Arguments, runner: &Runner<'_>) -> Result<Grid> {
    if grid::is_yaml(Path::new(&arguments.search_args.model)) {
        return load_grid_file(arguments);
    }
    if arguments.fetch {
        fetch::fetch_missing(&[arguments.search_args.needs()?], runner.env.store, false, runner.env.stop)?;
    }
    arguments.search_args.build_grid(runner.env.settings.engine, &|dense: &Grid| -> Result<Option<f64>> {
        let outcome =
            runner.run(dense, &directories::default_directory(arguments.results.as_ref(), "results", None))?;
        let cell = outcome.cells.first();
        Ok(cell.and_then(|cell| measured_latency(cell, &arguments.search_args.prompt)).map(|(time, _)| time))
    })
}

/// Writes the report on the searches and returns the paths of its files.
fn write_files(target: &OutputFolder, outcomes: &[SearchOutcome]) -> Result<Vec<PathBuf>> {
    let files = search_files(BASE_NAME, outcomes)?;
    let draft = target.stage()?;
    for (name, bytes) in &files {
        put(&draft.path().join(name), bytes)?;
    }
    draft.publish()?;
    Ok(files.iter().map(|(name, _)| target.path().join(name)).collect())
}

/// Loads a search from a grid file. Rejects options for values that the file defines.
fn load_grid_file(arguments: &Arguments) -> Result<Grid> {
    let SearchArgs { budget, tasks, texts, calibration, criteria, recoveries, .. } = &arguments.search_args;
    let lists = [budget, tasks, texts, calibration, criteria, recoveries];
    let names = ["--budget", "--tasks", "--texts", "--calibration", "--criteria", "--recoveries"];
    if let Some((name, _)) = names.into_iter().zip(lists).find(|(_, list)| !list.is_empty()) {
        return Err(Error::bad_input("options for axes and budget cannot be combined with a grid file")
            .at(name)
            .expected("the axes and the budget in the grid file")
            .hint("override values with --set, for example `--set search.budget.layers=6`"));
    }
    Grid::load(Path::new(&arguments.search_args.model), arguments.search_args.profile.as_deref(), &arguments.overrides)
}

/// Returns the output directory `results/NAME/search+BUDGET`. Each combination of budget and overrides has its own
/// directory.
fn output_folder(arguments: &Arguments, grid: &Grid, spec: &Search, near: Option<&Path>) -> OutputFolder {
    let results = directories::default_directory(arguments.results.as_ref(), "results", near);
    let budget = spec.budget.to_string().replace(", ", "+");
    let differs = arguments
        .overrides
        .iter()
        .map(|setting| format!("+{}", setting.replace(['/', '\\', ' '], "_")))
        .collect::<String>();
    OutputFolder::new(results.join(&grid.name).join(format!("search+{budget}{differs}")), "a search")
}

/// Exports the winner of a search. The model card includes the search results.
fn export_winner(grid: &Grid, outcome: &SearchOutcome, folder: &Path, runner: &Runner<'_>) -> Result<ExportedCell> {
    let weight_format = WeightFormat { dtype: None, shard_bytes: 5_000_000_000 };
    let evidence = Some(outcome.markdown().replacen("## ", "### ", 1));
    let exporter = Exporter { env: runner.env, weight_format, evidence };
    let winner = outcome.winner.as_ref().and_then(|name| grid.cells.iter().position(|cell| cell.name == *name));
    let winner = winner.ok_or_else(|| Error::job("nothing to export: no candidate meets the budget when measured"))?;
    Ok(ExportedCell { cell: grid.cells[winner].to_string(), exported: exporter.export(grid, winner, folder)? })
}

/// Returns the command line of this process with `--export` added.
fn build_export_command() -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    format!("ghostlab {} --export FOLDER", command_line(words))
}

/// Maximum number of skipped cells that are printed.
const MAX_SKIPPED: usize = 5;

fn print_searches(answer: &SearchAnswer) {
    for (found, sentence) in answer.searches.iter().zip(&answer.sentences) {
        println!("{}\n\n{}", found.title(), format_columns(&found.table(), &[]));
        if !found.held_out_scores.is_empty() {
            println!("Scores on held-out items:\n\n{}", format_columns(&found.judgement(), &[]));
        }
        let (shown, hidden) = found.left_out.split_at(found.left_out.len().min(MAX_SKIPPED));
        shown.iter().for_each(|entry| note!("skipped {}: {}", entry.cell, entry.reason));
        if !hidden.is_empty() {
            note!("skipped {} more cells; search.md lists them", hidden.len());
        }
        found.lines().iter().for_each(|line| println!("{line}"));
        let spent = &found.spent;
        if spent.layers > 0.0 && answer.searches.len() == 1 {
            // If all scores were cached, the elapsed time says nothing about the cost.
            let all = answer.seconds * spent.all_layers / (spent.layers + spent.judged_layers);
            println!(
                "Elapsed: {}. Scoring all candidates on all items would take about {}.",
                format_seconds(answer.seconds),
                format_seconds(all)
            );
        }
        println!("\n{sentence}");
    }
    report_files("", &answer.files);
    if let Some(ExportedCell { exported: exported_cell, .. }) = &answer.exported {
        let code = if exported_cell.needs_code { "; load it with trust_remote_code=True" } else { "" };
        println!("exported to {}: {}{code}", exported_cell.folder.display(), format_bytes(exported_cell.bytes));
    }
    if let Some(command) = &answer.export {
        println!("To export the winner for transformers, run:\n  {command}");
    }
}

/// Runs the searches and writes their results. Compares them with the best rows of another artifact's table, for which
/// every cell was scored.
///
/// `target` is the directory for the search results, and `results` contains the results of all artifacts.
pub(super) fn run_race(
    artifact: &Artifact,
    races: &RacesEntry,
    grid: &Grid,
    target: &ResultsFolder,
    results: &Path,
    quiet: bool,
    runner: &Runner<'_>,
) -> Result<ReproducedArtifact> {
    let started = SystemTime::now();
    let searches = split_searches(grid);
    if searches.is_empty() {
        return Err(Error::bad_input("the artifact has no `search`").at(artifact.file.path().display().to_string()));
    }
    target.output().check(&SearchResults::files(artifact))?;
    let reporter = DistinctNotes::new(runner.env.reporter);
    let run_env = RunEnv { reporter: &reporter, ..runner.env };
    let runner = &Runner { env: run_env, ..*runner };
    let run = |grid: &Grid| -> Result<GridOutcome> {
        let outcome = runner.run(grid, target.path())?;
        match outcome.cells.iter().find(|cell| runner.stored && cell.missing.is_some() && cell.failure.is_none()) {
            None => Ok(outcome),
            Some(missing) => Err(Error::missing("the search is not complete")
                .at(missing.cell.to_string())
                .hint("run the command without --stored to complete it")),
        }
    };
    let env = SearchEnv { run_env, run: &run, can_time: !runner.stored };
    let found = searches.iter().map(|one| search(one, &env)).collect::<Result<Vec<SearchOutcome>>>()?;
    let profile = grid.profile.clone().unwrap_or_default();
    let table_results = StoredResults::read(&results.join(&races.table).join(&profile)).ok();
    let search_results = SearchResults::new(grid, races, &found, table_results.as_ref());
    let dense = Grid { cells: grid.cells.iter().filter(|cell| cell.is_dense()).cloned().collect(), ..grid.clone() };
    let dense = exec::read_stored(&dense, &RunEnv { reporter: &(), ..run_env }, &|_, _| ())?;
    let PublishedFiles { files, recorded } = search_results.publish(artifact, &dense, target, started)?;
    if !quiet {
        println!("{}\n\n{}", artifact.description.title, format_columns(&search_results.table(), &[]));
        search_results.notes().iter().for_each(|note| println!("{note}"));
    }
    let folder = display_path(target.path());
    let outcome = recorded.clone().unwrap_or_else(|| format!("wrote {} to {folder}", pluralize(files.len(), "file")));
    note!("{}: {outcome}", artifact.name);
    let files = display_paths(&files);
    Ok(ReproducedArtifact { recorded, files, ..ReproducedArtifact::new(artifact, grid, target) })
}
