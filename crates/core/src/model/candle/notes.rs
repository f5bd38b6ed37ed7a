//! Notes about a run on a device for readers of the results, each once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
pub(super) struct Notes(Mutex<State>);

#[derive(Default)]
struct State {
    new: Vec<String>,
    reported: BTreeSet<String>,
}

impl Notes {
    pub(super) fn tell(&self, text: String) {
        self.tell_of(&text.clone(), || text);
    }

    /// Reports a note unless it was reported already.
    pub(super) fn tell_of(&self, what: &str, text: impl FnOnce() -> String) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.reported.insert(what.to_owned()) {
            state.new.push(text());
        }
    }

    /// Returns the notes since the last call.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).new)
    }
}
