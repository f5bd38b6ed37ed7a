//! What all jobs of a run share.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::event::{Event, Job, Reporter};
use super::prepare::remake;
use super::run::Settings;
use super::tokens::{TaskTokens, Text, read_windows};
use super::wait;
use crate::corpus::Windows;
use crate::error::{Error, Result};
use crate::model::{Decoder, Load, Program, Trie};
use crate::plan::{BackbonePlan, Plan, Subject, Variant};
use crate::store::{Key, Lease, Lookup, Store, StoredArtifact};

/// A run at work.
pub(super) struct Context<'a> {
    pub(super) plan: &'a Plan<'a>,
    pub(super) store: &'a Store,
    pub(super) settings: Settings,
    pub(super) reporter: &'a dyn Reporter,
    pub(super) stop: &'a AtomicBool,
    /// Why cells have no result, by their place in the grid.
    failures: Mutex<BTreeMap<usize, String>>,
    /// The cells that nothing is left to do for.
    complete: Mutex<BTreeSet<usize>>,
    /// The backbones in memory, by name.
    models: Mutex<HashMap<String, Arc<Decoder>>>,
    /// Programs with their operators in memory, by their operator's key.
    pub(super) programs: Mutex<HashMap<String, Program>>,
    jobs: AtomicUsize,
    /// Damage that was told of.
    told: Mutex<BTreeSet<String>>,
}

impl<'a> Context<'a> {
    pub(super) fn new(
        plan: &'a Plan<'a>,
        store: &'a Store,
        settings: Settings,
        reporter: &'a dyn Reporter,
        stop: &'a AtomicBool,
    ) -> Self {
        Self {
            plan,
            store,
            settings,
            reporter,
            stop,
            failures: Mutex::default(),
            complete: Mutex::default(),
            models: Mutex::default(),
            programs: Mutex::default(),
            jobs: AtomicUsize::new(0),
            told: Mutex::default(),
        }
    }

    /// A backbone, read when it is first asked for.
    pub(super) fn model(&self, backbone: &BackbonePlan) -> Result<Arc<Decoder>> {
        let mut models = lock(&self.models);
        if let Some(model) = models.get(&backbone.name) {
            return Ok(Arc::clone(model));
        }
        let load = || Decoder::load_with(backbone.config.clone(), &backbone.folder);
        let model = Arc::new(self.plan.inputs.guarded(&[&backbone.folder], load)?);
        models.insert(backbone.name.clone(), Arc::clone(&model));
        Ok(model)
    }

    /// Frees what is held for a backbone whose jobs are done.
    pub(super) fn forget(&self, backbone: &BackbonePlan) {
        lock(&self.models).remove(&backbone.name);
        let mut programs = lock(&self.programs);
        for operator in backbone.variants.iter().filter_map(|variant| variant.operator.as_ref()) {
            programs.remove(operator.hash());
        }
    }

    /// Notes that a cell has no result. The first reason stays.
    pub(super) fn fail(&self, cell: usize, reason: String) {
        let mut failures = lock(&self.failures);
        if let std::collections::btree_map::Entry::Vacant(free) = failures.entry(cell) {
            let cell = self.plan.grid.cells[cell].to_string();
            self.reporter.event(Event::Failed { cell, reason: reason.clone() });
            free.insert(reason);
        }
    }

    pub(super) fn failed(&self, cell: usize) -> bool {
        lock(&self.failures).contains_key(&cell)
    }

    pub(super) fn failures(&self) -> BTreeMap<usize, String> {
        lock(&self.failures).clone()
    }

    /// Notes the cells that are complete before the run begins.
    pub(super) fn found_complete(&self, cells: impl Iterator<Item = usize>) {
        lock(&self.complete).extend(cells);
    }

    /// Tells which of some variants are complete now and were not before.
    pub(super) fn look_complete(&self, variants: &[&Variant]) {
        for variant in variants.iter().filter(|variant| !self.failed(variant.cell)) {
            let mut complete = lock(&self.complete);
            if !complete.contains(&variant.cell) && variant.keys().all(|key| self.store.has(key)) {
                complete.insert(variant.cell);
                let cell = self.plan.grid.cells[variant.cell].to_string();
                self.reporter.event(Event::Complete { cell, complete: complete.len() });
            }
        }
    }

    pub(super) fn complete(&self) -> usize {
        lock(&self.complete).len()
    }

    /// Tells a cell's new value.
    pub(super) fn scored(&self, cell: usize, on: &Subject, value: f64) {
        self.reporter.event(Event::Scored { cell: self.plan.grid.cells[cell].to_string(), on: on.to_string(), value });
    }

    pub(super) fn cost(&self, backbone: &BackbonePlan, trie: &Trie, load: &Load) -> f64 {
        trie.cost(|step| backbone.config.flops(step, load)).shared
    }

    /// Tells that a job begins; its number.
    pub(super) fn start(&self, label: &str, tokens: usize, cells: usize, flops: f64) -> usize {
        let id = self.jobs.fetch_add(1, Relaxed);
        self.reporter.event(Event::Started(Job { id, label: label.to_string(), tokens, cells, flops }));
        id
    }

    pub(super) fn advance(&self, job: usize, tokens: usize) -> Result<()> {
        self.reporter.event(Event::Advanced { job, tokens, elsewhere: false });
        self.check_stop()
    }

    /// Tells that another process has done a part of a job.
    pub(super) fn advance_elsewhere(&self, job: usize, tokens: usize) {
        self.reporter.event(Event::Advanced { job, tokens, elsewhere: true });
    }

    pub(super) fn finish(&self, job: usize) {
        self.reporter.event(Event::Finished { job });
    }

    pub(super) fn note(&self, text: String) {
        self.reporter.event(Event::Note { text });
    }

    /// Tells of damage, once for each damaged thing.
    pub(super) fn damaged(&self, error: &Error) {
        if lock(&self.told).insert(error.one_line()) {
            self.note(format!("{}; made anew", error.one_line()));
        }
    }

    /// # Errors
    /// The user asked to stop.
    pub(super) fn check_stop(&self) -> Result<()> {
        wait::check(self.stop)
    }

    /// What is stored under a key, verified; damage is told and counts as absent.
    pub(super) fn get(&self, key: &Key) -> Option<StoredArtifact> {
        match self.store.get(key) {
            Lookup::Whole(artifact) => Some(artifact),
            Lookup::Absent => None,
            Lookup::Damaged(error) => {
                self.damaged(&error);
                None
            }
        }
    }

    /// The tokens of a text or task; damaged ones are made anew.
    pub(super) fn text(&self, backbone: &BackbonePlan, subject: &Subject, key: &Key) -> Result<Text> {
        let read = |artifact: &StoredArtifact| match subject {
            Subject::Windows(_) => read_windows(artifact).map(Text::Windows),
            Subject::Task(_) => TaskTokens::read(artifact).map(Text::Task),
        };
        self.tokens(backbone, key, read)
    }

    /// The windows of a text; damaged ones are made anew.
    pub(super) fn windows(&self, backbone: &BackbonePlan, key: &Key) -> Result<Windows> {
        self.tokens(backbone, key, read_windows)
    }

    fn tokens<T>(&self, backbone: &BackbonePlan, key: &Key, read: impl Fn(&StoredArtifact) -> Result<T>) -> Result<T> {
        if let Some(artifact) = self.get(key) {
            return read(&artifact);
        }
        remake(self.plan, backbone, key, self.store)?;
        match self.store.get(key) {
            Lookup::Whole(artifact) => read(&artifact),
            _ => Err(Error::job("tokens vanished from the store").at(key.short().to_string())),
        }
    }

    /// Claims a piece of work, waiting for another process that is at it.
    pub(super) fn claim(&self, name: &str, what: &str) -> Result<Lease> {
        wait::claim(self.store, name, what, self.reporter, self.stop)
    }

    /// A moment's wait for another process.
    pub(super) fn pause(&self) -> Result<()> {
        wait::pause(self.stop)
    }
}

/// A poisoned lock only means that another job panicked: what it guards is whole between any two statements.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
