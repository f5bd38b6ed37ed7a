//! Who works on a store: a process with a heartbeat, and what it has claimed.
//!
//! Nothing depends on leases to be right: artifacts are content-addressed, and two processes that make the same one
//! make the same bytes. They only keep two processes from doing the same work twice. A claim is a hard link to the
//! process's own record, so that it appears whole, and its heartbeat shows in every claim at once. No clock is compared:
//! a process is dead when the system says so, or when its heartbeat has not moved while we watched.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::files::sha256;

/// Between two beats.
const BEAT: Duration = Duration::from_secs(1);

/// How long a heartbeat may stand still before its process counts as dead, where the system cannot tell.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a process says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Unlike any other, past or present.
    pub id: String,
    pub pid: u32,
    /// The running system and the process numbers that `pid` belongs to; none where the system does not tell.
    pub system: Option<String>,
    /// When the process began, in the system's ticks: process numbers are used again.
    pub started: Option<u64>,
    beat: u64,
}

impl Process {
    fn this() -> Self {
        let pid = std::process::id();
        let (system, started) = (system(), start_of(pid));
        // A process may open a store more than once, and each opening is on its own.
        static OPENINGS: AtomicU64 = AtomicU64::new(0);
        let opening = OPENINGS.fetch_add(1, Relaxed);
        let unique = sha256::of_bytes(format!("{system:?} {pid} {started:?} {opening} {:?}", SystemTime::now()));
        let id = format!("{pid}-{}", &unique[..12]);
        Self { id, pid, system, started, beat: 0 }
    }

    /// Always of the same length, so that a beat can be written over the last one.
    fn record(&self) -> Vec<u8> {
        let mut text =
            serde_json::json!({"id": self.id, "pid": self.pid, "system": self.system, "started": self.started});
        text["beat"] = format!("{:020}", self.beat).into();
        text.to_string().into_bytes()
    }

    fn read(path: &Path) -> Option<Self> {
        #[derive(Deserialize)]
        struct Record {
            id: String,
            pid: u32,
            system: Option<String>,
            started: Option<u64>,
            beat: String,
        }
        let Record { id, pid, system, started, beat } = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        Some(Self { id, pid, system, started, beat: beat.parse().ok()? })
    }

    /// Whether it lives, where the system can tell.
    fn lives(&self) -> Option<bool> {
        let here = self.system.is_some() && self.system == system();
        here.then(|| self.started.is_some() && start_of(self.pid) == self.started)
    }
}

/// The boot and the process namespace: in another one, the same number is another process.
fn system() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", boot.trim(), namespace.display()))
}

fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may itself hold brackets and spaces.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    // A zombie is dead: it will write nothing any more.
    if fields.first() == Some(&"Z") { None } else { fields.get(19)?.parse().ok() }
}

/// This process at work on a store, from its first claim or draft to its end.
pub(super) struct Worker {
    process: Process,
    record: PathBuf,
    claims: PathBuf,
    seen: Mutex<HashMap<String, (u64, Instant)>>,
    heart: Option<(Sender<()>, JoinHandle<()>)>,
}

/// What came of an attempt to claim something.
pub enum Claim {
    Mine(Lease),
    /// Another process is at it.
    Theirs(Process),
}

/// A claim that is given back when it is dropped.
pub struct Lease(PathBuf);

impl Drop for Lease {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

impl Worker {
    pub(super) fn start(root: &Path) -> Result<Self> {
        let (processes, claims) = (root.join("processes"), root.join("claims"));
        for folder in [&processes, &claims] {
            fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
        }
        let mut process = Process::this();
        let record = processes.join(format!("{}.json", process.id));
        let failed = |error: std::io::Error| Error::io("write", &record, &error);
        let mut file = File::create_new(&record).map_err(failed)?;
        file.write_all(&process.record()).map_err(failed)?;
        let mut beating = process.clone();
        let (stop, stopped) = mpsc::channel();
        let heart = std::thread::spawn(move || {
            while stopped.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                beating.beat += 1;
                // A beat that cannot be written is as good as none: others then wait less long than they could.
                overwrite(&mut file, &beating.record()).ok();
            }
        });
        process.beat = 0;
        Ok(Self { process, record, claims, seen: Mutex::default(), heart: Some((stop, heart)) })
    }

    pub(super) fn id(&self) -> &str {
        &self.process.id
    }

    /// Claims a name, unless a living process has.
    pub(super) fn claim(&self, name: &str) -> Result<Claim> {
        let path = self.claims.join(name);
        loop {
            match fs::hard_link(&self.record, &path) {
                Ok(()) => return Ok(Claim::Mine(Lease(path))),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io("create", &path, &error)),
            }
            // Gone meanwhile: the next attempt may succeed.
            let Some(theirs) = Process::read(&path) else {
                if path.exists() {
                    self.break_up(&path, None);
                }
                continue;
            };
            if theirs.id == self.process.id || self.alive(&theirs) {
                return Ok(Claim::Theirs(theirs));
            }
            self.break_up(&path, Some(&theirs));
        }
    }

    /// Takes a dead process's claim away. Of several that try, one renames it; whoever caught a claim that was made
    /// meanwhile puts it back.
    fn break_up(&self, path: &Path, dead: Option<&Process>) {
        let aside = self.claims.join(format!("{}.dead", self.process.id));
        if fs::rename(path, &aside).is_ok() {
            if let (Some(dead), Some(caught)) = (dead, Process::read(&aside))
                && caught.id != dead.id
            {
                fs::hard_link(&aside, path).ok();
            }
            fs::remove_file(&aside).ok();
        }
    }

    /// Whether a process lives, as far as one can tell; in doubt it does.
    pub(super) fn alive(&self, process: &Process) -> bool {
        if let Some(lives) = process.lives() {
            return lives;
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let (beat, since) = seen.entry(process.id.clone()).or_insert((process.beat, now));
        if *beat != process.beat {
            (*beat, *since) = (process.beat, now);
        }
        now.duration_since(*since) < PATIENCE
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some((stop, heart)) = self.heart.take() {
            drop(stop);
            heart.join().ok();
        }
        fs::remove_file(&self.record).ok();
    }
}

fn overwrite(file: &mut File, record: &[u8]) -> std::io::Result<()> {
    use std::io::Seek;
    file.rewind()?;
    file.write_all(record)
}

/// The processes that have a record here, and whether the system knows that they live.
pub(super) fn all(root: &Path) -> Vec<(PathBuf, Process, Option<bool>)> {
    let entries = fs::read_dir(root.join("processes")).into_iter().flatten().flatten();
    let read = |path: PathBuf| Process::read(&path).map(|process| (path, process.clone(), process.lives()));
    entries.filter_map(|entry| read(entry.path())).collect()
}

/// Removes the claims of processes that are known to be dead.
pub(super) fn sweep_claims(root: &Path) {
    for entry in fs::read_dir(root.join("claims")).into_iter().flatten().flatten() {
        if Process::read(&entry.path()).is_some_and(|process| process.lives() == Some(false)) {
            fs::remove_file(entry.path()).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers() -> (tempfile::TempDir, Worker, Worker) {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (Worker::start(folder.path()).unwrap(), Worker::start(folder.path()).unwrap());
        (folder, one, two)
    }

    #[test]
    fn a_name_is_claimed_once_and_free_again_after() {
        let (_folder, one, two) = workers();
        let Claim::Mine(lease) = one.claim("a").unwrap() else { panic!("not free") };
        let Claim::Theirs(owner) = two.claim("a").unwrap() else { panic!("claimed twice") };
        assert_eq!(owner.id, one.id());
        assert!(matches!(two.claim("b").unwrap(), Claim::Mine(_)));
        drop(lease);
        assert!(matches!(two.claim("a").unwrap(), Claim::Mine(_)));
    }

    /// A claim by a process that the record says this of.
    fn planted(worker: &Worker, process: &Process) {
        let path = worker.claims.join("a");
        fs::write(&path, process.record()).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_claim_of_a_dead_process_is_taken_over_at_once() {
        let (_folder, one, _two) = workers();
        // Process numbers end below 2^22; and a number that is used again began at another time.
        for dead in
            [Process { pid: 99_999_999, ..one.process.clone() }, Process { started: Some(1), ..one.process.clone() }]
        {
            planted(&one, &Process { id: "dead".into(), ..dead });
            assert!(matches!(one.claim("a").unwrap(), Claim::Mine(_)));
        }
        fs::write(one.claims.join("a"), "no record").unwrap();
        assert!(matches!(one.claim("a").unwrap(), Claim::Mine(_)), "a damaged claim is nobody's");
    }

    #[test]
    fn a_process_elsewhere_lives_as_long_as_its_heart_beats() {
        let (_folder, one, _two) = workers();
        let mut far = Process { id: "far".into(), system: Some("another".into()), ..one.process.clone() };
        planted(&one, &far);
        assert!(matches!(one.claim("a").unwrap(), Claim::Theirs(_)), "in doubt it lives");
        // Watched for longer than patience lasts, without a beat; no clock is read, so none can mislead.
        let before = Instant::now().checked_sub(PATIENCE * 2).unwrap();
        one.seen.lock().unwrap().insert("far".into(), (0, before));
        far.beat = 1;
        planted(&one, &far);
        assert!(matches!(one.claim("a").unwrap(), Claim::Theirs(_)), "it has moved");
        one.seen.lock().unwrap().insert("far".into(), (1, before));
        assert!(matches!(one.claim("a").unwrap(), Claim::Mine(_)));
    }

    #[test]
    fn the_heart_beats_in_every_claim() {
        let (_folder, one, two) = workers();
        let Claim::Mine(_lease) = one.claim("a").unwrap() else { panic!("not free") };
        let beat = || {
            let Claim::Theirs(owner) = two.claim("a").unwrap() else { panic!("lost") };
            owner.beat
        };
        let first = beat();
        let started = Instant::now();
        while beat() == first {
            assert!(started.elapsed() < Duration::from_secs(20), "no beat");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[test]
    fn a_process_that_ends_leaves_no_record() {
        let (folder, one, two) = workers();
        assert_eq!(all(folder.path()).len(), 2);
        drop((one, two));
        assert_eq!(all(folder.path()).len(), 0);
    }
}
