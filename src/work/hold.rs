//! The claim of a calibration while it goes on: whether it is held still, and whether work under it has gone on.

use std::cell::Cell;

use super::context::Context;
use crate::error::{Error, Result};
use ghostlab_store::Lease;

pub(crate) struct Hold<'a> {
    run: &'a Context<'a>,
    lease: Lease,
    name: &'a str,
    gone_on: Cell<bool>,
}

impl<'a> Hold<'a> {
    pub(crate) fn new(run: &'a Context<'a>, lease: Lease, name: &'a str) -> Self {
        Self { run, lease, name, gone_on: Cell::new(false) }
    }

    /// Asked before something is stored under it.
    ///
    /// # Errors
    /// It is another's, or about to be: this process was halted for longer than others wait ([`Self::is_lost`]).
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_lost() { Err(Error::interrupted("its claim is not held any more")) } else { Ok(()) }
    }

    /// The claim's name.
    pub(crate) fn name(&self) -> &str {
        self.name
    }

    pub(crate) fn is_lost(&self) -> bool {
        !self.lease.holds()
    }

    /// Something of the work was stored: where processes died before, it was not at what is left.
    pub(crate) fn gone_on(&self) {
        if !self.gone_on.replace(true) {
            self.run.store.forgive_deaths(self.name);
        }
    }
}
