//! `decode_tps`: tokens that are decoded in a second behind a prompt.

use super::entry::{Direction, MetricEntry, OF_PROMPT, Of, Unit};
use crate::latency::DecodeResult;
use crate::tasks::Measure;

pub static ENTRY: MetricEntry = MetricEntry {
    note: "tokens a second of all sequences together, behind the prompt, with their standard deviation",
    unit: Unit::PerSecond,
    direction: Direction::Higher,
    has_error: true,
    of: Of::Decode(estimate),
    ..OF_PROMPT.called("decode_tps", "Decode (tokens/s)")
};

fn estimate(of: &DecodeResult) -> Option<Measure> {
    of.rate().map(|rate| Measure { value: rate.mean, stderr: Some(rate.deviation) })
}
