//! What is made in one job: claimed, scheduled and told of together, as all scores on a text are one trie; and the variants as
//! programs that jobs run, with their operators in memory.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use super::chunks::ChunkState;
use super::tokens::Text;
use super::{GROUPS, Stage, Words, operator, selection};
use crate::criterion::Selection;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Program, whole};
use crate::work::backbone::{BackbonePlan, Variant};
use crate::work::context::Context;
use crate::work::event::WorkKind;
use crate::work::models::Models;
use crate::work::progress::{Progressed, lock};
use ghostlab_store::{Key, Lookup, Store, StoredObject};

/// What generic code asks of jobs of one kind. A backbone may have several, told apart by their places.
pub struct Group {
    pub kind: WorkKind,
    /// How many a backbone has.
    pub places: fn(&BackbonePlan) -> usize,
    /// How events and records name one.
    pub label: fn(&BackbonePlan, usize) -> String,
    /// What the names of its claims begin with; its label where no other process shares in it.
    pub claim: fn(&BackbonePlan, usize) -> String,
    /// What cells are measured on or over there; none where what is made is their own.
    pub on: fn(&BackbonePlan, usize) -> Option<String>,
    /// What it makes of a variant, in order.
    pub made: for<'v> fn(&'v Variant, usize) -> Vec<&'v Arc<Key>>,
    /// Bytes that it takes for some variants, beside the weights and a batch.
    pub bytes: fn(&BackbonePlan, &[&Variant]) -> u64,
    pub order: Order,
    pub(crate) make: Make,
    /// Tells what came of some variants.
    pub(crate) tell: fn(&Context<'_>, &BackbonePlan, usize, &[&Variant]),
}

/// When a group's jobs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Before the others of its backbone, each by whoever has its one claim. Each may write as much again as the one before.
    First,
    Then,
    /// When nothing else does, of all variants anew where one lacks; by no worker, and why.
    Alone(&'static str),
}

/// Makes what some variants lack in the job at a place.
type Make = fn(&Tools<'_>, &BackbonePlan, usize, &[&Variant], &mut Going) -> Result<Progressed>;

/// What a job keeps to go on with when others were at it.
pub(crate) type Going = Option<(Text, ChunkState)>;

/// What jobs work with.
#[derive(Clone, Copy)]
pub(crate) struct Tools<'a> {
    pub(crate) run: &'a Context<'a>,
    pub(crate) models: &'a Models<'a>,
    pub(crate) programs: &'a Programs,
}

/// A job of a backbone.
#[derive(Clone, Copy)]
pub struct Job {
    pub group: &'static Group,
    pub place: usize,
}

impl Job {
    pub fn label(self, of: &BackbonePlan) -> String {
        (self.group.label)(of, self.place)
    }

    pub fn claim(self, of: &BackbonePlan) -> String {
        (self.group.claim)(of, self.place)
    }

    /// What it makes of a variant.
    pub fn made(self, of: &Variant) -> Vec<&Arc<Key>> {
        (self.group.made)(of, self.place)
    }

    pub fn is_alone(self) -> bool {
        matches!(self.group.order, Order::Alone(_))
    }
}

impl BackbonePlan {
    /// Its jobs, in the order in which they begin.
    pub fn jobs(&self) -> impl Iterator<Item = Job> {
        let of = |group: &'static Group| (0..(group.places)(self)).map(move |place| Job { group, place });
        GROUPS.into_iter().flat_map(of)
    }

    /// What a variant is made from, in order: the job that makes it, what it is called, and its key.
    pub fn parts<'v>(&self, of: &'v Variant) -> impl Iterator<Item = (Job, Words, &'v Arc<Key>)> {
        let made = self.jobs().flat_map(|job| job.made(of).into_iter().map(move |key| (job, key)));
        made.filter_map(|(job, key)| Some((job, Stage::of(key.kind()).ok()?.words?, key)))
    }
}

impl Variant {
    /// Its artifacts that any machine may make for all.
    pub fn shared_keys(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.keys().filter(|key| !Stage::is_here(key))
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.group.kind, self.place)
    }
}

/// The program of a variant, from the store.
///
/// # Errors
/// Kinds `Job` and `Damaged`: what the variant lacks.
pub fn stored_program(store: &Store, backbone: &BackbonePlan, variant: &Variant) -> Result<Program> {
    let (Some(selection), Some(operator)) = (&variant.selection, variant.repair()) else {
        return whole(&backbone.config, &backbone.folder);
    };
    let find = |key: &Key| match store.get(key) {
        Lookup::Whole(artifact) => Ok(Some(artifact)),
        Lookup::Absent => Ok(None),
        Lookup::Damaged(error) => Err(error),
    };
    let selection = read_selection(&find, selection)?;
    operator::program(&found(&find, operator, "operator")?, backbone.config.layers, &selection)
}

type Find<'a> = dyn Fn(&Key) -> Result<Option<StoredObject>> + 'a;

fn read_selection(find: &Find<'_>, key: &Key) -> Result<Selection> {
    selection::read(&found(find, key, "selection")?)
}

fn found(find: &Find<'_>, key: &Key, what: &str) -> Result<StoredObject> {
    find(key)?.ok_or_else(|| Error::job(format!("its {what} is not in the store")))
}

/// Programs by the hashes of their operators, or of the backbone that has operators of its own, and selections by theirs: each
/// is read once for all texts.
#[derive(Default)]
pub(crate) struct Programs {
    programs: Mutex<HashMap<String, Program>>,
    selections: Mutex<HashMap<String, Selection>>,
}

impl Programs {
    /// The program of a variant whose selection and operators are stored.
    ///
    /// # Errors
    /// Kinds `Job` and `Damaged`: what the variant lacks.
    pub(crate) fn of(&self, run: &Context<'_>, backbone: &BackbonePlan, variant: &Variant) -> Result<Program> {
        let (Some(selection), Some(operator)) = (&variant.selection, variant.repair()) else {
            return self.whole(run, backbone);
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
        let program = operator::program(&found(&find, operator, "operator")?, backbone.config.layers, &selection)?;
        lock(&self.programs).insert(operator.hash().to_string(), program.clone());
        Ok(program)
    }

    /// The same; where there is none, its cell has failed.
    ///
    /// # Errors
    /// What stops the whole run.
    pub(crate) fn or_failed(
        &self,
        run: &Context<'_>,
        backbone: &BackbonePlan,
        variant: &Variant,
    ) -> Result<Option<Program>> {
        match self.of(run, backbone, variant) {
            Err(error) if matches!(error.kind(), ErrorKind::Job | ErrorKind::Damaged) => {
                run.fail(variant.cell, error.one_line());
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    /// The program of a backbone as its folder has it.
    fn whole(&self, run: &Context<'_>, backbone: &BackbonePlan) -> Result<Program> {
        if backbone.config.attachments.is_empty() {
            return Ok(Program::dense(backbone.config.layers));
        }
        if let Some(program) = lock(&self.programs).get(&backbone.content) {
            return Ok(program.clone());
        }
        let read = || whole(&backbone.config, &backbone.folder);
        let program = run.inputs.guarded(&[&backbone.folder], read)?;
        lock(&self.programs).insert(backbone.content.clone(), program.clone());
        Ok(program)
    }

    /// Frees the programs of a backbone whose jobs are done.
    pub(crate) fn forget(&self, backbone: &BackbonePlan) {
        let mut programs = lock(&self.programs);
        for operator in backbone.variants.iter().filter_map(Variant::repair) {
            programs.remove(operator.hash());
        }
        programs.remove(&backbone.content);
    }
}
