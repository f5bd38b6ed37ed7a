//! The jobs of a backbone, and what they make of a variant.

use std::sync::Arc;

use super::{BackbonePlan, StoreState, Variant};
use crate::stage::{GROUPS, Group, Job, Stage};
use ghostlab_store::Key;

impl BackbonePlan {
    /// Its jobs, in the order in which they begin.
    pub fn jobs(&self) -> impl Iterator<Item = Job> {
        let of = |group: &'static Group| (0..(group.places)(self)).map(move |place| Job { group, place });
        GROUPS.into_iter().flat_map(of)
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
