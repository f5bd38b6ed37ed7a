//! `decode_speedup`: the dense backbone's time to decode over the own.

use super::entry::{Direction, MetricEntry, OF_PROMPT, Of, Unit};
use crate::latency::DecodeResult;
use crate::tasks::Measure;

pub(super) static ENTRY: MetricEntry = MetricEntry {
    note: "the dense backbone's mean time to decode the new tokens over the own, with half the 95 % interval of the rounds' ratios",
    unit: Unit::Times,
    direction: Direction::Higher,
    decimals: 2,
    has_error: true,
    of: Of::Decode(estimate),
    ..OF_PROMPT.called("decode_speedup", "Decode speedup (×)")
};

fn estimate(of: &DecodeResult) -> Option<Measure> {
    of.speedup().map(|of| Measure { value: of.ratio, stderr: of.half_width })
}
