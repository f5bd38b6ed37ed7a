//! `decode_predicted`: the speedup at decoding by the cost model.

use super::entry::{Direction, MetricEntry, OF_PROMPT, Of, Unit};
use crate::latency::DecodeResult;
use crate::tasks::Measure;

pub(super) static ENTRY: MetricEntry = MetricEntry {
    note: "the dense backbone's operations for the new tokens over the own, by the cost model: nothing is measured",
    unit: Unit::Times,
    direction: Direction::Higher,
    decimals: 2,
    of: Of::Decode(estimate),
    ..OF_PROMPT.called("decode_predicted", "Predicted (×)")
};

fn estimate(of: &DecodeResult) -> Option<Measure> {
    of.times.is_some().then(|| Measure { value: of.predicted(), stderr: None })
}
