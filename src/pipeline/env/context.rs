//! State shared by the jobs of a run.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::backbone::Variant;
use super::coordination::{self, Backoff, lock, timing_lease};
use super::event::{Event, JobStarted};
use super::inputs::{GridInputs, Inputs};
use super::models::Models;
use super::run_env::RunEnv;
use super::run_settings::WorkerLimits;
use super::store_view::StoreView;
use crate::error::{Error, Result};
use crate::grid::Grid;
use ghostlab_store::{Key, Lease, LeaseResult, Lookup, StoredObject};

/// State shared by the jobs of a run: stored objects, loaded models, unreported scores, failures and progress.
pub(crate) struct RunContext<'a> {
    pub(crate) grid: &'a Grid,
    pub(crate) inputs: &'a Inputs,
    pub(crate) env: RunEnv<'a>,
    /// Limits of the worker, or `None` if the run is not a worker.
    pub(crate) worker_limits: Option<WorkerLimits>,
    pub(crate) store_view: &'a StoreView,
    pub(crate) models: Models<'a>,
    /// Scores that this process has stored but not yet reported, by key hash. `None` for generated answers.
    fresh_scores: Mutex<BTreeMap<String, Option<Vec<f64>>>>,
    idle: Mutex<Idle>,
    /// Failure reasons, by cell index.
    failures: Mutex<BTreeMap<usize, String>>,
    /// Indices of the cells that have no work left.
    complete_cells: Mutex<BTreeSet<usize>>,
    /// Number of jobs started so far, which is the id of the next one.
    job_count: AtomicUsize,
    /// Messages about damaged objects and contended leases that have already been reported.
    reported_messages: Mutex<BTreeSet<String>>,
}

impl<'a> Deref for RunContext<'a> {
    type Target = RunEnv<'a>;

    fn deref(&self) -> &RunEnv<'a> {
        &self.env
    }
}

/// Idle time and polling interval of a run.
struct Idle {
    /// Time of the last progress, on the store's clock.
    since: Duration,
    backoff: Backoff,
    /// Whether the idle timeout of a worker has expired.
    timed_out: bool,
}

impl<'a> RunContext<'a> {
    pub(crate) fn new(
        GridInputs { grid, inputs }: GridInputs<'a>,
        store_view: &'a StoreView,
        models: Models<'a>,
        env: RunEnv<'a>,
        worker_limits: Option<WorkerLimits>,
    ) -> Self {
        Self {
            grid,
            inputs,
            env,
            worker_limits,
            store_view,
            models,
            fresh_scores: Mutex::default(),
            idle: Mutex::new(Idle { since: env.store.now(), backoff: Backoff::default(), timed_out: false }),
            failures: Mutex::default(),
            complete_cells: Mutex::default(),
            job_count: AtomicUsize::new(0),
            reported_messages: Mutex::default(),
        }
    }

    /// Marks a cell as failed and reports it. If the cell has already failed, the first reason is kept.
    pub(crate) fn fail(&self, cell: usize, reason: String) {
        let mut failures = lock(&self.failures);
        if let Entry::Vacant(entry) = failures.entry(cell) {
            let cell = self.grid.cells[cell].to_string();
            self.reporter.event(Event::Failed { cell, reason: reason.clone() });
            entry.insert(reason);
        }
    }

    /// Marks a cell as failed, and records the failed attempt so that other workers see it. Does nothing if the cell
    /// has already failed.
    pub(crate) fn fail_and_record(&self, cell: usize, key: &Key, reason: String) {
        if !self.has_failed(cell) {
            self.store.record_attempt(key.hash(), &self.grid.cells[cell].to_string(), &reason);
        }
        self.fail(cell, reason);
    }

    /// Returns why the job with this lease name or key hash must not be retried, or `None` if it may be. A run that is
    /// not a worker may always retry.
    pub(crate) fn abandon_reason(&self, name: &str) -> Option<String> {
        self.worker_limits?.abandon_reason(&self.store.attempts(name))
    }

    pub(crate) fn has_failed(&self, cell: usize) -> bool {
        lock(&self.failures).contains_key(&cell)
    }

    pub(crate) fn failures(&self) -> BTreeMap<usize, String> {
        lock(&self.failures).clone()
    }

    pub(crate) fn mark_complete(&self, cells: impl Iterator<Item = usize>) {
        lock(&self.complete_cells).extend(cells);
    }

    /// Reports the given variants that have become complete. Skips failed cells and cells that were complete before.
    pub(crate) fn report_complete(&self, variants: &[&Variant]) {
        for variant in variants.iter().filter(|variant| !self.has_failed(variant.cell)) {
            let mut complete = lock(&self.complete_cells);
            if !complete.contains(&variant.cell)
                && variant.keys().all(|key| self.store_view.is_known_stored(key.hash()))
            {
                complete.insert(variant.cell);
                let cell = self.grid.cells[variant.cell].to_string();
                self.reporter.event(Event::Complete { cell, complete: complete.len() });
            }
        }
    }

    pub(crate) fn complete_count(&self) -> usize {
        lock(&self.complete_cells).len()
    }

    /// Records scores that this process has stored. `values` is `None` for generated answers.
    pub(crate) fn record_stored_scores(&self, key: &Key, values: Option<Vec<f64>>) {
        self.store_view.mark_intact(key);
        lock(&self.fresh_scores).insert(key.hash().to_owned(), values);
    }

    /// Returns whether to report a score. A worker reports only scores that it has computed itself.
    pub(crate) fn reports_score(&self, key: &Key) -> bool {
        self.worker_limits.is_none() || lock(&self.fresh_scores).contains_key(key.hash())
    }

    /// Returns the scores under `key` if this process has stored but not yet reported them. Returns `None` for
    /// generated answers.
    pub(crate) fn fresh_scores(&self, key: &Key) -> Option<Vec<f64>> {
        lock(&self.fresh_scores).get(key.hash())?.clone()
    }

    /// Drops the values of scores that have been reported.
    pub(crate) fn forget_scores<'k>(&self, keys: impl Iterator<Item = &'k Arc<Key>>) {
        let mut fresh_scores = lock(&self.fresh_scores);
        keys.for_each(|key| drop(fresh_scores.remove(key.hash())));
    }

    /// Reports the start of a job, and returns the id of the job.
    pub(crate) fn start(&self, work: &str, label: &str, tokens: usize, cells: usize, flops: f64) -> usize {
        let id = self.job_count.fetch_add(1, Relaxed);
        self.reporter.event(Event::Started(JobStarted {
            id,
            label: label.to_string(),
            work: work.to_owned(),
            tokens,
            cells,
            flops,
        }));
        id
    }

    /// Reports progress, and then waits while another process is measuring latencies on this machine.
    pub(crate) fn advance(&self, job: usize, tokens: usize) -> Result<()> {
        self.advance_running(job, tokens, None)
    }

    /// Reports progress like [`advance`](Self::advance). `ran` is the number of tokens that were actually processed,
    /// which is less than `tokens` if generation ended early.
    pub(crate) fn advance_running(&self, job: usize, tokens: usize, ran: Option<usize>) -> Result<()> {
        self.advance_without_waiting(job, tokens, ran)?;
        self.wait_for_latency_measurement()
    }

    /// Waits while another process is measuring latencies on this machine.
    ///
    /// # Errors
    /// Fails under the same conditions as [`coordination::lease`].
    pub(crate) fn wait_for_latency_measurement(&self) -> Result<()> {
        if self.store.with_leases(|leases| leases.contains(timing_lease()))? {
            let activity = "measuring latencies on this machine";
            coordination::lease(self.store, timing_lease(), activity, self.reporter, self.stop).map(drop)?;
        }
        Ok(())
    }

    /// Reports progress without waiting. Used by the job that measures latencies, which must not wait for itself.
    pub(crate) fn advance_without_waiting(&self, job: usize, tokens: usize, ran: Option<usize>) -> Result<()> {
        self.reset_idle();
        self.reporter.event(Event::Advanced { job, tokens, ran, elsewhere: false });
        self.check_stop()
    }

    /// Reports progress that another process or an earlier run has made on a job.
    pub(crate) fn advance_elsewhere(&self, job: usize, tokens: usize) {
        self.reporter.event(Event::Advanced { job, tokens, ran: None, elsewhere: true });
    }

    pub(crate) fn finish(&self, job: usize) {
        self.reporter.event(Event::Finished { job });
    }

    /// Reports that all work done so far has been stored.
    pub(crate) fn report_stored(&self) {
        self.reporter.event(Event::Kept);
    }

    pub(crate) fn note(&self, text: String) {
        self.reporter.event(Event::Note { text });
    }

    /// Reports a damaged object. The same message is reported only once.
    pub(crate) fn report_damage(&self, error: &Error) {
        if lock(&self.reported_messages).insert(error.one_line()) {
            self.note(format!("{}; recomputing", error.one_line()));
        }
    }

    /// Fails if the user has interrupted the run.
    pub(crate) fn check_stop(&self) -> Result<()> {
        coordination::check_stop(self.stop)
    }

    /// Reads an object and verifies it. A damaged object is reported and treated as absent.
    pub(crate) fn get(&self, key: &Key) -> Option<StoredObject> {
        match self.store.get(key) {
            Lookup::Intact(artifact) => Some(artifact),
            Lookup::Absent => None,
            Lookup::Damaged(error) => {
                self.store_view.mark_damaged(key);
                self.report_damage(&error);
                None
            }
        }
    }

    /// Acquires a lease. If another process holds it, reports that once and returns `None`.
    pub(crate) fn lease(&self, name: &str, label: &str) -> Result<Option<Lease>> {
        if self.store.is_still_leased(name) {
            return Ok(None);
        }
        match self.store.lease(name)? {
            LeaseResult::Acquired(lease) => Ok(Some(lease)),
            LeaseResult::Contended(process) => {
                let text = format!("{label}: leased by process {}", process.owner.pid);
                if lock(&self.reported_messages).insert(text.clone()) {
                    self.note(text);
                }
                Ok(None)
            }
        }
    }

    /// Records that work was done, which restarts the idle timeout.
    pub(crate) fn reset_idle(&self) {
        let mut idle = lock(&self.idle);
        (idle.since, idle.backoff) = (self.store.now(), Backoff::default());
    }

    /// Waits before the next attempt to lease work, with exponential backoff.
    ///
    /// # Errors
    /// Fails if the user interrupts the run, or if the idle timeout of the worker expires ([`Self::has_timed_out`]).
    pub(crate) fn back_off(&self) -> Result<()> {
        let mut backoff = lock(&self.idle).backoff;
        backoff.wait(self.store, self.stop)?;
        let mut idle = lock(&self.idle);
        idle.backoff = backoff;
        if self
            .worker_limits
            .and_then(|worker_limits| worker_limits.idle_exit)
            .is_some_and(|timeout| self.store.now() - idle.since >= timeout)
        {
            idle.timed_out = true;
            return Err(Error::interrupted("no work left for this worker"));
        }
        Ok(())
    }

    pub(crate) fn has_timed_out(&self) -> bool {
        lock(&self.idle).timed_out
    }
}
