//! What a reader of the results has to know of a run on a device, each once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
pub(super) struct Notes(Mutex<State>);

#[derive(Default)]
struct State {
    new: Vec<String>,
    told: BTreeSet<String>,
}

impl Notes {
    pub(super) fn tell(&self, text: String) {
        self.tell_of(&text.clone(), || text);
    }

    /// Tells of something, unless it was told of before.
    pub(super) fn tell_of(&self, what: &str, text: impl FnOnce() -> String) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.told.insert(what.to_owned()) {
            state.new.push(text());
        }
    }

    /// What is new since it was last taken.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).new)
    }
}
