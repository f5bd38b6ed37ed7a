//! What of a store some plans use: what `cache gc --keep` leaves alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::Plan;
use crate::identity::ComputeId;
use crate::model::CPU;
use crate::stage::{KINDS, Member, Stage};
use ghostlab_store::{Found, InventoryItem, Key, Store};

/// The hashes of the artifacts that some plans use, and of all that these are made from.
#[derive(Debug, Default)]
pub struct KeepSet {
    used: BTreeSet<String>,
    /// Those of them that are not stored yet: what lies on the way to them is work that is half done.
    unfinished: BTreeSet<String>,
}

impl KeepSet {
    pub fn add(&mut self, plan: &Plan<'_>, store: &Store) {
        plan.keys().for_each(|key| self.add_key(key));
        self.add_unfinished(plan, store);
    }

    fn add_key(&mut self, key: &Key) {
        if self.used.insert(key.hash().to_string()) {
            key.parents().for_each(|(_, parent)| self.add_key(parent));
        }
    }

    /// What is still needed to complete a plan, and to read its results: of what is stored, not what it was made from.
    pub(super) fn add_needed(&mut self, plan: &Plan<'_>, store: &Store) {
        plan.keys().for_each(|key| self.add_unmade(key, store));
        self.add_unfinished(plan, store);
    }

    fn add_unmade(&mut self, key: &Key, store: &Store) {
        if self.used.insert(key.hash().to_string()) && !store.has(key) {
            key.parents().for_each(|(_, parent)| self.add_unmade(parent, store));
        }
    }

    fn add_unfinished(&mut self, plan: &Plan<'_>, store: &Store) {
        let lead_on = |key: &&Arc<Key>| {
            let leads = |stage: &Stage| stage.members.iter().any(|member| matches!(member, Member::Toward(_)));
            Stage::of(key.kind()).is_ok_and(leads) && !store.has(key)
        };
        self.unfinished.extend(plan.keys().filter(lead_on).map(|key| key.hash().to_owned()));
    }

    /// Of a family all members are kept, as of a pass all sites and of a criterion's perplexities all trials: another depth
    /// or recovery may use them.
    pub fn has(&self, entry: &InventoryItem) -> bool {
        let belongs = |member: &Member| match member {
            Member::Of(fields) => entry.hash_without(fields).is_some_and(|hash| self.used.contains(&hash)),
            Member::Toward(parent) => entry.parent(parent).is_some_and(|hash| self.unfinished.contains(&hash)),
        };
        let stage = KINDS.into_iter().find(|kind| kind.folder() == entry.stage).and_then(|kind| Stage::of(kind).ok());
        self.used.contains(&entry.hash) || stage.is_some_and(|stage| stage.members.iter().any(belongs))
    }
}

/// What computed what is stored, and what that was made from: a grid may have been run with each of them.
pub fn engines_of(entry: &InventoryItem) -> BTreeSet<ComputeId> {
    let mut found = BTreeSet::new();
    if let Found::Whole(artifact) = &entry.found {
        engines_in(&artifact.meta().key, &mut found);
    }
    found
}

/// Those that a key and its parents name. The CPU's own kernels have no name in keys.
fn engines_in(key: &Value, found: &mut BTreeSet<ComputeId>) {
    let Some(of) = key["of"].as_object() else { return };
    let text = |name: &str| of.get(name).and_then(Value::as_str);
    if let (Some(dtype), Some(device)) = (text("dtype"), text("device")) {
        let name = text("engine").unwrap_or(CPU.name);
        found.insert(ComputeId { name: name.to_owned(), dtype: dtype.to_owned(), device: device.to_owned() });
    }
    of.values().for_each(|parent| engines_in(parent, found));
}
