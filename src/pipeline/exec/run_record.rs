//! Records of runs in the store. They show the progress of a run even if it crashes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::time_left::TimeLeft;
use crate::error::{Error, Result};
use crate::files::{self, owner};
use crate::grid::Grid;
use crate::machine;
use crate::model::{CPU, DeviceName};
use crate::pipeline::env::coordination::lock;
use crate::pipeline::env::event::{Event, Reporter};
use ghostlab_store::Store;

/// State of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// The process is running, or died without updating the record.
    #[default]
    Running,
    /// Every cell has a result.
    Complete,
    /// Some cells or the whole run failed.
    Failed,
    /// Interrupted by the user.
    Interrupted,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// ID under which the process is registered in the store.
    pub process: String,
    pub grid: String,
    /// Path of the grid file.
    #[serde(serialize_with = "crate::files::serialize_path::one")]
    pub file: PathBuf,
    /// Path of the results folder. Empty for a worker.
    #[serde(serialize_with = "crate::files::serialize_path::one")]
    pub results: PathBuf,
    pub command: Vec<String>,
    /// Start time in Unix seconds, on the machine's clock.
    pub started: u64,
    pub updated: u64,
    pub stage: RunState,
    pub cells: usize,
    pub complete: usize,
    /// Number of scores that the cells need.
    #[serde(default)]
    pub scores: usize,
    /// Number of stored scores.
    #[serde(default)]
    pub scored: usize,
    /// Reasons for failures, by cell name. A failure of the whole run has the key `the run`.
    pub failures: BTreeMap<String, String>,
    /// Label, number of processed tokens and total number of tokens of each running job, by job id.
    pub jobs: BTreeMap<usize, (String, usize, usize)>,
    /// Floating-point operations that remained at the start, as estimated by the cost model. `flops_done` of them are
    /// done.
    pub flops: f64,
    pub flops_done: f64,
    pub seconds: f64,
    /// Estimated number of seconds left, or `None` before any progress.
    #[serde(default)]
    pub seconds_left: Option<f64>,
    /// Engine and machine, or `None` in older records. Rates can be compared only if both are equal.
    #[serde(default)]
    pub engine: Option<String>,
    #[serde(default)]
    pub machine: Option<String>,
    /// Whether the process is a worker. Workers do not write results.
    #[serde(default)]
    pub worker: bool,
    #[serde(default)]
    pub host: String,
    #[serde(default)]
    pub scheduler_job: Option<String>,
    /// ID of the plan's [`Outline`](crate::pipeline::plan::Outline) in the store.
    #[serde(default)]
    pub plan: Option<String>,
}

impl RunRecord {
    /// Reads all records, newest first. Records that cannot be read are skipped.
    pub fn read_all(store: &Store) -> Vec<Self> {
        let files = store.records(&store.runs_dir());
        let mut records: Vec<Self> = files.iter().filter_map(|text| serde_json::from_slice(text).ok()).collect();
        records.sort_by(|a, b| (b.started, &b.process).cmp(&(a.started, &a.process)));
        records
    }

    /// Returns the rate of the newest run on an engine and machine, in floating-point operations per second. Skips runs
    /// that took at most a second. The arguments come from [`Plan::engines`](crate::pipeline::plan::Plan::engines) and
    /// [`Plan::machine`](crate::pipeline::plan::Plan::machine).
    pub fn latest_rate(store: &Store, engine: &str, machine: &str) -> Option<f64> {
        let mut computing =
            Self::read_all(store).into_iter().filter(|record| record.flops_done > 0.0 && record.seconds > 1.0);
        let comparable = computing.find(|record| {
            // Records without an engine were written when the CPU engine was the only one.
            let has_engine = match &record.engine {
                Some(name) => name == engine,
                None => engine == CPU.to_string(),
            };
            has_engine && record.machine.as_deref().is_none_or(|name| name == machine)
        });
        comparable.map(|record| record.flops_done / record.seconds)
    }
}

/// Reporter that updates the record of a run and forwards every event.
pub struct Recorder<'a> {
    inner: &'a dyn Reporter,
    store: &'a Store,
    state: Mutex<RecorderState>,
    path: PathBuf,
    write_interval: Duration,
}

struct RecorderState {
    record: RunRecord,
    time_left: TimeLeft,
    /// Start of the run, on the store's clock. `written` is the time of the last write.
    started: Duration,
    written: Duration,
}

/// Minimum interval between writes that only update the progress.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum interval between writes of a worker. It is longer because hundreds of workers may share a file server.
const WORKER_WRITE_INTERVAL: Duration = Duration::from_secs(10);

impl<'a> Recorder<'a> {
    /// Creates the record of a run.
    ///
    /// # Errors
    /// Fails if the store is not writable.
    pub fn for_run(grid: &Grid, results: &Path, store: &'a Store, inner: &'a dyn Reporter) -> Result<Self> {
        Self::begin(grid, Some(results), store, inner)
    }

    /// Creates the record of a worker.
    ///
    /// # Errors
    /// Fails if the store is not writable.
    pub fn for_worker(grid: &Grid, store: &'a Store, inner: &'a dyn Reporter) -> Result<Self> {
        Self::begin(grid, None, store, inner)
    }

    fn begin(grid: &Grid, results: Option<&Path>, store: &'a Store, inner: &'a dyn Reporter) -> Result<Self> {
        let folder = store.runs_dir();
        let record = RunRecord {
            process: store.process()?,
            grid: grid.name.clone(),
            file: files::absolute(&grid.file),
            results: results.map(files::absolute).unwrap_or_default(),
            command: machine::command_line(),
            started: unix_seconds(),
            updated: unix_seconds(),
            cells: grid.cells.len(),
            machine: Some(machine::identity(DeviceName::Cpu).to_string()),
            worker: results.is_none(),
            host: owner::host(),
            scheduler_job: machine::scheduler_job(),
            ..RunRecord::default()
        };
        static RECORDS: AtomicU64 = AtomicU64::new(0);
        let number = RECORDS.fetch_add(1, Relaxed);
        let path = folder.join(format!("{:012}-{}-{number}.json", record.started, record.process));
        let write_interval = if record.worker { WORKER_WRITE_INTERVAL } else { WRITE_INTERVAL };
        let started = store.now();
        let state = Mutex::new(RecorderState { record, time_left: TimeLeft::default(), started, written: started });
        let recorder = Self { inner, store, state, path, write_interval };
        recorder.write(&mut lock(&recorder.state))?;
        Ok(recorder)
    }

    /// Records that a run failed or was interrupted. Replaces the state that [`Event::Ended`] has set.
    pub fn record_failure(&self, error: &Error) {
        let mut state = lock(&self.state);
        let record = &mut state.record;
        record.stage = match error.kind() {
            crate::error::ErrorKind::Interrupted => RunState::Interrupted,
            _ => RunState::Failed,
        };
        if record.stage == RunState::Failed {
            record.failures.insert("the run".to_string(), error.one_line());
        }
        self.write(&mut state).ok();
    }

    fn is_due(&self, state: &RecorderState) -> bool {
        self.store.now() - state.written >= self.write_interval
    }

    fn write(&self, state: &mut RecorderState) -> Result<()> {
        state.record.updated = unix_seconds();
        state.record.seconds = (self.store.now() - state.started).as_secs_f64();
        state.written = self.store.now();
        let text = serde_json::to_vec_pretty(&state.record)
            .map_err(|error| Error::job("cannot write the run record as JSON").found(error.to_string()))?;
        self.store.put_record(&self.path, &text)
    }
}

impl Reporter for Recorder<'_> {
    fn event(&self, event: Event) {
        let mut state = lock(&self.state);
        let since = (self.store.now() - state.started).as_secs_f64();
        state.time_left.record_event(&event, since);
        (state.record.flops_done, state.record.seconds_left) =
            (state.time_left.flops_done(), state.time_left.seconds());
        let mut is_due = true;
        match &event {
            Event::Planned { cells, complete, scores, scored, flops, engine, machine, plan, work: _ } => {
                let record = &mut state.record;
                (record.engine, record.plan) = (Some(engine.clone()), Some(plan.clone()));
                record.machine = Some(machine.clone());
                (record.cells, record.complete, record.flops) = (*cells, *complete, *flops);
                (record.scores, record.scored) = (*scores, *scored);
            }
            Event::Started(job) => {
                state.record.jobs.insert(job.id, (job.label.clone(), 0, job.tokens));
            }
            Event::Advanced { job, tokens, .. } => {
                if let Some((_, done, _)) = state.record.jobs.get_mut(job) {
                    *done += tokens;
                }
                is_due = self.is_due(&state);
            }
            Event::Finished { job } => {
                state.record.jobs.remove(job);
            }
            Event::Scored { .. } => {
                state.record.scored += 1;
                is_due = self.is_due(&state);
            }
            Event::Complete { complete, .. } => {
                state.record.complete = *complete;
                is_due = self.is_due(&state);
            }
            Event::Failed { cell, reason } => {
                state.record.failures.insert(cell.clone(), reason.clone());
            }
            Event::Ended { complete, failed, interrupted } => {
                state.record.complete = *complete;
                state.record.stage = match (interrupted, failed) {
                    (true, _) => RunState::Interrupted,
                    (false, 0) => RunState::Complete,
                    (false, _) => RunState::Failed,
                };
            }
            Event::Note { .. } | Event::Kept | Event::WorkDone { .. } => is_due = false,
        }
        let is_throttled =
            self.write_interval > WRITE_INTERVAL && !matches!(event, Event::Planned { .. } | Event::Ended { .. });
        if is_due && (!is_throttled || self.is_due(&state)) {
            // Ignore write errors, which must not stop the run.
            self.write(&mut state).ok();
        }
        drop(state);
        self.inner.event(event);
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pipeline::stage;

    #[test]
    fn gpus_of_one_machine_have_separate_rates() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), stage::STORE_WORDS).unwrap();
        let [slow, fast] = ["cuda:0", "cuda:1"].map(|gpu| json!({"host": "h", "gpu": {"device": gpu}}).to_string());
        for (started, (machine, flops)) in [(&slow, 4e9), (&fast, 8e9)].into_iter().enumerate() {
            let record = json!({
                "process": "1", "grid": "g", "file": "g.yaml", "results": "r", "command": [], "started": started,
                "updated": 9, "stage": "complete", "cells": 1, "complete": 1, "scores": 1, "scored": 1, "failures": {},
                "jobs": {}, "flops": flops, "flops_done": flops, "seconds": 2.0, "engine": "candle f32 on cuda",
                "machine": machine,
            });
            store.put_file(&store.runs_dir().join(format!("{started}.json")), record.to_string().as_bytes()).unwrap();
        }
        assert_eq!(RunRecord::read_all(&store).len(), 2);
        let rate = |machine: &str| RunRecord::latest_rate(&store, "candle f32 on cuda", machine);
        assert_eq!((rate(&slow), rate(&fast), rate("another")), (Some(2e9), Some(4e9), None));
    }
}
