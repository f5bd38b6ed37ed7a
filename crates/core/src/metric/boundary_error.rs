//! `boundary_mae`: the error that is left behind a cut, mean over tokens and channels (paper figure 1).

use super::entry::{MetricEntry, OF_REPAIR, Of, mean};

pub static ENTRY: MetricEntry = MetricEntry {
    of: Of::Repair(|of| mean(&of.boundaries, |of| of.boundary_mae)),
    ..OF_REPAIR.called("boundary_mae", "Boundary MAE")
};
