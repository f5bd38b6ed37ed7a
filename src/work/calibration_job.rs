//! What all stages of a calibration share.

use std::sync::Arc;

use super::backbone::BackbonePlan;
use super::context::Context;
use super::hold::Hold;
use super::models::Models;
use crate::calibrate::ActivationShape;
use crate::corpus::Windows;
use crate::error::Result;
use crate::model::Engine;
use ghostlab_store::Key;

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
