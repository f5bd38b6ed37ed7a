//! Reservations, which protect objects from garbage collection.

use std::collections::BTreeSet;

use ghostlab_core::error::Result;

use crate::{Key, Pin, Store, gc_roots};

impl Store {
    /// Name of the lease held during garbage collection, which keeps new runs from starting.
    pub const GC_LEASE: &str = "clearing-up";

    /// Reserves hashes that this process will read or write. Other processes do not remove reserved objects while this
    /// process is alive.
    ///
    /// # Errors
    /// Fails if the store is not writable.
    pub fn reserve<'k>(&self, hashes: impl IntoIterator<Item = &'k str>) -> Result<()> {
        let store = self.writer()?;
        store.gc_roots.record_hashes(&store.root, store.worker()?.id(), hashes)
    }

    /// Protects objects from [`Self::discard_unused`] in other threads of this process.
    #[must_use]
    pub fn pin(&self, keys: impl IntoIterator<Item = Key>) -> Pin {
        self.gc_roots.pin(keys.into_iter().map(|key| key.hash().to_owned()).collect())
    }

    /// Removes the objects for the given keys, except those in use by other processes or threads.
    ///
    /// # Errors
    /// Fails if the store is not writable.
    pub fn discard_unused(&self, keys: &[Key]) -> Result<()> {
        let present: Vec<&Key> = keys.iter().filter(|key| self.has(key)).collect();
        if present.is_empty() {
            return Ok(());
        }
        let hashes = present.iter().map(|key| key.hash());
        let unused = gc_roots::find_unreserved(&*self.disk, &self.root, &self.other_process_ids()?, hashes);
        self.gc_roots.with_pins_locked(|is_pinned| {
            let mut discardable = present.iter().filter(|key| unused.contains(key.hash()) && !is_pinned(key.hash()));
            discardable.try_for_each(|key| self.discard(key))
        })
    }

    /// Returns the hashes reserved by running processes ([`Self::reserve`]).
    pub fn reserved(&self) -> BTreeSet<String> {
        gc_roots::read_reserved_hashes(&*self.disk, &self.root, &self.live_process_ids())
    }

    /// Returns the hashes reserved by other running processes.
    pub fn reserved_by_others(&self) -> Result<BTreeSet<String>> {
        Ok(gc_roots::read_reserved_hashes(&*self.disk, &self.root, &self.other_process_ids()?))
    }

    /// Returns the ids of all other running processes.
    pub(crate) fn other_process_ids(&self) -> Result<Vec<String>> {
        let this_worker = if self.scratch.is_some() { "" } else { self.worker()?.id() };
        Ok(self.live_process_ids().into_iter().filter(|id| id != this_worker).collect())
    }
}
