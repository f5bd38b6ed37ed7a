//! The jobs of a backbone, and what they make of a variant.

use std::sync::Arc;

use super::{BackbonePlan, StoreState, Variant};
use crate::stage::{GROUPS, Group, Job, Stage, Words};
use ghostlab_store::Key;

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

    /// The variants for which a job has something to make.
    pub fn lacking(&self, job: Job, state: &StoreState) -> Vec<&Variant> {
        self.variants.iter().filter(|variant| job.made(variant).into_iter().any(|key| !state.has(key))).collect()
    }
}

impl Variant {
    /// Its artifacts that any machine may make for all.
    pub fn shared_keys(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.keys().filter(|key| !Stage::is_here(key))
    }
}
