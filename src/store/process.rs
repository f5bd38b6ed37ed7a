//! The processes that work on a store: what each says of itself, and which of them live.
//!
//! A process is dead when the system says so; of another boot, container or machine, when its record has stood still for
//! longer than shared file systems keep what they know of a file. That is told by the clock that stamps the store's files,
//! or by watching ([`super::worker`]); no two machines' clocks are compared.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::disk::Disk;
use crate::files::atomic::PATIENCE;
use crate::files::owner::Owner;
use crate::files::sha256;

/// What a process says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Unlike any other, past or present.
    pub id: String,
    #[serde(flatten)]
    pub owner: Owner,
    pub(super) beat: u64,
}

impl Process {
    pub(super) fn this() -> Self {
        let owner = Owner::this();
        // A process may open a store more than once, and each opening is on its own.
        static OPENINGS: AtomicU64 = AtomicU64::new(0);
        let opening = OPENINGS.fetch_add(1, Relaxed);
        let unique = sha256::of_bytes(format!("{owner:?} {opening} {:?}", SystemTime::now()));
        let id = format!("{}-{}", owner.pid, &unique[..12]);
        Self { id, owner, beat: 0 }
    }

    /// Always of the same length, so that a beat can be written over the last one.
    pub(super) fn record(&self) -> Vec<u8> {
        let Owner { pid, system, started } = &self.owner;
        let mut text = serde_json::json!({"id": self.id, "pid": pid, "system": system, "started": started});
        text["beat"] = format!("{:020}", self.beat).into();
        text.to_string().into_bytes()
    }

    pub(super) fn read(disk: &dyn Disk, path: &Path) -> Option<Self> {
        Self::parse(&disk.read(path).ok()?)
    }

    fn parse(text: &[u8]) -> Option<Self> {
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

    /// One of which nothing is known but that it is there, and perhaps its name.
    pub(super) fn unknown(id: &str) -> Self {
        Self { id: id.to_owned(), owner: Owner { pid: 0, system: None, started: None }, beat: 0 }
    }

    /// Whether a name is one that a process has: `PID-DIGITS`.
    pub(super) fn is_id(text: &str) -> bool {
        let of = |part: &str, is: fn(&char) -> bool| !part.is_empty() && part.chars().all(|c| is(&c));
        text.split_once('-').is_some_and(|(pid, unique)| {
            of(pid, char::is_ascii_digit) && unique.len() == 12 && of(unique, char::is_ascii_hexdigit)
        })
    }
}

/// A process that has a record in the store.
pub(super) struct Known {
    pub(super) record: PathBuf,
    pub(super) process: Process,
    pub(super) dead: bool,
    /// The record could be read, whatever it says: no folder and no pipe lies in its place.
    pub(super) is_file: bool,
}

/// The processes that have a record here. Those of other systems, and those whose records tell nothing, are dead when their
/// records have stood still for longer than patience lasts.
pub(super) fn all(disk: &dyn Disk, root: &Path) -> Vec<Known> {
    let folder = root.join("processes");
    let read = |name: String| {
        let id = name.strip_suffix(".json").filter(|id| Process::is_id(id))?;
        let record = folder.join(&name);
        let text = disk.read(&record);
        if text.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return None;
        }
        let process = text.as_ref().ok().and_then(|text| Process::parse(text)).filter(|process| process.id == id);
        Some((process.unwrap_or_else(|| Process::unknown(id)), record, text.is_ok()))
    };
    let read: Vec<_> = disk.list(&folder).into_iter().filter_map(read).collect();
    let far = read.iter().any(|(process, ..)| process.owner.lives().is_none());
    let now = far.then(|| disk.clock(&folder));
    let known = |(process, record, is_file): (Process, PathBuf, bool)| {
        let dead = match (process.owner.lives(), now) {
            (Some(lives), _) => !lives,
            (None, Some(now)) => disk.age(&record, now).is_some_and(|age| age > PATIENCE),
            (None, None) => false,
        };
        Known { record, process, dead, is_file }
    };
    read.into_iter().map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_s_name_is_told_from_other_names() {
        assert!(Process::is_id(&Process::this().id) && Process::is_id("5-0123456789ab"));
        for other in
            ["", "5", "5-", "-0123456789ab", "5-0123456789aB9", "5-0123456789", "x-0123456789ab", "5-0123456789ag"]
        {
            assert!(!Process::is_id(other), "{other}");
        }
    }
}
