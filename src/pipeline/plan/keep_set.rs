//! Determines which objects plans use, so that `cache gc --keep` keeps them. Also chooses which of the other objects to
//! evict if a store exceeds its size limit.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Plan;
use crate::pipeline::identity::ComputeId;
use crate::pipeline::stage::{KINDS, Member, Stage};
use ghostlab_store::{InventoryItem, Key, Store};

/// Hashes of the objects that plans use, directly or as inputs of other objects.
#[derive(Debug, Default)]
pub struct KeepSet {
    used: BTreeSet<String>,
    /// Hashes of missing objects whose intermediate results must be kept.
    unfinished: BTreeSet<String>,
    /// Hashes of the files that the plans read.
    file_hashes: BTreeSet<String>,
}

impl KeepSet {
    /// Adds the objects of a plan, their inputs, and the hashes of the files that the plan reads.
    pub fn add(&mut self, plan: &Plan<'_>, store: &Store) {
        self.add_plan(plan, store, &|_| true);
        plan.keys().for_each(|key| collect_hashes(&key.readable()["of"], &mut self.file_hashes));
    }

    /// Returns whether the plans read all files from which an object was computed.
    pub fn has_all_inputs(&self, entry: &InventoryItem) -> bool {
        let Ok(object) = &entry.object else { return true };
        let mut hashes = BTreeSet::new();
        collect_hashes(&object.meta().key["of"], &mut hashes);
        hashes.is_subset(&self.file_hashes)
    }

    /// Adds the objects that are needed to complete a plan and to read its results.
    pub(super) fn add_needed(&mut self, plan: &Plan<'_>, store: &Store) {
        self.add_plan(plan, store, &|key| !store.has(key));
    }

    /// Adds the objects and intermediate selections of a plan. If `includes_inputs` returns true for an object, its
    /// inputs are also added, recursively.
    fn add_plan(&mut self, plan: &Plan<'_>, store: &Store, includes_inputs: &dyn Fn(&Key) -> bool) {
        plan.keys().for_each(|key| self.add_key(key, includes_inputs));
        let steps = plan.variants().flat_map(|(_, variant)| &variant.steps);
        self.used.extend(steps.map(|key| key.hash().to_owned()));
        self.unfinished.extend(
            plan.keys()
                .filter(|key| {
                    Stage::for_kind(key.kind())
                        .is_ok_and(|stage| stage.members.iter().any(|member| matches!(member, Member::Toward(_))))
                        && !store.has(key)
                })
                .map(|key| key.hash().to_owned()),
        );
    }

    fn add_key(&mut self, key: &Key, includes_inputs: &dyn Fn(&Key) -> bool) {
        if self.used.insert(key.hash().to_string()) && includes_inputs(key) {
            key.parents().for_each(|(_, parent)| self.add_key(parent, includes_inputs));
        }
    }

    /// Returns whether an object should be kept. If one member of a [`Family`](crate::pipeline::stage::Family) is used,
    /// all of its members are kept, because cells with other depths or recoveries may use them.
    pub fn has(&self, entry: &InventoryItem) -> bool {
        let stage =
            KINDS.into_iter().find(|kind| kind.folder() == entry.stage).and_then(|kind| Stage::for_kind(kind).ok());
        self.used.contains(&entry.hash)
            || stage.is_some_and(|stage| {
                stage.members.iter().any(|member| match member {
                    Member::WithFields(fields) => {
                        entry.hash_without(fields).is_some_and(|hash| self.used.contains(&hash))
                    }
                    Member::Toward(parent) => entry.parent(parent).is_some_and(|hash| self.unfinished.contains(&hash)),
                })
            })
    }
}

/// Returns the engines used to compute an object and its inputs.
pub fn engines_of(entry: &InventoryItem) -> BTreeSet<ComputeId> {
    let mut found = BTreeSet::new();
    if let Ok(artifact) = &entry.object {
        collect_engines(&artifact.meta().key, &mut found);
    }
    found
}

/// Collects the engines in a key and in the keys that it depends on.
fn collect_engines(key: &Value, found: &mut BTreeSet<ComputeId>) {
    let Some(identity) = key["of"].as_object() else { return };
    found.extend(ComputeId::from_key_fields(identity));
    identity.values().for_each(|parent| collect_engines(parent, found));
}

/// Collects the SHA-256 hashes in a key and in the keys that it depends on.
fn collect_hashes(key: &Value, found: &mut BTreeSet<String>) {
    match key {
        Value::String(text) if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            found.insert(text.clone());
        }
        Value::Array(items) => items.iter().for_each(|item| collect_hashes(item, found)),
        Value::Object(fields) => fields.values().for_each(|field| collect_hashes(field, found)),
        _ => {}
    }
}

/// Evictions that bring a store within its size limit, and the sizes of the remaining objects.
#[derive(Debug, Default)]
pub struct Quota {
    pub limit: u64,
    /// Total size in bytes of the objects that the plan or a running process needs.
    pub needed: u64,
    /// Total size in bytes of the other objects that will not be evicted.
    pub kept: u64,
    /// Objects to evict, ordered by the cost of recomputing them per byte, cheapest first.
    pub evicted: Vec<InventoryItem>,
    /// Number of bytes that the run will still write to the store.
    pub incoming: u64,
}

impl Quota {
    /// Determines which objects to evict to make space for `incoming` bytes. `in_use` contains the hashes of the
    /// objects that running processes have reserved.
    pub fn new(plan: &Plan<'_>, store: &Store, in_use: &BTreeSet<String>, limit: u64, incoming: u64) -> Self {
        let mut needed = KeepSet::default();
        needed.add_needed(plan, store);
        Self::from_entries(
            store.entries(),
            |entry: &InventoryItem| in_use.contains(&entry.hash) || (entry.is_current() && needed.has(entry)),
            limit,
            incoming,
        )
    }

    fn from_entries(
        entries: Vec<InventoryItem>,
        needed: impl Fn(&InventoryItem) -> bool,
        limit: u64,
        incoming: u64,
    ) -> Self {
        let (needed, mut others): (Vec<_>, Vec<_>) = entries.into_iter().partition(needed);
        let needed = total_bytes(&needed);
        let mut kept = total_bytes(&others);
        // Objects from other program versions are never evicted.
        others.retain(|entry| !entry.is_older_version() && !entry.is_newer_version());
        // The cost of damaged objects is unknown, so they are evicted first.
        others.sort_by(|a, b| cost_per_byte(a).total_cmp(&cost_per_byte(b)).then_with(|| a.hash.cmp(&b.hash)));
        let mut evicted = Vec::new();
        for entry in others {
            if needed + kept + incoming <= limit {
                break;
            }
            kept -= entry.bytes();
            evicted.push(entry);
        }
        Self { limit, needed, kept, evicted, incoming }
    }

    /// Returns the number of bytes by which the store exceeds its limit after all evictions.
    pub fn excess(&self) -> u64 {
        (self.needed + self.kept + self.incoming).saturating_sub(self.limit)
    }
}

/// Returns the compute time of an object, in seconds per stored byte.
fn cost_per_byte(entry: &InventoryItem) -> f64 {
    entry.seconds() / entry.bytes().max(1) as f64
}

fn total_bytes(entries: &[InventoryItem]) -> u64 {
    entries.iter().map(InventoryItem::bytes).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::stage;
    use ghostlab_store::Key;
    use serde_json::json;

    #[test]
    fn cheapest_objects_are_evicted_first_unless_needed() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), stage::STORE_WORDS).unwrap();
        // The compute times per byte are 10, 1, 100 and 2 ms.
        for (number, (bytes, seconds)) in [(100, 1.0), (1000, 1.0), (10, 1.0), (500, 1.0)].into_iter().enumerate() {
            let key = Key::new(stage::selection::KIND, json!({"number": number}), []);
            store.put(&key, seconds, &[("a", &vec![0; bytes])]).unwrap();
        }
        assert_eq!(quota(&store, 0, 1610, 0), (vec![], 0));
        assert_eq!(quota(&store, 0, 1609, 0), (vec![1000], 0));
        assert_eq!(quota(&store, 0, 1610, 1001), (vec![1000, 500], 0));
        assert_eq!(quota(&store, 1000, 1100, 0), (vec![500, 100], 0), "the plan needs the cheapest object");
        assert_eq!(quota(&store, 1000, 900, 0), (vec![500, 100, 10], 100));
    }

    fn quota(store: &Store, needed: u64, limit: u64, incoming: u64) -> (Vec<u64>, u64) {
        let quota = Quota::from_entries(store.entries(), |entry| entry.bytes() == needed, limit, incoming);
        (quota.evicted.iter().map(InventoryItem::bytes).collect::<Vec<_>>(), quota.excess())
    }
}
