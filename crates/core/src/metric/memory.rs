//! `peak_memory_percent`: the high-water mark of tensors in a pass over a prompt, of the dense backbone's.

use super::entry::{MetricEntry, Nearness, OF_PROMPT, Of, Unit};
use crate::latency::LatencyResult;
use crate::tasks::Measure;

pub static ENTRY: MetricEntry = MetricEntry {
    note: "weights and the most intermediates at a time, in % of the dense backbone's",
    unit: Unit::Percent,
    nearness: Nearness::Difference,
    of: Of::Prompt(estimate),
    ..OF_PROMPT.called("peak_memory_percent", "Memory (%)")
};

fn estimate(of: &LatencyResult) -> Option<Measure> {
    of.memory_percent().map(|value| Measure { value, stderr: None })
}
