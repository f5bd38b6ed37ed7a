//! Running calibration, and the lease that it holds.

use std::cell::Cell;
use std::sync::Arc;

use crate::calibrate::ActivationShape;
use crate::corpus::Windows;
use crate::error::{Error, Result};
use crate::model::Engine;
use crate::pipeline::env::backbone::BackbonePlan;
use crate::pipeline::env::context::RunContext;
use ghostlab_store::{Key, Lease};

/// Context of a calibration, which runs one backbone on one text.
pub(crate) struct CalibrationJob<'a> {
    pub(crate) run: &'a RunContext<'a>,
    pub(crate) backbone: &'a BackbonePlan,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) tokens: &'a Arc<Key>,
    pub(crate) windows: Windows,
    pub(crate) label: String,
    pub(crate) shape: ActivationShape,
    pub(crate) guard: &'a LeaseGuard<'a>,
}

impl CalibrationJob<'_> {
    /// Checks that the lease is still held and that the weights have not changed since they were hashed. Must be called
    /// before results are stored.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        self.guard.check()?;
        self.run.models.check_unchanged(self.backbone)
    }
}

/// Guard for the lease of a running job. Also tracks whether the job has made progress.
pub(crate) struct LeaseGuard<'a> {
    run: &'a RunContext<'a>,
    lease: Lease,
    name: &'a str,
    has_progressed: Cell<bool>,
}

impl<'a> LeaseGuard<'a> {
    pub(crate) fn new(run: &'a RunContext<'a>, lease: Lease, name: &'a str) -> Self {
        Self { run, lease, name, has_progressed: Cell::new(false) }
    }

    /// Checks that the lease is still held. Must be called before results are stored.
    ///
    /// # Errors
    /// Fails if the lease was lost ([`Self::is_lost`]), for example because this process was paused for too long.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_lost() { Err(Error::interrupted("the lease was lost")) } else { Ok(()) }
    }

    pub(crate) fn name(&self) -> &str {
        self.name
    }

    pub(crate) fn is_lost(&self) -> bool {
        !self.lease.is_held()
    }

    /// Records progress. The first call resets the crash count, because the remaining work did not cause those crashes.
    pub(crate) fn record_progress(&self) {
        if !self.has_progressed.replace(true) {
            self.run.store.clear_deaths(self.name);
        }
    }
}
