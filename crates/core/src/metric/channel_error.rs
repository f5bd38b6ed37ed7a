//! `channel_mae_median`: the same of the channel in the middle (paper figure 4).

use super::entry::{MetricEntry, OF_REPAIR, Of, mean};

pub static ENTRY: MetricEntry = MetricEntry {
    of: Of::Repair(|of| mean(&of.boundaries, |of| median(&of.boundary_mae_by_channel))),
    ..OF_REPAIR.called("channel_mae_median", "Channel MAE, median")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_lies_between_the_two_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
