//! Overview of all runs and workers that use a store. It is based only on data in the store.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use super::run_record::{RunRecord, RunState};
use crate::pipeline::plan::{Outline, OutlineProgress};
use crate::pipeline::stage;
use ghostlab_store::{Attempt, Store};

/// Overview of a store's runs.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Overview {
    /// Runs that are not workers, newest first.
    pub runs: Vec<RunView>,
    /// Plans shared by workers, most recently joined first.
    pub plans: Vec<PlanView>,
    /// Unresolved failures that do not belong to any of the plans.
    pub failures: Vec<FailureView>,
}

/// State of a run, and whether its process is still alive.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct RunView {
    /// Name of the grid.
    pub grid: String,
    /// Grid file.
    #[serde(serialize_with = "crate::files::serialize_path::one")]
    #[schemars(with = "String")]
    pub file: PathBuf,
    /// Results folder.
    #[serde(serialize_with = "crate::files::serialize_path::one")]
    #[schemars(with = "String")]
    pub results: PathBuf,
    /// Command line of the run.
    pub command: Vec<String>,
    /// Process ID used in the store.
    pub process: String,
    /// Host name.
    pub host: String,
    /// State according to the run's record.
    pub stage: RunState,
    /// Whether the process died although its record says that it is running.
    pub died: bool,
    /// Start time, in Unix seconds (UTC).
    pub started: u64,
    /// Time of the last update, in Unix seconds (UTC).
    pub updated: u64,
    /// Number of cells in the grid.
    pub cells: usize,
    /// Number of complete cells.
    pub complete: usize,
    /// Number of scores needed for all cells.
    pub scores: usize,
    /// Number of stored scores.
    pub scored: usize,
    /// Cells that failed.
    pub failures: Vec<FailedCell>,
    /// Running jobs.
    pub jobs: Vec<JobView>,
    /// Total work estimated by the cost model, in floating-point operations.
    pub flop: f64,
    /// Completed work, in floating-point operations.
    pub done_flop: f64,
    /// Elapsed time in seconds.
    pub seconds: f64,
    /// Estimated remaining time in seconds, at the current rate; null if the run has stopped or the rate is unknown.
    pub seconds_left: Option<f64>,
    /// Engine; null in older records.
    pub engine: Option<String>,
}

/// Failed cell, or failure of the whole run.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct FailedCell {
    /// Cell name, or `the run` if the whole run failed.
    pub cell: String,
    /// Reason for the failure.
    pub reason: String,
}

/// Running job.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct JobView {
    /// Description of the job.
    pub label: String,
    /// Number of tokens processed so far.
    pub tokens_done: usize,
    /// Total number of tokens to process.
    pub tokens: usize,
}

impl RunView {
    fn new(record: RunRecord, died: bool) -> Self {
        let RunRecord { flops, flops_done, seconds, seconds_left, stage, .. } = record;
        Self {
            died,
            stage,
            seconds,
            seconds_left: seconds_left.filter(|_| stage == RunState::Running),
            flop: flops,
            done_flop: flops_done,
            failures: record.failures.into_iter().map(|(cell, reason)| FailedCell { cell, reason }).collect(),
            jobs: JobView::from_jobs(record.jobs),
            grid: record.grid,
            file: record.file,
            results: record.results,
            command: record.command,
            process: record.process,
            host: record.host,
            started: record.started,
            updated: record.updated,
            cells: record.cells,
            complete: record.complete,
            scores: record.scores,
            scored: record.scored,
            engine: record.engine,
        }
    }
}

impl JobView {
    fn from_jobs(jobs: BTreeMap<usize, (String, usize, usize)>) -> Vec<Self> {
        jobs.into_values().map(|(label, tokens_done, tokens)| Self { label, tokens_done, tokens }).collect()
    }
}

/// Plan that workers share.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct PlanView {
    /// ID of the plan.
    pub id: String,
    /// Name of the grid.
    pub grid: String,
    /// Grid file.
    #[serde(serialize_with = "crate::files::serialize_path::one")]
    #[schemars(with = "String")]
    pub file: PathBuf,
    /// Profile applied to the grid; null if there is none.
    pub profile: Option<String>,
    /// Engine and float type; null in older records.
    pub engine: Option<String>,
    pub progress: OutlineProgress,
    /// Running workers.
    pub workers: Vec<WorkerView>,
    /// Number of workers that finished or failed.
    pub ended: usize,
    /// Number of workers that were interrupted.
    pub interrupted: usize,
    /// Number of workers that died without a final record.
    pub died: usize,
    /// Remaining work estimated by the cost model, in floating-point operations.
    pub left_flop: f64,
    /// Combined rate of all running workers, in floating-point operations per second.
    pub flop_per_second: f64,
    /// Estimated remaining time in seconds, at that rate; null if unknown.
    pub seconds_left: Option<f64>,
    /// Failed jobs and cells of the plan.
    pub failures: Vec<FailureView>,
}

/// Running worker.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct WorkerView {
    /// Process ID used in the store.
    pub process: String,
    /// Host name.
    pub host: String,
    /// Scheduler job ID (`46`, or `45_1` for an array task); null if the worker is not a scheduler job.
    pub scheduler_job: Option<String>,
    /// Start time in Unix seconds, according to the worker's clock.
    pub started: u64,
    /// Time of the last update, in Unix seconds (UTC).
    pub updated: u64,
    /// Running jobs.
    pub jobs: Vec<JobView>,
    /// Average rate since the start, in floating-point operations per second; null until there is progress.
    pub flop_per_second: Option<f64>,
}

/// Failed job or cell.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct FailureView {
    /// Label of the job, or name of the cell.
    pub what: String,
    /// Number of failed attempts.
    pub failed: usize,
    /// Number of processes that died during their attempt.
    pub died: usize,
    /// Reason for the last failure.
    pub reason: String,
    /// Host of the last failure.
    pub host: String,
    /// Time of the last failure, in Unix seconds (UTC).
    pub time: u64,
}

impl Overview {
    /// Reads the run records, plan outlines and failed attempts in a store.
    pub fn read(store: &Store) -> Self {
        let records = RunRecord::read_all(store);
        let live_process_ids = store.live_process_ids();
        let live_process_ids: BTreeSet<&str> = live_process_ids.iter().map(String::as_str).collect();
        let mut attempts = store.all_attempts();
        // Ignore failed attempts to compute objects that have been stored since.
        attempts.retain(|name, _| !stage::KINDS.iter().any(|&kind| store.has_hash(kind, name)));
        let (workers, runs): (Vec<RunRecord>, Vec<RunRecord>) = records.into_iter().partition(|record| record.worker);
        let mut ids: Vec<String> = Vec::new();
        for id in workers.iter().filter_map(|worker| worker.plan.as_ref()) {
            if !ids.contains(id) {
                ids.push(id.clone());
            }
        }
        let mut plans = Vec::new();
        for id in ids {
            let members = workers.iter().filter(|worker| worker.plan.as_ref() == Some(&id)).collect::<Vec<_>>();
            plans.extend(
                Outline::find(store, &id)
                    .map(|outline| build_plan_view(store, id, &outline, &members, &live_process_ids, &attempts)),
            );
        }
        let reported: BTreeSet<String> =
            plans.iter().flat_map(|plan| &plan.failures).map(|failures| failures.what.clone()).collect();
        let all_failures = attempts.iter().map(|(name, attempts)| build_failure_view(name, attempts, None));
        let failures = all_failures.filter(|failure| !reported.contains(&failure.what)).collect();
        let runs = runs.into_iter().map(|record| {
            let died = record.stage == RunState::Running && !live_process_ids.contains(&*record.process);
            RunView::new(record, died)
        });
        let runs = runs.collect();
        Self { runs, plans, failures }
    }
}

fn build_plan_view(
    store: &Store,
    id: String,
    outline: &Outline,
    workers: &[&RunRecord],
    live_process_ids: &BTreeSet<&str>,
    attempts: &BTreeMap<String, Vec<Attempt>>,
) -> PlanView {
    let progress = outline.progress(store);
    let alive: Vec<&RunRecord> = workers
        .iter()
        .filter(|worker| worker.stage == RunState::Running && live_process_ids.contains(&*worker.process))
        .copied()
        .collect();
    let views: Vec<WorkerView> = alive.iter().map(|worker| build_worker_view(worker)).collect();
    let rate: f64 = views.iter().filter_map(|worker| worker.flop_per_second).sum();
    // Fraction of a running job that is done. Each worker counts the progress of all workers, so the maximum is used.
    let fraction_done = |label: &str| {
        let jobs = alive.iter().flat_map(|worker| worker.jobs.values()).filter(|(job, ..)| job == label);
        jobs.map(|(_, done, tokens)| *done as f64 / (*tokens).max(1) as f64).fold(0.0, f64::max).min(1.0)
    };
    let left = progress.jobs.iter().map(|job| {
        let missing = 1.0 - job.stored as f64 / job.artifacts.max(1) as f64;
        job.flop * missing * (1.0 - fraction_done(&job.label))
    });
    let flops_left: f64 = left.sum();
    let plan_attempts = attempts.iter().filter(|(name, _)| outline.has(name) || outline.find_job(name).is_some());
    let failures = plan_attempts.map(|(name, attempts)| build_failure_view(name, attempts, Some(outline))).collect();
    PlanView {
        id,
        grid: outline.grid.clone(),
        file: outline.file.clone(),
        profile: outline.profile.clone(),
        engine: workers.iter().find_map(|worker| worker.engine.clone()),
        progress,
        ended: count_in_state(workers, RunState::Complete) + count_in_state(workers, RunState::Failed),
        interrupted: count_in_state(workers, RunState::Interrupted),
        died: count_in_state(workers, RunState::Running) - alive.len(),
        workers: views,
        left_flop: flops_left,
        flop_per_second: rate,
        seconds_left: (rate > 0.0).then(|| flops_left / rate),
        failures,
    }
}

fn count_in_state(workers: &[&RunRecord], stage: RunState) -> usize {
    workers.iter().filter(|worker| worker.stage == stage).count()
}

fn build_worker_view(record: &RunRecord) -> WorkerView {
    let RunRecord { process, host, scheduler_job, started, updated, jobs, flops_done, seconds, .. } = record.clone();
    let flop_per_second = (flops_done > 0.0 && seconds > 0.0).then(|| flops_done / seconds);
    WorkerView { process, host, scheduler_job, started, updated, jobs: JobView::from_jobs(jobs), flop_per_second }
}

fn build_failure_view(name: &str, attempts: &[Attempt], outline: Option<&Outline>) -> FailureView {
    let died = attempts.iter().filter(|attempt| attempt.died).count();
    let named = attempts.iter().map(|attempt| attempt.what.clone()).find(|what| !what.is_empty());
    let last = attempts.last();
    FailureView {
        what: named
            .or_else(|| outline.and_then(|outline| outline.find_job(name)).map(|job| job.label.clone()))
            .unwrap_or_else(|| name.chars().take(12).collect()),
        failed: attempts.len() - died,
        died,
        reason: last.map(|attempt| attempt.reason.clone()).unwrap_or_default(),
        host: last.map(|attempt| attempt.host.clone()).unwrap_or_default(),
        time: last.map_or(0, |attempt| attempt.time),
    }
}
