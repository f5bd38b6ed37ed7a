//! How far a piece of work got, and that a panic in it is its failure.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, Result};

/// How far a task got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Progressed {
    Done,
    /// Others have done all of it.
    Found,
    /// Other processes are at what is left of it: something else may be done meanwhile.
    Busy,
    /// It was tried as often as it may be, and why it failed.
    GivenUp(String),
}

/// Runs a job; a panic in it is its failure.
pub(crate) fn caught<T>(job: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().map(ToString::to_string);
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Error::job("a job panicked, which is a fault of the program")
            .found(said.unwrap_or_else(|| "a panic without a message".to_string())))
    })
}
