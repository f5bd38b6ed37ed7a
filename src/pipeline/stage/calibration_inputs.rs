//! Activations and similarities that variants need from a calibration.

use std::collections::BTreeSet;

use crate::calibrate::{HookPoint, Pair};
use crate::criterion::{Criterion, PruneSpec};
use crate::model::Cut;
use crate::recovery::{self, Recovery, Span};

/// Variant whose operators are not stored yet.
pub struct WantedRepair<'a> {
    pub criterion: &'a dyn Criterion,
    pub recovery: &'a dyn Recovery,
    pub cut: PruneSpec<'a>,
    /// Layers or sublayers that are removed, or `None` if they have not been selected yet.
    pub removed: Option<Cut>,
}

/// Inputs that variants need from a shared calibration pass before and after layers are selected. Used by planning,
/// cost estimation and runs.
#[derive(Debug, Default)]
pub struct CalibrationInputs {
    /// Sites whose activations the recoveries read, given the selected layers.
    pub required: BTreeSet<HookPoint>,
    /// Sites whose activations the recoveries may read, for any selection that the criteria can make.
    pub possible: BTreeSet<HookPoint>,
    /// Sites whose activations the criteria read.
    pub criterion_sites: BTreeSet<HookPoint>,
    pub pairs: BTreeSet<Pair>,
}

impl CalibrationInputs {
    pub fn from_repairs<'a>(repairs: impl IntoIterator<Item = WantedRepair<'a>>) -> Self {
        let mut inputs = Self::default();
        for WantedRepair { criterion, recovery, cut, removed } in repairs {
            match removed {
                Some(removed) => {
                    let spans = recovery::spans(recovery, &removed);
                    inputs.required.extend(spans.into_iter().flat_map(|span| recovery.sites(span)));
                }
                None => {
                    let spans = possible_spans(criterion, recovery, &cut);
                    inputs.possible.extend(spans.into_iter().flat_map(|span| recovery.sites(span)));
                    inputs.criterion_sites.extend(criterion.sites(&cut));
                    inputs.pairs.extend(criterion.pairs(&cut));
                }
            }
        }
        inputs
    }
}

/// Returns all spans that a recovery may have to repair, for any selection that a criterion can make.
fn possible_spans(criterion: &dyn Criterion, recovery: &dyn Recovery, cut: &PruneSpec<'_>) -> Vec<Span> {
    if recovery.replaces_sublayers() {
        return recovery::spans(recovery, &cut.unit.candidates(cut.layers).into_iter().collect());
    }
    let regions = criterion.regions(cut).into_iter().map(|(start, end)| Span::layers(start, end));
    regions.flat_map(|region| recovery.spans(region)).collect()
}
