//! Kinds of jobs. A job computes a group of objects that are leased, scheduled and reported together. For example, all
//! scores on a text are computed by one job with one [`Trie`](crate::model::Trie). This module also caches the programs
//! of variants, with their operators, in memory.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use super::chunks::ChunkState;
use super::tokens::Text;
use super::{GROUPS, InputNames, Stage, operator, selection};
use crate::criterion::Selection;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Program, folder_program};
use crate::pipeline::env::backbone::{BackbonePlan, Variant};
use crate::pipeline::env::context::RunContext;
use crate::pipeline::env::coordination::{JobStatus, lock};
use crate::pipeline::env::event::WorkKind;
use ghostlab_store::{Key, Lookup, Store, StoredObject};

/// Kind of job. Planning and scheduling are generic over this description. A backbone may have several jobs of one
/// kind, which are numbered from 0.
pub struct Group {
    pub kind: WorkKind,
    /// Returns the number of jobs of this kind that a backbone has.
    pub count: fn(&BackbonePlan) -> usize,
    /// Returns the label for a job in events and records.
    pub label: fn(&BackbonePlan, usize) -> String,
    /// Returns the prefix of a job's lease names, or the label of the job if other processes cannot share it.
    pub lease_name: fn(&BackbonePlan, usize) -> String,
    /// Returns the text, task or prompt that the job scores or times, or `None` for a calibration.
    pub on: fn(&BackbonePlan, usize) -> Option<String>,
    /// Returns the keys of the objects that the job computes for a variant, in the order of computation.
    pub produced: for<'v> fn(&'v Variant, usize) -> Vec<&'v Arc<Key>>,
    /// Returns how many bytes of memory the job needs for the given variants, in addition to the weights and the
    /// activations of a batch.
    pub bytes: fn(&BackbonePlan, &[&Variant]) -> u64,
    pub order: Order,
    pub(crate) run: RunJob,
    /// Reports the results of the given variants.
    pub(crate) report: fn(&RunContext<'_>, &BackbonePlan, usize, &[&Variant]),
}

/// Order in which the jobs of a group are scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Jobs run before all other jobs of the backbone, and each job has a single lease. Disk space is freed after each
    /// job, because the next one may write as many bytes.
    First,
    /// Jobs run in parallel with each other, after the backbone's jobs with order `First`.
    Then,
    /// Jobs run while no other job is running. If one variant is missing, all variants run again. Workers never run
    /// these jobs. The string states why.
    Alone(&'static str),
}

/// Function that computes the missing objects of some variants in the job with the given number.
type RunJob = fn(&JobContext<'_>, &BackbonePlan, usize, &[&Variant], &mut ResumeState) -> Result<JobStatus>;

/// State from which a job resumes after it has waited for other processes.
pub(crate) type ResumeState = Option<(Text, ChunkState)>;

/// State that all jobs of a run share.
#[derive(Clone, Copy)]
pub(crate) struct JobContext<'a> {
    pub(crate) run: &'a RunContext<'a>,
    pub(crate) programs: &'a Programs,
}

/// Job of a group for a backbone, numbered by `index`.
#[derive(Clone, Copy)]
pub struct Job {
    pub group: &'static Group,
    pub index: usize,
}

impl Job {
    pub fn label(self, plan: &BackbonePlan) -> String {
        (self.group.label)(plan, self.index)
    }

    pub fn lease_name(self, plan: &BackbonePlan) -> String {
        (self.group.lease_name)(plan, self.index)
    }

    pub fn produced_keys(self, variant: &Variant) -> Vec<&Arc<Key>> {
        (self.group.produced)(variant, self.index)
    }

    pub fn is_alone(self) -> bool {
        matches!(self.group.order, Order::Alone(_))
    }
}

impl BackbonePlan {
    /// Iterates over the jobs of the backbone, in the order in which they are scheduled.
    pub fn jobs(&self) -> impl Iterator<Item = Job> {
        GROUPS.into_iter().flat_map(|group| (0..(group.count)(self)).map(move |index| Job { group, index }))
    }

    /// Iterates over the objects of a variant, in the order in which they are computed. Each item consists of the job,
    /// the names of the object, and its key.
    pub fn inputs_of<'v>(&self, variant: &'v Variant) -> impl Iterator<Item = (Job, InputNames, &'v Arc<Key>)> {
        let produced = self.jobs().flat_map(|job| job.produced_keys(variant).into_iter().map(move |key| (job, key)));
        produced.filter_map(|(job, key)| Some((job, Stage::for_kind(key.kind()).ok()?.words?, key)))
    }
}

impl Variant {
    /// Iterates over the keys of the objects that do not depend on the machine, that is, all except latencies.
    pub fn shared_keys(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.keys().filter(|key| !Stage::is_machine_specific(key))
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.group.kind, self.index)
    }
}

/// Reads the program of a variant from the store.
///
/// # Errors
/// Fails with kind `Job` or `Damaged` if an object of the variant is missing or damaged.
pub fn stored_program(store: &Store, backbone: &BackbonePlan, variant: &Variant) -> Result<Program> {
    let (Some(selection), Some(operator)) = (&variant.selection, variant.repair_key()) else {
        return folder_program(&backbone.config, &backbone.folder);
    };
    let find = |key: &Key| match store.get(key) {
        Lookup::Intact(artifact) => Ok(Some(artifact)),
        Lookup::Absent => Ok(None),
        Lookup::Damaged(error) => Err(error),
    };
    let selection = read_selection(&find, selection)?;
    operator::read_program(&find_required(&find, operator, "operator")?, backbone.config.layers, &selection)
}

type Find<'a> = dyn Fn(&Key) -> Result<Option<StoredObject>> + 'a;

fn read_selection(find: &Find<'_>, key: &Key) -> Result<Selection> {
    selection::read(&find_required(find, key, "selection")?)
}

fn find_required(find: &Find<'_>, key: &Key, name: &str) -> Result<StoredObject> {
    find(key)?.ok_or_else(|| Error::job(format!("the {name} is not in the store")))
}

/// Cache of [`Program`]s and [`Selection`]s, which are thus read only once for all texts. Programs are cached by the
/// hash of their operator, or for an exported backbone by its content hash.
#[derive(Default)]
pub(crate) struct Programs {
    programs: Mutex<HashMap<String, Program>>,
    selections: Mutex<HashMap<String, Selection>>,
}

impl Programs {
    /// Returns the program of a variant whose selection and operators are stored.
    ///
    /// # Errors
    /// Fails with kind `Job` or `Damaged` if an object of the variant is missing or damaged.
    pub(crate) fn variant_program(
        &self,
        run: &RunContext<'_>,
        backbone: &BackbonePlan,
        variant: &Variant,
    ) -> Result<Program> {
        let (Some(selection), Some(operator)) = (&variant.selection, variant.repair_key()) else {
            return self.folder_program(run, backbone);
        };
        if let Some(program) = lock(&self.programs).get(operator.hash()) {
            return Ok(program.clone());
        }
        let find = |key: &Key| Ok(run.get(key));
        let known = lock(&self.selections).get(selection.hash()).cloned();
        let selection = match known {
            Some(known) => known,
            None => {
                let read = read_selection(&find, selection)?;
                lock(&self.selections).insert(selection.hash().to_string(), read.clone());
                read
            }
        };
        let program =
            operator::read_program(&find_required(&find, operator, "operator")?, backbone.config.layers, &selection)?;
        lock(&self.programs).insert(operator.hash().to_string(), program.clone());
        Ok(program)
    }

    /// Loads the program of a variant. If it cannot be read, records that the cell failed, and returns `None`.
    ///
    /// # Errors
    /// Fails on errors that stop the run.
    pub(crate) fn load_or_record_failure(
        &self,
        run: &RunContext<'_>,
        backbone: &BackbonePlan,
        variant: &Variant,
    ) -> Result<Option<Program>> {
        match self.variant_program(run, backbone, variant) {
            Err(error) if matches!(error.kind(), ErrorKind::Job | ErrorKind::Damaged) => {
                run.fail(variant.cell, error.one_line());
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    /// Returns the program of a backbone, which is dense unless the backbone is an exported variant.
    fn folder_program(&self, run: &RunContext<'_>, backbone: &BackbonePlan) -> Result<Program> {
        if backbone.config.is_plain() {
            return Ok(Program::dense(backbone.config.layers));
        }
        if let Some(program) = lock(&self.programs).get(&backbone.dense.model.content) {
            return Ok(program.clone());
        }
        let program =
            run.inputs.read_unchanged(&[&backbone.folder], || folder_program(&backbone.config, &backbone.folder))?;
        lock(&self.programs).insert(backbone.dense.model.content.clone(), program.clone());
        Ok(program)
    }

    /// Drops the programs of a backbone from the cache. Selections are kept.
    pub(crate) fn unload(&self, backbone: &BackbonePlan) {
        let mut programs = lock(&self.programs);
        for operator in backbone.variants.iter().filter_map(Variant::repair_key) {
            programs.remove(operator.hash());
        }
        programs.remove(&backbone.dense.model.content);
    }
}
