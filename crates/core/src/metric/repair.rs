//! Metrics for the error that remains after a repair, and for the repair's operators. Figure numbers refer to the
//! Ghosted Layers paper.

use super::entry::{
    Direction, FRACTION_DEFAULTS, MetricEntry, MetricSource, REPAIR_DEFAULTS, RepairSample, mean_over_boundaries,
};
use crate::recovery::RepairMetrics;
use crate::style::{Dash, Hue, Marker, Style};

/// `boundary_mae`: remaining error after a cut, averaged over tokens and channels (figure 1).
pub static BOUNDARY_ERROR: MetricEntry = MetricEntry {
    source: MetricSource::Repair(|sample| mean_over_boundaries(&sample.boundaries, |boundary| boundary.boundary_mae)),
    ..REPAIR_DEFAULTS.with_name("boundary_mae", "Boundary MAE")
};

/// `channel_mae_median`: remaining error after a cut, median over channels (figure 4).
pub static CHANNEL_ERROR: MetricEntry = MetricEntry {
    source: MetricSource::Repair(|sample| {
        mean_over_boundaries(&sample.boundaries, |boundary| median(&boundary.boundary_mae_by_channel))
    }),
    ..REPAIR_DEFAULTS.with_name("channel_mae_median", "Channel MAE, median")
};

/// `m_symmetric_share`: relative norm of the symmetric part of `M`, the operator minus the identity (figure 3).
pub static SYMMETRIC: MetricEntry = MetricEntry {
    style: Some(Style::new(Hue::Teal, Marker::Square, Dash::Solid)),
    source: MetricSource::Repair(|sample| {
        mean_relative_norm(sample, |boundary| boundary.m_symmetric_norm / boundary.m_norm)
    }),
    ..FRACTION_DEFAULTS.with_name("m_symmetric_share", "Symmetric part")
};

/// `m_antisymmetric_share`: relative norm of the antisymmetric part of `M` (figure 3).
pub static ANTISYMMETRIC: MetricEntry = MetricEntry {
    style: Some(Style::new(Hue::Plum, Marker::Diamond, Dash::Dashed)),
    source: MetricSource::Repair(|sample| {
        mean_relative_norm(sample, |boundary| boundary.m_antisymmetric_norm / boundary.m_norm)
    }),
    ..FRACTION_DEFAULTS.with_name("m_antisymmetric_share", "Anti-symmetric part")
};

/// `channels_reduced_share`: fraction of channels whose error the repair reduces (figure 4).
pub static CHANNELS_REDUCED: MetricEntry = MetricEntry {
    direction: Direction::Higher,
    source: MetricSource::Repair(compute_channels_reduced),
    ..FRACTION_DEFAULTS.with_name("channels_reduced_share", "Channels with less error")
};

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

/// Averages `ratio`, the relative norm of a component of `M`, over boundaries. Returns `None` if there is no operator.
fn mean_relative_norm(sample: &RepairSample<'_>, ratio: fn(&RepairMetrics) -> f64) -> Option<f64> {
    mean_over_boundaries(&sample.boundaries, |boundary| boundary.m_norm).filter(|norm| *norm > 0.0)?;
    mean_over_boundaries(&sample.boundaries, ratio)
}

/// Returns the fraction of channels whose error the repair reduces. Returns `None` if the grid does not include the
/// unrepaired variant or its channel count differs.
fn compute_channels_reduced(sample: &RepairSample<'_>) -> Option<f64> {
    let repaired = collect_channel_errors(&sample.boundaries);
    let base = collect_channel_errors(sample.unrepaired.as_ref()?);
    let reduced = repaired.iter().zip(&base).filter(|(repaired, base)| repaired < base).count();
    (repaired.len() == base.len()).then(|| reduced as f64 / repaired.len() as f64)
}

fn collect_channel_errors(boundaries: &[&RepairMetrics]) -> Vec<f64> {
    boundaries.iter().flat_map(|boundary| boundary.boundary_mae_by_channel.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_even_count_is_the_mean_of_the_middle_two() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
