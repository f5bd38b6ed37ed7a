//! Simulated network file system. Clients cache contents, so changes by other clients become visible late.
//! Successful links and renames may report failure, clocks differ, and every operation is counted. There are no locks.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, Cursor, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::played_time::Time;
pub(crate) use super::server::Server;
use super::server::{File, Node, lock, split, text};
use ghostlab_core::files::atomic::STALE_AFTER;
use ghostlab_core::files::owner::Owner;
use ghostlab_store::{Disk, FileContent, Process};

pub(crate) type ChangeListener = Box<dyn Fn(&Path) + Send + Sync>;

/// Time of a read, and the content, or `None` for a missing file.
type CachedRead = (Duration, Option<Vec<u8>>);

/// Faults of a simulated network.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Network {
    /// Time in seconds for which a client trusts its cache.
    pub(crate) cache: u64,
    /// One in `lies` links and renames succeeds but reports failure. 0 disables this fault.
    pub(crate) lies: u64,
}

/// Client of the simulated server on one machine, with its own cache and clock.
pub(crate) struct Client {
    server: Arc<Server>,
    network: Network,
    /// Simulated clock, and the number of this process in the simulation.
    time: Option<(Arc<Time>, usize)>,
    process: Process,
    /// Function called for each file renamed into place.
    listener: Option<ChangeListener>,
    /// Time by which this machine's clock is ahead of the server's.
    ahead: Duration,
    changes: AtomicU64,
    /// Whether the machine has crashed. Operations of a crashed machine do not reach the server.
    down: AtomicBool,
    /// End of the current suspension in microseconds. There are no heartbeats until then.
    halted: Arc<AtomicU64>,
    seen: Mutex<HashMap<String, CachedRead>>,
    lists: Mutex<HashMap<String, (Duration, Vec<String>)>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.process.id)
    }
}

impl Client {
    /// Creates a machine with one process, its own clock and its own system id.
    pub(crate) fn new(server: &Arc<Server>, network: Network, machine: usize) -> Arc<Self> {
        Self::with_clock(server, network, machine, None, None)
    }

    /// Creates a machine like [`Self::new`]. If `time` is `Some((clock, process))`, the machine runs on that simulated
    /// clock as process number `process`.
    pub(crate) fn with_clock(
        server: &Arc<Server>,
        network: Network,
        machine: usize,
        time: Option<(Arc<Time>, usize)>,
        listener: Option<ChangeListener>,
    ) -> Arc<Self> {
        let owner = Owner { pid: 5, system: Some(format!("machine {machine}")), started: Some(1) };
        let process = Process { id: format!("5-{:012x}", machine * 7919), owner, beat: 0 };
        lock(&server.living).insert(process.id.clone());
        Arc::new(Self {
            server: Arc::clone(server),
            network,
            time,
            process,
            listener,
            ahead: Duration::from_secs(7 * machine as u64),
            changes: AtomicU64::new(0),
            down: AtomicBool::new(false),
            halted: Arc::default(),
            seen: Mutex::default(),
            lists: Mutex::default(),
        })
    }

    /// Crashes the machine. Its files remain on the server.
    pub(crate) fn go_down(&self) {
        self.down.store(true, Relaxed);
        lock(&self.server.living).remove(&self.process.id);
    }

    /// Suspends the machine and its jobs until the given time.
    pub(crate) fn halt(&self, until: Duration) {
        self.halted.store(until.as_micros() as u64, Relaxed);
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Relaxed)
    }

    fn server_time(&self) -> Duration {
        self.time
            .as_ref()
            .map_or_else(|| Duration::from_micros(self.server.clock.load(Relaxed)), |(time, _)| time.now())
    }

    fn count_operation(&self, what: &'static str, path: &Path) {
        if !self.is_down() {
            self.server.operations.fetch_add(1, Relaxed);
            let folder = path.components().nth(2).map(|part| part.as_os_str().to_string_lossy().into_owned());
            *lock(&self.server.by_kind).entry((what, folder.unwrap_or_default())).or_default() += 1;
        }
    }

    /// Returns the owner of another process's lease, or `None` for other files.
    fn foreign_lease_owner(&self, path: &Path) -> Option<String> {
        let (folder, name) = split(path);
        let text = self.server.file(path).filter(|_| folder.ends_with("/claims") && !name.ends_with(".dead"))?;
        let record: serde_json::Value = serde_json::from_slice(&text).ok()?;
        record["id"].as_str().filter(|id| *id != self.process.id).map(str::to_owned)
    }

    /// Registers a change and invalidates this client's caches. Fails if the machine has crashed.
    fn change(&self, what: &'static str, paths: &[&Path]) -> io::Result<()> {
        if self.is_down() {
            return Err(io::Error::other("the machine is down"));
        }
        self.count_operation(what, paths[0]);
        if self.network.cache > 0 {
            for path in paths {
                // A client sees its own changes immediately.
                let below = text(path);
                lock(&self.seen).retain(|seen, _| !seen.starts_with(&below));
                lock(&self.lists).remove(&split(path).0);
                lock(&self.lists).remove(&below);
            }
        }
        Ok(())
    }

    /// Returns whether the reply to the next change is lost.
    fn loses_reply(&self) -> bool {
        let number = self.changes.fetch_add(1, Relaxed) + 1;
        self.network.lies > 0 && number.is_multiple_of(self.network.lies)
    }

    fn new_file(&self, bytes: &[u8]) -> Node {
        Node::File(Arc::new(Mutex::new((bytes.to_vec(), self.server_time()))))
    }

    /// Applies `read` to the cached content of a file, if the cache entry is fresh.
    fn cached_content<T>(&self, path: &Path, read: impl Fn(&Option<Vec<u8>>) -> T) -> Option<T> {
        let now = self.server_time();
        let max_age = Duration::from_secs(self.network.cache);
        let seen = lock(&self.seen);
        seen.get(&text(path)).filter(|(time, _)| now < *time + max_age).map(|(_, seen)| read(seen))
    }

    fn cache_content(&self, path: &Path, found: Option<Vec<u8>>) {
        if self.network.cache > 0 {
            lock(&self.seen).insert(text(path), (self.server_time(), found));
        }
    }

    /// Returns the content of a file from byte `start`, as seen by this machine.
    fn read_content(&self, path: &Path, start: usize) -> Option<Vec<u8>> {
        // A folder exists but cannot be read.
        if self.server.is_folder(path) && !self.is_down() {
            self.count_operation("read", path);
            return None;
        }
        if let Some(seen) = self.cached_content(path, |seen| seen.as_ref().map(|bytes| bytes_from(bytes, start))) {
            return seen;
        }
        if self.is_down() {
            return None;
        }
        self.count_operation("read", path);
        let found = self.server.node(path);
        if self.network.cache > 0 {
            self.cache_content(path, found.as_ref().map(|node| lock(node).0.clone()));
        }
        found.map(|node| bytes_from(&lock(&node).0, start))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.go_down();
    }
}

fn missing() -> io::Error {
    ErrorKind::NotFound.into()
}

struct AppendWriter(File);

impl Write for AppendWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Disk for Client {
    fn read_part(&self, path: &Path, start: u64, bytes: u64) -> io::Result<Vec<u8>> {
        let mut read = self.read_content(path, start as usize).ok_or_else(missing)?;
        read.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(read)
    }

    fn reader(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(Cursor::new(self.read(path)?)))
    }

    fn map(&self, path: &Path) -> io::Result<FileContent> {
        self.read(path).map(FileContent::Memory)
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        if let Some(seen) = self.cached_content(path, |seen| seen.as_ref().map(Vec::len)) {
            return seen.map(|length| length as u64).ok_or_else(missing);
        }
        if self.network.cache > 0 {
            return self.read(path).map(|bytes| bytes.len() as u64);
        }
        self.count_operation("size", path);
        let node = self.server.node(path).filter(|_| !self.is_down()).ok_or_else(missing)?;
        Ok(lock(&node).0.len() as u64)
    }

    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.change("create", &[path])?;
        if self.server.has(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.server.put(path, self.new_file(bytes));
        Ok(())
    }

    fn writer(&self, path: &Path) -> io::Result<Box<dyn Write + Send>> {
        self.create(path, &[])?;
        Ok(Box::new(AppendWriter(self.server.node(path).ok_or_else(missing)?)))
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        self.change("sync", &[path])
    }

    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.change("overwrite", &[path])?;
        let node = self.server.node(path).ok_or_else(missing)?;
        *lock(&node) = (bytes.to_vec(), self.server_time());
        Ok(())
    }

    fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.change("append", &[path])?;
        match self.server.node(path) {
            Some(node) => {
                let mut file = lock(&node);
                file.0.extend_from_slice(bytes);
                file.1 = self.server_time();
            }
            None => self.server.put(path, self.new_file(bytes)),
        }
        Ok(())
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        // Count a write to a temporary file and a rename.
        self.change("replace", &[path])?;
        self.change("replace", &[path])?;
        self.server.put(path, self.new_file(bytes));
        Ok(())
    }

    fn sweep(&self, folder: &Path) {
        self.count_operation("sweep", folder);
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change("link", &[to])?;
        let node = self.server.node(from).ok_or_else(missing)?;
        if self.server.has(to) {
            // The server reports that the name exists, but this client may still have stale content in its cache.
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.server.put(to, Node::File(node));
        lock(&self.seen).remove(&text(to));
        lock(&self.lists).remove(&split(to).0);
        if self.loses_reply() { Err(ErrorKind::AlreadyExists.into()) } else { Ok(()) }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change("rename", &[from, to])?;
        if !self.server.has(from) {
            return Err(missing());
        }
        if self.foreign_lease_owner(from).is_some_and(|id| lock(&self.server.living).contains(&id)) {
            self.server.stolen_leases.fetch_add(1, Relaxed);
        }
        let from_text = text(from);
        let to_text = text(to);
        let is_folder = lock(&self.server.folders).contains_key(&from_text);
        if is_folder && lock(&self.server.folders).get(&to_text).is_some_and(|names| !names.is_empty()) {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        let node = self.server.take(from).ok_or_else(missing)?;
        self.server.put(to, node);
        if is_folder {
            // Assumes that a renamed folder has no subfolders, so only its own listing moves.
            let mut folders = lock(&self.server.folders);
            let names = folders.remove(&from_text).unwrap_or_default();
            folders.insert(to_text, names);
        }
        if let Some(listener) = &self.listener {
            listener(to);
        }
        if self.loses_reply() { Err(missing()) } else { Ok(()) }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.change("remove", &[path])?;
        if self.server.is_folder(path) {
            return Err(ErrorKind::IsADirectory.into());
        }
        if self.foreign_lease_owner(path).is_some_and(|id| lock(&self.server.living).contains(&id)) {
            self.server.removed.fetch_add(1, Relaxed);
        }
        self.server.take(path).map(drop).ok_or_else(missing)
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.change("make_folder", &[path])?;
        lock(&self.server.folders).entry(text(path)).or_default();
        if !self.server.has(path) {
            self.server.put(path, Node::Folder);
        }
        Ok(())
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        let names = lock(&self.server.folders).get(&text(path)).map_or(0, BTreeMap::len);
        // Count one operation per file and one for the folder.
        for _ in 0..names {
            self.count_operation("remove_folder", path);
        }
        self.change("remove_folder", &[path])?;
        lock(&self.server.folders).remove(&text(path)).ok_or_else(missing)?;
        self.server.take(path).map(drop).ok_or_else(missing)
    }

    fn remove_empty_folder(&self, path: &Path) -> io::Result<()> {
        self.change("remove_empty", &[path])?;
        match lock(&self.server.folders).get(&text(path)).map(BTreeMap::is_empty) {
            Some(true) => {}
            Some(false) => return Err(ErrorKind::DirectoryNotEmpty.into()),
            None => return Err(missing()),
        }
        lock(&self.server.folders).remove(&text(path));
        self.server.take(path).map(drop).ok_or_else(missing)
    }

    fn exists(&self, path: &Path) -> bool {
        if let Some(seen) = self.cached_content(path, Option::is_some) {
            return seen;
        }
        self.count_operation("exists", path);
        let found = self.server.has(path) && !self.is_down();
        // A folder counts as existing, like a file.
        self.cache_content(path, found.then(|| self.server.file(path).unwrap_or_default()));
        found
    }

    fn list(&self, folder: &Path) -> Vec<String> {
        let now = self.server_time();
        let max_age = Duration::from_secs(self.network.cache);
        if let Some((_, names)) = lock(&self.lists).get(&text(folder)).filter(|(time, _)| now < *time + max_age) {
            return names.clone();
        }
        if self.is_down() {
            return Vec::new();
        }
        self.count_operation("list", folder);
        let names = self.server.names(folder);
        if self.network.cache > 0 {
            lock(&self.lists).insert(text(folder), (now, names.clone()));
        }
        names
    }

    fn file_system_time(&self, folder: &Path) -> SystemTime {
        // Reading the clock creates and removes a file.
        self.count_operation("clock", folder);
        self.count_operation("clock", folder);
        UNIX_EPOCH + self.server_time()
    }

    fn age(&self, path: &Path, now: SystemTime) -> Option<Duration> {
        self.count_operation("age", path);
        let changed = self.server.node(path).map(|node| lock(&node).1)?;
        now.duration_since(UNIX_EPOCH + changed).ok()
    }

    fn now(&self) -> Duration {
        self.server_time() + self.ahead + STALE_AFTER * 4
    }

    fn sleep(&self, time: Duration, _stop: &AtomicBool) {
        // Simulated sleeps are interrupted by waking the process, so `_stop` is not polled.
        if let Some((clock, actor)) = self.time.as_ref().filter(|_| !self.is_down()) {
            clock.sleep(*actor, time);
        }
    }

    fn run_periodically(&self, _period: Duration, mut act: Box<dyn FnMut() + Send>) -> Box<dyn Any + Send + Sync> {
        /// Heartbeat period of the program. Tests in real time use a shorter one.
        const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
        match &self.time {
            Some((time, _)) => {
                let clock = Arc::clone(time);
                let halted = Arc::clone(&self.halted);
                Box::new(time.every(
                    HEARTBEAT_INTERVAL,
                    Box::new(move || {
                        if clock.now() >= Duration::from_micros(halted.load(Relaxed)) {
                            act();
                        }
                    }),
                ))
            }
            None => Box::new(()),
        }
    }

    fn process(&self) -> Process {
        self.process.clone()
    }
}

fn bytes_from(bytes: &[u8], start: usize) -> Vec<u8> {
    bytes.get(start..).unwrap_or_default().to_vec()
}
