//! `prefill_ms`: the time of a pass over a prompt.

use super::entry::{MetricEntry, OF_PROMPT, Of, Unit};
use crate::latency::LatencyResult;
use crate::tasks::Measure;

pub static ENTRY: MetricEntry = MetricEntry {
    note: "milliseconds of a forward pass, with their standard deviation",
    unit: Unit::Milliseconds,
    has_error: true,
    of: Of::Prompt(estimate),
    ..OF_PROMPT.called("prefill_ms", "Prefill (ms)")
};

fn estimate(of: &LatencyResult) -> Option<Measure> {
    of.spread().map(|spread| Measure { value: spread.mean, stderr: Some(spread.deviation) })
}
