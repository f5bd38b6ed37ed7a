//! Survey of a store: looks up all objects of a plan before the first job.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rayon::prelude::*;

use super::{BackbonePlan, Job, Plan, StoreView, Variant};
use crate::pipeline::env::store_view::ObjectState;
use crate::pipeline::stage::{Stage, selection};
use ghostlab_store::{Key, Lookup, ObjectKind, Store};

impl StoreView {
    /// Looks up all objects of a plan. Objects that a run would read are verified.
    pub fn survey(plan: &Plan<'_>, store: &Store) -> Self {
        Self::survey_keys(plan, store, &|_| true)
    }

    /// Surveys a store for `--retime`, that is, as if no machine-specific results were stored.
    pub fn survey_for_retime(plan: &Plan<'_>, store: &Store) -> Self {
        Self::survey_keys(plan, store, &|key| !Stage::is_machine_specific(key))
    }

    fn survey_keys(plan: &Plan<'_>, store: &Store, is_requested: &dyn Fn(&Key) -> bool) -> Self {
        let variants: Vec<&Variant> = plan.variants().map(|(_, variant)| variant).collect();
        let mut requested: HashMap<&str, (&Arc<Key>, bool)> = HashMap::new();
        for key in plan.keys().filter(|key| is_requested(key)) {
            requested.entry(key.hash()).or_insert((key, false));
        }
        let present = stored_hashes(store, requested.values().map(|(key, _)| &***key));
        // Operators are loaded only to compute missing scores or latencies.
        for variant in &variants {
            let lacks_score = variant.scores.iter().chain(&variant.latencies).any(|key| !present.contains(key.hash()));
            if let Some(entry) = variant.repair_key().and_then(|key| requested.get_mut(key.hash())) {
                entry.1 |= lacks_score;
            }
        }
        let by_hash: HashMap<String, ObjectState> = requested
            .into_par_iter()
            .filter(|(hash, _)| present.contains(*hash))
            .map(|(hash, (key, is_needed))| (hash.to_string(), ObjectState::read(key, store, is_needed)))
            .collect();
        let selections = variants.iter().filter_map(|variant| variant.selection.as_ref());
        let selections = selections
            .filter_map(|key| by_hash.get_key_value(key.hash()))
            .filter_map(|(hash, stored)| match stored {
                ObjectState::Whole(artifact) => Some((hash.clone(), selection::read(artifact).ok()?)),
                _ => None,
            })
            .collect();
        Self::new(store, by_hash, selections)
    }

    /// Updates the state of missing tokens after texts have been tokenized.
    pub(crate) fn refresh_tokens(&mut self, plan: &Plan<'_>) {
        for key in plan.backbones.iter().flat_map(BackbonePlan::tokens) {
            if !self.has(key) {
                let state = ObjectState::read(key, &self.store, false);
                self.set_surveyed(key, state);
            }
        }
    }

    /// Returns the variants for which objects of a job are missing.
    pub(crate) fn missing_variants<'b>(&self, backbone: &'b BackbonePlan, job: Job) -> Vec<&'b Variant> {
        backbone
            .variants
            .iter()
            .filter(|variant| job.produced_keys(variant).into_iter().any(|key| !self.has(key)))
            .collect()
    }

    /// Returns whether a variant is complete except for machine-specific measurements.
    pub fn is_complete_elsewhere(&self, variant: &Variant) -> bool {
        variant.shared_keys().all(|key| self.has(key))
    }
}

/// Returns the hashes of the objects that are stored. If there are many keys of a kind, lists its directory instead of
/// looking up each object. The result then also contains objects that are not among `keys`.
fn stored_hashes<'k>(store: &Store, keys: impl Iterator<Item = &'k Key>) -> HashSet<String> {
    let mut by_kind: HashMap<ObjectKind, Vec<&Key>> = HashMap::new();
    keys.for_each(|key| by_kind.entry(key.kind()).or_default().push(key));
    by_kind
        .into_iter()
        .flat_map(|(kind, keys): (ObjectKind, Vec<&Key>)| -> Vec<String> {
            if keys.len() > LISTING_THRESHOLD {
                return store.present(kind).into_iter().collect();
            }
            keys.into_iter().filter(|key| store.has(key)).map(|key| key.hash().to_owned()).collect()
        })
        .collect()
}

/// Number of keys above which listing a directory is cheaper than looking up each object.
const LISTING_THRESHOLD: usize = 300;

impl ObjectState {
    /// Looks up an object and verifies it. `is_needed` indicates whether an object derived from it is missing.
    fn read(key: &Key, store: &Store, is_needed: bool) -> Self {
        let artifact = match store.lookup(key) {
            Lookup::Absent => return Self::Absent,
            Lookup::Damaged(error) => return Self::Damaged(error),
            Lookup::Intact(artifact) => artifact,
        };
        match Stage::for_kind(key.kind()).and_then(|stage| stage.check(&artifact, is_needed)) {
            Ok(()) => Self::Whole(artifact),
            Err(error) => Self::Damaged(error),
        }
    }
}
