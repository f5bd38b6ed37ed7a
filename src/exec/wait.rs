//! Waiting for other processes: said, and ended when the user wants to stop.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::event::{Event, Reporter};
use crate::error::{Error, Result};
use crate::store::{ClaimResult, Lease, Store};

/// # Errors
/// The user asked to stop.
pub(super) fn check(stop: &AtomicBool) -> Result<()> {
    if stop.load(Relaxed) {
        return Err(Error::interrupted("stopped before the grid was finished")
            .hint("nothing is lost: the same command goes on from here"));
    }
    Ok(())
}

/// A moment's wait for another process.
pub(super) fn pause(stop: &AtomicBool) -> Result<()> {
    std::thread::sleep(Duration::from_millis(50));
    check(stop)
}

/// Claims a piece of work, waiting for another process that is at it.
///
/// # Errors
/// The store cannot be written to, or the user asked to stop.
pub fn claim(store: &Store, name: &str, what: &str, reporter: &dyn Reporter, stop: &AtomicBool) -> Result<Lease> {
    let mut told = false;
    loop {
        match store.claim(name)? {
            ClaimResult::Mine(lease) => return Ok(lease),
            ClaimResult::Theirs(process) => {
                if !std::mem::replace(&mut told, true) {
                    let text = format!("{what}: process {} is at it; waiting", process.owner.pid);
                    reporter.event(Event::Note { text });
                }
            }
        }
        pause(stop)?;
    }
}
