//! What all jobs of a run share.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use super::backbone::{Subject, Variant};
use super::event::{Event, JobStarted, Reporter};
use super::inputs::{Given, Inputs};
use super::known_objects::KnownObjects;
use super::limits::WorkerLimits;
use super::lock::lock;
use super::settings::RunSettings;
use super::timing_lock;
use super::wait::{self, Pause};
use crate::error::{Error, Result};
use crate::grid::Grid;
use ghostlab_store::{ClaimResult, Key, Lease, Lookup, Store, StoredObject};

/// What a run is given, alone or as one of several workers.
#[derive(Clone, Copy)]
pub(crate) struct Conditions<'a> {
    pub(crate) store: &'a Store,
    pub(crate) settings: RunSettings,
    pub(crate) reporter: &'a dyn Reporter,
    pub(crate) stop: &'a AtomicBool,
    /// Of a worker.
    pub(crate) terms: Option<WorkerLimits>,
}

/// A run at work.
pub(crate) struct Context<'a> {
    pub(crate) grid: &'a Grid,
    pub(crate) inputs: &'a Inputs,
    pub(crate) store: &'a Store,
    pub(crate) settings: RunSettings,
    pub(crate) reporter: &'a dyn Reporter,
    pub(crate) stop: &'a AtomicBool,
    /// Of a worker.
    pub(crate) terms: Option<WorkerLimits>,
    pub(crate) known_objects: KnownObjects,
    /// The hashes of the scores that were stored here.
    scores: Mutex<BTreeSet<String>>,
    idle: Mutex<Idle>,
    /// Why cells have no result, by their place in the grid.
    failures: Mutex<BTreeMap<usize, String>>,
    /// The cells that nothing is left to do for.
    complete: Mutex<BTreeSet<usize>>,
    jobs: AtomicUsize,
    /// Damage that was told of.
    told: Mutex<BTreeSet<String>>,
}

/// Since when nothing was done here, and how long to wait before the next look.
struct Idle {
    /// By the store's clock.
    since: Duration,
    pause: Pause,
    /// The patience of a worker has ended.
    left: bool,
}

impl<'a> Context<'a> {
    pub(crate) fn new(
        Given { grid, inputs }: Given<'a>,
        known_objects: KnownObjects,
        Conditions { store, settings, reporter, stop, terms }: Conditions<'a>,
    ) -> Self {
        Self {
            grid,
            inputs,
            store,
            settings,
            reporter,
            stop,
            terms,
            known_objects,
            scores: Mutex::default(),
            idle: Mutex::new(Idle { since: store.now(), pause: Pause::default(), left: false }),
            failures: Mutex::default(),
            complete: Mutex::default(),
            jobs: AtomicUsize::new(0),
            told: Mutex::default(),
        }
    }

    /// Notes that a cell has no result. The first reason stays.
    pub(crate) fn fail(&self, cell: usize, reason: String) {
        let mut failures = lock(&self.failures);
        if let Entry::Vacant(free) = failures.entry(cell) {
            let cell = self.grid.cells[cell].to_string();
            self.reporter.event(Event::Failed { cell, reason: reason.clone() });
            free.insert(reason);
        }
    }

    /// The same of a cell for which an artifact could not be made; others are told of the attempt.
    pub(crate) fn fail_at(&self, cell: usize, key: &Key, reason: String) {
        if !self.failed(cell) {
            self.store.note_attempt(key.hash(), &self.grid.cells[cell].to_string(), &reason);
        }
        self.fail(cell, reason);
    }

    /// Why nobody is to try a piece of work again, by the name of its claim or the hash of its artifact. A run by itself
    /// tries again whatever was.
    pub(crate) fn given_up(&self, name: &str) -> Option<String> {
        self.terms?.given_up(&self.store.attempts(name))
    }

    pub(crate) fn failed(&self, cell: usize) -> bool {
        lock(&self.failures).contains_key(&cell)
    }

    pub(crate) fn failures(&self) -> BTreeMap<usize, String> {
        lock(&self.failures).clone()
    }

    /// Notes the cells that are complete before the run begins.
    pub(crate) fn found_complete(&self, cells: impl Iterator<Item = usize>) {
        lock(&self.complete).extend(cells);
    }

    /// Tells which of some variants are complete now and were not before.
    pub(crate) fn look_complete(&self, variants: &[&Variant]) {
        for variant in variants.iter().filter(|variant| !self.failed(variant.cell)) {
            let mut complete = lock(&self.complete);
            let whole = || variant.keys().all(|key| self.known_objects.knows(key.hash()));
            if !complete.contains(&variant.cell) && whole() {
                complete.insert(variant.cell);
                let cell = self.grid.cells[variant.cell].to_string();
                self.reporter.event(Event::Complete { cell, complete: complete.len() });
            }
        }
    }

    pub(crate) fn complete(&self) -> usize {
        lock(&self.complete).len()
    }

    /// Notes that scores were stored here.
    pub(crate) fn stored_scores(&self, key: &Key) {
        self.known_objects.found(key);
        lock(&self.scores).insert(key.hash().to_owned());
    }

    /// Whether new scores are told of: a worker tells of its own, and reads no others.
    pub(crate) fn tells_of(&self, key: &Key) -> bool {
        self.terms.is_none() || lock(&self.scores).contains(key.hash())
    }

    /// Tells a cell's new value.
    pub(crate) fn scored(&self, cell: usize, on: &Subject, value: f64) {
        self.reporter.event(Event::Scored { cell: self.grid.cells[cell].to_string(), on: on.to_string(), value });
    }

    /// Tells that a job begins; its number.
    pub(crate) fn start(&self, work: &str, label: &str, tokens: usize, cells: usize, flops: f64) -> usize {
        let id = self.jobs.fetch_add(1, Relaxed);
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

    /// A part of a job was done. What comes next waits while times are measured on this machine.
    pub(crate) fn advance(&self, job: usize, tokens: usize) -> Result<()> {
        self.advance_running(job, tokens, None)
    }

    /// The same, of which so many tokens really ran.
    pub(crate) fn advance_running(&self, job: usize, tokens: usize, ran: Option<usize>) -> Result<()> {
        self.advanced(job, tokens, ran)?;
        timing_lock::keep(self.store, self.reporter, self.stop)
    }

    /// The same of who measures them.
    pub(crate) fn advance_timing(&self, job: usize, tokens: usize) -> Result<()> {
        self.advanced(job, tokens, None)
    }

    fn advanced(&self, job: usize, tokens: usize, ran: Option<usize>) -> Result<()> {
        self.worked();
        self.reporter.event(Event::Advanced { job, tokens, ran, elsewhere: false });
        self.check_stop()
    }

    /// Tells that another process has done a part of a job.
    pub(crate) fn advance_elsewhere(&self, job: usize, tokens: usize) {
        self.reporter.event(Event::Advanced { job, tokens, ran: None, elsewhere: true });
    }

    pub(crate) fn finish(&self, job: usize) {
        self.reporter.event(Event::Finished { job });
    }

    /// Tells that nothing is left of a piece of the plan.
    pub(crate) fn work_done(&self, work: &str) {
        self.reporter.event(Event::WorkDone { work: work.to_owned() });
    }

    /// Tells that what was done is stored.
    pub(crate) fn kept(&self) {
        self.reporter.event(Event::Kept);
    }

    pub(crate) fn note(&self, text: String) {
        self.reporter.event(Event::Note { text });
    }

    /// Tells of damage, once for each damaged thing.
    pub(crate) fn damaged(&self, error: &Error) {
        if lock(&self.told).insert(error.one_line()) {
            self.note(format!("{}; made anew", error.one_line()));
        }
    }

    /// # Errors
    /// The user asked to stop.
    pub(crate) fn check_stop(&self) -> Result<()> {
        wait::check(self.stop)
    }

    /// What is stored under a key, verified; damage is told and counts as absent.
    pub(crate) fn get(&self, key: &Key) -> Option<StoredObject> {
        match self.store.get(key) {
            Lookup::Whole(artifact) => Some(artifact),
            Lookup::Absent => None,
            Lookup::Damaged(error) => {
                self.known_objects.damaged(key);
                self.damaged(&error);
                None
            }
        }
    }

    /// Claims a piece of work; none where another process is at it, which is said once.
    pub(crate) fn claim(&self, name: &str, what: &str) -> Result<Option<Lease>> {
        if self.store.still_theirs(name) {
            return Ok(None);
        }
        match self.store.claim(name)? {
            ClaimResult::Mine(lease) => Ok(Some(lease)),
            ClaimResult::Theirs(process) => {
                let text = format!("{what}: process {} is at it", process.owner.pid);
                if lock(&self.told).insert(text.clone()) {
                    self.note(text);
                }
                Ok(None)
            }
        }
    }

    /// Something was done here.
    pub(crate) fn worked(&self) {
        let mut idle = lock(&self.idle);
        (idle.since, idle.pause) = (self.store.now(), Pause::default());
    }

    /// Waits for other processes, the longer the longer nothing was done here.
    ///
    /// # Errors
    /// The user asked to stop, or a worker's patience has ended ([`Self::left`]).
    pub(crate) fn pause(&self) -> Result<()> {
        let mut pause = lock(&self.idle).pause;
        pause.wait(self.store, self.stop)?;
        let mut idle = lock(&self.idle);
        idle.pause = pause;
        if self.terms.and_then(|terms| terms.idle_exit).is_some_and(|most| self.store.now() - idle.since >= most) {
            idle.left = true;
            return Err(Error::interrupted("nothing was left to do for this worker"));
        }
        Ok(())
    }

    /// Whether it left because nothing was left to do.
    pub(crate) fn left(&self) -> bool {
        lock(&self.idle).left
    }
}
