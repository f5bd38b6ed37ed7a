//! Records of failed attempts at jobs. They limit the number of retries across all processes and let `ghostlab status`
//! explain unfinished work.
//!
//! Each attempt is a separate file, written atomically, so no process modifies another's files. Attempts are grouped by
//! the lease name of the job, or by the hash of the object that could not be computed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::disk::Disk;
use super::process::Process;
use super::{Store, lock};
use ghostlab_core::files::owner;

/// Failed attempt at a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Description of the job. Empty if only its name is known.
    pub what: String,
    pub reason: String,
    /// Whether the process died during the job, for example because it was killed or the machine went down.
    pub died: bool,
    pub process: String,
    /// Host that recorded the attempt.
    pub host: String,
    /// Unix time in seconds, from the clock of `host`.
    pub time: u64,
}

impl Attempt {
    /// Creates the record of a failure in a live process.
    pub(super) fn failed(process: &str, what: &str, reason: &str) -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let [what, reason, process] = [what, reason, process].map(str::to_owned);
        Self { what, reason, died: false, process, host: owner::host(), time }
    }

    /// Creates the record for a process that died while it held the job's lease.
    pub(super) fn from_dead_process(process: &Process) -> Self {
        let reason = format!("process {} died during the job", process.owner.pid);
        Self { died: true, ..Self::failed(&process.id, "", &reason) }
    }
}

fn attempts_folder(root: &Path, name: &str) -> PathBuf {
    root.join("attempts").join(name)
}

/// Writes an attempt to a new file in the job's folder.
pub(super) fn write_attempt(disk: &dyn Disk, root: &Path, name: &str, attempt: &Attempt) -> io::Result<()> {
    static NEXT_ATTEMPT_ID: AtomicU64 = AtomicU64::new(0);
    // `attempt.process` may be a dead process, so add the pid of this process and a counter to get a unique name.
    let number = NEXT_ATTEMPT_ID.fetch_add(1, Relaxed);
    let file_name = format!("{}.{}.{number}.json", attempt.process, std::process::id());
    let folder = attempts_folder(root, name);
    let text = serde_json::to_vec_pretty(attempt).unwrap_or_default();
    // Readers ignore names that begin with a dot, so they never see a partial file.
    let temporary = folder.join(format!(".{file_name}"));
    disk.create(&temporary, &text)?;
    let path = folder.join(&file_name);
    // On a network file system, a successful rename may report an error.
    disk.rename(&temporary, &path).or_else(|error| if disk.exists(&path) { Ok(()) } else { Err(error) })
}

/// Returns the attempts at a job, oldest first.
pub(super) fn read_attempts(disk: &dyn Disk, root: &Path, name: &str) -> Vec<Attempt> {
    let folder = attempts_folder(root, name);
    let finished = disk.list(&folder).into_iter().filter(|name| !name.starts_with('.'));
    let mut attempts: Vec<Attempt> =
        finished.filter_map(|name| serde_json::from_slice(&disk.read(&folder.join(name)).ok()?).ok()).collect();
    attempts.sort_by(|a, b| (a.time, &a.process).cmp(&(b.time, &b.process)));
    attempts
}

/// Removes the recorded death of a process that turned out to be alive.
pub(super) fn remove_death(disk: &dyn Disk, root: &Path, name: &str, process: &str) {
    remove_matching(disk, &attempts_folder(root, name), |attempt| attempt.died && attempt.process == process);
}

/// Removes the matching attempts in a folder, and the folder if it becomes empty.
fn remove_matching(disk: &dyn Disk, folder: &Path, is_removed: impl Fn(&Attempt) -> bool) {
    let names = disk.list(folder);
    if names.is_empty() {
        return;
    }
    for name in names {
        let path = folder.join(name);
        let attempt = disk.read(&path).ok().and_then(|text| serde_json::from_slice::<Attempt>(&text).ok());
        if attempt.is_some_and(|attempt| is_removed(&attempt)) {
            disk.remove(&path).ok();
        }
    }
    disk.remove_empty_folder(folder).ok();
}

impl Store {
    /// Records a failed attempt at a job, under its lease name or the hash of the object that could not be computed.
    /// `what` describes the job.
    pub fn record_attempt(&self, name: &str, what: &str, reason: &str) {
        let Ok(worker) = self.worker() else { return };
        let attempt = Attempt::failed(worker.id(), what, reason);
        if write_attempt(&*self.disk, &self.root, name, &attempt).is_err() {
            lock(&self.unwritten_attempts).entry(name.to_owned()).or_default().push(attempt);
        }
    }

    /// Removes the recorded deaths of processes that worked on a job. Called once the job makes progress, because the
    /// remaining work did not cause these deaths.
    pub fn clear_deaths(&self, name: &str) {
        remove_matching(&*self.disk, &attempts_folder(&self.root, name), |attempt| attempt.died);
    }

    /// Returns the failed attempts at a job, oldest first.
    pub fn attempts(&self, name: &str) -> Vec<Attempt> {
        let mut all = read_attempts(&*self.disk, &self.root, name);
        all.extend(lock(&self.unwritten_attempts).get(name).into_iter().flatten().cloned());
        all
    }

    /// Returns the failed attempts recorded on disk, keyed by lease name or object hash. Unlike [`Self::attempts`],
    /// excludes those that could not be written.
    pub fn all_attempts(&self) -> BTreeMap<String, Vec<Attempt>> {
        let jobs = self.disk.list(&self.root.join("attempts")).into_iter();
        let attempts = jobs.map(|job| (read_attempts(&*self.disk, &self.root, &job), job));
        attempts.filter(|(attempts, _)| !attempts.is_empty()).map(|(attempts, job)| (job, attempts)).collect()
    }

    /// Removes the recorded attempts at a finished job and at its chunks, i.e. at all jobs whose names start with
    /// `name`.
    pub fn clear_attempts(&self, name: &str) {
        lock(&self.unwritten_attempts).retain(|job, _| !job.starts_with(name));
        for job in self.disk.list(&self.root.join("attempts")).iter().filter(|job| job.starts_with(name)) {
            remove_matching(&*self.disk, &attempts_folder(&self.root, job), |_| true);
        }
    }
}
