//! Deduplicated notes of an engine, which are shown with the results.

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
    pub(super) fn report(&self, text: String) {
        self.report_once(&text.clone(), || text);
    }

    /// Adds a note unless a note with the key `key` was added before.
    pub(super) fn report_once(&self, key: &str, text: impl FnOnce() -> String) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.reported.insert(key.to_owned()) {
            state.new.push(text());
        }
    }

    /// Returns the notes added since the last call.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).new)
    }
}
