//! Reservations: lists of the object hashes that running processes read or write, one list per process. They protect
//! these objects from a concurrent `cache gc`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::disk::Disk;
use super::process::Process;
use super::processes::KnownProcess;
use super::{Key, Store, lock};
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::atomic::STALE_AFTER;

/// Set of object hashes that this process protects from garbage collection.
pub(super) struct GcRoots {
    disk: Arc<dyn Disk>,
    recorded: Mutex<RecordedHashes>,
    pinned: PinnedObjects,
}

/// Number of pins per hash.
type PinnedObjects = Arc<Mutex<BTreeMap<String, usize>>>;

/// Guard that prevents other threads of this process from garbage-collecting objects.
pub struct Pin {
    hashes: Vec<String>,
    pinned: PinnedObjects,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pinned = lock(&self.pinned);
        for hash in &self.hashes {
            if let Some(count) = pinned.get_mut(hash) {
                *count -= 1;
            }
        }
        pinned.retain(|_, count| *count > 0);
    }
}

#[derive(Default)]
struct RecordedHashes {
    hashes: BTreeSet<String>,
    file: PathBuf,
}

pub(super) fn list_path(root: &Path, process: &str) -> PathBuf {
    root.join("uses").join(process)
}

impl GcRoots {
    pub(super) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, recorded: Mutex::default(), pinned: Arc::default() }
    }

    /// Adds hashes to the list of this process, except those that it already contains.
    pub(super) fn record_hashes<'k>(
        &self,
        root: &Path,
        process: &str,
        hashes: impl IntoIterator<Item = &'k str>,
    ) -> Result<()> {
        let mut recorded = lock(&self.recorded);
        let new_hashes: BTreeSet<&str> = hashes.into_iter().filter(|&hash| !recorded.hashes.contains(hash)).collect();
        if new_hashes.is_empty() {
            return Ok(());
        }
        let path = list_path(root, process);
        let lines: String = new_hashes.iter().map(|hash| format!("{hash}\n")).collect();
        // `append` closes the file, so that other machines see the change.
        self.disk.append(&path, lines.as_bytes()).map_err(|error| Error::io("write", &path, &error))?;
        recorded.hashes.extend(new_hashes.into_iter().map(str::to_string));
        recorded.file = path;
        Ok(())
    }

    /// Pins hashes until the returned guard is dropped.
    pub(super) fn pin(&self, hashes: Vec<String>) -> Pin {
        let mut pinned = lock(&self.pinned);
        for hash in &hashes {
            *pinned.entry(hash.clone()).or_default() += 1;
        }
        Pin { hashes, pinned: Arc::clone(&self.pinned) }
    }

    /// Runs `action` while other threads cannot pin hashes. `action` can query whether a hash is pinned.
    pub(super) fn with_pins_locked<T>(&self, action: impl FnOnce(&dyn Fn(&str) -> bool) -> T) -> T {
        let pinned = lock(&self.pinned);
        action(&|hash| pinned.contains_key(hash))
    }

    /// Rewrites the complete list after another process considered this process dead and removed the list. If writing
    /// fails, this process still counts as dead.
    pub(super) fn rewrite_list(&self) {
        let recorded = lock(&self.recorded);
        let lines: String = recorded.hashes.iter().map(|hash| format!("{hash}\n")).collect();
        if !lines.is_empty() {
            self.disk.append(&recorded.file, lines.as_bytes()).ok();
        }
    }
}

impl Drop for GcRoots {
    fn drop(&mut self) {
        let recorded = lock(&self.recorded);
        if !recorded.hashes.is_empty() {
            self.disk.remove(&recorded.file).ok();
        }
    }
}

/// Removes lists of processes without a record. A grace period covers the time that a shared file system may take to
/// show a new record.
pub(super) fn sweep(disk: &dyn Disk, root: &Path, known: &[KnownProcess]) {
    let folder = root.join("uses");
    let ownerless: Vec<PathBuf> = disk
        .list(&folder)
        .into_iter()
        .filter(|name| Process::is_id(name) && !known.iter().any(|known| known.process.id == *name))
        .map(|name| folder.join(name))
        .collect();
    let now = if ownerless.is_empty() { return } else { disk.file_system_time(&folder) };
    for path in ownerless.iter().filter(|path| disk.age(path, now).is_some_and(|age| age > STALE_AFTER)) {
        disk.remove(path).ok();
    }
}

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
        let mut unused: BTreeSet<&str> = present.iter().map(|key| key.hash()).collect();
        for process in self.other_process_ids()? {
            // Each worker reserves all objects of its experiment, so one list often suffices.
            if unused.is_empty() {
                break;
            }
            let list = self.disk.read(&list_path(&self.root, &process)).unwrap_or_default();
            for hash in String::from_utf8_lossy(&list).lines() {
                unused.remove(hash);
            }
        }
        self.gc_roots.with_pins_locked(|is_pinned| {
            let mut discardable = present.iter().filter(|key| unused.contains(key.hash()) && !is_pinned(key.hash()));
            discardable.try_for_each(|key| self.discard(key))
        })
    }

    /// Returns the hashes reserved by running processes ([`Self::reserve`]).
    pub fn reserved(&self) -> BTreeSet<String> {
        self.read_reserved_hashes(&self.live_process_ids())
    }

    /// Returns the hashes reserved by other running processes.
    pub fn reserved_by_others(&self) -> Result<BTreeSet<String>> {
        Ok(self.read_reserved_hashes(&self.other_process_ids()?))
    }

    /// Reads the hashes reserved by the given processes.
    fn read_reserved_hashes(&self, processes: &[String]) -> BTreeSet<String> {
        let lists = processes.iter().filter_map(|process| self.disk.read(&list_path(&self.root, process)).ok());
        lists.flat_map(|list| String::from_utf8_lossy(&list).lines().map(str::to_string).collect::<Vec<_>>()).collect()
    }

    /// Returns the ids of all other running processes.
    fn other_process_ids(&self) -> Result<Vec<String>> {
        let this_worker = if self.scratch.is_some() { "" } else { self.worker()?.id() };
        Ok(self.live_process_ids().into_iter().filter(|id| id != this_worker).collect())
    }
}
