//! Records and liveness of the processes that use a store.
//!
//! For local processes, the operating system reports whether they are alive. A process from another boot, container or
//! machine counts as dead once its record has not changed for longer than the cache timeout of shared file systems. The
//! age of a record is measured with the clock of the store's file system or by local observation ([`super::worker`]).
//! Clocks of different machines are never compared.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::disk::Disk;
use super::key::{is_hex, is_number};
use ghostlab_core::files::atomic::STALE_AFTER;
use ghostlab_core::files::owner::Owner;
use ghostlab_core::files::sha256;

/// Identity and heartbeat of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Unique id, never reused.
    pub id: String,
    #[serde(flatten)]
    pub owner: Owner,
    /// Number of heartbeats so far.
    pub beat: u64,
}

impl Process {
    pub(super) fn current() -> Self {
        let owner = Owner::current();
        // A process may open a store several times, and each open store needs its own id.
        static NEXT_PROCESS_ID: AtomicU64 = AtomicU64::new(0);
        let number = NEXT_PROCESS_ID.fetch_add(1, Relaxed);
        let unique = sha256::of_bytes(format!("{owner:?} {number} {:?}", SystemTime::now()));
        let id = format!("{}-{}", owner.pid, &unique[..12]);
        Self { id, owner, beat: 0 }
    }

    /// Serializes the record with a fixed length so that each heartbeat can overwrite the previous one.
    pub(super) fn record(&self) -> Vec<u8> {
        let Owner { pid, system, started } = &self.owner;
        let mut text = serde_json::json!({"id": self.id, "pid": pid, "system": system, "started": started});
        text["beat"] = format!("{:020}", self.beat).into();
        text.to_string().into_bytes()
    }

    pub(super) fn read(disk: &dyn Disk, path: &Path) -> Option<Self> {
        Self::parse(&disk.read(path).ok()?)
    }

    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct ProcessRecord {
            id: String,
            #[serde(flatten)]
            owner: Owner,
            beat: String,
        }
        let ProcessRecord { id, owner, beat } = serde_json::from_slice(text).ok()?;
        Some(Self { id, owner, beat: beat.parse().ok()? })
    }

    /// Creates a placeholder for a process without a readable record. `id` is empty if the id is unknown.
    pub(super) fn unknown(id: &str) -> Self {
        Self { id: id.to_owned(), owner: Owner { pid: 0, system: None, started: None }, beat: 0 }
    }

    /// Returns whether a string is a process id: the pid, `-` and 12 hexadecimal digits.
    pub(super) fn is_id(text: &str) -> bool {
        text.split_once('-').is_some_and(|(pid, unique)| is_number(pid) && is_hex(unique, 12))
    }
}

/// Process with a record in the store.
pub(super) struct KnownProcess {
    /// Path of the record.
    pub(super) record: PathBuf,
    pub(super) process: Process,
    pub(super) dead: bool,
    /// Whether the record is a regular file, even if its content is invalid.
    pub(super) is_file: bool,
}

/// Lists the processes with a record. Processes on other systems or with unreadable records are dead once their record
/// is older than the timeout.
pub(super) fn list_processes(disk: &dyn Disk, root: &Path) -> Vec<KnownProcess> {
    let folder = root.join("processes");
    let records: Vec<_> = disk.list(&folder).into_iter().filter_map(|name| read_record(disk, &folder, &name)).collect();
    let has_remote = records.iter().any(|(process, ..)| process.owner.is_alive().is_none());
    let now = has_remote.then(|| disk.file_system_time(&folder));
    records
        .into_iter()
        .map(|(process, record, is_file)| {
            let dead = match (process.owner.is_alive(), now) {
                (Some(lives), _) => !lives,
                (None, Some(now)) => disk.age(&record, now).is_some_and(|age| age > STALE_AFTER),
                (None, None) => false,
            };
            KnownProcess { record, process, dead, is_file }
        })
        .collect()
}

/// Reads the record of a process. Also returns the path of the record and whether it could be read as a file.
fn read_record(disk: &dyn Disk, folder: &Path, name: &str) -> Option<(Process, PathBuf, bool)> {
    let id = name.strip_suffix(".json").filter(|id| Process::is_id(id))?;
    let record = folder.join(name);
    let text = disk.read(&record);
    if text.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return None;
    }
    let process = text.as_ref().ok().and_then(|text| Process::parse(text)).filter(|process| process.id == id);
    Some((process.unwrap_or_else(|| Process::unknown(id)), record, text.is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_id_accepts_only_process_ids() {
        assert!(Process::is_id(&Process::current().id) && Process::is_id("5-0123456789ab"));
        for other in
            ["", "5", "5-", "-0123456789ab", "5-0123456789aB9", "5-0123456789", "x-0123456789ab", "5-0123456789ag"]
        {
            assert!(!Process::is_id(other), "{other}");
        }
    }
}
