//! Reports of the untrusted input that each thread is processing, so that a watcher can enforce limits.
//!
//! If no watcher is installed, every call is a single atomic load.

use std::fmt::Arguments;
use std::sync::OnceLock;

/// Receiver of activity reports. Both methods run on the thread that processes the input.
pub trait Watcher: Sync {
    /// Records that the thread starts processing an input. `input` names its file, line and field.
    fn record_start(&self, input: Arguments<'_>);
    /// Records that the thread has finished a file or document.
    fn record_finish(&self);
}

static WATCHER: OnceLock<&'static dyn Watcher> = OnceLock::new();

/// Installs the process-wide watcher. Later calls have no effect.
pub fn watch(watcher: &'static dyn Watcher) {
    WATCHER.get_or_init(|| watcher);
}

pub(crate) fn record_start(input: Arguments<'_>) {
    if let Some(watcher) = WATCHER.get() {
        watcher.record_start(input);
    }
}

pub(crate) fn record_finish() {
    if let Some(watcher) = WATCHER.get() {
        watcher.record_finish();
    }
}
