//! Lists of the object hashes that running processes read or write, one list per process. They protect these objects
//! from a concurrent `cache gc`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::disk::Disk;
use super::process::Process;
use super::processes::KnownProcess;
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
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        for hash in &hashes {
            *pinned.entry(hash.clone()).or_default() += 1;
        }
        Pin { hashes, pinned: Arc::clone(&self.pinned) }
    }

    /// Runs `action` while other threads cannot pin hashes. `action` can query whether a hash is pinned.
    pub(super) fn with_pins_locked<T>(&self, action: impl FnOnce(&dyn Fn(&str) -> bool) -> T) -> T {
        let pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        action(&|hash| pinned.contains_key(hash))
    }

    /// Rewrites the complete list after another process considered this process dead and removed the list. If writing
    /// fails, this process still counts as dead.
    pub(super) fn rewrite_list(&self) {
        let recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: String = recorded.hashes.iter().map(|hash| format!("{hash}\n")).collect();
        if !lines.is_empty() {
            self.disk.append(&recorded.file, lines.as_bytes()).ok();
        }
    }
}

impl Drop for GcRoots {
    fn drop(&mut self) {
        let recorded = self.recorded.get_mut().unwrap_or_else(PoisonError::into_inner);
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

/// Reads the hashes reserved by the given processes.
pub(super) fn read_reserved_hashes(disk: &dyn Disk, root: &Path, processes: &[String]) -> BTreeSet<String> {
    let lists = processes.iter().filter_map(|process| disk.read(&list_path(root, process)).ok());
    lists.flat_map(|list| String::from_utf8_lossy(&list).lines().map(str::to_string).collect::<Vec<_>>()).collect()
}

/// Returns the hashes that none of the processes has reserved. Stops reading lists once every hash is reserved. This is
/// common, because each worker reserves all objects of its experiment.
pub(super) fn find_unreserved<'h>(
    disk: &dyn Disk,
    root: &Path,
    processes: &[String],
    hashes: impl IntoIterator<Item = &'h str>,
) -> BTreeSet<&'h str> {
    let mut unreserved: BTreeSet<&str> = hashes.into_iter().collect();
    for process in processes {
        if unreserved.is_empty() {
            break;
        }
        let list = disk.read(&list_path(root, process)).unwrap_or_default();
        for hash in String::from_utf8_lossy(&list).lines() {
            unreserved.remove(hash);
        }
    }
    unreserved
}
