//! What of a plan is stored already.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rayon::prelude::*;

use super::{BackbonePlan, Job, Plan, Variant};
use crate::criterion::Selection;
use crate::error::Error;
use crate::stage::{Stage, selection};
use ghostlab_store::{Key, Lookup, ObjectKind, Store, StoredObject};

/// How a key stands in the store.
#[derive(Debug)]
pub enum ObjectState {
    Absent,
    /// Something is there that is not what was written; it will be made anew.
    Damaged(Error),
    Whole(StoredObject),
}

/// How all keys of a plan stand.
pub struct StoreState {
    /// Those that are not absent.
    by_hash: HashMap<String, ObjectState>,
    selections: HashMap<String, Selection>,
}

impl StoreState {
    /// Looks everything up. Whatever a run would use without making it is verified byte by byte.
    pub fn read(plan: &Plan<'_>, store: &Store) -> Self {
        Self::of_keys(plan, store, &|_| true)
    }

    /// The same as if nothing were stored that holds on this machine alone: it is measured anew.
    pub fn to_retime(plan: &Plan<'_>, store: &Store) -> Self {
        Self::of_keys(plan, store, &|key| !Stage::is_here(key))
    }

    fn of_keys(plan: &Plan<'_>, store: &Store, asked: &dyn Fn(&Key) -> bool) -> Self {
        let variants: Vec<&Variant> = plan.variants().map(|(_, variant)| variant).collect();
        let mut wanted: HashMap<&str, (&Arc<Key>, bool)> = HashMap::new();
        for key in plan.keys().filter(|key| asked(key)) {
            wanted.entry(key.hash()).or_insert((key, false));
        }
        let there = present(store, wanted.values().map(|(key, _)| &***key));
        // An operator is loaded only where a score is missing.
        for variant in &variants {
            let scoring = variant.scores.iter().chain(&variant.latencies).any(|key| !there.contains(key.hash()));
            if let Some(entry) = variant.repair().and_then(|key| wanted.get_mut(key.hash())) {
                entry.1 |= scoring;
            }
        }
        let by_hash: HashMap<String, ObjectState> = wanted
            .into_par_iter()
            .filter(|(hash, _)| there.contains(*hash))
            .map(|(hash, (key, loaded))| (hash.to_string(), ObjectState::of(key, store, loaded)))
            .collect();
        let selection = |(hash, stored): (&String, &ObjectState)| match stored {
            ObjectState::Whole(artifact) => Some((hash.clone(), selection::read(artifact).ok()?)),
            _ => None,
        };
        let selections = variants.iter().filter_map(|variant| variant.selection.as_ref());
        let selections = selections.filter_map(|key| by_hash.get_key_value(key.hash())).filter_map(selection).collect();
        Self { by_hash, selections }
    }

    /// How a key stands.
    pub fn of(&self, key: &Key) -> &ObjectState {
        self.by_hash.get(key.hash()).unwrap_or(&ObjectState::Absent)
    }

    pub fn has(&self, key: &Key) -> bool {
        matches!(self.of(key), ObjectState::Whole(_))
    }

    /// The layers that a stored selection removes.
    pub fn selection(&self, key: &Key) -> Option<&Selection> {
        self.selections.get(key.hash())
    }

    /// The hashes of what is there: of what is damaged, or of the rest.
    pub fn hashes(&self, damaged: bool) -> impl Iterator<Item = &str> {
        let of = move |stored: &ObjectState| match stored {
            ObjectState::Damaged(_) => damaged,
            ObjectState::Whole(_) => !damaged,
            ObjectState::Absent => false,
        };
        self.by_hash.iter().filter(move |(_, stored)| of(stored)).map(|(hash, _)| hash.as_str())
    }

    /// What was found damaged.
    pub fn damages(&self) -> impl Iterator<Item = &Error> {
        self.by_hash
            .values()
            .filter_map(|stored| if let ObjectState::Damaged(error) = stored { Some(error) } else { None })
    }

    /// The variants of a backbone for which a job has something to make.
    pub fn lacking<'b>(&self, backbone: &'b BackbonePlan, job: Job) -> Vec<&'b Variant> {
        backbone.variants.iter().filter(|variant| job.made(variant).into_iter().any(|key| !self.has(key))).collect()
    }

    /// Whether nothing is left to do for a variant but for what each machine makes for itself.
    pub fn complete_elsewhere(&self, variant: &Variant) -> bool {
        variant.shared_keys().all(|key| self.has(key))
    }

    /// Whether nothing is left to do for a variant.
    pub fn complete(&self, variant: &Variant) -> bool {
        variant.keys().all(|key| self.has(key))
    }
}

/// The hashes of those keys under which something is stored. Of many, whole folders are listed.
fn present<'k>(store: &Store, keys: impl Iterator<Item = &'k Key>) -> HashSet<String> {
    let mut by_kind: HashMap<ObjectKind, Vec<&Key>> = HashMap::new();
    keys.for_each(|key| by_kind.entry(key.kind()).or_default().push(key));
    let of = |(kind, keys): (ObjectKind, Vec<&Key>)| -> Vec<String> {
        if keys.len() > MANY {
            return store.present(kind).into_iter().collect();
        }
        keys.into_iter().filter(|key| store.has(key)).map(|key| key.hash().to_owned()).collect()
    };
    by_kind.into_iter().flat_map(of).collect()
}

/// A listing of all artifacts of a kind costs some hundred operations at most.
const MANY: usize = 300;

impl ObjectState {
    fn of(key: &Key, store: &Store, loaded: bool) -> Self {
        let artifact = match store.look(key) {
            Lookup::Absent => return Self::Absent,
            Lookup::Damaged(error) => return Self::Damaged(error),
            Lookup::Whole(artifact) => artifact,
        };
        match Stage::of(key.kind()).and_then(|stage| stage.check(&artifact, loaded)) {
            Ok(()) => Self::Whole(artifact),
            Err(error) => Self::Damaged(error),
        }
    }
}
