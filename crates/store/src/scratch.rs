//! Temporary stores. [`ScratchStore`] mirrors a store for commands that must not add objects to it. New objects are
//! removed when the mirror is dropped. [`Scratch`] is an overlay for the new objects of a read-only store.

use std::path::Path;
use std::sync::{Mutex, OnceLock};
use std::{fs, io};

use tempfile::TempDir;

use super::{ObjectKind, Store, StoreSchema, lock};
use ghostlab_core::error::{Error, Result};

/// Temporary mirror of a store.
pub struct ScratchStore {
    store: Store,
    _folder: TempDir,
}

impl ScratchStore {
    /// Creates a mirror of a store, which need not exist. Objects and cached hashes are symbolic links to those of the
    /// store. Objects of the kinds in `written_kinds` are linked one by one so that new objects can be added.
    ///
    /// # Errors
    /// Fails if temporary files cannot be written.
    pub fn new(store: &Store, written_kinds: &[ObjectKind]) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(|error| temp_error(&error))?;
        let root =
            std::path::absolute(store.root()).map_err(|error| Error::path_io("resolve", store.root(), &error))?;
        let mut mirrored = Store::open(folder.path(), store.schema)?.with_rehash(store.rehash);
        mirrored.space_root = Some(root.clone());
        for kind in store.schema.kinds {
            let depth = if written_kinds.contains(kind) { 2 } else { 0 };
            mirror(&root.join(kind.folder()), &folder.path().join(kind.folder()), depth)
                .map_err(|error| temp_error(&error))?;
        }
        mirror(&root.join("index"), &folder.path().join("index"), 3).map_err(|error| temp_error(&error))?;
        Ok(Self { store: mirrored, _folder: folder })
    }

    pub fn store(&self) -> &Store {
        &self.store
    }
}

fn temp_error(error: &io::Error) -> Error {
    Error::folder_io("write to", &std::env::temp_dir(), error)
}

/// Recreates `depth` levels of folders and links their content.
fn mirror(from: &Path, to: &Path, depth: usize) -> io::Result<()> {
    if !from.exists() {
        return Ok(());
    }
    if depth == 0 || !from.is_dir() {
        return link(from, to);
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        mirror(&from.join(&name), &to.join(&name), depth - 1)?;
    }
    Ok(())
}

#[cfg(unix)]
fn link(from: &Path, to: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(from, to)
}

/// Does nothing on systems other than Unix, so mirrors are empty there and all objects are recomputed.
#[cfg(not(unix))]
fn link(_: &Path, _: &Path) -> io::Result<()> {
    Ok(())
}

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
            let folder = tempfile::Builder::new().prefix("ghostlab-").tempdir().map_err(|error| temp_error(&error))?;
            let store = Store::open(folder.path(), schema)?;
            self.overlay.set((store, folder)).ok();
        }
        self.get().ok_or_else(|| Error::job("the temporary overlay of the store is missing"))
    }
}
