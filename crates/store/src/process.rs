//! Identity of a process that uses a store.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::key::{is_hex, is_number};
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
