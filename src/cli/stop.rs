//! Ctrl-C, and the signals by which schedulers and closed terminals ask a program to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::error::{Error, Result};

/// The first Ctrl-C, TERM or HUP finishes the current batch and stops; the second stops at once.
pub(super) fn on_ctrl_c() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || {
        if flag.swap(true, Relaxed) {
            std::process::exit(130);
        }
        eprintln!("stopping after this batch; once more stops at once");
    })
    .map_err(|error| Error::job("cannot watch for Ctrl-C").found(error.to_string()))?;
    Ok(stop)
}
