//! While times are measured on a machine, no other process of the same store computes there.

use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

use super::event::Reporter;
use super::wait;
use crate::error::Result;
use crate::files::{owner, sha256};
use ghostlab_store::{Lease, Store};

/// The claim of who measures times on this machine. Whatever its threads: two that time at once would time each other.
pub fn timing_claim() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| format!("timing-{}", sha256::of_bytes(owner::host())));
    &NAME
}

/// Claims the machine's quiet. What another process is at ends with its batch, within the rounds of warming up.
///
/// # Errors
/// As [`wait::claim`].
pub(crate) fn hold(store: &Store, what: &str, reporter: &dyn Reporter, stop: &AtomicBool) -> Result<Lease> {
    wait::claim(store, timing_claim(), what, reporter, stop)
}

/// Waits while another process measures times on this machine.
///
/// # Errors
/// As [`wait::claim`].
pub(crate) fn keep(store: &Store, reporter: &dyn Reporter, stop: &AtomicBool) -> Result<()> {
    if store.with_claims(|claims| claims.contains(timing_claim()))? {
        hold(store, "measuring times on this machine", reporter, stop).map(drop)?;
    }
    Ok(())
}
