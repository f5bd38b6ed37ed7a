//! Handling of Ctrl-C and of the signals sent by schedulers and closing terminals.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(unix)]
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::pipeline::exec::{Event, Reporter};

/// Exit code of a worker that was stopped before all work was done: `EX_TEMPFAIL` (try again later) from sysexits.h.
pub(super) const EXIT_TEMPFAIL: u8 = 75;

pub(super) const STOPPING_AFTER_BATCH: &str = "stopping after this batch";

/// Stop flag of the process, or `None` until the handlers are registered. They are registered only once, even if
/// several commands run in the process.
static STOP: Mutex<Option<Arc<AtomicBool>>> = Mutex::new(None);

/// Registers handlers for Ctrl-C, TERM and HUP. The first signal prints `message` and stops the run after the current
/// batch. The second stops it immediately.
pub(super) fn on_ctrl_c(message: &'static str) -> Result<Arc<AtomicBool>> {
    let mut known = STOP.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(stop) = known.as_ref() {
        return Ok(Arc::clone(stop));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || {
        if flag.swap(true, Relaxed) {
            std::process::exit(130);
        }
        eprintln!("{message}; press Ctrl-C again to stop at once");
    })
    .map_err(|error| {
        Error::job("cannot register the handler for Ctrl-C")
            .found(error.to_string())
            .hint("raise `ulimit -u` or `ulimit -v`: the handler needs another thread")
    })?;
    *known = Some(Arc::clone(&stop));
    Ok(stop)
}

/// Grace period after USR1 for a worker that has not stored anything yet. It is half the two minutes between USR1 and
/// the time limit.
#[cfg(unix)]
const FIRST_BATCH_GRACE_PERIOD: Duration = Duration::from_secs(60);

/// Flags set by a worker's signal handlers, and whether the worker has stored anything. Clones share the flags.
#[derive(Clone)]
pub(super) struct Signals {
    pub(super) stop: Arc<AtomicBool>,
    usr1: Arc<AtomicBool>,
    stored: Arc<AtomicBool>,
}

impl Signals {
    /// Registers handlers for USR1, TERM, Ctrl-C and HUP. The first signal stops the worker after the current batch. A
    /// second signal of the same kind stops it immediately. USR1 announces the time limit, so a worker that has not
    /// stored anything yet gets time to finish a batch.
    #[cfg(unix)]
    pub(super) fn watch() -> Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
        use signal_hook::flag;

        let signals = Self { stop: Arc::default(), usr1: Arc::default(), stored: Arc::default() };
        for signal in [SIGUSR1, SIGTERM, SIGINT, SIGHUP] {
            let flag = if signal == SIGUSR1 { Arc::clone(&signals.usr1) } else { Arc::default() };
            let again = i32::from(EXIT_TEMPFAIL);
            // Register the conditional shutdown before the handler that sets the flag. The first signal then finds the
            // flag unset and does not shut the worker down.
            flag::register_conditional_shutdown(signal, again, Arc::clone(&flag))
                .map_err(|error| signal_error(&error))?;
            flag::register(signal, flag).map_err(|error| signal_error(&error))?;
            if signal != SIGUSR1 {
                flag::register(signal, Arc::clone(&signals.stop)).map_err(|error| signal_error(&error))?;
            }
        }
        let watched = signals.clone();
        std::thread::spawn(move || {
            while !watched.is_near_time_limit() {
                sleep_briefly();
            }
            let started = Instant::now();
            while !watched.has_stored() && started.elapsed() < FIRST_BATCH_GRACE_PERIOD {
                sleep_briefly();
            }
            watched.stop.store(true, Relaxed);
        });
        Ok(signals)
    }

    #[cfg(not(unix))]
    pub(super) fn watch() -> Result<Self> {
        Ok(Self { stop: on_ctrl_c(STOPPING_AFTER_BATCH)?, usr1: Arc::default(), stored: Arc::default() })
    }

    /// Returns whether the scheduler has announced the time limit with USR1.
    pub(super) fn is_near_time_limit(&self) -> bool {
        self.usr1.load(Relaxed)
    }

    pub(super) fn has_stored(&self) -> bool {
        self.stored.load(Relaxed)
    }
}

fn signal_error(error: &std::io::Error) -> Error {
    Error::job("cannot register the signal handlers").found(error.to_string())
}

fn sleep_briefly() {
    std::thread::sleep(Duration::from_millis(20));
}

/// Reporter that forwards every event and keeps track of whether anything was stored.
pub(super) struct WatchedReporter<'a> {
    pub(super) inner: &'a dyn Reporter,
    pub(super) signals: &'a Signals,
}

impl Reporter for WatchedReporter<'_> {
    fn event(&self, event: Event) {
        if event == Event::Kept {
            self.signals.stored.store(true, Relaxed);
        }
        self.inner.event(event);
    }
}
