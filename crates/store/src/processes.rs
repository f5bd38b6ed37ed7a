//! Records and liveness of the processes that use a store.
//!
//! For local processes, the operating system reports whether they are alive. A process from another boot, container or
//! machine counts as dead once its record has not changed for longer than the cache timeout of shared file systems. The
//! age of a record is measured with the clock of the store's file system or by local observation ([`super::worker`]).
//! Clocks of different machines are never compared.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::process::Process;
use ghostlab_core::files::atomic::STALE_AFTER;

impl Process {
    pub(super) fn read(disk: &dyn Disk, path: &Path) -> Option<Self> {
        Self::parse(&disk.read(path).ok()?)
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
