//! Runs a grid: creates the plan, checks it, runs its jobs, and reads the results from the store.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use super::preflight::{self, Preflight, SurveyHook, TargetMachine, preflight};
use super::run_record::Recorder;
use super::schedule::{self, Limits, ScheduledTask, TaskHooks};
use super::stored_outcome::read_stored;
use super::worker_state::WorkerState;
use crate::error::{ErrorKind, Result};
use crate::grid::Grid;
use crate::pipeline::env::backbone::{BackbonePlan, Variant};
use crate::pipeline::env::context::RunContext;
use crate::pipeline::env::coordination::{self, JobStatus, catch_panic, lock};
use crate::pipeline::env::event::{Event, Reporter, WorkItem};
use crate::pipeline::env::models::{LoadEngine, Models, load_engine};
use crate::pipeline::env::run_env::RunEnv;
use crate::pipeline::env::run_settings::{RunSettings, WorkerLimits};
use crate::pipeline::outcome::GridOutcome;
use crate::pipeline::plan::{
    Estimate, JobCost, Outline, Plan, StoreView, batch_bytes, held_weight_bytes, weights_budget,
};
use crate::pipeline::stage::group::{Job, JobContext, Order, Programs, ResumeState};
use crate::pipeline::stage::latency;
use ghostlab_store::Store;

/// Runs grids, and records the state of each run for `ghostlab status`.
pub struct Runner<'a> {
    pub env: RunEnv<'a>,
    /// Whether to use only stored results.
    pub stored: bool,
    /// Function to call before each grid is computed.
    pub surveyed: SurveyHook<'a>,
}

impl Runner<'_> {
    /// Runs the grid. `results` is the folder in which the results will be published.
    ///
    /// # Errors
    /// Fails if the run stops early. Failed cells are reported in the outcome instead.
    pub fn run(&self, grid: &Grid, results: &Path) -> Result<GridOutcome> {
        if self.stored {
            return read_stored(grid, &self.env, self.surveyed);
        }
        let recorder = Recorder::for_run(grid, results, self.env.store, self.env.reporter)?;
        let outcome = run_surveyed(grid, RunEnv { reporter: &recorder, ..self.env }, self.surveyed);
        outcome.inspect_err(|error| recorder.record_failure(error))
    }
}

/// Computes the missing results of a grid. If a cell fails, the outcome records the reason, and the other cells
/// continue.
///
/// # Errors
/// Fails if a preflight check fails, a backbone cannot be loaded, the store is full, or `stop` is set.
pub fn run(grid: &Grid, env: RunEnv<'_>) -> Result<GridOutcome> {
    run_surveyed(grid, env, &|_, _| ())
}

/// Computes the missing results of a grid like [`run`]. Before any result is computed, calls `surveyed` with the plan
/// and the state of the store.
///
/// # Errors
/// Fails under the same conditions as [`run`].
fn run_surveyed(grid: &Grid, env: RunEnv<'_>, surveyed: SurveyHook<'_>) -> Result<GridOutcome> {
    run_all(grid, env, None, surveyed, |plan, context| {
        let outcome = GridOutcome::read(plan, env.store, &context.failures())?;
        let failed = outcome.failed_count();
        let incomplete = outcome.incomplete_count();
        Ok((outcome.cells.len() - failed - incomplete, failed, outcome))
    })
}

/// Outcome of a worker. It contains no scores, because each worker would have to read all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerOutcome {
    /// No work is left. Contains the total number of cells, how many of them are complete, and how many failed.
    Done { cells: usize, complete: usize, failed: usize },
    /// The leases of all remaining jobs are held by other workers, and the idle timeout has expired.
    IdleTimeout,
}

/// Works on a grid together with other workers until no work is left for this process.
///
/// Workers do not measure latencies, because other workers on the same machine would distort them.
///
/// # Errors
/// Fails under the same conditions as [`run`].
pub fn work(grid: &Grid, env: RunEnv<'_>, worker_limits: WorkerLimits) -> Result<WorkerOutcome> {
    // The store counts failed attempts across all workers, so a single worker does not retry.
    let settings = RunSettings { retries: 0, ..env.settings };
    run_all(grid, RunEnv { settings, ..env }, Some(worker_limits), &|_, _| (), |_, context| {
        let complete = context.complete_count();
        let failed = context.failures().len();
        if context.has_timed_out() {
            return Ok((complete, 0, WorkerOutcome::IdleTimeout));
        }
        Ok((complete, failed, WorkerOutcome::Done { cells: grid.cells.len(), complete, failed }))
    })
}

/// Runs the jobs whose results are missing. Calls `surveyed` before the first job and `end` after the last one. `end`
/// returns the number of complete cells, the number of failed cells, and the value to return.
fn run_all<T>(
    grid: &Grid,
    env: RunEnv<'_>,
    worker_limits: Option<WorkerLimits>,
    surveyed: SurveyHook<'_>,
    end: impl FnOnce(&Plan<'_>, &RunContext<'_>) -> Result<(usize, usize, T)>,
) -> Result<T> {
    let RunEnv { settings, store, reporter, stop } = env;
    let plan = Plan::new(grid, store, settings)?;
    preflight::report_warnings(grid, &plan, reporter);
    let older_objects = if worker_limits.is_none() { store.count_older_objects() } else { 0 };
    if older_objects > 0 {
        let text = format!(
            "{older_objects} stored objects have an older format and are unused; `ghostlab cache ls` lists them"
        );
        reporter.event(Event::Note { text });
    }
    reserve(&plan, store, reporter, stop)?;
    if settings.retime {
        reporter.event(Event::Note { text: latency::describe_retime(&plan.backbones) });
    }
    let Preflight { state, estimate } = preflight(&plan, &env, TargetMachine::Local, surveyed)?;
    let complete: Vec<usize> =
        plan.variants().filter(|(_, variant)| state.is_complete(variant)).map(|(_, variant)| variant.cell).collect();
    if complete.len() < grid.cells.len() {
        preflight::check_kernels(&plan)?;
    }
    preflight::enforce_store_limit(estimate.incoming(), &plan, &env)?;
    let scores = || plan.variants().flat_map(|(_, variant)| &variant.scores);
    reporter.event(Event::Planned {
        cells: grid.cells.len(),
        complete: complete.len(),
        scores: scores().count(),
        scored: scores().filter(|key| state.has(key)).count(),
        flops: estimate.cost.left,
        work: remaining_work(&plan, &estimate),
        engine: plan.engines(),
        machine: plan.machine(),
        plan: Outline::new(&plan, &estimate.jobs).save(store),
    });
    let context = new_context(&plan, &state, env, worker_limits, &load_engine);
    context.mark_complete(complete.into_iter());
    state.damage_errors().for_each(|error| context.report_damage(error));
    let mut result = context.check_stop().and_then(|()| execute(&plan, &context, &state));
    if context.has_timed_out() {
        result = Ok(());
    } else if result.is_ok() {
        preflight::enforce_store_limit(0, &plan, &env)?;
    }
    let ended = result.and_then(|()| end(&plan, &context));
    let (complete, failed, interrupted) = match &ended {
        Ok((complete, failed, _)) => (*complete, *failed, false),
        Err(error) => (context.complete_count(), context.failures().len(), error.kind() == ErrorKind::Interrupted),
    };
    reporter.event(Event::Ended { complete, failed, interrupted });
    ended.map(|(_, _, ended)| ended)
}

fn remaining_work(plan: &Plan<'_>, estimate: &Estimate) -> Vec<WorkItem> {
    let left = estimate.jobs.iter().filter(|cost| cost.cost.left > 0.0);
    left.map(|JobCost { backbone, job, cost }| {
        let backbone = &plan.backbones[*backbone];
        let name = job.lease_name(backbone);
        let kind = job.group.kind;
        WorkItem { name, backbone: backbone.name.clone(), kind, flops: cost.left }
    })
    .collect()
}

/// Reserves the objects that the run will use, and waits for a concurrent garbage collection to finish. After that, no
/// other process deletes these objects.
fn reserve(plan: &Plan<'_>, store: &Store, reporter: &dyn Reporter, stop: &AtomicBool) -> Result<()> {
    store.reserve(plan.keys().map(|key| key.hash()))?;
    coordination::lease(store, Store::GC_LEASE, "cleaning up the store", reporter, stop).map(drop)
}

/// Creates the state of a run. The settings limit the memory for weights.
pub(super) fn new_context<'a>(
    plan: &'a Plan<'_>,
    state: &'a StoreView,
    env: RunEnv<'a>,
    worker_limits: Option<WorkerLimits>,
    load: &'a LoadEngine<'a>,
) -> RunContext<'a> {
    let memory = env.settings.memory_bytes();
    // Computing a budget is slow, because it reads stored objects.
    let budgets: Vec<(&BackbonePlan, u64)> =
        plan.backbones.iter().map(|backbone| (backbone, weights_budget(plan, backbone, state, memory))).collect();
    let unquantized =
        budgets.iter().filter_map(|&(backbone, budget)| Some((&*backbone.unquantized.as_ref()?.name, budget)));
    let budgets = unquantized.chain(budgets.iter().map(|&(backbone, budget)| (&*backbone.name, budget))).collect();
    let models = Models::new(&plan.inputs, budgets, env.settings.device_memory, load);
    RunContext::new(plan.grid_inputs(), state, models, env, worker_limits)
}

fn execute(plan: &Plan<'_>, context: &RunContext<'_>, state: &StoreView) -> Result<()> {
    let memory = context.settings.memory_bytes();
    let sizes: Vec<u64> =
        plan.backbones.iter().map(|backbone| held_weight_bytes(plan, backbone, state, memory)).collect();
    let programs = &Programs::default();
    let job_context = JobContext { run: context, programs };
    let hooks =
        GridTaskHooks { plan, job_context, worker_state: context.worker_limits.map(|_| WorkerState::default()) };
    // Jobs that must run alone come last, one at a time.
    for alone in [false, true] {
        let tasks = incomplete_tasks(plan, job_context, state, alone);
        if let (Some(_), Some(Order::Alone(reason))) = (context.worker_limits, tasks.first().map(|task| task.order)) {
            context.note(reason.to_owned());
            break;
        }
        let limits = Limits { tasks: if alone { 1 } else { context.settings.jobs }, memory };
        schedule::run(&tasks, &sizes, limits, &hooks)?;
    }
    Ok(())
}

/// Returns the incomplete jobs: those that must run alone if `alone` is set, or else those that may run in parallel.
fn incomplete_tasks<'a>(
    plan: &'a Plan<'a>,
    job_context: JobContext<'a>,
    state: &'a StoreView,
    alone: bool,
) -> Vec<ScheduledTask<'a>> {
    let mut tasks: Vec<ScheduledTask<'_>> = Vec::new();
    for (model, backbone) in plan.backbones.iter().enumerate() {
        let batch = batch_bytes(plan, backbone, state, job_context.run.settings.memory_bytes());
        let mut first_tasks = Vec::new();
        for job in backbone.jobs().filter(|job| job.is_alone() == alone) {
            let mut missing = state.missing_variants(backbone, job);
            if missing.is_empty() {
                continue;
            }
            let bytes = if alone { 0 } else { batch + (job.group.bytes)(backbone, &missing) };
            if alone {
                missing = backbone.variants.iter().collect();
            }
            let order = job.group.order;
            let dependencies = if order == Order::First { Vec::new() } else { first_tasks.clone() };
            if order == Order::First {
                first_tasks.push(tasks.len());
            }
            let resume_state = Mutex::new(None);
            let lease_name = job.lease_name(backbone);
            let run = Box::new(move || attempt(plan, &job_context, backbone, job, &missing, &mut lock(&resume_state)));
            tasks.push(ScheduledTask { dependencies, model, bytes, lease_name, order, run });
        }
    }
    tasks
}

struct GridTaskHooks<'a> {
    plan: &'a Plan<'a>,
    job_context: JobContext<'a>,
    /// Coordination with other workers, or `None` if the run is not a worker.
    worker_state: Option<WorkerState>,
}

impl TaskHooks for GridTaskHooks<'_> {
    fn unload_model(&self, model: usize) {
        let backbone = &self.plan.backbones[model];
        self.job_context.run.models.unload(backbone);
        if let Some(unquantized) = backbone.unquantized.as_deref()
            && !self.plan.backbones.iter().any(|other| other.name == unquantized.name)
        {
            self.job_context.run.models.unload(unquantized);
        }
        self.job_context.programs.unload(&self.plan.backbones[model]);
    }

    fn choose_model(&self, models: &[usize]) -> usize {
        match &self.worker_state {
            Some(worker_state) => worker_state.seat.choose(self.plan, models, self.job_context.run.store),
            None => models.first().copied().unwrap_or_default(),
        }
    }

    fn is_leased_elsewhere(&self, task: &ScheduledTask<'_>) -> bool {
        self.worker_state
            .as_ref()
            .is_some_and(|worker_state| worker_state.seen_leases.is_leased_elsewhere(task, self.job_context.run.store))
    }

    fn idle(&self) -> Result<()> {
        self.job_context.run.back_off()
    }
}

/// Runs the work of a job that no other process has leased, and reports which cells have become complete.
pub(super) fn attempt(
    plan: &Plan<'_>,
    job_context: &JobContext<'_>,
    backbone: &BackbonePlan,
    job: Job,
    variants: &[&Variant],
    resume_state: &mut ResumeState,
) -> Result<JobStatus> {
    let context = job_context.run;
    let index = job.index;
    let status =
        run_with_retries(context, variants, || (job.group.run)(job_context, backbone, index, variants, resume_state))?;
    if status == JobStatus::Contended {
        return Ok(status);
    }
    context.reporter.event(Event::WorkDone { work: job.lease_name(backbone) });
    if job.group.order == Order::First {
        // Free disk space now, because the next job may write as much as this one.
        preflight::enforce_store_limit(0, plan, &context.env)?;
    }
    if status == JobStatus::Done {
        (job.group.report)(context, backbone, index, variants);
    }
    context.report_complete(variants);
    Ok(JobStatus::Done)
}

/// Runs a job, and retries it up to the limit in the settings. If the last attempt fails, marks the cells of the job as
/// failed. A worker leaves the job to the next worker instead.
///
/// # Errors
/// Fails if the run is interrupted or an input is invalid or missing, because such errors affect all jobs.
fn run_with_retries(
    context: &RunContext<'_>,
    variants: &[&Variant],
    mut job: impl FnMut() -> Result<JobStatus>,
) -> Result<JobStatus> {
    context.check_stop()?;
    let fail = |reason: String| {
        variants.iter().for_each(|variant| context.fail(variant.cell, reason.clone()));
        Ok(JobStatus::Done)
    };
    for retries_left in (0..=context.settings.retries).rev() {
        let error = match catch_panic(&mut job) {
            Ok(JobStatus::Abandoned(reason)) => return fail(reason),
            Ok(status) => return Ok(status),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::BadInput) => return Err(error),
            Err(error) => error,
        };
        if retries_left > 0 {
            context.note(format!("{}; retrying (at most {retries_left} more)", error.one_line()));
            continue;
        }
        match error.kind() {
            ErrorKind::Missing => return Err(error),
            // The failed attempt is recorded in the store. The next worker decides whether to retry.
            ErrorKind::Job if context.worker_limits.is_some() => {
                context.note(error.one_line());
                return Ok(JobStatus::Contended);
            }
            _ => return fail(error.one_line()),
        }
    }
    Ok(JobStatus::Done)
}

#[cfg(test)]
mod play_test;
