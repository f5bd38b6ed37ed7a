//! Locks that outlive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A poisoned lock only means that another job panicked: what it guards is whole between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
