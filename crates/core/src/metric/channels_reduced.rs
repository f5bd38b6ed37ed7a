//! `channels_reduced_share`: channels with less error than without a repair, of all (paper figure 4).

use super::entry::{Direction, MetricEntry, Of, RepairSample, SHARE};
use crate::recovery::RepairMetrics;

pub static ENTRY: MetricEntry = MetricEntry {
    direction: Direction::Higher,
    of: Of::Repair(share),
    ..SHARE.called("channels_reduced_share", "Channels with less error")
};

/// None where the two are not of the same channels.
fn share(of: &RepairSample<'_>) -> Option<f64> {
    let channels = |of: &[&RepairMetrics]| -> Vec<f64> {
        of.iter().flat_map(|boundary| boundary.boundary_mae_by_channel.clone()).collect()
    };
    let (own, base) = (channels(&of.boundaries), channels(of.unrepaired.as_ref()?));
    let reduced = own.iter().zip(&base).filter(|(own, base)| own < base).count();
    (own.len() == base.len()).then(|| reduced as f64 / own.len() as f64)
}
