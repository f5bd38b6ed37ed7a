//! `ghostlab reproduce ARTIFACT…`: the paper's tables and figures.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;

use super::candidates;
use super::grid_args::{EngineArgs, LimitArgs, Threads};
use super::home::{self, Place};
use super::units::{self, columns, seconds};
use super::work::{Work, noted};
use super::{fetch, out, progress, report, stop};
use crate::artifact::claims;
use crate::artifact::{self, Artifact, GateFailure, Made, ResultsFolder, Runner};
use crate::cluster::Submission;
use crate::error::{Error, ErrorKind, Result};
use crate::exec::{RunRecord, Settings};
use crate::grid::Grid;
use crate::model::EngineRequest;
use crate::plan::{BackbonePlan, Estimate, Plan, StoreState};
use crate::results::{Provenance, screen};
use crate::store::Store;

#[derive(Args)]
pub(super) struct Arguments {
    /// `table2`, `figure1`, …, or `all`.
    #[arg(add = candidates::artifacts())]
    artifacts: Vec<String>,
    /// Change a value of the artifacts' grids, for example `--set calibration.sequences=16`. What comes of it has a
    /// folder of its own, and is neither on the page nor held against the paper's claims.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// `tiny`: on the backbones and data that come with the program; `paper`: on the paper's.
    #[arg(long, value_name = "NAME", add = candidates::profiles())]
    profile: Option<String>,
    /// The folder of the artifacts' files; by default $GHOSTLAB_EXPERIMENTS, or `experiments` of the checkout.
    #[arg(long, value_name = "FOLDER")]
    experiments: Option<PathBuf>,
    /// Where the artifacts' folders are made; `results` of the checkout by default.
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
    /// Where the page of all artifacts is written; `reports` of the checkout by default.
    #[arg(long, value_name = "FOLDER")]
    reports: Option<PathBuf>,
    /// Prune and repair even where the dense backbone misses the paper's dense numbers.
    #[arg(long)]
    no_gate: bool,
    /// Bring what is missing from the Hugging Face hub first.
    #[arg(long)]
    fetch: bool,
    /// Compute nothing: tables and figures of what is stored.
    #[arg(long)]
    stored: bool,
    /// Of one artifact: its grid as it was frozen by `submit`.
    #[arg(long, value_name = "FILE")]
    frozen: Option<PathBuf>,
    /// Print every event as a line of JSON instead of progress and tables.
    #[arg(long)]
    events: bool,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    threads: Threads,
}

/// The folders of a call.
struct Folders {
    experiments: PathBuf,
    results: PathBuf,
    reports: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    noted(arguments.frozen.as_deref(), || ended(arguments))
}

/// Makes what is asked for; the exit code.
fn ended(arguments: &Arguments) -> Result<u8> {
    let folders = Folders {
        experiments: home::experiments(arguments.experiments.as_ref())?,
        results: home::below(arguments.results.as_ref(), "results", None),
        reports: home::below(arguments.reports.as_ref(), "reports", None),
    };
    let all = artifact::all(&folders.experiments)?;
    let chosen = artifact::chosen(&all, &arguments.artifacts)?;
    arguments.threads.start()?;
    if chosen.is_empty() {
        println!("{}", listed(&all, arguments, &folders)?);
        return Ok(0);
    }
    if let Some(file) = arguments.frozen.as_ref().filter(|_| chosen.len() != 1) {
        return Err(Error::bad_input("a frozen grid is that of one artifact")
            .at(file.display().to_string())
            .found(format!("{} artifacts", chosen.len())));
    }
    let store = arguments.place.store()?;
    let (reporter, stop, clock) =
        (progress::reporter(arguments.events), stop::on_ctrl_c(stop::AFTER_BATCH)?, Instant::now());
    let settings = arguments.limits.settings(arguments.engine.request());
    let runner = Runner { store: &store, settings, reporter: &*reporter, stop: &stop, stored: arguments.stored };
    let (mut failed, mut errors, mut profiles) = (0, Vec::new(), Vec::new());
    for artifact in &chosen {
        match made_one(artifact, arguments, &folders, &runner) {
            Ok((cells, profile)) => {
                failed += cells;
                profiles.extend(profile);
            }
            // Of several artifacts, one that lacks its models does not keep the others from being made.
            Err(error) if chosen.len() > 1 && error.kind() != ErrorKind::Interrupted => {
                eprintln!("{}: {error}\n", artifact.name);
                errors.push((artifact.name.clone(), error));
            }
            Err(error) => return Err(error),
        }
    }
    if arguments.overrides.is_empty() {
        let names: Vec<&str> = chosen.iter().map(|artifact| artifact.name.as_str()).collect();
        // Lists have no profile, and where nothing else was made there is nothing to judge.
        if let Some(profile) = profiles.first().filter(|_| !arguments.events) {
            print!("{}", claims_about(&names, &folders, profile)?);
        }
        let page = report::write(&folders.results, &folders.reports)?;
        note!("page of all artifacts: {}", page.display());
    } else {
        note!("with --set: neither on the page nor held against the paper's claims");
    }
    if chosen.len() > 1 {
        note!("{} artifacts in {}", chosen.len() - errors.len(), seconds(clock.elapsed().as_secs_f64()));
    }
    match errors.first() {
        Some((_, first)) => {
            let names: Vec<&str> = errors.iter().map(|(name, _)| name.as_str()).collect();
            eprintln!("not made: {}", names.join(", "));
            Ok(first.exit_code())
        }
        None if failed > 0 => Ok(4),
        None => Ok(0),
    }
}

/// The paper's claims about these artifacts, on the paper's numbers and on ours.
fn claims_about(names: &[&str], folders: &Folders, profile: &str) -> Result<String> {
    let mut judged = report::judged(&folders.results, profile)?;
    judged.retain(|of| of.claim.artifacts.iter().any(|artifact| names.contains(artifact)));
    if judged.is_empty() {
        return Ok(String::new());
    }
    Ok(format!("\nclaims of the paper:\n{}", claims::render(&judged)))
}

/// Title, what is stored, what is left to do, last result.
fn listed(all: &[Artifact], arguments: &Arguments, folders: &Folders) -> Result<String> {
    let store = arguments.place.look_anyway()?;
    let mut rows = vec![["artifact", "what", "profile", "stored", "left", "last made"].map(str::to_owned).to_vec()];
    for artifact in all {
        let mut row = vec![artifact.name.clone(), artifact.description.title.clone()];
        if artifact.description.list.is_some() {
            row.extend(["—", "—", "—", "—"].map(str::to_owned));
        } else {
            match artifact.runs(arguments.profile.as_deref(), &arguments.overrides) {
                Ok(grids) => {
                    let (mut cells, mut complete, mut time) = (0, 0, Some(0.0));
                    for grid in &grids {
                        let (stored, left) = progress_of(grid, &store, arguments.engine.request())?;
                        (cells, complete) = (cells + grid.cells.len(), complete + stored);
                        time = time.zip(left).map(|(sum, left)| sum + left);
                    }
                    let left = match (complete == cells, time) {
                        (true, _) => "nothing".to_owned(),
                        (false, Some(time)) => format!("about {}", seconds(time)),
                        (false, None) => units::cells(cells - complete),
                    };
                    let profile = grids.last().and_then(|grid| grid.profile.clone()).unwrap_or_default();
                    let record = target(artifact, &profile, arguments, folders).path().join(Provenance::FILE);
                    let made = std::fs::metadata(record).and_then(|file| file.modified()).ok();
                    row.extend([profile, format!("{complete} of {cells}"), left]);
                    row.push(made.map_or("never".to_owned(), crate::clock::utc));
                }
                Err(error) => row.extend(["—".to_owned(), "—".to_owned(), error.one_line(), "—".to_owned()]),
            }
        }
        rows.push(row);
    }
    Ok(columns(&rows, &[]))
}

/// Complete cells, and the seconds that are left; none where texts are not tokenised yet or the engine's speed was never
/// measured here, so that nobody knows.
fn progress_of(grid: &Grid, store: &Store, engine: EngineRequest) -> Result<(usize, Option<f64>)> {
    let plan = Plan::new(grid, store, engine, Settings::default().batch_tokens)?;
    let state = StoreState::read(&plan, store);
    let complete = plan.variants().filter(|(_, variant)| state.complete(variant)).count();
    let estimate = Estimate::of(&plan, &state, Settings::default().spool_bytes, u64::MAX)?;
    let known = plan.backbones.iter().flat_map(BackbonePlan::tokens).all(|key| state.has(key));
    let rate = RunRecord::rate(store, &plan.engines()).filter(|_| known);
    Ok((complete, rate.map(|rate| estimate.left / rate)))
}

fn target(artifact: &Artifact, profile: &str, arguments: &Arguments, folders: &Folders) -> ResultsFolder {
    let profile = Some(profile).filter(|profile| !profile.is_empty());
    ResultsFolder::new(&folders.results, &artifact.name, profile, &arguments.overrides)
}

/// Makes one artifact and says what came of it; how many of its cells failed, and the profile that it was made under.
fn made_one(
    artifact: &Artifact,
    arguments: &Arguments,
    folders: &Folders,
    runner: &Runner<'_>,
) -> Result<(usize, Option<String>)> {
    if let Some(list) = artifact.description.list {
        let screen = artifact::list(artifact, list, &folders.experiments, &folders.results, out::width())?;
        if !arguments.events {
            println!("{}\n\n{screen}", artifact.description.title);
        }
        return Ok((0, None));
    }
    if arguments.fetch {
        let needs = artifact.needs(arguments.profile.as_deref(), &arguments.overrides)?;
        fetch::bring(&needs, runner.store, arguments.events, runner.stop)?;
    }
    let clock = Instant::now();
    let Work { grid, gated, .. } = match &arguments.frozen {
        Some(file) => Work::frozen(&Submission::read(file)?, runner.store)?,
        None => {
            let (profile, overrides) = (arguments.profile.as_deref(), &arguments.overrides);
            Work::of_artifact(artifact.clone(), profile, overrides, arguments.no_gate, runner.store)?
        }
    };
    let target = target(artifact, grid.profile.as_deref().unwrap_or_default(), arguments, folders);
    let made = artifact::make(artifact, &grid, &gated, &target, runner)?;
    let Made { table, beside, files, misses, unknown, failures, failed } = made;
    if let Some(view) = table.filter(|_| !arguments.events) {
        println!("{}", screen(&view, out::width()));
        print!("{beside}");
    }
    let written: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    note!(
        "{}: {} in {}; written: {}",
        artifact.name,
        units::cells(grid.cells.len()),
        seconds(clock.elapsed().as_secs_f64()),
        written.join(", ")
    );
    for (backbone, reason) in &unknown {
        note!("{backbone}: whether it is the paper's is not known: {reason}");
    }
    misses.iter().for_each(|miss| eprintln!("  {miss}"));
    if !misses.is_empty() {
        let backbones = GateFailure::backbones(&misses).join(", ");
        eprintln!("{backbones}: its pruned cells were not run; --no-gate runs them all the same");
    }
    failures.iter().for_each(|(cell, reason)| eprintln!("  {cell} failed: {reason}"));
    Ok((failed, grid.profile))
}
