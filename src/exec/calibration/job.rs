//! What all stages of a calibration share.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::hold::Hold;
use crate::calibrate::{ActivationShape, HookPoint, Pair};
use crate::corpus::Windows;
use crate::error::Result;
use crate::exec::context::Context;
use crate::exec::models::Models;
use crate::model::Engine;
use crate::plan::BackbonePlan;
use crate::stage::activations;
use ghostlab_store::Key;

/// One calibration of one backbone.
pub(super) struct CalibrationJob<'a> {
    pub(super) run: &'a Context<'a>,
    pub(super) models: &'a Models<'a>,
    pub(super) backbone: &'a BackbonePlan,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) tokens: &'a Arc<Key>,
    pub(super) windows: Windows,
    /// How reports name it.
    pub(super) label: String,
    pub(super) shape: ActivationShape,
    pub(super) hold: &'a Hold<'a>,
}

impl CalibrationJob<'_> {
    /// The residual stream at one site over some sequences.
    pub(super) fn rows_key(&self, site: HookPoint, shard: &Range<usize>) -> Key {
        activations::rows(self.backbone.keyed(), self.tokens, site, shard)
    }

    /// Refuses to store what other weights than those that were hashed may have made, or what another process is at by now.
    pub(super) fn unchanged(&self) -> Result<()> {
        self.hold.check()?;
        self.models.unchanged(self.backbone)
    }

    /// The sums of some similarities over some sequences.
    pub(super) fn sums_key(&self, pairs: &BTreeSet<Pair>, shard: &Range<usize>) -> Key {
        activations::sums(self.backbone.keyed(), self.tokens, pairs, shard)
    }
}
