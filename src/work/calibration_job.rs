//! What all stages of a calibration share, and the claim under which they work.

use std::cell::Cell;
use std::sync::Arc;

use super::backbone::BackbonePlan;
use super::context::Context;
use super::models::Models;
use crate::calibrate::ActivationShape;
use crate::corpus::Windows;
use crate::error::{Error, Result};
use crate::model::Engine;
use ghostlab_store::{Key, Lease};

/// One calibration of one backbone.
pub(crate) struct CalibrationJob<'a> {
    pub(crate) run: &'a Context<'a>,
    pub(crate) models: &'a Models<'a>,
    pub(crate) backbone: &'a BackbonePlan,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) tokens: &'a Arc<Key>,
    pub(crate) windows: Windows,
    /// How reports name it.
    pub(crate) label: String,
    pub(crate) shape: ActivationShape,
    pub(crate) hold: &'a Hold<'a>,
}

impl CalibrationJob<'_> {
    /// Refuses to store what other weights than those that were hashed may have made, or what another process is at by now.
    pub(crate) fn unchanged(&self) -> Result<()> {
        self.hold.check()?;
        self.models.unchanged(self.backbone)
    }
}

/// Its claim while it goes on: whether it is held still, and whether work under it has gone on.
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
