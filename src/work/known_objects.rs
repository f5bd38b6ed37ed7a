//! Objects that a run knows to be stored. They cannot disappear, because the run has noted that it uses them. So the
//! file server is asked once per object, however many jobs look it up.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use super::progress::lock;
use ghostlab_store::{Key, Lookup, Store};

#[derive(Default)]
pub(crate) struct KnownObjects(Mutex<ObjectSets>);

#[derive(Default)]
struct ObjectSets {
    there: HashSet<String>,
    /// Damaged objects: only reading shows whether they were replaced.
    damaged: HashSet<String>,
}

impl KnownObjects {
    pub(crate) fn new(there: HashSet<String>, damaged: HashSet<String>) -> Self {
        Self(Mutex::new(ObjectSets { there, damaged }))
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

    /// Returns whether some objects are all stored.
    pub(crate) fn all<'k>(&self, store: &Store, keys: impl IntoIterator<Item = &'k Arc<Key>>) -> bool {
        let mut known = lock(&self.0);
        keys.into_iter().all(|key| known.has(store, key))
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
