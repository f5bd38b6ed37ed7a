//! Lookup of objects by key.

use std::collections::HashSet;

use ghostlab_core::error::Result;

use crate::packed::Packs;
use crate::{Key, Lookup, ObjectKind, Store};

impl Store {
    /// Returns the object for a key after checking all payload hashes.
    pub fn get(&self, key: &Key) -> Lookup {
        if self.worker.get().is_some() {
            // Ignore errors. Without the reservation, a concurrent `cache gc` may remove the object, which is then
            // recomputed.
            self.reserve([key.hash()]).ok();
        }
        match self.lookup(key) {
            Lookup::Intact(object) => match object.verify() {
                Ok(()) => Lookup::Intact(object),
                Err(error) => Lookup::Damaged(error),
            },
            other => other,
        }
    }

    /// Returns the object for a key after checking its record and payload sizes. [`StoredObject::read`] checks hashes.
    pub fn lookup(&self, key: &Key) -> Lookup {
        if let Some(overlay) = self.overlay().filter(|overlay| overlay.has(key)) {
            return overlay.lookup(key);
        }
        let Some(location) = self.locate(key.kind(), key.hash()) else { return Lookup::Absent };
        match self.open_location(key.hash(), &location) {
            Ok(object) => Lookup::Intact(object),
            Err(error) => Lookup::Damaged(error),
        }
    }

    /// Returns whether an object for a key exists, without opening it.
    pub fn has(&self, key: &Key) -> bool {
        self.has_hash(key.kind(), key.hash()) || self.is_temporary(key)
    }

    /// Returns whether the object for a key is in the temporary overlay of a read-only store.
    pub fn is_temporary(&self, key: &Key) -> bool {
        self.overlay().is_some_and(|overlay| overlay.has(key))
    }

    /// Returns the temporary overlay of a read-only store, if it has been created.
    pub(crate) fn overlay(&self) -> Option<&Self> {
        self.scratch.as_deref()?.get()
    }

    /// Returns the store to write to, which is the overlay for a read-only store.
    pub(crate) fn writer(&self) -> Result<&Self> {
        self.scratch.as_deref().map_or(Ok(self), |scratch| scratch.get_or_create(self.schema))
    }

    /// Lists the hashes of all objects of a kind. This takes a few hundred directory listings.
    pub fn present(&self, kind: ObjectKind) -> HashSet<String> {
        let mut present = self.list_unpacked_hashes(kind);
        if self.is_packed(kind) {
            present.extend(self.packs.hashes());
        }
        present.extend(self.overlay().into_iter().flat_map(|overlay| overlay.present(kind)));
        present
    }

    /// Lists the hashes of all objects of a kind that are not in packs.
    pub(crate) fn list_unpacked_hashes(&self, kind: ObjectKind) -> HashSet<String> {
        let folder = self.root.join(kind.folder());
        let groups = self.disk.list(&folder).into_iter().filter(|name| name != Packs::FOLDER);
        groups.flat_map(|prefix| self.disk.list(&folder.join(prefix))).collect()
    }

    pub fn has_hash(&self, kind: ObjectKind, hash: &str) -> bool {
        self.locate(kind, hash).is_some()
    }
}
