//! State of a plan's objects, looked up before the first job (the survey) and updated as the run reads and writes
//! objects. Objects cannot disappear, because the run has reserved them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::backbone::Variant;
use super::coordination::lock;
use crate::criterion::Selection;
use crate::error::Error;
use ghostlab_store::{Key, Lookup, Store, StoredObject};

/// State of an object in the store.
#[derive(Debug)]
pub enum ObjectState {
    Absent,
    /// Stored but damaged, so the object must be computed again.
    Damaged(Error),
    Whole(StoredObject),
}

/// State of a plan's objects, by key hash. [`survey`](Self::survey) creates it.
pub struct StoreView {
    pub(crate) store: Store,
    /// Objects that were stored at the survey.
    surveyed: HashMap<String, ObjectState>,
    /// Selections that were stored at the survey.
    selections: HashMap<String, Selection>,
    /// Objects that turned out to be intact (`true`) or damaged (`false`) since the survey.
    changed: Mutex<HashMap<String, bool>>,
}

#[cfg(test)]
thread_local! {
    /// Number of surveys by this thread.
    pub(crate) static SURVEYS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl StoreView {
    pub(crate) fn new(
        store: &Store,
        surveyed: HashMap<String, ObjectState>,
        selections: HashMap<String, Selection>,
    ) -> Self {
        #[cfg(test)]
        SURVEYS.set(SURVEYS.get() + 1);
        Self { store: store.clone(), surveyed, selections, changed: Mutex::default() }
    }

    /// Returns the state of an object at the survey.
    pub fn object(&self, key: &Key) -> &ObjectState {
        self.surveyed.get(key.hash()).unwrap_or(&ObjectState::Absent)
    }

    /// Returns whether an object was stored and intact at the survey.
    pub fn has(&self, key: &Key) -> bool {
        matches!(self.object(key), ObjectState::Whole(_))
    }

    /// Returns whether an object was not stored at the survey. A damaged object was stored.
    pub(crate) fn is_absent(&self, key: &Key) -> bool {
        matches!(self.object(key), ObjectState::Absent)
    }

    /// Returns whether an object was stored and intact at the survey. Returns false without a key.
    pub(crate) fn has_optional(&self, key: Option<&Arc<Key>>) -> bool {
        key.is_some_and(|key| self.has(key))
    }

    /// Returns a selection that was stored at the survey.
    pub fn selection(&self, key: &Key) -> Option<&Selection> {
        self.selections.get(key.hash())
    }

    /// Returns how many steps of a variant's iterative selection are stored.
    pub(crate) fn selected_steps(&self, variant: &Variant) -> usize {
        if self.has_optional(variant.selection.as_ref()) {
            return variant.steps.len() + 1;
        }
        let last = variant.steps.iter().rposition(|key| matches!(self.store.lookup(key), Lookup::Intact(_)));
        last.map_or(0, |last| last + 1)
    }

    /// Returns whether all objects of a variant were stored at the survey.
    pub fn is_complete(&self, variant: &Variant) -> bool {
        variant.keys().all(|key| self.has(key))
    }

    pub fn damage_errors(&self) -> impl Iterator<Item = &Error> {
        self.surveyed
            .values()
            .filter_map(|stored| if let ObjectState::Damaged(error) = stored { Some(error) } else { None })
    }

    pub(crate) fn set_surveyed(&mut self, key: &Key, state: ObjectState) {
        self.surveyed.insert(key.hash().to_owned(), state);
    }

    /// Records that an object is stored and intact.
    pub(crate) fn mark_intact(&self, key: &Key) {
        lock(&self.changed).insert(key.hash().to_owned(), true);
    }

    pub(crate) fn mark_damaged(&self, key: &Key) {
        lock(&self.changed).insert(key.hash().to_owned(), false);
    }

    pub(crate) fn is_stored(&self, key: &Key) -> bool {
        self.check_stored(&mut lock(&self.changed), key)
    }

    /// Returns whether an object is known to be stored. Does not access the store.
    pub(crate) fn is_known_stored(&self, hash: &str) -> bool {
        self.known_state(&lock(&self.changed), hash) == Some(true)
    }

    pub(crate) fn are_stored<'k>(&self, keys: impl IntoIterator<Item = &'k Arc<Key>>) -> bool {
        let mut changed = lock(&self.changed);
        keys.into_iter().all(|key| self.check_stored(&mut changed, key))
    }

    /// Returns `Some(true)` for an intact object, `Some(false)` for a damaged one, and `None` for one that is not known
    /// to be stored.
    fn known_state(&self, changed: &HashMap<String, bool>, hash: &str) -> Option<bool> {
        changed.get(hash).copied().or(match self.surveyed.get(hash) {
            None | Some(ObjectState::Absent) => None,
            Some(ObjectState::Damaged(_)) => Some(false),
            Some(ObjectState::Whole(_)) => Some(true),
        })
    }

    /// Returns whether an object is stored, and remembers the object if it is. An object that was damaged is read
    /// again, because another process may have replaced it.
    fn check_stored(&self, changed: &mut HashMap<String, bool>, key: &Key) -> bool {
        let is_stored = match self.known_state(changed, key.hash()) {
            Some(true) => return true,
            Some(false) => matches!(self.store.get(key), Lookup::Intact(_)),
            None => self.store.has(key),
        };
        if is_stored {
            changed.insert(key.hash().to_owned(), true);
        }
        is_stored
    }
}
