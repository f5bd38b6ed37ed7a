//! Fault injection for tests. `GHOSTLAB_FAULT` lists faults: `no-links` (a file system without hard links),
//! `link-made-and-denied` (a hard link that is created although the call fails), `kill@commit:3` (abort when fault
//! point `commit` is reached for the third time), `panic@score:1`, `stop@score:2` (like Ctrl-Z), `slow@score:200`
//! (sleep 200 ms each time). Each fault can also occur in production. No fault affects which results are accepted or
//! stored.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use super::lock;

fn requested_faults() -> &'static Vec<String> {
    static REQUESTS: OnceLock<Vec<String>> = OnceLock::new();
    REQUESTS.get_or_init(|| {
        let text = std::env::var("GHOSTLAB_FAULT").unwrap_or_default();
        text.split(',').map(|word| word.trim().to_string()).filter(|word| !word.is_empty()).collect()
    })
}

/// Returns whether `GHOSTLAB_FAULT` lists a fault.
pub fn is_set(name: &str) -> bool {
    requested_faults().iter().any(|word| word == name)
}

/// Marks a fault point, at which a test can delay, kill, stop or panic the program.
#[allow(clippy::panic, reason = "the injected fault is a panic")]
pub fn fault_point(point: &str) {
    if requested_faults().is_empty() {
        return;
    }
    let slow =
        requested_faults().iter().find_map(|word| word.strip_prefix("slow@")?.strip_prefix(point)?.strip_prefix(':'));
    if let Some(milliseconds) = slow.and_then(|text| text.parse().ok()) {
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
    }
    static PASS_COUNTS: OnceLock<Mutex<HashMap<String, u32>>> = OnceLock::new();
    let passed = {
        let mut all = lock(PASS_COUNTS.get_or_init(Mutex::default));
        let passed = all.entry(point.to_string()).or_default();
        *passed += 1;
        *passed
    };
    if is_set(&format!("kill@{point}:{passed}")) {
        // Abort without cleanup, like `kill -9`.
        std::process::abort();
    }
    if is_set(&format!("stop@{point}:{passed}")) {
        std::process::Command::new("kill").args(["-STOP", &std::process::id().to_string()]).status().ok();
    }
    if is_set(&format!("panic@{point}:{passed}")) {
        panic!("injected fault at `{point}`");
    }
}
