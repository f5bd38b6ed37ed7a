//! Server state of a simulated network file system.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Content of a file and the time of its last change.
pub(super) type File = Arc<Mutex<(Vec<u8>, Duration)>>;

/// Entry of a folder. Hard links to one file share its content.
#[derive(Clone)]
pub(super) enum Node {
    File(File),
    Folder,
}

/// State shared by all machines: entries by folder and name.
#[derive(Default)]
pub(crate) struct Server {
    pub(super) folders: Mutex<HashMap<String, BTreeMap<String, Node>>>,
    /// Ids of processes that are running.
    pub(super) living: Mutex<HashSet<String>>,
    /// Number of leases taken over from running processes.
    pub(super) stolen_leases: AtomicU64,
    /// Number of leases that running processes held when other processes removed them.
    pub(super) removed: AtomicU64,
    /// Current time in microseconds, unless the clients use a [`Time`](super::played_time::Time).
    pub(super) clock: AtomicU64,
    pub(super) operations: AtomicU64,
    /// Operation counts by operation and store folder.
    pub(super) by_kind: Mutex<BTreeMap<(&'static str, String), u64>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn split(path: &Path) -> (String, String) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    (path.parent().map(text).unwrap_or_default(), name)
}

pub(super) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

impl Server {
    pub(crate) fn set_clock(&self, now: Duration) {
        self.clock.store(now.as_micros() as u64, Relaxed);
    }

    pub(crate) fn stolen_leases(&self) -> u64 {
        self.stolen_leases.load(Relaxed)
    }

    pub(crate) fn removed(&self) -> u64 {
        self.removed.load(Relaxed)
    }

    pub(crate) fn operations(&self) -> u64 {
        self.operations.load(Relaxed)
    }

    /// Returns operation counts by kind and folder, most frequent first.
    pub(crate) fn by_kind(&self) -> Vec<(String, u64)> {
        let kinds = lock(&self.by_kind);
        let mut all: Vec<_> =
            kinds.iter().map(|((what, folder), count)| (format!("{what} {folder}"), *count)).collect();
        all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        all
    }

    /// Returns the content of a file, bypassing client caches.
    pub(crate) fn file(&self, path: &Path) -> Option<Vec<u8>> {
        self.node(path).map(|node| lock(&node).0.clone())
    }

    /// Returns the names in a folder, bypassing client caches.
    pub(crate) fn names(&self, folder: &Path) -> Vec<String> {
        lock(&self.folders).get(&text(folder)).map_or_else(Vec::new, |names| names.keys().cloned().collect())
    }

    pub(super) fn node(&self, path: &Path) -> Option<File> {
        let (folder, name) = split(path);
        match lock(&self.folders).get(&folder)?.get(&name)? {
            Node::File(file) => Some(Arc::clone(file)),
            Node::Folder => None,
        }
    }

    pub(super) fn is_folder(&self, path: &Path) -> bool {
        let (folder, name) = split(path);
        lock(&self.folders).get(&folder).is_some_and(|names| matches!(names.get(&name), Some(Node::Folder)))
    }

    pub(super) fn has(&self, path: &Path) -> bool {
        let (folder, name) = split(path);
        lock(&self.folders).get(&folder).is_some_and(|names| names.contains_key(&name))
    }

    /// Stores an entry under a path, and creates missing folders.
    pub(super) fn put(&self, path: &Path, node: Node) {
        let mut folders = lock(&self.folders);
        let mut path = path;
        let mut node = node;
        loop {
            let (folder, name) = split(path);
            let known = folders.contains_key(&folder);
            folders.entry(folder).or_default().insert(name, node);
            match path.parent() {
                Some(parent) if !known && parent.parent().is_some() => (path, node) = (parent, Node::Folder),
                _ => return,
            }
        }
    }

    pub(super) fn take(&self, path: &Path) -> Option<Node> {
        let (folder, name) = split(path);
        lock(&self.folders).get_mut(&folder)?.remove(&name)
    }
}
