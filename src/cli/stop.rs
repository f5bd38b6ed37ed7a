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
