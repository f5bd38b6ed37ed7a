//! Ctrl-C, and the signals by which schedulers and closed terminals ask a program to end.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(unix)]
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::exec::{Event, Reporter};

/// The exit code of a worker that was asked to end before all was done: the `EX_TEMPFAIL` of sysexits.h, try again later.
pub(super) const AGAIN: u8 = 75;

/// Of a run.
pub(super) const AFTER_BATCH: &str = "stopping after this batch";

/// A process has one handler, however many commands it calls.
static STOP: Mutex<Option<Arc<AtomicBool>>> = Mutex::new(None);

/// The first Ctrl-C, TERM or HUP stops where nothing is lost; the second stops at once. `words` are said at the first.
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
        eprintln!("{words}; once more stops at once");
    })
    .map_err(|error| Error::job("cannot watch for Ctrl-C").found(error.to_string()))?;
    *known = Some(Arc::clone(&stop));
    Ok(stop)
}

/// For so long after USR1 a worker goes on that has stored nothing yet: half of the two minutes that schedulers are asked for.
#[cfg(unix)]
const FIRST_BATCH: Duration = Duration::from_secs(60);

/// The signals that end a worker.
pub(super) struct Signals {
    /// It is to stop.
    pub(super) any: Arc<AtomicBool>,
    usr1: Arc<AtomicBool>,
    kept: Arc<AtomicBool>,
}

impl Signals {
    /// USR1, TERM, Ctrl-C or HUP stop where nothing is lost; the same one again stops at once. USR1 says that time is nearly
    /// up, and comes at the very beginning where a job has hardly any: who has stored nothing yet stores one batch first.
    #[cfg(unix)]
    pub(super) fn watch() -> Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
        use signal_hook::flag;

        let failed = |error: std::io::Error| Error::job("cannot watch for signals").found(error.to_string());
        let signals = Self { any: Arc::default(), usr1: Arc::default(), kept: Arc::default() };
        for signal in [SIGUSR1, SIGTERM, SIGINT, SIGHUP] {
            let own = if signal == SIGUSR1 { Arc::clone(&signals.usr1) } else { Arc::default() };
            let again = i32::from(AGAIN);
            // In this order: at the first of a kind its flag is not set yet.
            flag::register_conditional_shutdown(signal, again, Arc::clone(&own)).map_err(failed)?;
            flag::register(signal, own).map_err(failed)?;
            if signal != SIGUSR1 {
                flag::register(signal, Arc::clone(&signals.any)).map_err(failed)?;
            }
        }
        let Self { any, usr1, kept } = &signals;
        let [any, usr1, kept] = [any, usr1, kept].map(Arc::clone);
        std::thread::spawn(move || {
            let look = || std::thread::sleep(Duration::from_millis(20));
            while !usr1.load(Relaxed) {
                look();
            }
            let told = Instant::now();
            while !kept.load(Relaxed) && told.elapsed() < FIRST_BATCH {
                look();
            }
            any.store(true, Relaxed);
        });
        Ok(signals)
    }

    #[cfg(not(unix))]
    pub(super) fn watch() -> Result<Self> {
        Ok(Self { any: on_ctrl_c(AFTER_BATCH)?, usr1: Arc::default(), kept: Arc::default() })
    }

    /// Whether the scheduler said that time is nearly up.
    pub(super) fn usr1(&self) -> bool {
        self.usr1.load(Relaxed)
    }

    /// Whether anything was stored.
    pub(super) fn kept(&self) -> bool {
        self.kept.load(Relaxed)
    }
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
