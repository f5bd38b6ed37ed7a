//! `m_symmetric_share`: the symmetric part of what an operator adds to the identity (paper figure 3).

use super::entry::{MetricEntry, Of, RepairSample, SHARE, mean};
use crate::recovery::RepairMetrics;
use crate::style::{Dash, Hue, Marker, Style};

pub static ENTRY: MetricEntry = MetricEntry {
    style: Some(Style::new(Hue::Teal, Marker::Square, Dash::Solid)),
    of: Of::Repair(|of| share(of, |of| of.m_symmetric_norm / of.m_norm)),
    ..SHARE.called("m_symmetric_share", "Symmetric part")
};

/// None where nothing is added.
pub(super) fn share(of: &RepairSample<'_>, part: fn(&RepairMetrics) -> f64) -> Option<f64> {
    mean(&of.boundaries, |of| of.m_norm).filter(|norm| *norm > 0.0)?;
    mean(&of.boundaries, part)
}
