//! What of a store some plans use, which `cache gc --keep` leaves alone; and what goes so that it stays within a limit: what is
//! cheapest to make again for its bytes, and nothing that a grid still needs.

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
        self.add_plan(plan, store, &|_| true);
    }

    /// What is still needed to complete a plan, and to read its results: of what is stored, not what it was made from.
    pub(super) fn add_needed(&mut self, plan: &Plan<'_>, store: &Store) {
        self.add_plan(plan, store, &|key| !store.has(key));
    }

    /// What a plan names, and of what `goes_on` is true of what that is made from.
    fn add_plan(&mut self, plan: &Plan<'_>, store: &Store, goes_on: &dyn Fn(&Key) -> bool) {
        plan.keys().for_each(|key| self.add_key(key, goes_on));
        let lead_on = |key: &&Arc<Key>| {
            let leads = |stage: &Stage| stage.members.iter().any(|member| matches!(member, Member::Toward(_)));
            Stage::of(key.kind()).is_ok_and(leads) && !store.has(key)
        };
        self.unfinished.extend(plan.keys().filter(lead_on).map(|key| key.hash().to_owned()));
    }

    fn add_key(&mut self, key: &Key, goes_on: &dyn Fn(&Key) -> bool) {
        if self.used.insert(key.hash().to_string()) && goes_on(key) {
            key.parents().for_each(|(_, parent)| self.add_key(parent, goes_on));
        }
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

/// How a store stands to a limit.
#[derive(Debug, Default)]
pub struct Quota {
    pub limit: u64,
    /// Bytes that the plan needs, or a living process.
    pub needed: u64,
    /// Bytes that nobody needs and that have room all the same.
    pub kept: u64,
    /// What goes, in this order.
    pub going: Vec<InventoryItem>,
    /// Bytes that will come.
    pub coming: u64,
}

impl Quota {
    /// Looks through a store into which `coming` bytes will be written. `in_use` are the hashes of what living processes
    /// have noted.
    pub fn of(plan: &Plan<'_>, store: &Store, in_use: &BTreeSet<String>, limit: u64, coming: u64) -> Self {
        let mut needed = KeepSet::default();
        needed.add_needed(plan, store);
        let needed = |entry: &InventoryItem| in_use.contains(&entry.hash) || (entry.current() && needed.has(entry));
        Self::divided(store.entries(), needed, limit, coming)
    }

    fn divided(entries: Vec<InventoryItem>, needed: impl Fn(&InventoryItem) -> bool, limit: u64, coming: u64) -> Self {
        let sum = |entries: &[InventoryItem]| entries.iter().map(InventoryItem::bytes).sum::<u64>();
        let (needed, mut others): (Vec<_>, Vec<_>) = entries.into_iter().partition(needed);
        let (needed, mut kept) = (sum(&needed), sum(&others));
        // Another version's are not this one's to judge.
        others.retain(|entry| !entry.older() && !entry.later());
        // What is damaged took no time, as far as anyone knows.
        let price = |entry: &InventoryItem| entry.seconds() / entry.bytes().max(1) as f64;
        others.sort_by(|a, b| price(a).total_cmp(&price(b)).then_with(|| a.hash.cmp(&b.hash)));
        let mut going = Vec::new();
        for entry in others {
            if needed + kept + coming <= limit {
                break;
            }
            kept -= entry.bytes();
            going.push(entry);
        }
        Self { limit, needed, kept, going, coming }
    }

    /// Bytes that are too many even when all goes that may.
    pub fn beyond(&self) -> u64 {
        (self.needed + self.kept + self.coming).saturating_sub(self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage;
    use ghostlab_store::Key;
    use serde_json::json;

    #[test]
    fn what_is_cheapest_for_its_bytes_goes_first_and_what_is_needed_never() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), stage::WORDS).unwrap();
        // Bytes, and the seconds that they took: 10, 1, 100 and 2 ms a byte.
        for (number, (bytes, seconds)) in [(100, 1.0), (1000, 1.0), (10, 1.0), (500, 1.0)].into_iter().enumerate() {
            let key = Key::new(stage::selection::KIND, json!({"number": number}), []);
            store.put(&key, seconds, &[("a", &vec![0; bytes])]).unwrap();
        }
        let quota = |needed: u64, limit: u64, coming: u64| {
            let quota = Quota::divided(store.entries(), |entry| entry.bytes() == needed, limit, coming);
            (quota.going.iter().map(InventoryItem::bytes).collect::<Vec<_>>(), quota.beyond())
        };
        assert_eq!(quota(0, 1610, 0), (vec![], 0));
        assert_eq!(quota(0, 1609, 0), (vec![1000], 0));
        assert_eq!(quota(0, 1610, 1001), (vec![1000, 500], 0));
        assert_eq!(quota(1000, 1100, 0), (vec![500, 100], 0), "the cheapest is needed");
        assert_eq!(quota(1000, 900, 0), (vec![500, 100, 10], 100));
    }
}
