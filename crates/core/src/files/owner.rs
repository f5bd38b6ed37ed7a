//! Identity of the process that owns a temporary file, used to detect files left by killed processes.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::sha256;

/// Identity of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub pid: u32,
    /// Boot id and PID namespace in which `pid` is valid. `None` if the system does not provide them.
    pub system: Option<String>,
    /// Start time in clock ticks since boot. Distinguishes processes that reuse the same id.
    pub started: Option<u64>,
}

impl Owner {
    pub fn current() -> Self {
        let pid = std::process::id();
        let started = match read_process_state(Path::new(PROC), pid) {
            ProcessState::Since(started) => Some(started),
            ProcessState::Gone | ProcessState::Unknown => None,
        };
        Self { pid, system: read_system_id(), started }
    }

    /// Returns whether the process is alive. Returns `None` if this is unknown, as for a process from another boot,
    /// container or machine, or a hidden process of another user.
    pub fn is_alive(&self) -> Option<bool> {
        let here = self.system.is_some() && self.system == read_system_id();
        if here { is_process_alive(Path::new(PROC), self.pid, self.started) } else { None }
    }

    /// Returns a tag for file names, `PID-START-SYSTEM`, without dots.
    pub fn tag(&self) -> String {
        format!("{}-{}-{}", self.pid, self.started.unwrap_or(0), short_hash(self.system.as_deref()))
    }

    /// Returns whether a string has the format of [`Self::tag`].
    pub fn is_tag(text: &str) -> bool {
        let parts: Vec<&str> = text.split('-').collect();
        parts.len() == 3 && is_number(parts[0]) && is_number(parts[1]) && parts[2].len() == 12
    }

    /// Returns whether the process that a tag identifies is alive, or `None` if unknown.
    pub fn is_tag_alive(tag: &str) -> Option<bool> {
        let mut parts = tag.split('-');
        let pid = parts.next()?.parse().ok()?;
        let started = parts.next()?.parse().ok()?;
        read_system_id().filter(|system| parts.next() == Some(&short_hash(Some(system))))?;
        is_process_alive(Path::new(PROC), pid, Some(started).filter(|&started| started > 0))
    }
}

fn is_number(text: &str) -> bool {
    text.parse::<u64>().is_ok()
}

/// Returns the host name, or an empty string if it is unknown.
pub fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| fs::read_to_string("/etc/hostname"));
    name.map(|name| name.trim().to_owned()).unwrap_or_default()
}

fn short_hash(system: Option<&str>) -> String {
    sha256::of_bytes(system.unwrap_or_default())[..12].to_string()
}

/// Returns the boot id and PID namespace, within which a process id is unique.
fn read_system_id() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", boot.trim(), namespace.display()))
}

const PROC: &str = "/proc";

/// State of a process according to procfs.
enum ProcessState {
    /// Running, with its start time in clock ticks.
    Since(u64),
    Gone,
    /// Possibly running, for example hidden from other users by the `hidepid` mount option.
    Unknown,
}

fn is_process_alive(proc: &Path, pid: u32, started: Option<u64>) -> Option<bool> {
    match (read_process_state(proc, pid), started) {
        (ProcessState::Gone, _) => Some(false),
        (ProcessState::Since(now), Some(then)) => Some(now == then),
        // At least one start time is unknown.
        (ProcessState::Since(_), None) | (ProcessState::Unknown, _) => None,
    }
}

fn read_process_state(proc: &Path, pid: u32) -> ProcessState {
    let stat = match fs::read_to_string(proc.join(pid.to_string()).join("stat")) {
        Ok(stat) => stat,
        Err(error) if error.kind() == ErrorKind::NotFound && !process_exists(pid) => return ProcessState::Gone,
        Err(_) => return ProcessState::Unknown,
    };
    // The process name in parentheses may itself contain parentheses and spaces.
    let fields = stat.rfind(')').map(|end| stat[end + 1..].split_whitespace().collect::<Vec<_>>()).unwrap_or_default();
    match (fields.first(), fields.get(19).and_then(|ticks| ticks.parse().ok())) {
        // A zombie can no longer write files.
        (Some(&"Z"), _) => ProcessState::Gone,
        (_, Some(started)) => ProcessState::Since(started),
        (_, None) => ProcessState::Unknown,
    }
}

/// Returns whether a process with this id exists. Returns true if this cannot be determined.
#[cfg(target_os = "linux")]
fn process_exists(pid: u32) -> bool {
    unsafe extern "C" {
        fn kill(pid: i32, signal: i32) -> i32;
    }
    /// "No such process", from <asm-generic/errno-base.h>. Signaling another user's process fails with a permission
    /// error instead.
    const ESRCH: i32 = 3;
    // `kill` treats 0 and negative numbers as process groups.
    let Some(pid) = i32::try_from(pid).ok().filter(|&pid| pid > 0) else { return false };
    // SAFETY: `kill` only takes integers. Signal 0 checks for existence without sending a signal.
    let status = unsafe { kill(pid, 0) };
    status == 0 || std::io::Error::last_os_error().raw_os_error() != Some(ESRCH)
}

#[cfg(not(target_os = "linux"))]
fn process_exists(_: u32) -> bool {
    true
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn liveness_is_known_only_for_local_processes() {
        let this = Owner::current();
        // Linux process ids are below 2^22, so the first process does not exist. The start time of the second differs,
        // as if its id had been reused.
        let dead = [Owner { pid: 99_999_999, ..this.clone() }, Owner { started: Some(1), ..this.clone() }];
        let remote = Owner { system: Some("another boot".into()), ..this.clone() };
        for (owner, lives) in [(&this, Some(true)), (&dead[0], Some(false)), (&dead[1], Some(false)), (&remote, None)] {
            assert_eq!((owner.is_alive(), Owner::is_tag_alive(&owner.tag())), (lives, lives), "{owner:?}");
        }
        assert_eq!(Owner::is_tag_alive("no tag"), None);
        assert!(Owner::is_tag(&this.tag()) && !Owner::is_tag("no-tag-either") && !Owner::is_tag("5"));
    }

    #[test]
    fn hidden_process_is_unknown_rather_than_dead() {
        // The empty folder simulates `/proc` with `hidepid=2`, which hides a process although its id is in use.
        let proc = tempfile::tempdir().unwrap();
        let this_process = std::process::id();
        assert_eq!(is_process_alive(proc.path(), this_process, Some(1)), None, "the process id is in use");
        assert_eq!(is_process_alive(proc.path(), 99_999_999, Some(1)), Some(false), "the process id is unused");
        // With `hidepid=1`, a process's folder is visible but unreadable.
        fs::create_dir_all(process_dir(this_process, proc.path()).join("stat")).unwrap();
        assert_eq!(is_process_alive(proc.path(), this_process, Some(1)), None);
        // If `stat` is malformed, the state is unknown.
        for text in ["", "5", "5 (a b) S", "5 (a) b) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 x"] {
            fs::remove_dir_all(process_dir(this_process, proc.path())).unwrap();
            fs::create_dir(process_dir(this_process, proc.path())).unwrap();
            fs::write(process_dir(this_process, proc.path()).join("stat"), text).unwrap();
            assert_eq!(is_process_alive(proc.path(), this_process, Some(1)), None, "{text}");
        }
        fs::write(
            process_dir(this_process, proc.path()).join("stat"),
            "5 (a) b) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0",
        )
        .unwrap();
        assert_eq!(
            [
                lives_since(Some(77), proc.path(), this_process),
                lives_since(Some(78), proc.path(), this_process),
                lives_since(None, proc.path(), this_process)
            ],
            [Some(true), Some(false), None]
        );
    }

    fn lives_since(started: Option<u64>, proc: &Path, this_process: u32) -> Option<bool> {
        is_process_alive(proc, this_process, started)
    }

    fn process_dir(pid: u32, proc: &Path) -> std::path::PathBuf {
        proc.join(pid.to_string())
    }
}
