//! Overlay for the new objects of a read-only store.

use std::sync::{Mutex, OnceLock};

use tempfile::TempDir;

use super::{Store, StoreSchema, lock};
use ghostlab_core::error::{Error, Result};

/// Overlay of a read-only store, created on the first write.
#[derive(Default)]
pub(super) struct Scratch {
    /// Store and its temporary folder. The store is dropped first.
    overlay: OnceLock<(Store, TempDir)>,
    creation_lock: Mutex<()>,
}

impl Scratch {
    /// Returns the overlay if it has been created.
    pub(super) fn get(&self) -> Option<&Store> {
        self.overlay.get().map(|(store, _)| store)
    }

    /// Returns the overlay, creating it if necessary.
    ///
    /// # Errors
    /// Fails if the folder for temporary files is not writable.
    pub(super) fn get_or_create(&self, schema: StoreSchema) -> Result<&Store> {
        let _creation_guard = lock(&self.creation_lock);
        if self.overlay.get().is_none() {
            let folder = tempfile::Builder::new().prefix("ghostlab-").tempdir();
            let folder = folder.map_err(|error| Error::folder_io("write to", &std::env::temp_dir(), &error))?;
            let store = Store::open(folder.path(), schema)?;
            self.overlay.set((store, folder)).ok();
        }
        self.get().ok_or_else(|| Error::job("the temporary overlay of the store is missing"))
    }
}
