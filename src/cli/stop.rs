//! Ctrl-C, and the signals by which schedulers and closed terminals ask a program to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::error::{Error, Result};

/// Of a run.
pub(super) const AFTER_BATCH: &str = "stopping after this batch";

/// The first Ctrl-C, TERM or HUP stops where nothing is lost; the second stops at once. `words` are said at the first.
pub(super) fn on_ctrl_c(words: &'static str) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || {
        if flag.swap(true, Relaxed) {
            std::process::exit(130);
        }
        eprintln!("{words}; once more stops at once");
    })
    .map_err(|error| Error::job("cannot watch for Ctrl-C").found(error.to_string()))?;
    Ok(stop)
}

/// The signals that end a worker.
pub(super) struct Signals {
    /// Any of them came.
    pub(super) any: Arc<AtomicBool>,
    usr1: Arc<AtomicBool>,
}

impl Signals {
    /// USR1, TERM, Ctrl-C or HUP stop where nothing is lost; the same one again stops at once.
    #[cfg(unix)]
    pub(super) fn watch() -> Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
        use signal_hook::flag;

        let failed = |error: std::io::Error| Error::job("cannot watch for signals").found(error.to_string());
        let signals = Self { any: Arc::default(), usr1: Arc::default() };
        for signal in [SIGUSR1, SIGTERM, SIGINT, SIGHUP] {
            let own = if signal == SIGUSR1 { Arc::clone(&signals.usr1) } else { Arc::default() };
            let again = i32::from(super::worker::AGAIN);
            // In this order: at the first of a kind its flag is not set yet.
            flag::register_conditional_shutdown(signal, again, Arc::clone(&own)).map_err(failed)?;
            flag::register(signal, own).map_err(failed)?;
            flag::register(signal, Arc::clone(&signals.any)).map_err(failed)?;
        }
        Ok(signals)
    }

    #[cfg(not(unix))]
    pub(super) fn watch() -> Result<Self> {
        Ok(Self { any: on_ctrl_c(AFTER_BATCH)?, usr1: Arc::default() })
    }

    /// Whether the scheduler said that time is nearly up.
    pub(super) fn usr1(&self) -> bool {
        self.usr1.load(Relaxed)
    }
}
