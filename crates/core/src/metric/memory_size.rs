//! `peak_memory_mb`: the high-water mark of tensors in a pass over a prompt, in millions of bytes.

use super::entry::{MetricEntry, OF_PROMPT, Of, Unit};
use crate::latency::LatencyResult;
use crate::tasks::Measure;

pub static ENTRY: MetricEntry = MetricEntry {
    note: "the same in millions of bytes",
    unit: Unit::Megabytes,
    of: Of::Prompt(estimate),
    ..OF_PROMPT.called("peak_memory_mb", "Memory (MB)")
};

fn estimate(of: &LatencyResult) -> Option<Measure> {
    of.bytes().map(|bytes| Measure { value: bytes as f64 / 1e6, stderr: None })
}
