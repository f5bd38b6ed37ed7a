//! What is made in one job: claimed, scheduled and told of together, as all scores on a text are one trie.

use std::fmt;
use std::sync::Arc;

use super::chunks::ChunkState;
use super::program::Programs;
use super::tokens::Text;
use super::{GROUPS, Stage, Words};
use crate::error::Result;
use crate::work::backbone::{BackbonePlan, Variant};
use crate::work::context::Context;
use crate::work::event::WorkKind;
use crate::work::models::Models;
use crate::work::progress::Progressed;
use ghostlab_store::Key;

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
    /// Before the others of its backbone. Each may write as much again as the one before.
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
