//! Coordination with other processes: waiting, backoff and leases.
//!
//! A panic in a job fails only that job. Waiting is reported and uses exponential backoff. While one process measures
//! latencies, all other processes that use the same machine and store pause.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::event::{Event, Reporter};
use crate::error::{Error, Result};
use crate::files::{owner, sha256};
use ghostlab_store::{Lease, LeaseResult, Store};

/// Outcome of an attempt to run a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JobStatus {
    Done,
    /// Other processes have done all of the work.
    Cached,
    /// Other processes are doing the remaining work.
    Contended,
    /// The retry limit was reached. Contains the reason for the last failure.
    Abandoned(String),
}

/// Runs a job, and converts a panic into an error.
pub(crate) fn catch_panic<T>(job: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<&str>().map(ToString::to_string);
        let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Error::job("a job panicked; this is a bug")
            .found(message.unwrap_or_else(|| "no panic message".to_string())))
    })
}

/// Locks a mutex even if it is poisoned, because every critical section leaves the data consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fails if the user has interrupted the run.
pub(crate) fn check_stop(stop: &AtomicBool) -> Result<()> {
    if stop.load(Relaxed) {
        return Err(Error::interrupted("stopped before the grid was finished").hint("run the same command to resume"));
    }
    Ok(())
}

/// Polling interval. It grows by half after each poll, to limit the load on file servers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    const INITIAL: Duration = Duration::from_millis(50);
    const MAX: Duration = Duration::from_secs(10);

    /// Waits for the interval, and then extends it.
    ///
    /// # Errors
    /// Fails if the user interrupts the run.
    pub(crate) fn wait(&mut self, store: &Store, stop: &AtomicBool) -> Result<()> {
        store.sleep(self.0, stop);
        check_stop(stop)?;
        self.0 = (self.0 * 3 / 2).min(Self::MAX);
        Ok(())
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self(Self::INITIAL)
    }
}

/// Acquires a lease. If another process holds it, waits, and reports once that `activity` is in progress.
///
/// # Errors
/// Fails if the store is not writable, or if the user interrupts the run.
pub fn lease(store: &Store, name: &str, activity: &str, reporter: &dyn Reporter, stop: &AtomicBool) -> Result<Lease> {
    let mut warned = false;
    let mut backoff = Backoff::default();
    loop {
        if !store.is_still_leased(name) {
            match store.lease(name)? {
                LeaseResult::Acquired(lease) => return Ok(lease),
                LeaseResult::Contended(process) => {
                    if !std::mem::replace(&mut warned, true) {
                        let text = format!("{activity}: waiting for process {}", process.owner.pid);
                        reporter.event(Event::Note { text });
                    }
                }
            }
        }
        backoff.wait(store, stop)?;
    }
}

/// Returns the name of the lease that a process holds while it measures latencies on this machine. While it is held,
/// other processes on the machine pause after their current batch. The warm-up passes of the measuring process give
/// them enough time to pause.
pub fn timing_lease() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| format!("timing-{}", sha256::of_bytes(owner::host())));
    &NAME
}
