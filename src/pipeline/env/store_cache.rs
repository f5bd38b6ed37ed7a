//! Cache that remembers which objects are stored. They cannot disappear, because the run has reserved them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use super::progress::lock;
use ghostlab_store::{Key, Lookup, Store};

#[derive(Default)]
pub(crate) struct StoreCache(Mutex<ObjectSets>);

#[derive(Default)]
struct ObjectSets {
    stored: HashSet<String>,
    /// Hashes of damaged objects. These objects must be read again to find out whether they have been replaced.
    damaged: HashSet<String>,
}

impl StoreCache {
    pub(crate) fn new(stored: HashSet<String>, damaged: HashSet<String>) -> Self {
        Self(Mutex::new(ObjectSets { stored, damaged }))
    }

    /// Records that an object was read or written completely.
    pub(crate) fn insert(&self, key: &Key) {
        let mut known = lock(&self.0);
        known.damaged.remove(key.hash());
        known.stored.insert(key.hash().to_owned());
    }

    pub(crate) fn mark_damaged(&self, key: &Key) {
        let mut known = lock(&self.0);
        known.stored.remove(key.hash());
        known.damaged.insert(key.hash().to_owned());
    }

    pub(crate) fn has(&self, store: &Store, key: &Key) -> bool {
        lock(&self.0).has(store, key)
    }

    /// Returns whether an object is known to be stored. Does not access the store.
    pub(crate) fn contains(&self, hash: &str) -> bool {
        lock(&self.0).stored.contains(hash)
    }

    pub(crate) fn has_all<'k>(&self, store: &Store, keys: impl IntoIterator<Item = &'k Arc<Key>>) -> bool {
        let mut known = lock(&self.0);
        keys.into_iter().all(|key| known.has(store, key))
    }
}

impl ObjectSets {
    fn has(&mut self, store: &Store, key: &Key) -> bool {
        if self.stored.contains(key.hash()) {
            return true;
        }
        let has =
            if self.damaged.contains(key.hash()) { matches!(store.get(key), Lookup::Whole(_)) } else { store.has(key) };
        if has {
            self.damaged.remove(key.hash());
            self.stored.insert(key.hash().to_owned());
        }
        has
    }
}
