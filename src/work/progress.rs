//! Progress of work in the presence of other processes: a panic fails only its own work; waiting for other processes is
//! reported, polls less and less often, and ends when the user interrupts. While times are measured on a machine, no
//! other process of the same store computes there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::event::{Event, Reporter};
use crate::error::{Error, Result};
use crate::files::{owner, sha256};
use ghostlab_store::{ClaimResult, Lease, Store};

/// How far a task got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Progressed {
    Done,
    /// Other processes have done all of it.
    Found,
    /// Other processes work on the rest: other work can be done meanwhile.
    Busy,
    /// The permitted attempts are used up, with the last reason.
    GivenUp(String),
}

/// Runs a job; a panic in it is its failure.
pub(crate) fn caught<T>(job: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<&str>().map(ToString::to_string);
        let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Error::job("a job panicked, which is a fault of the program")
            .found(message.unwrap_or_else(|| "a panic without a message".to_string())))
    })
}

/// Locks a mutex, ignoring poisoning: every critical section leaves the data consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// # Errors
/// The user asked to stop.
pub(crate) fn check_stop(stop: &AtomicBool) -> Result<()> {
    if stop.load(Relaxed) {
        return Err(Error::interrupted("stopped before the grid was finished")
            .hint("nothing is lost: run the same command to resume"));
    }
    Ok(())
}

/// How long to wait before asking again: each time half as long again, so that a wait is found ended after half its own
/// length at most, and hundreds of processes that wait for hours ask a file server little.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pause(Duration);

impl Pause {
    const FIRST: Duration = Duration::from_millis(50);
    const MAX: Duration = Duration::from_secs(10);

    /// # Errors
    /// The user asked to stop.
    pub(crate) fn wait(&mut self, store: &Store, stop: &AtomicBool) -> Result<()> {
        store.sleep(self.0, stop);
        check_stop(stop)?;
        self.0 = (self.0 * 3 / 2).min(Self::MAX);
        Ok(())
    }
}

impl Default for Pause {
    fn default() -> Self {
        Self(Self::FIRST)
    }
}

/// Claims a unit of work, waiting for another process that holds it.
///
/// # Errors
/// The store cannot be written to, or the user asked to stop.
pub fn claim(store: &Store, name: &str, what: &str, reporter: &dyn Reporter, stop: &AtomicBool) -> Result<Lease> {
    let mut warned = false;
    let mut pause = Pause::default();
    loop {
        if !store.still_theirs(name) {
            match store.claim(name)? {
                ClaimResult::Mine(lease) => return Ok(lease),
                ClaimResult::Theirs(process) => {
                    if !std::mem::replace(&mut warned, true) {
                        let text = format!("{what}: process {} works on it; waiting", process.owner.pid);
                        reporter.event(Event::Note { text });
                    }
                }
            }
        }
        pause.wait(store, stop)?;
    }
}

/// Returns the lease name for timing on this machine, for any number of threads, because concurrent timings would disturb
/// each other. Work of other processes ends with its batch, during warm-up.
pub fn timing_claim() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| format!("timing-{}", sha256::of_bytes(owner::host())));
    &NAME
}
