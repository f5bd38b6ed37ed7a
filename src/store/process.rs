//! Who works on a store: a process with a heartbeat, and what it has claimed.
//!
//! Nothing depends on leases to be right: artifacts are content-addressed, and two processes that make the same one
//! make the same bytes. They only keep two processes from doing the same work twice. A claim is a hard link to the
//! process's own record, so that it appears whole; where the file system has no links it is a copy, and where it cannot
//! be made at all, work may be done twice and nothing stops. A process is dead when the system says so; of another boot,
//! container or machine, when its record has stood still for longer than shared file systems keep what they know of a
//! file. That is told by the clock that stamps the store's files, or by watching; no two machines' clocks are compared.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::attempts::{self, Attempt};
use super::disk::{Disk, SystemDisk, is_taken};
use crate::error::{Error, Result};
use crate::fault;
use crate::files::atomic::{PATIENCE, age, clock};
use crate::files::owner::Owner;
use crate::files::sha256;

/// Between two beats. (Tests do not wait so long for one.)
const BEAT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 15 });

/// For so long a claim that was another's counts as still theirs when a listing has it: whether they live is asked no
/// sooner, so that waiting for many claims costs one listing and not two or three operations each.
const PROBE: Duration = Duration::from_secs(10);

/// Of how many claims one look asks whether their owners live: hundreds of workers wait for hundreds of claims.
const PROBES: usize = 4;

/// How often a claim is tried at once, while others make and give back the same one.
const ATTEMPTS: usize = 10;

/// For so long a listing of all claims is as good as a new one.
const LISTING: Duration = Duration::from_millis(200);

/// What a process says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Unlike any other, past or present.
    pub id: String,
    #[serde(flatten)]
    pub owner: Owner,
    beat: u64,
}

impl Process {
    fn this() -> Self {
        let owner = Owner::this();
        // A process may open a store more than once, and each opening is on its own.
        static OPENINGS: AtomicU64 = AtomicU64::new(0);
        let opening = OPENINGS.fetch_add(1, Relaxed);
        let unique = sha256::of_bytes(format!("{owner:?} {opening} {:?}", SystemTime::now()));
        let id = format!("{}-{}", owner.pid, &unique[..12]);
        Self { id, owner, beat: 0 }
    }

    /// Always of the same length, so that a beat can be written over the last one.
    fn record(&self) -> Vec<u8> {
        let Owner { pid, system, started } = &self.owner;
        let mut text = serde_json::json!({"id": self.id, "pid": pid, "system": system, "started": started});
        text["beat"] = format!("{:020}", self.beat).into();
        text.to_string().into_bytes()
    }

    fn read(disk: &dyn Disk, path: &Path) -> Option<Self> {
        #[derive(Deserialize)]
        struct ProcessRecord {
            id: String,
            #[serde(flatten)]
            owner: Owner,
            beat: String,
        }
        let ProcessRecord { id, owner, beat } = serde_json::from_slice(&disk.read(path).ok()?).ok()?;
        Some(Self { id, owner, beat: beat.parse().ok()? })
    }

    /// One of which nothing is known but that it is there.
    fn unknown() -> Self {
        Self { id: String::new(), owner: Owner { pid: 0, system: None, started: None }, beat: 0 }
    }
}

/// A process that has a record in the store.
pub(super) struct Known {
    pub(super) record: PathBuf,
    pub(super) process: Process,
    pub(super) dead: bool,
}

/// The processes that have a record here. Those of other systems are dead when their records have stood still for longer
/// than patience lasts.
pub(super) fn all(root: &Path) -> Vec<Known> {
    let folder = root.join("processes");
    let records = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let disk = SystemDisk::default();
    let read: Vec<_> = records.filter_map(|path| Some((Process::read(&disk, &path)?, path))).collect();
    let far = read.iter().any(|(process, _)| process.owner.lives().is_none());
    let now = far.then(|| clock(&folder));
    let known = |(process, record): (Process, PathBuf)| {
        let dead = match (process.owner.lives(), now) {
            (Some(lives), _) => !lives,
            (None, Some(now)) => age(&record, now).is_some_and(|age| age > PATIENCE),
            (None, None) => false,
        };
        Known { record, process, dead }
    };
    read.into_iter().map(known).collect()
}

/// This process at work on a store, from its first claim or draft to its end.
pub(crate) struct Worker {
    disk: Arc<dyn Disk>,
    process: Process,
    record: PathBuf,
    processes: PathBuf,
    claims: PathBuf,
    /// The claims that this process has: its own record in a claim does not tell which of its threads it belongs to.
    held: Arc<Mutex<HashSet<PathBuf>>>,
    seen: Mutex<HashMap<String, (u64, Duration)>>,
    /// When claims of others were last tried in vain, or first seen.
    tried: Mutex<HashMap<String, Duration>>,
    listed: Mutex<Option<Listing>>,
    heart: Option<(Sender<()>, JoinHandle<()>)>,
}

/// The names of all claims at one moment.
struct Listing {
    at: Duration,
    names: HashSet<String>,
    /// How many of them may still be asked whether their owners live.
    probes: usize,
}

/// What came of an attempt to claim something.
pub enum ClaimResult {
    Mine(Lease),
    /// Another process, or another job of this one, is at it.
    Theirs(Process),
}

/// A claim that is given back when it is dropped.
pub struct Lease {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    held: Arc<Mutex<HashSet<PathBuf>>>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // In this order: as long as it is held, nobody here takes the file for one of a moment ago.
        self.disk.remove(&self.path).ok();
        lock(&self.held).remove(&self.path);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What keeps a process's record moving.
struct Heart {
    disk: Arc<dyn Disk>,
    process: Process,
    record: PathBuf,
}

impl Heart {
    fn beat(&mut self) {
        self.process.beat += 1;
        let record = self.process.record();
        // Whoever took this process for dead (it slept, or its machine did) has removed its record.
        let beat = self.disk.overwrite(&self.record, &record);
        if beat.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            // A beat that cannot be written is as good as none: others then wait less long than they could.
            self.disk.create(&self.record, &record).ok();
        }
    }
}

impl Worker {
    pub(super) fn start(root: &Path, disk: Arc<dyn Disk>) -> Result<Self> {
        for folder in ["processes", "claims"].map(|name| root.join(name)) {
            fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, &error))?;
        }
        let mut worker = Self::begin(root, Process::this(), disk)?;
        let mut heart = worker.heart_of();
        let (stop, stopped) = mpsc::channel();
        let beating = std::thread::spawn(move || {
            while stopped.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                heart.beat();
            }
        });
        worker.heart = Some((stop, beating));
        Ok(worker)
    }

    fn heart_of(&self) -> Heart {
        Heart { disk: Arc::clone(&self.disk), process: self.process.clone(), record: self.record.clone() }
    }

    /// A process without a heart that beats by itself.
    fn begin(root: &Path, process: Process, disk: Arc<dyn Disk>) -> Result<Self> {
        let (processes, claims) = (root.join("processes"), root.join("claims"));
        let record = processes.join(format!("{}.json", process.id));
        disk.create(&record, &process.record()).map_err(|error| Error::io("write", &record, &error))?;
        Ok(Self {
            disk,
            process,
            record,
            processes,
            claims,
            held: Arc::default(),
            seen: Mutex::default(),
            tried: Mutex::default(),
            listed: Mutex::default(),
            heart: None,
        })
    }

    pub(super) fn id(&self) -> &str {
        &self.process.id
    }

    /// A number below `count`, of which every process has its own.
    pub(crate) fn lot(&self, count: usize) -> usize {
        let digits = self.process.id.rsplit('-').next().and_then(|digits| u64::from_str_radix(digits, 16).ok());
        (digits.unwrap_or_default() % count.max(1) as u64) as usize
    }

    /// Claims a name, unless a living process has.
    pub(crate) fn claim(&self, name: &str) -> ClaimResult {
        let path = self.claims.join(name);
        if !lock(&self.held).insert(path.clone()) {
            return ClaimResult::Theirs(self.process.clone());
        }
        let lease = Lease { disk: Arc::clone(&self.disk), path, held: Arc::clone(&self.held) };
        // Somebody else's, and not this process's to remove.
        let theirs = |lease: Lease, process| {
            let Lease { path, held, .. } = &lease;
            lock(held).remove(path);
            std::mem::forget(lease);
            lock(&self.tried).insert(name.to_owned(), self.disk.now());
            ClaimResult::Theirs(process)
        };
        for _ in 0..ATTEMPTS {
            match self.mark(&lease.path) {
                Ok(()) => return ClaimResult::Mine(lease),
                Err(error) if is_taken(&error) => {}
                // Without a mark others may do the same work: that costs time and nothing else.
                Err(_) => return ClaimResult::Mine(lease),
            }
            match Process::read(&*self.disk, &lease.path) {
                // A link over the network that was made and then said to exist: nobody else here has the name.
                Some(own) if own.id == self.process.id => return ClaimResult::Mine(lease),
                Some(process) if self.alive(&process) => return theirs(lease, process),
                Some(dead) => {
                    if self.break_up(&lease.path, Some(&dead)) {
                        died(&*self.disk, &self.claims, name, &dead);
                    }
                }
                // Gone meanwhile: the next attempt may succeed.
                None if !self.disk.exists(&lease.path) => {}
                None => drop(self.break_up(&lease.path, None)),
            }
        }
        // It is taken, and not to be seen: a cache is behind. Later it will show.
        theirs(lease, Process::unknown())
    }

    /// Whether a claim that was tried a moment ago in vain still stands, by one listing for all of them.
    pub(crate) fn still_theirs(&self, name: &str) -> bool {
        let now = self.disk.now();
        let lately = lock(&self.tried).get(name).is_some_and(|&tried| now.saturating_sub(tried) < PROBE);
        lately && self.with_claims(|claims| claims.contains(name))
    }

    /// Whether somebody has a claim, by the listing alone: of many that are free or taken, the free ones are found without
    /// an operation each. Whether they live is asked a while after it was first seen.
    pub(crate) fn seems_theirs(&self, name: &str) -> bool {
        let now = self.disk.now();
        if !self.with_claims(|claims| claims.contains(name)) {
            return false;
        }
        let first = *lock(&self.tried).entry(name.to_owned()).or_insert(now);
        let mut listed = lock(&self.listed);
        let probes = listed.as_mut().map(|listing| &mut listing.probes).filter(|probes| **probes > 0);
        let Some(probes) = probes.filter(|_| now.saturating_sub(first) >= PROBE) else { return true };
        *probes -= 1;
        false
    }

    /// Shows the names of all claims, of a moment ago at most.
    pub(crate) fn with_claims<T>(&self, look: impl FnOnce(&HashSet<String>) -> T) -> T {
        let (mut listed, now) = (lock(&self.listed), self.disk.now());
        let old = listed.take().filter(|listing| now.saturating_sub(listing.at) < LISTING);
        let fresh = || {
            let names = self.disk.list(&self.claims).into_iter().collect();
            Listing { at: now, names, probes: PROBES }
        };
        look(&listed.insert(old.unwrap_or_else(fresh)).names)
    }

    /// Puts this process's record at the path of a claim, which must not exist.
    fn mark(&self, path: &Path) -> io::Result<()> {
        let linked = if fault::set("no-links") {
            Err(ErrorKind::Unsupported.into())
        } else {
            self.disk.link(&self.record, path)
        };
        match linked {
            Ok(()) if fault::set("link-made-and-denied") => Err(ErrorKind::AlreadyExists.into()),
            Err(error) if !is_taken(&error) => self.disk.create(path, &self.process.record()),
            linked => linked,
        }
    }

    /// Takes a dead process's claim away. Of several that try, one renames it; whoever caught a claim that was made
    /// meanwhile puts it back.
    /// Whether it was the one, and took what it meant to.
    fn break_up(&self, path: &Path, dead: Option<&Process>) -> bool {
        let aside = self.claims.join(format!("{}.dead", self.process.id));
        if self.disk.rename(path, &aside).is_err() {
            return false;
        }
        let other = match (dead, Process::read(&*self.disk, &aside)) {
            (Some(dead), Some(caught)) => caught.id != dead.id,
            _ => false,
        };
        if other && self.disk.link(&aside, path).is_err() {
            // Where there are no links it is a copy; where somebody has the name by now, it is theirs.
            self.disk.read(&aside).and_then(|record| self.disk.create(path, &record)).ok();
        }
        self.disk.remove(&aside).ok();
        !other
    }

    /// Whether a process lives, as far as one can tell; in doubt it does.
    pub(super) fn alive(&self, process: &Process) -> bool {
        if let Some(lives) = process.owner.lives() {
            return lives;
        }
        // Its heart beats in its own record; a claim that is a copy stands still. Without a record it is gone.
        let record = self.processes.join(format!("{}.json", process.id));
        let Some(Process { beat: now_at, .. }) = Process::read(&*self.disk, &record) else {
            return self.disk.exists(&record);
        };
        let mut seen = lock(&self.seen);
        let now = self.disk.now();
        let (beat, since) = seen.entry(process.id.clone()).or_insert_with(|| {
            // Seen for the first time: it may have stood still for long already.
            let before = self.disk.age(&record, &self.processes).unwrap_or_default();
            (now_at, now.saturating_sub(before))
        });
        if *beat != now_at {
            (*beat, *since) = (now_at, now);
        }
        now.saturating_sub(*since) <= PATIENCE
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some((stop, heart)) = self.heart.take() {
            drop(stop);
            heart.join().ok();
        }
        self.disk.remove(&self.record).ok();
    }
}

/// Removes the claims of processes that are dead, or gone without a trace, and what is no claim at all.
pub(super) fn sweep_claims(root: &Path, known: &[Known]) {
    let disk = SystemDisk::default();
    for entry in fs::read_dir(root.join("claims")).into_iter().flatten().flatten() {
        let Some(process) = Process::read(&disk, &entry.path()) else { continue };
        let of = known.iter().find(|known| known.process.id == process.id);
        let dead = of.map_or(process.owner.lives() == Some(false), |known| known.dead);
        // Of several that sweep, one removes it.
        if dead && fs::remove_file(entry.path()).is_ok() {
            died(&disk, &root.join("claims"), &entry.file_name().to_string_lossy(), &process);
        }
    }
}

/// What a claim that is held while something is computed begins with a hash or this word: of other claims it says nothing
/// that their owner died.
pub const CALIBRATING: &str = "calibrate-";

/// Notes that a process died at the work that it had claimed.
fn died(disk: &dyn Disk, claims: &Path, name: &str, process: &Process) {
    let chunk = name.split_once('-').is_some_and(|(journal, _)| journal.len() == 64);
    if let Some(root) = claims.parent().filter(|_| chunk || name.starts_with(CALIBRATING)) {
        attempts::note(disk, root, name, &Attempt::of_the_dead(process));
    }
}

#[cfg(test)]
mod network_test;

#[cfg(test)]
mod tests {
    use super::*;

    fn started(root: &Path) -> Worker {
        Worker::start(root, Arc::new(SystemDisk::default())).unwrap()
    }

    fn workers() -> (tempfile::TempDir, Worker, Worker) {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (started(folder.path()), started(folder.path()));
        (folder, one, two)
    }

    #[test]
    fn a_name_is_claimed_once_and_free_again_after() {
        let (_folder, one, two) = workers();
        let ClaimResult::Mine(lease) = one.claim("a") else { panic!("not free") };
        let ClaimResult::Theirs(owner) = two.claim("a") else { panic!("claimed twice") };
        assert_eq!(owner.id, one.id());
        assert!(matches!(one.claim("a"), ClaimResult::Theirs(_)), "another thread of the same process has it");
        assert!(matches!(two.claim("b"), ClaimResult::Mine(_)));
        assert!(matches!(two.claim("a"), ClaimResult::Theirs(_)), "having asked changes nothing");
        drop(lease);
        assert!(matches!(two.claim("a"), ClaimResult::Mine(_)));
    }

    #[test]
    fn a_link_that_was_made_although_it_is_said_to_exist_is_one_s_own() {
        let (_folder, one, two) = workers();
        // What a server's lost answer leaves: the link is there, and the call failed.
        fs::hard_link(&one.record, one.claims.join("a")).unwrap();
        assert!(matches!(two.claim("a"), ClaimResult::Theirs(_)));
        let ClaimResult::Mine(lease) = one.claim("a") else { panic!("one waits for oneself") };
        drop(lease);
        assert!(matches!(two.claim("a"), ClaimResult::Mine(_)));
    }

    /// A claim by a process that the record says this of, and that record.
    fn planted(worker: &Worker, process: &Process) -> PathBuf {
        let record = worker.processes.join(format!("{}.json", process.id));
        fs::write(&record, process.record()).unwrap();
        fs::write(worker.claims.join("a"), process.record()).unwrap();
        record
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_claim_of_a_dead_process_is_taken_over_at_once() {
        let (_folder, one, _two) = workers();
        let owner = || one.process.owner.clone();
        for owner in [Owner { pid: 99_999_999, ..owner() }, Owner { started: Some(1), ..owner() }] {
            planted(&one, &Process { id: "dead".into(), owner, beat: 0 });
            assert!(matches!(one.claim("a"), ClaimResult::Mine(_)));
        }
        fs::write(one.claims.join("a"), "no record").unwrap();
        assert!(matches!(one.claim("a"), ClaimResult::Mine(_)), "a damaged claim is nobody's");
    }

    #[test]
    fn a_process_elsewhere_lives_as_long_as_its_heart_beats() {
        let (_folder, one, _two) = workers();
        let owner = Owner { system: Some("another".into()), ..one.process.owner.clone() };
        let mut far = Process { id: "far".into(), owner, beat: 0 };
        planted(&one, &far);
        assert!(matches!(one.claim("a"), ClaimResult::Theirs(_)), "in doubt it lives");
        // Watched for longer than patience lasts, without a beat; no clock is read, so none can mislead.
        let before = one.disk.now() - PATIENCE * 2;
        one.seen.lock().unwrap().insert("far".into(), (0, before));
        far.beat = 1;
        planted(&one, &far);
        assert!(matches!(one.claim("a"), ClaimResult::Theirs(_)), "it has moved");
        one.seen.lock().unwrap().insert("far".into(), (1, before));
        assert!(matches!(one.claim("a"), ClaimResult::Mine(_)));
    }

    #[test]
    fn a_process_elsewhere_whose_record_is_old_is_dead_at_first_sight() {
        let (folder, one, two) = workers();
        let owner = Owner { system: Some("another".into()), ..one.process.owner.clone() };
        let record = planted(&one, &Process { id: "far".into(), owner, beat: 0 });
        let dead = || all(folder.path()).iter().filter(|known| known.dead).count();
        assert_eq!(dead(), 0);
        let file = fs::File::options().append(true).open(&record).unwrap();
        file.set_modified(SystemTime::now() - PATIENCE * 2).unwrap();
        assert_eq!(dead(), 1);
        let ClaimResult::Mine(lease) = one.claim("a") else { panic!("waits for the dead") };
        drop(lease);
        // Without a record it is gone: whatever it has claimed is free.
        fs::rename(&record, one.claims.join("b")).unwrap();
        assert!(matches!(two.claim("b"), ClaimResult::Mine(_)));
    }

    #[test]
    fn the_heart_beats_in_the_record_and_a_lost_record_comes_back() {
        let (folder, one, _two) = workers();
        let beat = || all(folder.path()).iter().find(|known| known.process.id == one.id()).map(|k| k.process.beat);
        let wait = |what: &str, until: &dyn Fn() -> bool| {
            let started = std::time::Instant::now();
            while !until() {
                assert!(started.elapsed() < Duration::from_secs(30), "{what}");
                std::thread::sleep(Duration::from_millis(50));
            }
        };
        wait("no beat", &|| beat() >= Some(1));
        fs::remove_file(&one.record).unwrap();
        wait("no new record", &|| beat() >= Some(2));
    }

    #[test]
    fn a_process_that_ends_leaves_no_record() {
        let (folder, one, two) = workers();
        assert_eq!(all(folder.path()).len(), 2);
        drop((one, two));
        assert_eq!(all(folder.path()).len(), 0);
    }
}
