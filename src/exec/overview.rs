//! How everything stands that works on a store, from the store alone: runs, plans that workers share, what failed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use super::record::{RunRecord, RunState};
use crate::plan::{Outline, OutlineProgress};
use crate::stage;
use ghostlab_store::{Attempt, Store};

/// How a store's runs stand.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Overview {
    /// Runs that are no workers, the newest first.
    pub runs: Vec<RunView>,
    /// Grids shared by workers, that of the newest worker first.
    pub plans: Vec<PlanView>,
    /// Unresolved failures that belong to no plan above.
    pub failures: Vec<FailureView>,
}

/// A run, and whether it can still be believed.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct RunView {
    /// The grid's name.
    pub grid: String,
    /// Its file.
    #[serde(serialize_with = "crate::files::shown::path")]
    #[schemars(with = "String")]
    pub file: PathBuf,
    /// The results' folder.
    #[serde(serialize_with = "crate::files::shown::path")]
    #[schemars(with = "String")]
    pub results: PathBuf,
    /// The command line.
    pub command: Vec<String>,
    /// The process in the store's terms.
    pub process: String,
    /// The machine's name.
    pub host: String,
    /// How it stands, by its own word.
    pub stage: RunState,
    /// Whether its process is gone although its record says that it runs.
    pub died: bool,
    /// When it began, in seconds since 1970 (UTC).
    pub started: u64,
    /// When it was last heard of, in seconds since 1970 (UTC).
    pub updated: u64,
    /// Cells of the grid.
    pub cells: usize,
    /// Cells that are complete.
    pub complete: usize,
    /// Scores that the cells need.
    pub scores: usize,
    /// Scores that are stored.
    pub scored: usize,
    /// Cells that failed.
    pub failures: Vec<FailedCell>,
    /// Active jobs.
    pub jobs: Vec<JobView>,
    /// Total work by the cost model, in floating-point operations.
    pub flop: f64,
    /// Completed work, in floating-point operations.
    pub done_flop: f64,
    /// How long it ran, in seconds.
    pub seconds: f64,
    /// Seconds until all is done at the speed so far; null where it does not run or nothing tells.
    pub seconds_left: Option<f64>,
    /// The engine; null in older records.
    pub engine: Option<String>,
}

/// A cell that failed, or a run as a whole.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct FailedCell {
    /// The cell, or `the run`.
    pub cell: String,
    /// Why.
    pub reason: String,
}

/// A job that is under way.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct JobView {
    /// Description of the job.
    pub label: String,
    /// Tokens of text that it has read.
    pub tokens_done: usize,
    /// Tokens of text that it reads in all.
    pub tokens: usize,
}

impl RunView {
    fn of(record: RunRecord, died: bool) -> Self {
        let RunRecord { flops, flops_done, seconds, seconds_left, stage, .. } = record;
        Self {
            died,
            stage,
            seconds,
            seconds_left: seconds_left.filter(|_| stage == RunState::Running),
            flop: flops,
            done_flop: flops_done,
            failures: record.failures.into_iter().map(|(cell, reason)| FailedCell { cell, reason }).collect(),
            jobs: JobView::all(record.jobs),
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
    fn all(jobs: BTreeMap<usize, (String, usize, usize)>) -> Vec<Self> {
        jobs.into_values().map(|(label, tokens_done, tokens)| Self { label, tokens_done, tokens }).collect()
    }
}

/// A plan that workers share.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct PlanView {
    /// The plan's id.
    pub id: String,
    /// The grid's name.
    pub grid: String,
    /// Its file.
    #[serde(serialize_with = "crate::files::shown::path")]
    #[schemars(with = "String")]
    pub file: PathBuf,
    /// The profile that is laid upon it.
    pub profile: Option<String>,
    /// The engine, with its float type; null in older records.
    pub engine: Option<String>,
    pub progress: OutlineProgress,
    /// The living ones.
    pub workers: Vec<WorkerView>,
    /// Workers that ended because nothing was left for them, or something failed.
    pub ended: usize,
    /// Workers that were asked to end before.
    pub interrupted: usize,
    /// Workers whose process is gone without a word.
    pub died: usize,
    /// Remaining work by the cost model, in floating-point operations.
    pub left_flop: f64,
    /// Floating-point operations a second of all living workers.
    pub flop_per_second: f64,
    /// Seconds until all is done at that rate; null where nothing tells.
    pub seconds_left: Option<f64>,
    /// Failed attempts.
    pub failures: Vec<FailureView>,
}

/// A worker that lives.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct WorkerView {
    /// The process in the store's terms.
    pub process: String,
    /// The machine's name.
    pub host: String,
    /// The scheduler's name of the job that it is (`45_1`, a task of an array, or `46`); null without a scheduler.
    pub scheduler_job: Option<String>,
    /// When it began, in seconds since 1970 (UTC), by its machine's clock.
    pub started: u64,
    /// When it was last heard of, in seconds since 1970 (UTC).
    pub updated: u64,
    /// Its current jobs.
    pub jobs: Vec<JobView>,
    /// Floating-point operations a second since it began; null before it did any.
    pub flop_per_second: Option<f64>,
}

/// Failed work.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct FailureView {
    /// The work, in words.
    pub what: String,
    /// How often it failed.
    pub failed: usize,
    /// Number of processes that died during it.
    pub died: usize,
    /// The last reason.
    pub reason: String,
    /// The machine where it last failed.
    pub host: String,
    /// When it last failed, in seconds since 1970 (UTC).
    pub time: u64,
}

impl Overview {
    pub fn of(store: &Store) -> Self {
        let records = RunRecord::all(store);
        let living = store.living();
        let living: BTreeSet<&str> = living.iter().map(String::as_str).collect();
        let mut attempts = store.all_attempts();
        // Failures of objects that exist by now.
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
                Outline::find(store, &id).map(|outline| plan(store, id, &outline, &members, &living, &attempts)),
            );
        }
        let reported: BTreeSet<String> =
            plans.iter().flat_map(|plan| &plan.failures).map(|failures| failures.what.clone()).collect();
        let rest = attempts.iter().map(|(name, attempt)| failure(name, attempt, None));
        let failures = rest.filter(|failure| !reported.contains(&failure.what)).collect();
        let runs = runs.into_iter().map(|record| RunView::of(record.clone(), is_dead(&living, &record))).collect();
        Self { runs, plans, failures }
    }
}

fn is_dead(living: &BTreeSet<&str>, record: &RunRecord) -> bool {
    record.stage == RunState::Running && !living.contains(&*record.process)
}

fn plan(
    store: &Store,
    id: String,
    outline: &Outline,
    workers: &[&RunRecord],
    living: &BTreeSet<&str>,
    attempts: &BTreeMap<String, Vec<Attempt>>,
) -> PlanView {
    let progress = outline.progress(store);
    let alive: Vec<&RunRecord> = workers
        .iter()
        .filter(|worker| worker.stage == RunState::Running && living.contains(&*worker.process))
        .copied()
        .collect();
    let views: Vec<WorkerView> = alive.iter().map(|worker| view(worker)).collect();
    let rate: f64 = views.iter().filter_map(|worker| worker.flop_per_second).sum();
    // How far a job is that is under way: each of its workers counts what others did.
    let under_way = |label: &str| {
        let jobs = alive.iter().flat_map(|worker| worker.jobs.values()).filter(|(job, ..)| job == label);
        jobs.map(|(_, done, tokens)| *done as f64 / (*tokens).max(1) as f64).fold(0.0, f64::max).min(1.0)
    };
    let left = progress.jobs.iter().map(|job| {
        let missing = 1.0 - job.stored as f64 / job.artifacts.max(1) as f64;
        job.flop * missing * (1.0 - under_way(&job.label))
    });
    let flops_left: f64 = left.sum();
    let attempts_here = attempts.iter().filter(|(name, _)| outline.has(name) || outline.job_of(name).is_some());
    let failures = attempts_here.map(|(name, attempt)| failure(name, attempt, Some(outline))).collect();
    PlanView {
        id,
        grid: outline.grid.clone(),
        file: outline.file.clone(),
        profile: outline.profile.clone(),
        engine: workers.iter().find_map(|worker| worker.engine.clone()),
        progress,
        ended: step_at(workers, RunState::Complete) + step_at(workers, RunState::Failed),
        interrupted: step_at(workers, RunState::Interrupted),
        died: step_at(workers, RunState::Running) - alive.len(),
        workers: views,
        left_flop: flops_left,
        flop_per_second: rate,
        seconds_left: (rate > 0.0).then(|| flops_left / rate),
        failures,
    }
}

fn step_at(workers: &[&RunRecord], stage: RunState) -> usize {
    workers.iter().filter(|worker| worker.stage == stage).count()
}

fn view(record: &RunRecord) -> WorkerView {
    let RunRecord { process, host, scheduler_job, started, updated, jobs, flops_done, seconds, .. } = record.clone();
    let flop_per_second = (flops_done > 0.0 && seconds > 0.0).then(|| flops_done / seconds);
    WorkerView { process, host, scheduler_job, started, updated, jobs: JobView::all(jobs), flop_per_second }
}

fn failure(name: &str, attempts: &[Attempt], outline: Option<&Outline>) -> FailureView {
    let died = attempts.iter().filter(|attempt| attempt.died).count();
    let named = attempts.iter().map(|attempt| attempt.what.clone()).find(|what| !what.is_empty());
    let last = attempts.last();
    FailureView {
        what: named
            .or_else(|| outline.and_then(|outline| outline.job_of(name)).map(|job| job.label.clone()))
            .unwrap_or_else(|| name.chars().take(12).collect()),
        failed: attempts.len() - died,
        died,
        reason: last.map(|attempt| attempt.reason.clone()).unwrap_or_default(),
        host: last.map(|attempt| attempt.host.clone()).unwrap_or_default(),
        time: last.map_or(0, |attempt| attempt.time),
    }
}
