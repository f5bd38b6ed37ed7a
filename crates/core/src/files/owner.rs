//! Which process a private file belongs to, so that what a killed one left can be told from what a living one writes.

use std::fs;

use serde::{Deserialize, Serialize};

use super::sha256;

/// A process, as far as the system tells one from another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub pid: u32,
    /// The running system and the process numbers that `pid` belongs to; none where the system does not tell.
    pub system: Option<String>,
    /// When the process began, in the system's ticks: process numbers are used again.
    pub started: Option<u64>,
}

impl Owner {
    pub fn this() -> Self {
        let pid = std::process::id();
        Self { pid, system: system(), started: start_of(pid) }
    }

    /// Whether it lives, where the system can tell: not of a process of another boot, container or machine.
    pub fn lives(&self) -> Option<bool> {
        let here = self.system.is_some() && self.system == system();
        here.then(|| self.started.is_some() && start_of(self.pid) == self.started)
    }

    /// A part of a file's name, `PID-START-SYSTEM`, without a dot.
    pub fn tag(&self) -> String {
        format!("{}-{}-{}", self.pid, self.started.unwrap_or(0), short(self.system.as_deref()))
    }

    /// Whether a text is what [`Self::tag`] gives.
    pub fn is_tag(text: &str) -> bool {
        let parts: Vec<&str> = text.split('-').collect();
        let number = |text: &str| text.parse::<u64>().is_ok();
        parts.len() == 3 && number(parts[0]) && number(parts[1]) && parts[2].len() == 12
    }

    /// Whether the process that a tag names lives, where the system can tell.
    pub fn of_tag_lives(tag: &str) -> Option<bool> {
        let mut parts = tag.split('-');
        let (pid, started) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let here = system().filter(|system| parts.next() == Some(&short(Some(system))));
        here.map(|_| started > 0 && start_of(pid) == Some(started))
    }
}

fn short(system: Option<&str>) -> String {
    sha256::of_bytes(system.unwrap_or_default())[..12].to_string()
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

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_of_its_own_processes_and_of_no_others() {
        let this = Owner::this();
        // Process numbers end below 2^22; and a number that is used again began at another time.
        let gone = [Owner { pid: 99_999_999, ..this.clone() }, Owner { started: Some(1), ..this.clone() }];
        let far = Owner { system: Some("another boot".into()), ..this.clone() };
        for (owner, lives) in [(&this, Some(true)), (&gone[0], Some(false)), (&gone[1], Some(false)), (&far, None)] {
            assert_eq!((owner.lives(), Owner::of_tag_lives(&owner.tag())), (lives, lives), "{owner:?}");
        }
        assert_eq!(Owner::of_tag_lives("no tag"), None);
        assert!(Owner::is_tag(&this.tag()) && !Owner::is_tag("no-tag-either") && !Owner::is_tag("5"));
    }
}
