//! Waiting for other processes: said, less and less often asked, and ended when the user wants to stop.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::event::{Event, Reporter};
use crate::error::{Error, Result};
use ghostlab_store::{ClaimResult, Lease, Store};

/// # Errors
/// The user asked to stop.
pub(crate) fn check(stop: &AtomicBool) -> Result<()> {
    if stop.load(Relaxed) {
        return Err(Error::interrupted("stopped before the grid was finished")
            .hint("nothing is lost: the same command goes on from here"));
    }
    Ok(())
}

/// How long to wait before asking again: each time half as long again, so that a wait is found ended after half its own
/// length at most, and hundreds of processes that wait for hours ask a file server little.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pause(Duration);

impl Pause {
    const FIRST: Duration = Duration::from_millis(50);
    const MOST: Duration = Duration::from_secs(10);

    /// # Errors
    /// The user asked to stop.
    pub(crate) fn wait(&mut self, store: &Store, stop: &AtomicBool) -> Result<()> {
        store.sleep(self.0, stop);
        check(stop)?;
        self.0 = (self.0 * 3 / 2).min(Self::MOST);
        Ok(())
    }
}

impl Default for Pause {
    fn default() -> Self {
        Self(Self::FIRST)
    }
}

/// Claims a piece of work, waiting for another process that is at it.
///
/// # Errors
/// The store cannot be written to, or the user asked to stop.
pub fn claim(store: &Store, name: &str, what: &str, reporter: &dyn Reporter, stop: &AtomicBool) -> Result<Lease> {
    let (mut told, mut pause) = (false, Pause::default());
    loop {
        if !store.still_theirs(name) {
            match store.claim(name)? {
                ClaimResult::Mine(lease) => return Ok(lease),
                ClaimResult::Theirs(process) => {
                    if !std::mem::replace(&mut told, true) {
                        let text = format!("{what}: process {} is at it; waiting", process.owner.pid);
                        reporter.event(Event::Note { text });
                    }
                }
            }
        }
        pause.wait(store, stop)?;
    }
}
