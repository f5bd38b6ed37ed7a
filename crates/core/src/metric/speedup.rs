//! `speedup`: the dense backbone's time over the own.

use super::entry::{Direction, MetricEntry, OF_PROMPT, Of, Unit};
use crate::latency::LatencyResult;
use crate::tasks::Measure;

pub static ENTRY: MetricEntry = MetricEntry {
    note: "the dense backbone's mean time over the own, with half the 95 % interval of the rounds' ratios",
    unit: Unit::Times,
    direction: Direction::Higher,
    decimals: 2,
    has_error: true,
    of: Of::Prompt(estimate),
    ..OF_PROMPT.called("speedup", "Speedup (×)")
};

fn estimate(of: &LatencyResult) -> Option<Measure> {
    of.speedup().map(|of| Measure { value: of.ratio, stderr: of.half_width })
}
