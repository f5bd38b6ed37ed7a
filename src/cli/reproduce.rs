//! `ghostlab reproduce ARTIFACT…`: reproduces the paper's tables and figures.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use serde_json::json;

use super::answer::write_commands::{
    CellFailure, ReproduceAnswer, ReproducedArtifact, SkippedItem, display_path, display_paths,
};
use super::answer::{self, Answer};
use super::artifact_report::{ArtifactReport, report_outcome};
use super::directories::{self, StoreArgs};
use super::grid_args::{EngineArgs, LimitArgs, Threads};
use super::listing::{self, ArtifactList};
use super::requested_work::{RequestedWork, artifact_results_folder, check_not_newer, with_job_end};
use super::terminal::{self, format_seconds};
use super::{fetch, progress, report, search, stop};
use crate::artifact::{self, Artifact, GateMode, ResultsFolder, UpToDateCheck, claims, hash_paths};
use crate::cluster::Submission;
use crate::error::{Error, ErrorKind, Result};
use crate::files::output::check_separate;
use crate::grid::Grid;
use crate::latency::{self, MAX_RELATIVE_DEVIATION, TimeSpread};
use crate::pipeline::exec::{RunEnv, RunSettings, Runner};
use crate::pipeline::plan::{Plan, warnings};
use crate::quantity::pluralize;
use crate::results::screen;
use ghostlab_store::Store;

#[derive(Args)]
pub(super) struct Arguments {
    /// Artifacts to reproduce: `table2`, `figure1`, …, or `all` [default: list them].
    artifacts: Vec<String>,
    /// Override a grid value, e.g. `--set calibration.sequences=16`.
    ///
    /// The results are written to a separate folder. They are neither included in the report nor compared with the
    /// paper's claims.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Profile: `tiny` (bundled models), `smollm2` (a real model) or `paper`.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Artifact folder [default: $GHOSTLAB_EXPERIMENTS, or experiments in the checkout].
    #[arg(long, value_name = "FOLDER")]
    experiments: Option<PathBuf>,
    /// Parent folder for the results [default: `results/` in the checkout].
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
    /// Folder for the HTML report [default: reports in the checkout].
    #[arg(long, value_name = "FOLDER")]
    reports: Option<PathBuf>,
    /// Evaluate pruned models even if the dense one does not match the paper.
    #[arg(long)]
    no_gate: bool,
    /// Download missing inputs from the Hugging Face hub first.
    #[arg(long)]
    fetch: bool,
    /// Use cached results only; do not compute anything.
    #[arg(long)]
    stored: bool,
    /// Repeat latency measurements and replace the cached ones.
    ///
    /// Cells that are timed together are also repeated together. They are listed first. Nothing else is recomputed.
    #[arg(long, conflicts_with = "stored")]
    retime: bool,
    /// Replace the recorded run in the repository with this one.
    ///
    /// The report shows recorded runs. Without --record, a recorded run is kept, and different results are written next
    /// to it.
    #[arg(long, conflicts_with_all = ["overrides", "stored", "frozen", "no_gate"])]
    record: bool,
    /// Record latencies even if they are unstable.
    ///
    /// Without this option, latencies can only be recorded on an idle machine.
    #[arg(long, requires = "record")]
    record_noisy: bool,
    /// Artifact grid that was frozen by `submit`.
    #[arg(long, value_name = "FILE")]
    frozen: Option<PathBuf>,
    /// Print events as JSON lines instead of progress and tables.
    #[arg(long, conflicts_with = "json")]
    events: bool,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    threads: Threads,
}

/// Arguments and resolved directories of the command.
struct ReproduceRun<'a> {
    arguments: &'a Arguments,
    experiments: PathBuf,
    results: PathBuf,
    reports: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    with_job_end(arguments.frozen.as_deref(), || reproduce(arguments))
}

/// Reproduces the requested artifacts and returns the exit code.
fn reproduce(arguments: &Arguments) -> Result<u8> {
    let call = ReproduceRun {
        arguments,
        experiments: directories::find_or_unpack_experiments(arguments.experiments.as_ref())?,
        results: directories::default_directory(arguments.results.as_ref(), "results", None),
        reports: directories::default_directory(arguments.reports.as_ref(), "reports", None),
    };
    let (all, ignored) = artifact::all_for(&call.experiments, &arguments.artifacts)?;
    ignored.iter().for_each(|error| note!("ignored an invalid artifact: {error}"));
    let chosen = select_artifacts(&all, arguments)?;
    arguments.threads.start()?;
    if chosen.is_empty() {
        return call.print_list(&all);
    }
    if let Some(file) = arguments.frozen.as_ref().filter(|_| chosen.len() != 1) {
        return Err(Error::bad_input("a frozen grid belongs to a single artifact")
            .at(file.display().to_string())
            .expected("one artifact with --frozen")
            .found(pluralize(chosen.len(), "artifact")));
    }
    let store =
        if arguments.stored { arguments.store.open_read_only_or_empty(None)? } else { arguments.store.open(None)? };
    if arguments.overrides.is_empty() {
        report::check_output(&call.reports)?;
    }
    let reporter = progress::reporter(arguments.events);
    let stop = stop::on_ctrl_c(stop::STOPPING_AFTER_BATCH)?;
    let clock = Instant::now();
    let Arguments { retime, record, record_noisy, .. } = *arguments;
    let settle = record && !record_noisy;
    let settings = RunSettings { retime, settle, ..arguments.limits.settings(arguments.engine.request()) };
    let env = RunEnv { store: &store, settings, reporter: &*reporter, stop: &stop };
    let runner = Runner { env, stored: arguments.stored, surveyed: &|_, _| () };
    let (made, errors) = call.make_all(&chosen, &runner)?;
    let page = call.write_page(&chosen, &made, &store)?;
    if chosen.len() > 1 {
        note!(
            "{} in {}",
            pluralize(chosen.len() - errors.len(), "artifact"),
            format_seconds(clock.elapsed().as_secs_f64())
        );
    }
    let failed: usize = made.iter().map(|outcome| outcome.failed).sum();
    let unmade: usize = made.iter().map(|outcome| outcome.unmade).sum();
    if !arguments.events {
        let not_made = errors.iter().map(|(name, error)| SkippedItem::new(name.as_str(), error)).collect();
        answer::print_answer(ReproduceAnswer { listed: Vec::new(), made, not_made, page }, Answer::Reproduce, |_| {})?;
    }
    match errors.first() {
        Some((_, first)) => {
            let names: Vec<&str> = errors.iter().map(|(name, _)| name.as_str()).collect();
            eprintln!("failed artifacts: {}", names.join(", "));
            Ok(first.exit_code())
        }
        None if failed > 0 => Ok(4),
        None if unmade > 0 => Ok(3),
        None => Ok(0),
    }
}

/// Selects the named artifacts. If the name is `all`, prints a note about the artifacts that do not define the profile.
fn select_artifacts<'a>(all: &'a [Artifact], arguments: &Arguments) -> Result<Vec<&'a Artifact>> {
    let names = &arguments.artifacts;
    let profile = arguments.profile.as_deref();
    let (chosen, skipped) = artifact::partition_by_profile(artifact::select(all, names)?, names, profile);
    if let Some(profile) = profile.filter(|_| !skipped.is_empty()) {
        let names: Vec<&str> = skipped.iter().map(|artifact| artifact.name.as_str()).collect();
        note!("skipped artifacts without profile `{profile}`: {}", names.join(", "));
    }
    Ok(chosen)
}

/// Line printed below the claims that says where to find the details.
const CLAIM_DETAILS: &str = "use -v to list where a claim fails; claims.md and the report quote the claims\n";

/// Artifacts that could not be reproduced, each with the error.
type ArtifactErrors = Vec<(String, Error)>;

impl ReproduceRun<'_> {
    fn print_list(&self, all: &[Artifact]) -> Result<u8> {
        let Arguments { profile, overrides, store, engine, .. } = self.arguments;
        let list = ArtifactList {
            store: &store.open_read_only_or_empty(None)?,
            results: &self.results,
            profile: profile.as_deref(),
            overrides,
            engine: engine.request(),
        };
        let answer =
            ReproduceAnswer { listed: list.list_artifacts(all)?, made: Vec::new(), not_made: Vec::new(), page: None };
        answer::print_answer(answer, Answer::Reproduce, |answer| println!("{}", listing::format_list(&answer.listed)))?;
        Ok(0)
    }

    /// Reproduces the artifacts. If there are several, an error in one artifact does not stop the others, unless the
    /// run was interrupted.
    fn make_all(&self, chosen: &[&Artifact], runner: &Runner<'_>) -> Result<(Vec<ReproducedArtifact>, ArtifactErrors)> {
        let mut made = Vec::new();
        let mut errors = Vec::new();
        for artifact in chosen {
            match self.make_one(artifact, runner) {
                Ok(one) => made.push(one),
                Err(error) if chosen.len() > 1 && error.kind() != ErrorKind::Interrupted => {
                    eprintln!("{}: {error}\n", artifact.name);
                    errors.push((artifact.name.clone(), error));
                }
                Err(error) => return Err(error),
            }
        }
        Ok((made, errors))
    }

    /// Prints the claims with their verdicts and writes the report page. Returns the path of the page, or `None` if a
    /// run differs from its artifact's definition.
    fn write_page(&self, chosen: &[&Artifact], made: &[ReproducedArtifact], store: &Store) -> Result<Option<String>> {
        let mut overrides: Vec<String> =
            made.iter().map(|outcome| outcome.differs.join(", ")).filter(|text| !text.is_empty()).collect();
        if !overrides.is_empty() {
            overrides.dedup();
            let overrides = overrides.join("; ");
            note!("artifacts with overrides ({overrides}) are excluded from the report page and the claim checks");
            return Ok(None);
        }
        let names: Vec<&str> = chosen.iter().map(|artifact| artifact.name.as_str()).collect();
        // List artifacts, which have no grid, have neither a profile nor claims.
        let profile = made.iter().find_map(|outcome| outcome.profile.as_deref()).filter(|_| !self.is_quiet());
        let (claims, written) = self.write_page_if_stale(&names, profile, store)?;
        print!("{claims}");
        note!("report of all artifacts: {}", written.display());
        Ok(Some(display_path(&written)))
    }

    /// Returns whether tables are omitted because the output is JSON.
    fn is_quiet(&self) -> bool {
        self.arguments.events || answer::is_json()
    }

    /// Writes the page unless it is up to date. Returns the text about the claims that concern the named artifacts
    /// (empty without a profile), and the path of the page.
    fn write_page_if_stale(&self, names: &[&str], profile: Option<&str>, store: &Store) -> Result<(String, PathBuf)> {
        let Self { arguments, results, reports, .. } = self;
        let create_check = || {
            let call =
                format!("the page of {} in {}, after {}", results.display(), reports.display(), names.join(", "));
            let made_of = json!([profile, terminal::shows_details(), report::hash_page_inputs(results, store)?]);
            UpToDateCheck::new(store, &call, &made_of).filter(|_| !arguments.record && !arguments.stored)
        };
        let pages = report::find_existing_pages(reports);
        let pages: Vec<&Path> = pages.iter().map(PathBuf::as_path).collect();
        if let Some(done) = create_check().and_then(|check| check.cached_answer(&pages)) {
            return Ok(done);
        }
        let claims = profile.map(|profile| self.format_claims(names, profile)).transpose()?.unwrap_or_default();
        let (page, is_partial) = report::write_report(results, reports, arguments.record)?;
        let done = (claims, page);
        // Do not cache an incomplete page, because every run must report what the page skips.
        if let Some(check) = create_check().filter(|_| !is_partial) {
            let pages = report::find_existing_pages(reports);
            check.store_answer(&pages.iter().map(PathBuf::as_path).collect::<Vec<_>>(), &done);
        }
        Ok(done)
    }

    /// Formats the verdicts on the claims that concern the named artifacts, for the paper's numbers and for the
    /// reproduced ones.
    fn format_claims(&self, names: &[&str], profile: &str) -> Result<String> {
        let mut judged = report::judge_claims(&self.results, profile)?;
        judged.retain(|entry| entry.claim.artifacts.iter().any(|artifact| names.contains(artifact)));
        if judged.is_empty() {
            return Ok(String::new());
        }
        let pointer = if terminal::shows_details() { "" } else { CLAIM_DETAILS };
        Ok(format!("\nclaims of the paper:\n{}{pointer}", claims::render(&judged, terminal::shows_details())))
    }

    fn results_folder(&self, artifact: &Artifact, grid: &Grid) -> Result<ResultsFolder> {
        let arguments = self.arguments;
        let engine = arguments.engine.request();
        let target = artifact_results_folder(artifact, grid, &arguments.overrides, engine, &self.results)?;
        if arguments.record { target.with_recording(arguments.record_noisy) } else { Ok(target) }
    }

    /// Reproduces one artifact and reports the result.
    fn make_one(&self, artifact: &Artifact, runner: &Runner<'_>) -> Result<ReproducedArtifact> {
        let Self { arguments, experiments, results, .. } = self;
        if let Some(list) = artifact.description.list {
            let screen = artifact::list(artifact, list, experiments, results, terminal::width())?;
            if !self.is_quiet() {
                println!("{}\n\n{screen}", artifact.description.title);
            }
            return Ok(ReproducedArtifact { name: artifact.name.clone(), ..ReproducedArtifact::default() });
        }
        if arguments.fetch {
            let needs = artifact.needs(arguments.profile.as_deref(), &arguments.overrides)?;
            fetch::fetch_missing(&needs, runner.env.store, arguments.events, runner.env.stop)?;
        }
        if let Some(races) = &artifact.description.races {
            let grid = artifact.grid(arguments.profile.as_deref(), &arguments.overrides)?;
            let target = self.results_folder(artifact, &grid)?;
            return search::run_race(artifact, races, &grid, &target, results, self.is_quiet(), runner);
        }
        self.make_grid(artifact, runner)
    }

    /// Reproduces an artifact that has a grid, unless it is already up to date.
    fn make_grid(&self, artifact: &Artifact, runner: &Runner<'_>) -> Result<ReproducedArtifact> {
        let arguments = self.arguments;
        let clock = Instant::now();
        let submission = arguments.frozen.as_deref().map(Submission::read).transpose()?;
        let RequestedWork { grid, gated, .. } = match &submission {
            Some(submission) => RequestedWork::from_submission(submission, Some(artifact.clone()), runner.env.store)?,
            None => {
                let profile = arguments.profile.as_deref();
                let overrides = &arguments.overrides;
                RequestedWork::from_artifact(artifact.clone(), profile, overrides, arguments.no_gate, runner.env.store)?
            }
        };
        let target = self.results_folder(artifact, &grid)?;
        check_separate(target.path(), &directories::list_inputs(&grid, runner.env.store))?;
        if let Some((file, submission)) = arguments.frozen.as_ref().zip(submission.as_ref()) {
            check_not_newer(file, submission, &target, &grid)?;
        }
        let create_check = || self.up_to_date_check(artifact, &grid, &gated, &target, runner);
        if let Some(done) =
            create_check().and_then(|(check, _)| check.cached_answer::<ArtifactReport>(&target.folders()))
        {
            return Ok(done.print_cached(artifact, &grid, &target));
        }
        if target.rejects_noisy_times() && will_measure_latency(&grid, runner) {
            check_machine_is_quiet(&artifact.name, latency::measure_idle_spread())?;
        }
        let outcome = artifact::make(artifact, &grid, &gated, &target, runner)?;
        if let Some((check, warnings)) = create_check().filter(|_| outcome.failed + outcome.unmade == 0) {
            check.store_answer(&target.folders(), &ArtifactReport::new(&outcome, warnings));
        }
        if let Some(view) = outcome.table.as_ref().filter(|_| !self.is_quiet()) {
            println!("{}", screen(view, terminal::width()));
            print!("{}", outcome.comparison);
        }
        report_outcome(&artifact.name, &grid, &outcome, clock.elapsed().as_secs_f64());
        let failures = outcome.failures.into_iter().map(|(cell, reason)| CellFailure { cell, reason });
        Ok(ReproducedArtifact {
            failed: outcome.failed,
            unmade: outcome.unmade,
            failures: failures.collect(),
            misses: outcome.misses.iter().map(ToString::to_string).collect(),
            recorded: outcome.recorded,
            files: display_paths(&outcome.files),
            ..ReproducedArtifact::new(artifact, &grid, &target)
        })
    }

    /// Returns the up-to-date check for an artifact, and warnings about its inputs. Returns `None` if dense scores must
    /// be compared with the paper ([`GateMode`]), if the plan cannot be built, or if `--record`, `--stored`,
    /// `--events`, `--frozen`, `--retime` or `--store-limit` forces the artifact to be processed again.
    fn up_to_date_check<'a>(
        &self,
        artifact: &Artifact,
        grid: &Grid,
        gated: &GateMode,
        target: &ResultsFolder,
        runner: &Runner<'a>,
    ) -> Option<(UpToDateCheck<'a>, Vec<String>)> {
        let (RunEnv { store, settings, .. }, Self { arguments, .. }) = (runner.env, self);
        let is_forced = arguments.record || arguments.stored || arguments.events || arguments.frozen.is_some();
        if is_forced || settings.retime || settings.store_limit.is_some() || matches!(gated, GateMode::Yes(Some(_))) {
            return None;
        }
        let plan = Plan::new(grid, store, settings).ok()?;
        let described = hash_paths(store, [artifact.file.path()])?;
        let gated = matches!(gated, GateMode::Yes(_));
        let inputs = json!([described, grid.resolved().ok()?, target.description(), gated, terminal::width()]);
        let check = UpToDateCheck::from_plan(
            store,
            &format!("{} in {}", artifact.name, target.path().display()),
            &plan,
            &inputs,
        )?;
        Some((check, warnings(grid, &plan.inputs.hashes_by_path())))
    }
}

/// Returns whether a run will measure latencies, because some are missing or `--retime` is given.
fn will_measure_latency(grid: &Grid, runner: &Runner<'_>) -> bool {
    let RunEnv { store, settings, .. } = runner.env;
    if grid.evaluate.latency.is_empty() || settings.retime {
        return !grid.evaluate.latency.is_empty();
    }
    let Ok(plan) = Plan::new(grid, store, settings) else { return true };
    plan.variants().any(|(_, variant)| variant.latencies.iter().any(|key| !store.has(key)))
}

/// Returns an error if repeated timings of a test computation vary too much for latencies to be recorded.
fn check_machine_is_quiet(artifact: &str, spread: TimeSpread) -> Result<()> {
    if !spread.is_noise() {
        return Ok(());
    }
    let found = 100.0 * spread.relative();
    let limit = 100.0 * MAX_RELATIVE_DEVIATION;
    Err(Error::job("the machine is too busy to record latencies")
        .at(artifact.to_owned())
        .expected(format!("latencies of a test computation within {limit:.0} % of their mean"))
        .found(format!("{found:.0} %"))
        .hint("stop other programs and retry, or add --record-noisy"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_recorded_only_on_an_idle_machine() {
        check_machine_is_quiet("tableA8", TimeSpread { mean: 10.0, deviation: 0.4 }).unwrap();
        let rejected = check_machine_is_quiet("tableA8", TimeSpread { mean: 10.0, deviation: 1.2 }).unwrap_err();
        assert_eq!(rejected.exit_code(), 4);
        let text = rejected.to_string();
        assert!(text.contains("too busy") && text.contains("12 %") && text.contains("--record-noisy"), "{text}");
    }
}
