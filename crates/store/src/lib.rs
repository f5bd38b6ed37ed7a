//! Content-addressed store of computed objects (docs/design.md §9).
//!
//! `<root>/<kind>-v<stage version>/<2 hex>/<sha256>/` contains `meta.json` and payload files. A small object is a
//! single file `<sha256>`. Scores, which are numerous and small, share files in `packs/`. Objects are written to a
//! private folder and renamed into place, so each is complete or absent. Readers check the hash of every payload they
//! use. Keys depend on contents and settings, never on paths, names or times.
//!
//! The folders next to the objects contain records of running processes (`processes/`), their leases (`claims/`) and
//! the hashes that they reserve (`uses/`), journals of unfinished work (`journals/`), failed attempts (`attempts/`),
//! drafts (`drafts/`), cached hashes of large inputs (`index/`), run records (`runs/`), plan summaries (`plans/`),
//! experiment grids submitted to a cluster scheduler (`submissions/`) and the program copies that scheduler jobs run
//! (`programs/`).
//!
//! The marker `store.json` identifies a store. Folders without it are never modified.
//!
//! ```
//! use ghostlab_store::{Key, Lookup, ObjectKind, Store, StoreSchema};
//! use serde_json::json;
//!
//! # fn main() -> ghostlab_core::error::Result<()> {
//! const SCORES: ObjectKind = ObjectKind::new("scores", 1);
//! const SCHEMA: StoreSchema = StoreSchema { kinds: &[SCORES], packed: SCORES, counts_death: |_| false };
//! let folder = tempfile::tempdir().unwrap();
//! let store = Store::open(folder.path(), SCHEMA)?;
//! let key = Key::new(SCORES, json!({"depth": 3}), []);
//! store.put(&key, 0.5, &[("values", b"1.25")])?;
//! assert!(matches!(store.get(&key), Lookup::Intact(_)));
//! # Ok(())
//! # }
//! ```

mod attempts;
mod damaged_entry;
mod disk;
mod draft;
pub mod fault;
mod gc_roots;
mod index;
mod inventory;
mod journal;
mod key;
mod lookup;
mod meta;
mod object;
mod packed;
#[cfg(test)]
mod packed_tests;
mod process;
mod processes;
mod records;
mod scratch;
mod shared;
#[cfg(test)]
#[path = "../tests/simulated/mod.rs"]
mod simulated;
mod small;
mod store_marker;
mod sweep;
mod worker;

pub use attempts::Attempt;
pub use damaged_entry::DamagedEntry;
pub use disk::{Disk, FileContent};
pub use draft::{AbandonedDraft, Draft, Payload};
pub use gc_roots::Pin;
pub use index::Input;
pub use inventory::InventoryItem;
pub use journal::{Journal, JournalRecord};
pub use key::{Key, KeyDescription, ObjectKind, StoreSchema, canonical};
pub use meta::Meta;
pub use object::StoredObject;
pub use packed::PackEntry;
pub use process::Process;
pub use shared::StoreSharing;
pub use worker::{Lease, LeaseResult};

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

#[cfg(test)]
extern crate self as ghostlab_store;

use disk::SystemDisk;
use gc_roots::GcRoots;
use ghostlab_core::error::{Error, Result};
use index::InputHashCache;
use packed::Packs;
use scratch::Scratch;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use store_marker::StoreMarker;
use worker::Worker;

/// Content-addressed store of objects in a folder.
#[derive(Clone)]
pub struct Store {
    root: PathBuf,
    schema: StoreSchema,
    worker: Arc<OnceLock<Worker>>,
    disk: Arc<dyn Disk>,
    gc_roots: Arc<GcRoots>,
    packs: Arc<Packs>,
    /// Hashes of objects that this program packs but older programs stored separately.
    unpacked: Arc<OnceLock<HashSet<String>>>,
    /// Whether every input is hashed again once per process, instead of using cached hashes.
    rehash: bool,
    /// Hashes of input files, shared by all clones of this store.
    input_hashes: Arc<InputHashCache>,
    /// Function that returns the provenance of new objects, i.e. the field `made` in `meta.json`.
    provenance: Arc<dyn Fn() -> Value + Send + Sync>,
    /// Failed attempts that could not be written to the store. They still count towards the retry limit of this
    /// process.
    unwritten_attempts: Arc<Mutex<BTreeMap<String, Vec<Attempt>>>>,
    /// Overlay for new objects of a read-only store. Removed when the store closes.
    scratch: Option<Arc<Scratch>>,
    /// Whether the folder is already a store. Only then may caches be written to it.
    is_store: bool,
}

/// Result of looking up a key.
#[derive(Debug)]
pub enum Lookup {
    Absent,
    /// Damaged object, which is never used. Writing the key again replaces it.
    Damaged(Error),
    Intact(StoredObject),
}

impl Store {
    /// Opens a store for reading and writing, and removes leftovers from dead processes. A missing or empty folder
    /// becomes a store.
    ///
    /// # Errors
    /// Fails with exit code 3 if the folder belongs to another program, cannot be created or written, or has a
    /// different format version. Fails with exit code 5 if `store.json` is damaged.
    pub fn open(root: &Path, schema: StoreSchema) -> Result<Self> {
        let marker = match StoreMarker::read(root, schema)? {
            Some(marker) => marker,
            None => {
                StoreMarker::new(StoreSharing::Umask).create(root).map_err(|error| unwritable_error(&error, root))?;
                // Another process may have concurrently created the marker with a different sharing mode.
                StoreMarker::read(root, schema)?.unwrap_or(StoreMarker::new(StoreSharing::Umask))
            }
        };
        let store = Self::open_on(Arc::new(SystemDisk::new(marker.shared)), root, schema);
        store.disk.make_folder(&store.drafts()).map_err(|error| unwritable_error(&error, root))?;
        tempfile::tempfile_in(store.drafts()).map_err(|error| unwritable_error(&error, root))?;
        store.sweep();
        Ok(store)
    }

    /// Opens a store read-only. The folder may be missing. Only the cached hashes of large inputs are updated, if
    /// possible. New objects (such as tokens counted by a plan) go to a temporary folder that is removed when the store
    /// closes.
    ///
    /// # Errors
    /// Fails with exit code 3 if the folder belongs to another program, cannot be read, or has a different format
    /// version. Fails with exit code 5 if `store.json` is damaged.
    pub fn open_read_only(root: &Path, schema: StoreSchema) -> Result<Self> {
        let marker = StoreMarker::read(root, schema)?;
        let disk = SystemDisk::new(marker.map(|marker| marker.shared).unwrap_or_default());
        let is_store = marker.is_some();
        Ok(Self { scratch: Some(Arc::default()), is_store, ..Self::open_on(Arc::new(disk), root, schema) })
    }

    /// Opens a store on a real or simulated disk.
    pub fn open_on(disk: Arc<dyn Disk>, root: &Path, schema: StoreSchema) -> Self {
        Self {
            root: root.to_owned(),
            schema,
            worker: Arc::default(),
            gc_roots: Arc::new(GcRoots::new(Arc::clone(&disk))),
            packs: Arc::new(Packs::new(Arc::clone(&disk), &root.join(schema.packed.folder()))),
            disk,
            unpacked: Arc::default(),
            rehash: false,
            input_hashes: Arc::default(),
            provenance: Arc::new(|| Value::Null),
            unwritten_attempts: Arc::default(),
            scratch: None,
            is_store: true,
        }
    }

    /// Turns a folder into a store with the given sharing mode. For an existing store, changes the sharing mode and the
    /// permissions of this user's files. Returns the resulting mode.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::open`].
    pub fn init(root: &Path, schema: StoreSchema, shared: Option<StoreSharing>) -> Result<StoreSharing> {
        let before = StoreMarker::read(root, schema)?;
        let shared = shared.or(before.map(|marker| marker.shared)).unwrap_or_default();
        match before {
            None => StoreMarker::new(shared).create(root).map_err(|error| store_marker::write_error(&error, root))?,
            Some(marker) if marker.shared != shared => {
                StoreMarker::new(shared).replace(root)?;
            }
            Some(_) => {}
        }
        shared.share_all(root);
        Ok(shared)
    }

    /// Rewrites a missing or damaged `store.json` if everything else in the folder belongs to a store. Returns whether
    /// a rewrite was necessary.
    ///
    /// # Errors
    /// Fails with exit code 3 if the folder contains anything else or is not writable.
    pub fn repair_marker(root: &Path, schema: StoreSchema) -> Result<bool> {
        StoreMarker::repair(root, schema)
    }

    /// Sets whether every input is hashed again instead of using cached hashes.
    #[must_use]
    pub fn with_rehash(mut self, rehash: bool) -> Self {
        self.rehash = rehash;
        self
    }

    /// Sets the function that returns the provenance of new objects, i.e. the field `made` in `meta.json`.
    #[must_use]
    pub fn with_provenance(mut self, provenance: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        self.provenance = Arc::new(provenance);
        self
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    fn drafts(&self) -> PathBuf {
        self.root.join("drafts")
    }

    /// Returns the path that a key's object has if it is not in a pack.
    fn object_folder(&self, key: &Key) -> PathBuf {
        self.object_folder_of(key.kind(), key.hash())
    }

    fn object_folder_of(&self, kind: ObjectKind, hash: &str) -> PathBuf {
        self.root.join(kind.folder()).join(hash.get(..2).unwrap_or_default()).join(hash)
    }

    /// Tries to acquire the lease on a job, so that no other process works on the job at the same time.
    pub fn lease(&self, name: &str) -> Result<LeaseResult> {
        Ok(self.worker()?.lease(name))
    }

    /// Returns whether a lease that was found contended a few seconds ago is still listed. Does not check its owner.
    pub fn is_still_leased(&self, name: &str) -> bool {
        self.worker().is_ok_and(|worker| worker.is_still_leased(name))
    }

    /// Returns whether a lease appears in the listing of all leases. Also returns false from time to time for a listed
    /// lease, to make the caller check its owner.
    pub fn is_listed_as_leased(&self, name: &str) -> bool {
        self.worker().is_ok_and(|worker| worker.is_listed_as_leased(name))
    }

    /// Returns an index below `count` that usually differs between processes, so that they start with different jobs.
    pub fn start_offset(&self, count: usize) -> usize {
        self.worker().map_or(0, |worker| worker.start_offset(count))
    }

    /// Calls `inspect` with the names of all leases, from a listing that may be slightly stale.
    pub fn with_leases<T>(&self, inspect: impl FnOnce(&BTreeSet<String>) -> T) -> Result<T> {
        Ok(self.worker()?.with_leases(inspect))
    }

    /// Lists the drafts of all processes, alive or dead.
    pub fn abandoned_drafts(&self) -> Vec<AbandonedDraft> {
        draft::list_drafts(&*self.disk, &self.root, &self.drafts())
    }

    pub fn journal(&self, name: &str) -> Result<Journal> {
        let store = self.writer()?;
        Ok(Journal::open(Arc::clone(&store.disk), store.root.join("journals").join(name), store.worker()?.id()))
    }

    /// Removes this process's journal for a finished job. Also removes journals of dead processes if all objects in
    /// them are stored.
    pub fn retire(&self, journal: Journal, is_stored: impl Fn(&str) -> bool) {
        let living = self.live_process_ids();
        journal.retire(|owner| !living.iter().any(|id| id == owner), is_stored);
    }

    /// Returns the id of this process in the store.
    pub fn process(&self) -> Result<String> {
        Ok(self.worker()?.id().to_string())
    }

    /// Returns the ids of all processes that are not known to be dead.
    pub fn live_process_ids(&self) -> Vec<String> {
        processes::list_processes(&*self.disk, &self.root)
            .into_iter()
            .filter(|known| !known.dead)
            .map(|known| known.process.id)
            .collect()
    }

    /// Returns the folder for plan summaries.
    pub fn plans(&self) -> PathBuf {
        self.root.join("plans")
    }

    /// Returns the folder for scheduler submissions.
    pub fn submissions(&self) -> PathBuf {
        self.root.join("submissions")
    }

    /// Returns the folder for program copies that scheduler jobs run.
    pub fn programs(&self) -> PathBuf {
        self.root.join("programs")
    }

    /// Returns the SHA-256 of an input file, cached for large unchanged files.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is not a regular file.
    pub fn input(&self, path: &Path) -> Result<Input> {
        // Do not write to a folder that is not a store yet.
        let index = self.cache_dir();
        self.input_hashes.get_or_hash(path, || index::hash_input(&*self.disk, index.as_deref(), path, self.rehash))
    }

    /// Returns the result of `compute`, cached under the content hash of an input: in memory, and for a large input
    /// also on disk. `result_name` names the result and its version.
    ///
    /// # Errors
    /// Fails with the error from `compute`.
    pub fn cached_result<T: Serialize + DeserializeOwned>(
        &self,
        path: &Path,
        input: &Input,
        result_name: &str,
        compute: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let index = self.cache_dir();
        self.input_hashes.cached_or_compute(input, result_name, || {
            index::cached_result(&*self.disk, index.as_deref(), (path, input), result_name, compute)
        })
    }

    /// Returns the folder for caches that only save time, or `None` if the folder is not a store yet.
    pub fn cache_dir(&self) -> Option<PathBuf> {
        self.is_store.then(|| self.root.join("index"))
    }

    pub fn runs_dir(&self) -> PathBuf {
        self.root.join("runs")
    }

    /// Runs `read` on input files and checks that they have not changed since they were hashed.
    ///
    /// # Errors
    /// Fails with the error from `read`, or with exit code 2 and the file name if a file has changed.
    pub fn read_unchanged<T>(files: &[(&Path, &Input)], read: impl FnOnce() -> Result<T>) -> Result<T> {
        index::read_unchanged(files, read)
    }

    fn worker(&self) -> Result<&Worker> {
        if self.scratch.is_some() {
            return self.writer()?.worker();
        }
        if self.worker.get().is_none() {
            // If two threads start a worker at the same time, one worker is dropped.
            let worker = Worker::start(&self.root, self.schema, Arc::clone(&self.disk), Arc::clone(&self.gc_roots))?;
            self.worker.set(worker).ok();
        }
        self.worker.get().ok_or_else(|| Error::job("no worker is registered in the store"))
    }

    /// Returns the monotonic time of this process.
    pub fn now(&self) -> Duration {
        self.disk.now()
    }

    pub fn sleep(&self, time: Duration, stop: &AtomicBool) {
        self.disk.sleep(time, stop);
    }
}

/// Locks a mutex even if it is poisoned, because every critical section leaves the data consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unwritable_error(error: &std::io::Error, root: &Path) -> Error {
    Error::missing("cannot write to the store").at(root.display()).found(error).hint("use another folder with --store")
}

#[cfg(test)]
mod tests;
