//! What is made beside a store that is only read: a store of its own in a folder that goes with it.

use std::sync::{Mutex, OnceLock, PoisonError};

use tempfile::TempDir;

use super::{Store, StoreWords};
use ghostlab_core::error::{Error, Result};

/// Begun when the first thing is made.
#[derive(Default)]
pub(super) struct Scratch {
    /// The store goes before its folder does.
    made: OnceLock<(Store, TempDir)>,
    beginning: Mutex<()>,
}

impl Scratch {
    /// What was made, if anything was.
    pub(super) fn made(&self) -> Option<&Store> {
        self.made.get().map(|(store, _)| store)
    }

    /// The store to make things in.
    ///
    /// # Errors
    /// The system's folder for temporary files cannot be written to.
    pub(super) fn store(&self, words: StoreWords) -> Result<&Store> {
        let _one_at_a_time = self.beginning.lock().unwrap_or_else(PoisonError::into_inner);
        if self.made.get().is_none() {
            let folder = tempfile::Builder::new().prefix("ghostlab-").tempdir();
            let folder = folder.map_err(|error| Error::io("create a folder beside", &std::env::temp_dir(), &error))?;
            let store = Store::open(folder.path(), words)?;
            self.made.set((store, folder)).ok();
        }
        self.made().ok_or_else(|| Error::job("a folder for temporary files vanished"))
    }
}
