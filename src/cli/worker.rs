//! `ghostlab worker GRID`: runs jobs of a grid together with other workers on the same store.

use std::cell::Cell;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::answer::write_commands::WorkerAnswer;
use super::answer::{self, Answer};
use super::grid_args::{GridArgs, LimitArgs};
use super::requested_work::{RequestedWork, with_job_end};
use super::terminal::format_seconds;
use super::{progress, stop};
use crate::artifact;
use crate::cluster;
use crate::error::{Error, ErrorKind, Result};
use crate::grid::Grid;
use crate::pipeline::exec::{self, GridOutcome, Recorder, RunEnv, RunSettings, WorkerLimits, WorkerOutcome};
use crate::quantity::{MAX_SECONDS, pluralize};
use crate::search::{SearchEnv, search, split_searches};

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    grid_args: GridArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// Exit after this many seconds without work, even if other workers still run.
    ///
    /// By default, a worker waits until all jobs are done, and takes over abandoned ones.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=MAX_SECONDS))]
    idle_exit: Option<u64>,
    /// Evaluate pruned models even if the dense one does not match the paper.
    #[arg(long)]
    no_gate: bool,
    /// Run as a Slurm job: on USR1, ask `scontrol` to requeue the job before exiting.
    #[arg(long)]
    slurm: bool,
    /// Print events as JSON lines instead of progress.
    #[arg(long, conflicts_with = "json")]
    events: bool,
}

/// Environment and limits of a worker.
struct WorkerContext<'a> {
    env: RunEnv<'a>,
    worker_limits: WorkerLimits,
    /// Whether the worker has to exit because its idle timeout expired.
    timed_out: Cell<bool>,
}

impl WorkerContext<'_> {
    fn work(&self, settings: RunSettings, grid: &Grid) -> Result<WorkerOutcome> {
        let recorder = Recorder::for_worker(grid, self.env.store, self.env.reporter)?;
        let env = RunEnv { settings, reporter: &recorder, ..self.env };
        let worked = exec::work(grid, env, self.worker_limits);
        worked.inspect_err(|error| recorder.record_failure(error))
    }

    /// Runs a grid together with other workers, and returns its stored results. Used for the dense backbones of an
    /// artifact's gate and for search rounds. The store limit does not apply, because eviction could remove objects
    /// that later grids need.
    fn run_and_read(&self, grid: &Grid) -> Result<GridOutcome> {
        let settings = RunSettings { store_limit: None, ..self.env.settings };
        if self.work(settings, grid)? == WorkerOutcome::IdleTimeout {
            self.timed_out.set(true);
            return Err(Error::interrupted("no work left for this worker"));
        }
        exec::read_stored(grid, &RunEnv { settings, reporter: &(), ..self.env }, &|_, _| ())
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    with_job_end(Some(arguments.grid_args.file()), || run_worker(arguments))
}

/// Runs the worker and returns the exit code.
fn run_worker(arguments: &Arguments) -> Result<u8> {
    let clock = Instant::now();
    arguments.grid_args.threads.start()?;
    let signals = stop::Signals::watch()?;
    let worked = match run_jobs(arguments, &signals) {
        Err(error) if error.kind() == ErrorKind::Interrupted => None,
        worked => Some(worked?),
    };
    let seconds = clock.elapsed().as_secs_f64();
    let spent = format_seconds(seconds);
    match worked {
        Some(worked) => note!("{} after {spent}", format_outcome(worked)),
        None => note!("stopped after {spent}; finished work is stored and leases are released"),
    }
    if !arguments.events {
        answer::print_answer(WorkerAnswer::new(worked, seconds), Answer::Worker, |_| {})?;
    }
    if worked.is_some() {
        return Ok(0);
    }
    if signals.is_near_time_limit() && !signals.has_stored() {
        note!("nothing was stored: the time limit is too short for the first batch; use a longer time limit");
    }
    if arguments.slurm && signals.is_near_time_limit() {
        match cluster::scontrol_requeue() {
            Ok(()) => note!("requeued by Slurm"),
            Err(reason) => eprintln!("cannot requeue the job: {reason}"),
        }
    }
    Ok(stop::EXIT_TEMPFAIL)
}

/// Runs the worker's jobs and returns the outcome. The store is closed on return, which releases the worker's leases.
fn run_jobs(arguments: &Arguments, signals: &stop::Signals) -> Result<WorkerOutcome> {
    let store = arguments.grid_args.open_store()?;
    let work = RequestedWork::new(&arguments.grid_args, arguments.no_gate, &store)?;
    let reporter = progress::reporter(arguments.events);
    let reporter = stop::WatchedReporter { inner: &*reporter, signals };
    let worker_limits =
        WorkerLimits { retries: arguments.limits.retries, idle_exit: arguments.idle_exit.map(Duration::from_secs) };
    let settings = arguments.limits.settings(arguments.grid_args.engine.request());
    let env = RunEnv { store: &store, settings, reporter: &reporter, stop: &signals.stop };
    let context = WorkerContext { env, worker_limits, timed_out: Cell::new(false) };
    let main_grid = work
        .artifact
        .as_ref()
        .map(|artifact| {
            artifact::run_gate(&artifact.description, &work.grid, &work.gated, &|dense| context.run_and_read(dense))
        })
        .transpose();
    if context.timed_out.get() {
        return Ok(WorkerOutcome::IdleTimeout);
    }
    let main_grid = main_grid?.map_or(work.grid.clone(), |(_, main_grid)| main_grid);
    if main_grid.search.is_some() {
        return work_on_search(&context, &main_grid);
    }
    context.work(settings, &main_grid)
}

/// Runs the jobs of each search round together with other workers. All workers read the same scores, so they agree on
/// the next round.
fn work_on_search(context: &WorkerContext<'_>, grid: &Grid) -> Result<WorkerOutcome> {
    let env = SearchEnv { run_env: context.env, run: &|grid| context.run_and_read(grid), can_time: false };
    let mut cells = 0;
    for one in split_searches(grid) {
        match search(&one, &env) {
            Ok(found) => cells += found.candidates.len(),
            Err(_) if context.timed_out.get() => return Ok(WorkerOutcome::IdleTimeout),
            Err(error) => return Err(error),
        }
    }
    Ok(WorkerOutcome::Done { cells, complete: cells, failed: 0 })
}

fn format_outcome(worked: WorkerOutcome) -> String {
    match worked {
        WorkerOutcome::IdleTimeout => "all remaining jobs are leased by other workers; exiting".to_owned(),
        WorkerOutcome::Done { cells: all, failed: 0, complete } if complete == all => {
            format!("all {} complete", pluralize(all, "cell"))
        }
        // The missing objects are latencies or belong to cells that failed on another worker.
        WorkerOutcome::Done { cells: all, failed: 0, complete } => {
            format!(
                "{} of {} need objects that workers do not compute (see `ghostlab status`); exiting",
                all - complete,
                pluralize(all, "cell")
            )
        }
        WorkerOutcome::Done { cells: all, failed, .. } => {
            format!("{failed} of {} have no result (see `ghostlab status`); exiting", pluralize(all, "cell"))
        }
    }
}
