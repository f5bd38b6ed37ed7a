//! A process at work on a store: its heartbeat, and what it has claimed.
//!
//! Nothing depends on leases to be right: objects are content-addressed, and two processes that make the same one
//! make the same bytes. They only keep two processes from doing the same work twice. A claim is a hard link to the
//! process's own record, so that it appears whole; where the file system has no links it is a copy, and where it cannot
//! be made at all, work may be done twice and nothing stops.

use std::any::Any;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::StoreWords;
use super::attempts::{self, Attempt};
use super::disk::{Disk, is_taken};
use super::process::Process;
use super::processes::{self, KnownProcess};
use super::uses::Uses;
use crate::fault;
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::atomic::PATIENCE;

/// Between two beats. (Tests do not wait so long for one.)
pub(super) const BEAT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 15 });

/// Time for which a claim of another process counts as held when a listing shows it: its owner is checked no earlier,
/// so that waiting for many claims costs one listing instead of two or three operations each.
const PROBE: Duration = Duration::from_secs(10);

/// Number of claims per pass whose owners are checked: hundreds of workers wait for hundreds of claims.
const PROBES: usize = 4;

/// How often a claim is tried at once, while others make and give back the same one.
const ATTEMPTS: usize = 10;

/// Time for which an own claim is trusted without a look: a fraction of other processes' patience.
const ASSURED: Duration = Duration::from_secs(30);

/// Time for which a listing of all claims is reused.
const LISTING: Duration = Duration::from_millis(200);

/// State of this process as a worker on a store, from its first claim or draft to its end.
pub(crate) struct Worker {
    disk: Arc<dyn Disk>,
    words: StoreWords,
    process: Process,
    record: PathBuf,
    processes: PathBuf,
    claims: PathBuf,
    /// The claims that this process has: its own record in a claim does not tell which of its threads it belongs to.
    held: Arc<Mutex<HashSet<PathBuf>>>,
    seen: Mutex<HashMap<String, (u64, Duration)>>,
    /// When claims of other processes were last tried without success, or first seen.
    tried: Mutex<HashMap<String, Duration>>,
    listed: Mutex<Option<ClaimListing>>,
    /// The hashes noted for reading, removed with the record.
    uses: Arc<Uses>,
    /// Keeps its record moving.
    heartbeat: Option<Box<dyn Any + Send + Sync>>,
}

/// The names of all claims at one moment.
struct ClaimListing {
    at: Duration,
    names: BTreeSet<String>,
    /// How many of them may still be asked whether their owners live.
    probes: usize,
}

/// Result of an attempt to claim something.
pub enum ClaimResult {
    Mine(Lease),
    /// Another process, or another job of this one, holds the claim.
    Theirs(Process),
}

/// A claim that is given back when it is dropped, if it is this process's still.
pub struct Lease {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// Record of this process.
    id: String,
    record: PathBuf,
    /// Where no claim could be written, others may be at the same work, and nothing tells.
    marked: bool,
    /// When it was last known to be held, by the store's time and by the machine's clock: a machine that sleeps stops the one.
    known: Mutex<(Duration, SystemTime)>,
    held: Arc<Mutex<HashSet<PathBuf>>>,
}

impl Lease {
    /// Returns whether the lease is still held. A process suspended beyond the timeout finds its lease gone or taken;
    /// without its record it counts as dead.
    pub fn holds(&self) -> bool {
        if !self.marked {
            return true;
        }
        let (now, clock) = (self.disk.now(), SystemTime::now());
        let mut known = lock(&self.known);
        let gone_by = clock.duration_since(known.1).map(|by_clock| by_clock.max(now.saturating_sub(known.0)));
        if gone_by.is_ok_and(|time| time < ASSURED) {
            return true;
        }
        let holds = self.is_own() && self.disk.exists(&self.record);
        if holds {
            *known = (now, clock);
        }
        holds
    }

    fn is_own(&self) -> bool {
        processes::read(&*self.disk, &self.path).is_some_and(|process| process.id == self.id)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The order matters: while the claim is held, no local thread mistakes the file for an older one.
        if self.marked && self.is_own() {
            self.disk.remove(&self.path).ok();
        } else if let (true, Some(claims), Some(name)) = (self.marked, self.path.parent(), self.path.file_name()) {
            // The process that took it over has noted this process as dead.
            let root = claims.parent().unwrap_or(claims);
            attempts::take_back(&*self.disk, root, &name.to_string_lossy(), &self.id);
        }
        lock(&self.held).remove(&self.path);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Updates a process's record regularly.
struct Heartbeat {
    disk: Arc<dyn Disk>,
    process: Process,
    record: PathBuf,
    uses: Arc<Uses>,
}

impl Heartbeat {
    fn beat(&mut self) {
        self.process.beat += 1;
        let beat = self.disk.overwrite(&self.record, &self.process.record());
        if beat.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            revive(&*self.disk, &self.record, &self.process, &self.uses);
        }
    }
}

/// Restores a process's record and list of uses after another process took it for dead (because it was stopped, or its
/// machine slept) and removed them.
fn revive(disk: &dyn Disk, record: &Path, process: &Process, uses: &Uses) {
    // A record that cannot be written is as good as none: others then wait less long than they could.
    if disk.create(record, &process.record()).is_ok() {
        uses.note_again();
    }
}

impl Worker {
    pub(super) fn start(root: &Path, words: StoreWords, disk: Arc<dyn Disk>, uses: Arc<Uses>) -> Result<Self> {
        for folder in ["processes", "claims"].map(|name| root.join(name)) {
            disk.make_folder(&folder).map_err(|error| Error::io("create", &folder, &error))?;
        }
        let mut worker = Self::begin(root, words, disk.process(), disk, uses)?;
        let mut heartbeat = worker.heartbeat();
        worker.heartbeat = Some(worker.disk.every(BEAT, Box::new(move || heartbeat.beat())));
        Ok(worker)
    }

    fn heartbeat(&self) -> Heartbeat {
        let disk = Arc::clone(&self.disk);
        let uses = Arc::clone(&self.uses);
        Heartbeat { disk, process: self.process.clone(), record: self.record.clone(), uses }
    }

    /// Starts a process without a heartbeat of its own.
    fn begin(root: &Path, words: StoreWords, process: Process, disk: Arc<dyn Disk>, uses: Arc<Uses>) -> Result<Self> {
        let processes = root.join("processes");
        let claims = root.join("claims");
        let record = processes.join(format!("{}.json", process.id));
        disk.create(&record, &process.record()).map_err(|error| Error::io("write", &record, &error))?;
        Ok(Self {
            disk,
            words,
            process,
            record,
            processes,
            claims,
            held: Arc::default(),
            seen: Mutex::default(),
            tried: Mutex::default(),
            listed: Mutex::default(),
            uses,
            heartbeat: None,
        })
    }

    pub(super) fn id(&self) -> &str {
        &self.process.id
    }

    /// Returns a number below `count` that differs between processes.
    pub(crate) fn start_offset(&self, count: usize) -> usize {
        let digits = self.process.id.rsplit('-').next().and_then(|digits| u64::from_str_radix(digits, 16).ok());
        (digits.unwrap_or_default() % count.max(1) as u64) as usize
    }

    /// Claims a name, unless a living process has.
    pub(crate) fn claim(&self, name: &str) -> ClaimResult {
        let path = self.claims.join(name);
        if !lock(&self.held).insert(path.clone()) {
            return ClaimResult::Theirs(self.process.clone());
        }
        // Held by another process, so not removed here.
        let theirs = |process| {
            lock(&self.held).remove(&path);
            lock(&self.tried).insert(name.to_owned(), self.disk.now());
            ClaimResult::Theirs(process)
        };
        for _ in 0..ATTEMPTS {
            match self.mark(&path) {
                Ok(()) => return ClaimResult::Mine(self.lease(path, true)),
                Err(error) if is_taken(&error) => {}
                // Other processes may repeat the work of a lease that cannot be written. This costs only time.
                Err(_) => return ClaimResult::Mine(self.lease(path, false)),
            }
            match processes::read(&*self.disk, &path) {
                // A link over the network may have been made although the call reported an existing file: no other
                // process uses this name.
                Some(lease_record) if lease_record.id == self.process.id => {
                    return ClaimResult::Mine(self.lease(path, true));
                }
                Some(process) if self.alive(&process) => return theirs(process),
                Some(dead) => {
                    if self.break_up(&path, Some(&dead)) {
                        died(&*self.disk, &self.claims, self.words, name, &dead);
                    }
                }
                // Gone meanwhile: the next attempt may succeed.
                None if !self.disk.exists(&path) => {}
                None => drop(self.break_up(&path, None)),
            }
        }
        // The claim exists but is not visible: a cache is behind. It will show later.
        theirs(Process::unknown(""))
    }

    fn lease(&self, path: PathBuf, marked: bool) -> Lease {
        let disk = Arc::clone(&self.disk);
        let held = Arc::clone(&self.held);
        let known = Mutex::new((disk.now(), SystemTime::now()));
        Lease { disk, path, id: self.process.id.clone(), record: self.record.clone(), marked, known, held }
    }

    /// Returns whether a contended lease is still held, with one listing for all of them.
    pub(crate) fn still_theirs(&self, name: &str) -> bool {
        let now = self.disk.now();
        let lately = lock(&self.tried).get(name).is_some_and(|&tried| now.saturating_sub(tried) < PROBE);
        lately && self.with_claims(|claims| claims.contains(name))
    }

    /// Returns whether a lease exists, from the listing only. Whether its owner is alive is checked later.
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
    pub(crate) fn with_claims<T>(&self, look: impl FnOnce(&BTreeSet<String>) -> T) -> T {
        let mut listed = lock(&self.listed);
        let now = self.disk.now();
        let old = listed.take().filter(|listing| now.saturating_sub(listing.at) < LISTING);
        look(
            &listed
                .insert(old.unwrap_or_else(|| {
                    let names = self.disk.list(&self.claims).into_iter().collect();
                    ClaimListing { at: now, names, probes: PROBES }
                }))
                .names,
        )
    }

    /// Puts this process's record at the path of a claim, which must not exist.
    fn mark(&self, path: &Path) -> io::Result<()> {
        let link = || match fault::set("no-links") {
            true => Err(ErrorKind::Unsupported.into()),
            false => self.disk.link(&self.record, path),
        };
        let mut linked = link();
        if linked.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            // A claim of a process without a record counts as a dead one's.
            revive(&*self.disk, &self.record, &self.process, &self.uses);
            linked = link();
        }
        match linked {
            Ok(()) if fault::set("link-made-and-denied") => Err(ErrorKind::AlreadyExists.into()),
            Err(error) if !is_taken(&error) => self.disk.create(path, &self.process.record()),
            linked => linked,
        }
    }

    /// Takes away a dead process's claim. Of several contenders, one renames it; a contender that caught a newer claim
    /// puts it back. Returns whether this call took the intended claim.
    fn break_up(&self, path: &Path, dead: Option<&Process>) -> bool {
        // A name of its own each time: what is no file (a folder) stays there, and `cache verify` names it.
        static ASIDE: AtomicU64 = AtomicU64::new(0);
        let aside = self.claims.join(format!("{}.{}.dead", self.process.id, ASIDE.fetch_add(1, Relaxed)));
        if self.disk.rename(path, &aside).is_err() {
            return false;
        }
        let other = match (dead, processes::read(&*self.disk, &aside)) {
            (Some(dead), Some(caught)) => caught.id != dead.id,
            _ => false,
        };
        if other && self.disk.link(&aside, path).is_err() {
            // Without links it is copied; if another process claimed the name meanwhile, that claim stays.
            self.disk.read(&aside).and_then(|record| self.disk.create(path, &record)).ok();
        }
        self.disk.remove(&aside).ok();
        !other
    }

    /// Returns whether a process is alive, or unknown.
    pub(super) fn alive(&self, process: &Process) -> bool {
        if let Some(lives) = process.owner.lives() {
            return lives;
        }
        // Its heartbeat is in its own record; a claim that is a copy stands still. Without a record it is gone.
        let record = self.processes.join(format!("{}.json", process.id));
        let now_at = match processes::read(&*self.disk, &record) {
            Some(Process { beat, .. }) => beat,
            None if !self.disk.exists(&record) => return false,
            // An unreadable record shows no heartbeat and counts as unchanged.
            None => u64::MAX,
        };
        let mut seen = lock(&self.seen);
        let now = self.disk.now();
        let (beat, since) = seen.entry(process.id.clone()).or_insert_with(|| {
            // Seen for the first time: it may have stood still for long already.
            let before = self.disk.age(&record, self.disk.clock(&self.processes)).unwrap_or_default();
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
        drop(self.heartbeat.take());
        self.disk.remove(&self.record).ok();
    }
}

/// Removes the claims of processes that are dead, or gone without a trace, and what is no claim at all.
pub(super) fn sweep_claims(disk: &dyn Disk, root: &Path, words: StoreWords, known: &[KnownProcess]) {
    let claims = root.join("claims");
    for name in disk.list(&claims) {
        let path = claims.join(&name);
        let Some(process) = processes::read(disk, &path) else { continue };
        let owner = known.iter().find(|known| known.process.id == process.id);
        let dead = owner.map_or(process.owner.lives() == Some(false), |known| known.dead);
        // Only one of several sweeping processes removes the file.
        if dead && disk.remove(&path).is_ok() {
            died(disk, &claims, words, &name, &process);
        }
    }
}

/// Notes that a process died at the work that it had claimed, where that says anything.
fn died(disk: &dyn Disk, claims: &Path, words: StoreWords, name: &str, process: &Process) {
    if let Some(root) = claims.parent().filter(|_| (words.counts_death)(name)) {
        // If this cannot be written, the work may be tried once too often.
        attempts::note(disk, root, name, &Attempt::of_the_dead(process)).ok();
    }
}

#[cfg(test)]
mod network_test;
#[cfg(test)]
mod tests;
