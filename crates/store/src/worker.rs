//! Heartbeat and leases of a process that works on a store.
//!
//! Correctness does not depend on leases: objects are content-addressed, and two processes that compute the same object
//! write the same bytes. Leases only avoid duplicate work. A lease is a hard link to the process record, so it appears
//! atomically. Without hard links it is a copy, and if it cannot be written at all, work may be duplicated.

use std::any::Any;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use super::attempts::{self, Attempt};
use super::disk::{Disk, is_name_taken};
use super::gc_roots::GcRoots;
use super::process::Process;
use super::processes::KnownProcess;
use super::{StoreSchema, lock};
use crate::fault;
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::atomic::STALE_AFTER;

/// Interval between heartbeats. It is shorter in tests.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 15 });

/// Time for which a listed lease of another process is assumed to be held, without checking its owner. Waiting for many
/// leases then costs one listing in total instead of two or three operations per lease.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of lease owners checked per listing. The limit exists because hundreds of workers may wait for
/// hundreds of leases.
const MAX_PROBES: usize = 4;

/// Maximum number of immediate retries while other processes acquire and release the same lease.
const MAX_LEASE_ATTEMPTS: usize = 10;

/// Time for which this process trusts its own lease without a check. It is a fraction of [`STALE_AFTER`].
const LEASE_RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Time for which a listing of all leases is reused.
const LISTING_MAX_AGE: Duration = Duration::from_millis(200);

/// Worker state of this process in a store.
pub(crate) struct Worker {
    disk: Arc<dyn Disk>,
    schema: StoreSchema,
    process: Process,
    record: PathBuf,
    processes: PathBuf,
    leases: PathBuf,
    /// Paths of the leases that this process holds. A lease file names only the process, so this set excludes other
    /// threads.
    held: Arc<Mutex<HashSet<PathBuf>>>,
    /// For each process whose liveness the operating system cannot determine, the last observed heartbeat and the time
    /// at which it changed.
    seen: Mutex<HashMap<String, (u64, Duration)>>,
    /// For each lease held by another process, the time it was last found contended, or first seen if it has not been
    /// contended yet.
    last_contended: Mutex<HashMap<String, Duration>>,
    lease_listing: Mutex<Option<LeaseListing>>,
    /// Hashes reserved by this process. They are removed together with the process record.
    gc_roots: Arc<GcRoots>,
    /// Guard that keeps the heartbeat thread running.
    heartbeat: Option<Box<dyn Any + Send + Sync>>,
}

/// Names of all leases, and the time at which they were listed.
struct LeaseListing {
    at: Duration,
    names: BTreeSet<String>,
    /// Number of lease owners that may still be checked before the next listing.
    probes: usize,
}

/// Result of an attempt to acquire a lease.
pub enum LeaseResult {
    Acquired(Lease),
    /// Another process, or another job of this process, holds the lease.
    Contended(Process),
}

/// Lease on a job. It is released on drop if this process still holds it.
pub struct Lease {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// Id of this process.
    id: String,
    record: PathBuf,
    /// Whether the lease was written. If not, other processes may do the same work unnoticed.
    is_written: bool,
    /// Last time at which the lease was known to be held, according to the monotonic clock and the system clock. Both
    /// are needed because the monotonic clock stops while the machine sleeps.
    last_confirmed: Mutex<(Duration, SystemTime)>,
    held: Arc<Mutex<HashSet<PathBuf>>>,
}

impl Lease {
    /// Returns whether the lease is still held. If this process was suspended for longer than [`STALE_AFTER`], another
    /// process may have removed the lease or taken it over. A process without a record counts as dead.
    pub fn is_held(&self) -> bool {
        if !self.is_written {
            return true;
        }
        let (now, clock) = (self.disk.now(), SystemTime::now());
        let mut last_confirmed = lock(&self.last_confirmed);
        let elapsed =
            clock.duration_since(last_confirmed.1).map(|by_clock| by_clock.max(now.saturating_sub(last_confirmed.0)));
        if elapsed.is_ok_and(|time| time < LEASE_RECHECK_INTERVAL) {
            return true;
        }
        let holds = self.is_own() && self.disk.exists(&self.record);
        if holds {
            *last_confirmed = (now, clock);
        }
        holds
    }

    fn is_own(&self) -> bool {
        Process::read(&*self.disk, &self.path).is_some_and(|process| process.id == self.id)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Remove the path from `held` last. Otherwise, another thread of this process could acquire the lease just
        // before its file is removed.
        if self.is_written && self.is_own() {
            self.disk.remove(&self.path).ok();
        } else if let (true, Some(leases), Some(name)) = (self.is_written, self.path.parent(), self.path.file_name()) {
            // The process that took over the lease recorded this process as dead. Remove that record.
            let root = leases.parent().unwrap_or(leases);
            attempts::remove_death(&*self.disk, root, &name.to_string_lossy(), &self.id);
        }
        lock(&self.held).remove(&self.path);
    }
}

/// Heartbeat that updates a process record periodically.
struct Heartbeat {
    disk: Arc<dyn Disk>,
    process: Process,
    record: PathBuf,
    gc_roots: Arc<GcRoots>,
}

impl Heartbeat {
    fn beat(&mut self) {
        self.process.beat += 1;
        let beat = self.disk.overwrite(&self.record, &self.process.record());
        if beat.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            restore_record(&*self.disk, &self.record, &self.process, &self.gc_roots);
        }
    }
}

/// Restores the record and reserved hashes of a process after another process considered it dead (because it was
/// stopped or its machine slept) and removed them.
fn restore_record(disk: &dyn Disk, record: &Path, process: &Process, gc_roots: &GcRoots) {
    // A failure is harmless: other processes then take over leases earlier than necessary.
    if disk.create(record, &process.record()).is_ok() {
        gc_roots.rewrite_list();
    }
}

impl Worker {
    pub(super) fn start(root: &Path, schema: StoreSchema, disk: Arc<dyn Disk>, gc_roots: Arc<GcRoots>) -> Result<Self> {
        for folder in ["processes", "claims"].map(|name| root.join(name)) {
            disk.make_folder(&folder).map_err(|error| Error::folder_io("create", &folder, &error))?;
        }
        let mut worker = Self::new(root, schema, disk.process(), disk, gc_roots)?;
        let mut heartbeat = worker.new_heartbeat();
        worker.heartbeat = Some(worker.disk.run_periodically(HEARTBEAT_INTERVAL, Box::new(move || heartbeat.beat())));
        Ok(worker)
    }

    fn new_heartbeat(&self) -> Heartbeat {
        let disk = Arc::clone(&self.disk);
        let gc_roots = Arc::clone(&self.gc_roots);
        Heartbeat { disk, process: self.process.clone(), record: self.record.clone(), gc_roots }
    }

    /// Creates a worker without a heartbeat thread.
    fn new(
        root: &Path,
        schema: StoreSchema,
        process: Process,
        disk: Arc<dyn Disk>,
        gc_roots: Arc<GcRoots>,
    ) -> Result<Self> {
        let processes = root.join("processes");
        let leases = root.join("claims");
        let record = processes.join(format!("{}.json", process.id));
        disk.create(&record, &process.record()).map_err(|error| Error::io("write", &record, &error))?;
        Ok(Self {
            disk,
            schema,
            process,
            record,
            processes,
            leases,
            held: Arc::default(),
            seen: Mutex::default(),
            last_contended: Mutex::default(),
            lease_listing: Mutex::default(),
            gc_roots,
            heartbeat: None,
        })
    }

    pub(super) fn id(&self) -> &str {
        &self.process.id
    }

    /// Implements [`crate::Store::start_offset`].
    pub(crate) fn start_offset(&self, count: usize) -> usize {
        let digits = self.process.id.rsplit('-').next().and_then(|digits| u64::from_str_radix(digits, 16).ok());
        (digits.unwrap_or_default() % count.max(1) as u64) as usize
    }

    /// Tries to acquire a lease. Succeeds if no running process holds it.
    pub(crate) fn lease(&self, name: &str) -> LeaseResult {
        let path = self.leases.join(name);
        if !lock(&self.held).insert(path.clone()) {
            return LeaseResult::Contended(self.process.clone());
        }
        // Remove only the entry in `held`. The lease file belongs to another process.
        let contended = |process| {
            lock(&self.held).remove(&path);
            lock(&self.last_contended).insert(name.to_owned(), self.disk.now());
            LeaseResult::Contended(process)
        };
        for _ in 0..MAX_LEASE_ATTEMPTS {
            match self.create_lease_file(&path) {
                Ok(()) => return LeaseResult::Acquired(self.new_lease(path, true)),
                Err(error) if is_name_taken(&error) => {}
                // If the lease cannot be written, other processes may duplicate the work, which only costs time.
                Err(_) => return LeaseResult::Acquired(self.new_lease(path, false)),
            }
            match Process::read(&*self.disk, &path) {
                // On a network file system, the server may have created the link although the call failed. The id shows
                // that the lease belongs to this process.
                Some(lease_record) if lease_record.id == self.process.id => {
                    return LeaseResult::Acquired(self.new_lease(path, true));
                }
                Some(process) if self.is_alive(&process) => return contended(process),
                Some(dead) => {
                    if self.break_lease(&path, Some(&dead)) {
                        record_death(&*self.disk, &self.leases, self.schema, name, &dead);
                    }
                }
                // The lease is gone, so the next attempt may succeed.
                None if !self.disk.exists(&path) => {}
                None => drop(self.break_lease(&path, None)),
            }
        }
        // The lease exists but is not visible yet because of caching.
        contended(Process::unknown(""))
    }

    fn new_lease(&self, path: PathBuf, is_written: bool) -> Lease {
        let disk = Arc::clone(&self.disk);
        let held = Arc::clone(&self.held);
        let last_confirmed = Mutex::new((disk.now(), SystemTime::now()));
        Lease { disk, path, id: self.process.id.clone(), record: self.record.clone(), is_written, last_confirmed, held }
    }

    /// Returns whether a lease that was found contended within [`PROBE_INTERVAL`] is still in the listing of all
    /// leases. Does not check its owner.
    pub(crate) fn is_still_leased(&self, name: &str) -> bool {
        let now = self.disk.now();
        let was_contended =
            lock(&self.last_contended).get(name).is_some_and(|&time| now.saturating_sub(time) < PROBE_INTERVAL);
        was_contended && self.with_leases(|leases| leases.contains(name))
    }

    /// Returns whether the listing contains a lease. To make the caller check the owners of long-held leases, returns
    /// false for up to [`MAX_PROBES`] of them per listing.
    pub(crate) fn is_listed_as_leased(&self, name: &str) -> bool {
        let now = self.disk.now();
        if !self.with_leases(|leases| leases.contains(name)) {
            return false;
        }
        let first = *lock(&self.last_contended).entry(name.to_owned()).or_insert(now);
        let mut lease_listing = lock(&self.lease_listing);
        let probes = lease_listing.as_mut().map(|listing| &mut listing.probes).filter(|probes| **probes > 0);
        let Some(probes) = probes.filter(|_| now.saturating_sub(first) >= PROBE_INTERVAL) else { return true };
        *probes -= 1;
        false
    }

    /// Implements [`crate::Store::with_leases`].
    pub(crate) fn with_leases<T>(&self, inspect: impl FnOnce(&BTreeSet<String>) -> T) -> T {
        let mut lease_listing = lock(&self.lease_listing);
        let now = self.disk.now();
        let old = lease_listing.take().filter(|listing| now.saturating_sub(listing.at) < LISTING_MAX_AGE);
        inspect(
            &lease_listing
                .insert(old.unwrap_or_else(|| {
                    let names = self.disk.list(&self.leases).into_iter().collect();
                    LeaseListing { at: now, names, probes: MAX_PROBES }
                }))
                .names,
        )
    }

    /// Creates the lease file `path` as a hard link to this process's record, or as a copy without hard links. Fails if
    /// the file exists.
    fn create_lease_file(&self, path: &Path) -> io::Result<()> {
        let mut linked = self.link_record(path);
        if linked.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            // The record of this process may have been removed. Without it, this process would count as dead.
            restore_record(&*self.disk, &self.record, &self.process, &self.gc_roots);
            linked = self.link_record(path);
        }
        match linked {
            Ok(()) if fault::is_set("link-made-and-denied") => Err(ErrorKind::AlreadyExists.into()),
            Err(error) if !is_name_taken(&error) => self.disk.create(path, &self.process.record()),
            linked => linked,
        }
    }

    /// Links the record of this process to the path of a lease.
    fn link_record(&self, path: &Path) -> io::Result<()> {
        match fault::is_set("no-links") {
            true => Err(ErrorKind::Unsupported.into()),
            false => self.disk.link(&self.record, path),
        }
    }

    /// Breaks the lease of a dead process. If several processes try, one succeeds in renaming it. A process that
    /// renamed a newer lease puts it back. Returns whether the intended lease was removed.
    fn break_lease(&self, path: &Path, dead: Option<&Process>) -> bool {
        // Use a unique name each time. If the lease is a folder, it cannot be removed below and keeps that name until
        // `cache verify` reports it.
        static NEXT_MOVED_LEASE_ID: AtomicU64 = AtomicU64::new(0);
        let aside = self.leases.join(format!("{}.{}.dead", self.process.id, NEXT_MOVED_LEASE_ID.fetch_add(1, Relaxed)));
        if self.disk.rename(path, &aside).is_err() {
            return false;
        }
        let is_other = match (dead, Process::read(&*self.disk, &aside)) {
            (Some(dead), Some(caught)) => caught.id != dead.id,
            _ => false,
        };
        if is_other && self.disk.link(&aside, path).is_err() {
            // Copy the lease back if links are unsupported. If another process took it in the meantime, that lease
            // stays.
            self.disk.read(&aside).and_then(|record| self.disk.create(path, &record)).ok();
        }
        self.disk.remove(&aside).ok();
        !is_other
    }

    /// Returns whether a process is alive. Unknown processes count as alive.
    pub(super) fn is_alive(&self, process: &Process) -> bool {
        if let Some(lives) = process.owner.is_alive() {
            return lives;
        }
        // Read the heartbeat from the process record, because a copied lease does not change. A process without a
        // record is dead.
        let record = self.processes.join(format!("{}.json", process.id));
        let current_beat = match Process::read(&*self.disk, &record) {
            Some(Process { beat, .. }) => beat,
            None if !self.disk.exists(&record) => return false,
            // An unreadable record shows no heartbeat and counts as unchanged.
            None => u64::MAX,
        };
        let mut seen = lock(&self.seen);
        let now = self.disk.now();
        let (beat, since) = seen.entry(process.id.clone()).or_insert_with(|| {
            // At the first observation, the record may already have been unchanged for a long time.
            let before = self.disk.age(&record, self.disk.file_system_time(&self.processes)).unwrap_or_default();
            (current_beat, now.saturating_sub(before))
        });
        if *beat != current_beat {
            (*beat, *since) = (current_beat, now);
        }
        now.saturating_sub(*since) <= STALE_AFTER
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.heartbeat.take());
        self.disk.remove(&self.record).ok();
    }
}

pub(super) fn remove_dead_leases(disk: &dyn Disk, root: &Path, schema: StoreSchema, known: &[KnownProcess]) {
    let leases = root.join("claims");
    for name in disk.list(&leases) {
        let path = leases.join(&name);
        let Some(process) = Process::read(disk, &path) else { continue };
        let owner = known.iter().find(|known| known.process.id == process.id);
        let dead = owner.map_or(process.owner.is_alive() == Some(false), |known| known.dead);
        // Only one of several sweeping processes removes the file.
        if dead && disk.remove(&path).is_ok() {
            record_death(disk, &leases, schema, &name, &process);
        }
    }
}

/// Records that a process died during its job, if deaths count for that job.
fn record_death(disk: &dyn Disk, leases: &Path, schema: StoreSchema, name: &str, process: &Process) {
    if let Some(root) = leases.parent().filter(|_| (schema.counts_death)(name)) {
        // Ignore errors. The job may then be retried once more than allowed.
        attempts::write_attempt(disk, root, name, &Attempt::from_dead_process(process)).ok();
    }
}

#[cfg(test)]
mod network_test;
#[cfg(test)]
mod tests;
