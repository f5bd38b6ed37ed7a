//! How everything stands that works on a store, from the store alone: runs, plans that workers share, what failed.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::record::{RunRecord, Stage};
use crate::plan::{Outline, OutlineProgress};
use crate::store::{ArtifactKind, Attempt, Store};

/// How a store's runs stand.
#[derive(Debug, Clone, Serialize)]
pub struct Overview {
    /// Runs that are no workers, the newest first.
    pub runs: Vec<RunView>,
    /// What workers share, that of the newest worker first.
    pub plans: Vec<PlanView>,
    /// What was tried in vain and is not done, of no plan above.
    pub failures: Vec<FailureView>,
}

/// A run, and whether it can still be believed.
#[derive(Debug, Clone, Serialize)]
pub struct RunView {
    #[serde(flatten)]
    pub record: RunRecord,
    /// It says that it runs, and its process is gone.
    pub died: bool,
}

/// A plan that workers share.
#[derive(Debug, Clone, Serialize)]
pub struct PlanView {
    pub id: String,
    pub grid: String,
    #[serde(serialize_with = "crate::files::shown::path")]
    pub file: std::path::PathBuf,
    pub profile: Option<String>,
    pub progress: OutlineProgress,
    /// The living ones.
    pub workers: Vec<WorkerView>,
    /// Workers that have ended, by how.
    pub ended: usize,
    pub interrupted: usize,
    pub died: usize,
    /// What is left, by the cost model, in floating-point operations.
    pub flops_left: f64,
    /// Floating-point operations a second of all living workers.
    pub rate: f64,
    /// Seconds until all is done at that rate; none where nothing tells.
    pub seconds_left: Option<f64>,
    pub failures: Vec<FailureView>,
}

/// A worker that lives.
#[derive(Debug, Clone, Serialize)]
pub struct WorkerView {
    pub process: String,
    pub host: String,
    pub scheduler_job: Option<String>,
    /// Seconds since 1970, by its machine's clock.
    pub started: u64,
    pub updated: u64,
    /// What it is at: label, tokens done, tokens in all.
    pub jobs: Vec<(String, usize, usize)>,
    /// Floating-point operations a second since it began; none before it did any.
    pub rate: Option<f64>,
}

/// Work that was tried in vain.
#[derive(Debug, Clone, Serialize)]
pub struct FailureView {
    pub what: String,
    /// How often it failed, and how often processes died at it.
    pub failed: usize,
    pub died: usize,
    /// The last reason, where and when (seconds since 1970).
    pub reason: String,
    pub host: String,
    pub time: u64,
}

impl Overview {
    pub fn of(store: &Store) -> Self {
        let (records, living) = (RunRecord::all(store), store.living());
        let living: BTreeSet<&str> = living.iter().map(String::as_str).collect();
        let mut attempts = store.all_attempts();
        // What was made all the same.
        attempts.retain(|name, _| !ArtifactKind::ALL.iter().any(|&kind| store.has_hash(kind, name)));
        let (workers, runs): (Vec<RunRecord>, Vec<RunRecord>) = records.into_iter().partition(|of| of.worker);
        let mut ids: Vec<String> = Vec::new();
        for id in workers.iter().filter_map(|worker| worker.plan.as_ref()) {
            if !ids.contains(id) {
                ids.push(id.clone());
            }
        }
        let mut plans = Vec::new();
        for id in ids {
            let own = workers.iter().filter(|worker| worker.plan.as_ref() == Some(&id)).collect::<Vec<_>>();
            plans.extend(Outline::find(store, &id).map(|outline| plan(store, id, &outline, &own, &living, &attempts)));
        }
        let told: BTreeSet<String> = plans.iter().flat_map(|of| &of.failures).map(|of| of.what.clone()).collect();
        let rest = attempts.iter().map(|(name, of)| failure(name, of, None));
        let failures = rest.filter(|failure| !told.contains(&failure.what)).collect();
        let dead = |record: &RunRecord| record.stage == Stage::Running && !living.contains(&*record.process);
        let runs = runs.into_iter().map(|record| RunView { died: dead(&record), record }).collect();
        Self { runs, plans, failures }
    }
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
    let lives = |worker: &&&RunRecord| worker.stage == Stage::Running && living.contains(&*worker.process);
    let alive: Vec<&RunRecord> = workers.iter().filter(lives).copied().collect();
    let at = |stage| workers.iter().filter(|worker| worker.stage == stage).count();
    let views: Vec<WorkerView> = alive.iter().map(|worker| view(worker)).collect();
    let rate: f64 = views.iter().filter_map(|worker| worker.rate).sum();
    // How far a job is that is under way: each of its workers counts what others did.
    let under_way = |label: &str| {
        let jobs = alive.iter().flat_map(|worker| worker.jobs.values()).filter(|(of, ..)| of == label);
        jobs.map(|(_, done, tokens)| *done as f64 / (*tokens).max(1) as f64).fold(0.0, f64::max).min(1.0)
    };
    let left = progress.jobs.iter().map(|job| {
        let missing = 1.0 - job.stored as f64 / job.artifacts.max(1) as f64;
        job.flops * missing * (1.0 - under_way(&job.label))
    });
    let flops_left: f64 = left.sum();
    let own = attempts.iter().filter(|(name, _)| outline.has(name) || outline.job_of(name).is_some());
    let failures = own.map(|(name, of)| failure(name, of, Some(outline))).collect();
    PlanView {
        id,
        grid: outline.grid.clone(),
        file: outline.file.clone(),
        profile: outline.profile.clone(),
        progress,
        ended: at(Stage::Complete) + at(Stage::Failed),
        interrupted: at(Stage::Interrupted),
        died: at(Stage::Running) - alive.len(),
        workers: views,
        flops_left,
        rate,
        seconds_left: (rate > 0.0).then(|| flops_left / rate),
        failures,
    }
}

fn view(record: &RunRecord) -> WorkerView {
    let RunRecord { process, host, scheduler_job, started, updated, jobs, flops_done, seconds, .. } = record.clone();
    let rate = (flops_done > 0.0 && seconds > 0.0).then(|| flops_done / seconds);
    WorkerView { process, host, scheduler_job, started, updated, jobs: jobs.into_values().collect(), rate }
}

fn failure(name: &str, attempts: &[Attempt], outline: Option<&Outline>) -> FailureView {
    let died = attempts.iter().filter(|attempt| attempt.died).count();
    let named = attempts.iter().map(|attempt| attempt.what.clone()).find(|what| !what.is_empty());
    let job = || outline.and_then(|outline| outline.job_of(name)).map(|job| job.label.clone());
    let last = attempts.last();
    FailureView {
        what: named.or_else(job).unwrap_or_else(|| name.chars().take(12).collect()),
        failed: attempts.len() - died,
        died,
        reason: last.map(|attempt| attempt.reason.clone()).unwrap_or_default(),
        host: last.map(|attempt| attempt.host.clone()).unwrap_or_default(),
        time: last.map_or(0, |attempt| attempt.time),
    }
}
