//! Reports which untrusted input a thread is processing, for a watcher that enforces limits.
//!
//! Without a watcher every call is a single atomic load.

use std::fmt::Arguments;
use std::sync::OnceLock;

/// Receiver of activity reports. Both methods are called on the thread that does the work.
pub trait Watcher: Sync {
    /// Records that the thread starts on an input, named as messages name it: file, line and field.
    fn started(&self, input: Arguments<'_>);
    /// Records that one file or document is done.
    fn finished(&self);
}

static WATCHER: OnceLock<&'static dyn Watcher> = OnceLock::new();

/// Installs the watcher of this process. A second call has no effect.
pub fn watch(watcher: &'static dyn Watcher) {
    WATCHER.get_or_init(|| watcher);
}

pub(crate) fn started(input: Arguments<'_>) {
    if let Some(watcher) = WATCHER.get() {
        watcher.started(input);
    }
}

pub(crate) fn finished() {
    if let Some(watcher) = WATCHER.get() {
        watcher.finished();
    }
}
