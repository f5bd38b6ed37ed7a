//! Objects that a run knows to be stored. They cannot disappear, because the run has noted that it uses them. So the
//! file server is asked once per object, however many jobs look it up, and other workers' objects are mostly found by
//! listings.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::progress::lock;
use ghostlab_store::{Key, Lookup, ObjectKind, Store};

/// Between two listings of all artifacts of a kind: some hundred operations.
const LISTING: Duration = Duration::from_secs(30);

/// Up to this many objects are looked up individually; packed ones always are, because that costs one listing of the
/// packs.
const LISTING_THRESHOLD: usize = 64;

/// How some artifacts stand together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AllStored {
    All,
    /// The first is not there, or another that was looked for.
    Lacking,
    /// Another process has begun to store them; a later listing will show the rest.
    Unclear,
}

#[derive(Default)]
pub(crate) struct KnownObjects(Mutex<ObjectSets>);

#[derive(Default)]
struct ObjectSets {
    there: HashSet<String>,
    /// Damaged objects: only reading shows whether they were replaced.
    damaged: HashSet<String>,
    /// When all of a kind were last listed, by the store's clock.
    listed: HashMap<ObjectKind, Duration>,
}

impl KnownObjects {
    pub(crate) fn new(there: HashSet<String>, damaged: HashSet<String>) -> Self {
        Self(Mutex::new(ObjectSets { there, damaged, listed: HashMap::new() }))
    }

    /// Marks an object that was read or written completely.
    pub(crate) fn found(&self, key: &Key) {
        let mut known = lock(&self.0);
        known.damaged.remove(key.hash());
        known.there.insert(key.hash().to_owned());
    }

    pub(crate) fn damaged(&self, key: &Key) {
        let mut known = lock(&self.0);
        known.there.remove(key.hash());
        known.damaged.insert(key.hash().to_owned());
    }

    /// Returns whether an object is stored.
    pub(crate) fn has(&self, store: &Store, key: &Key) -> bool {
        lock(&self.0).has(store, key)
    }

    /// Returns whether an object is known to be stored, without asking.
    pub(crate) fn knows(&self, hash: &str) -> bool {
        lock(&self.0).there.contains(hash)
    }

    /// Returns whether some objects are all stored. A text's scores are stored together, so one is asked for first, and the
    /// others only if it exists.
    pub(crate) fn all<'k>(&self, store: &Store, keys: impl IntoIterator<Item = &'k Arc<Key>>) -> AllStored {
        let mut known = lock(&self.0);
        let lacking: Vec<&Arc<Key>> = keys.into_iter().filter(|key| !known.there.contains(key.hash())).collect();
        let Some((first, others)) = lacking.split_first() else { return AllStored::All };
        if !known.has(store, first) {
            return AllStored::Lacking;
        }
        let now = store.now();
        let apart: Vec<ObjectKind> =
            others.iter().map(|key| key.kind()).filter(|&kind| !store.among_many(kind)).collect();
        if apart.len() > LISTING_THRESHOLD {
            let mut kinds: BTreeSet<ObjectKind> = apart.into_iter().collect();
            kinds.retain(|kind| known.listed.get(kind).is_none_or(|&listed| now.saturating_sub(listed) >= LISTING));
            if kinds.is_empty() {
                return AllStored::Unclear;
            }
            for kind in kinds {
                known.listed.insert(kind, now);
                let ObjectSets { there, damaged, .. } = &mut *known;
                there.extend(store.present(kind).into_iter().filter(|hash| !damaged.contains(hash)));
            }
        }
        if others.iter().all(|key| known.has(store, key)) { AllStored::All } else { AllStored::Lacking }
    }
}

impl ObjectSets {
    fn has(&mut self, store: &Store, key: &Key) -> bool {
        if self.there.contains(key.hash()) {
            return true;
        }
        let has =
            if self.damaged.contains(key.hash()) { matches!(store.get(key), Lookup::Whole(_)) } else { store.has(key) };
        if has {
            self.damaged.remove(key.hash());
            self.there.insert(key.hash().to_owned());
        }
        has
    }
}
