//! Ctrl-C, and the signals by which schedulers and closed terminals ask a program to end.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(unix)]
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::exec::{Event, Reporter};

/// The exit code of a worker that was asked to end before all was done: the `EX_TEMPFAIL` of sysexits.h, try again later.
pub(super) const AGAIN: u8 = 75;

/// Shown for a run.
pub(super) const AFTER_BATCH: &str = "stopping after this batch";

/// A process has one handler, however many commands it calls.
static STOP: Mutex<Option<Arc<AtomicBool>>> = Mutex::new(None);

/// Handles Ctrl-C, TERM or HUP: the first stops safely and prints `words`, the second stops at once.
pub(super) fn on_ctrl_c(words: &'static str) -> Result<Arc<AtomicBool>> {
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
        eprintln!("{words}; repeat to stop at once");
    })
    .map_err(|error| Error::job("cannot watch for Ctrl-C").found(error.to_string()))?;
    *known = Some(Arc::clone(&stop));
    Ok(stop)
}

/// Time after USR1 for which a worker continues that has stored nothing yet: half of the two minutes requested from
/// schedulers.
#[cfg(unix)]
const FIRST_BATCH: Duration = Duration::from_secs(60);

/// The signals that end a worker.
pub(super) struct Signals {
    /// Whether to stop.
    pub(super) any: Arc<AtomicBool>,
    usr1: Arc<AtomicBool>,
    kept: Arc<AtomicBool>,
}

impl Signals {
    /// Handles USR1, TERM, Ctrl-C or HUP: the first stops safely, a repetition stops at once. USR1 means that time is
    /// nearly up; a worker that has stored nothing first stores one batch.
    #[cfg(unix)]
    pub(super) fn watch() -> Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
        use signal_hook::flag;

        let signals = Self { any: Arc::default(), usr1: Arc::default(), kept: Arc::default() };
        for signal in [SIGUSR1, SIGTERM, SIGINT, SIGHUP] {
            let flag = if signal == SIGUSR1 { Arc::clone(&signals.usr1) } else { Arc::default() };
            let again = i32::from(AGAIN);
            // In this order: at the first of a kind its flag is not set yet.
            flag::register_conditional_shutdown(signal, again, Arc::clone(&flag))
                .map_err(|error| unwatchable(&error))?;
            flag::register(signal, flag).map_err(|error| unwatchable(&error))?;
            if signal != SIGUSR1 {
                flag::register(signal, Arc::clone(&signals.any)).map_err(|error| unwatchable(&error))?;
            }
        }
        let Self { any, usr1, kept } = &signals;
        let [any, usr1, kept] = [any, usr1, kept].map(Arc::clone);
        std::thread::spawn(move || {
            while !usr1.load(Relaxed) {
                pause();
            }
            let started = Instant::now();
            while !kept.load(Relaxed) && started.elapsed() < FIRST_BATCH {
                pause();
            }
            any.store(true, Relaxed);
        });
        Ok(signals)
    }

    #[cfg(not(unix))]
    pub(super) fn watch() -> Result<Self> {
        Ok(Self { any: on_ctrl_c(AFTER_BATCH)?, usr1: Arc::default(), kept: Arc::default() })
    }

    /// Returns whether the scheduler announced the time limit.
    pub(super) fn usr1(&self) -> bool {
        self.usr1.load(Relaxed)
    }

    /// Returns whether anything was stored.
    pub(super) fn kept(&self) -> bool {
        self.kept.load(Relaxed)
    }
}

fn unwatchable(error: &std::io::Error) -> Error {
    Error::job("cannot watch for signals").found(error.to_string())
}

fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

/// Notes when something was stored, and passes every event on.
pub(super) struct WatchedReporter<'a> {
    pub(super) inner: &'a dyn Reporter,
    pub(super) signals: &'a Signals,
}

impl Reporter for WatchedReporter<'_> {
    fn event(&self, event: Event) {
        if event == Event::Kept {
            self.signals.kept.store(true, Relaxed);
        }
        self.inner.event(event);
    }
}
