//! Metrics for prefill time, decoding time and memory.

use super::entry::{DifferenceKind, Direction, MetricEntry, MetricSource, PROMPT_DEFAULTS, Spread, Unit};
use crate::tasks::Measure;

/// `prefill_ms`: time of a forward pass over the prompt.
pub static PREFILL: MetricEntry = MetricEntry {
    note: "milliseconds of a forward pass, with standard deviation",
    unit: Unit::Milliseconds,
    spread: Some(Spread::OverRounds),
    source: MetricSource::Prompt(|result| {
        result.spread().map(|spread| Measure { value: spread.mean, stderr: Some(spread.deviation) })
    }),
    ..PROMPT_DEFAULTS.with_name("prefill_ms", "Prefill (ms)")
};

/// `speedup`: prefill time of the dense backbone divided by that of the variant.
pub static SPEEDUP: MetricEntry = MetricEntry {
    note: "mean time of the dense backbone divided by that of the variant, ± half the 95 % interval of the ratios per round",
    spread: Some(Spread::Interval),
    source: MetricSource::Prompt(|result| {
        result.speedup().map(|speedup| Measure { value: speedup.ratio, stderr: speedup.half_width })
    }),
    ..SPEEDUP_DEFAULTS.with_name("speedup", "Speedup (×)")
};

/// `peak_memory_percent`: peak memory of tensors during prefill, as a percentage of the dense backbone's.
pub static MEMORY: MetricEntry = MetricEntry {
    note: "peak memory of weights and intermediates, in % of the dense backbone's",
    unit: Unit::Percent,
    difference: DifferenceKind::Absolute,
    source: MetricSource::Prompt(|result| result.memory_percent().map(|value| Measure { value, stderr: None })),
    ..PROMPT_DEFAULTS.with_name("peak_memory_percent", "Memory (%)")
};

/// `peak_memory_mb`: peak memory of tensors during prefill, in megabytes.
pub static MEMORY_SIZE: MetricEntry = MetricEntry {
    note: "peak memory of weights and intermediates, in millions of bytes",
    unit: Unit::Megabytes,
    source: MetricSource::Prompt(|result| {
        result.bytes().map(|bytes| Measure { value: bytes as f64 / 1e6, stderr: None })
    }),
    ..PROMPT_DEFAULTS.with_name("peak_memory_mb", "Memory (MB)")
};

/// `decode_tps`: tokens decoded per second after the prompt.
pub static DECODE: MetricEntry = MetricEntry {
    note: "tokens per second over all sequences when decoding after the prompt, with standard deviation",
    unit: Unit::PerSecond,
    direction: Direction::Higher,
    spread: Some(Spread::OverRounds),
    source: MetricSource::Decode(|result| {
        result.rate().map(|spread| Measure { value: spread.mean, stderr: Some(spread.deviation) })
    }),
    ..PROMPT_DEFAULTS.with_name("decode_tps", "Decode (tokens/s)")
};

/// `decode_speedup`: decoding time of the dense backbone divided by that of the variant.
pub static DECODE_SPEEDUP: MetricEntry = MetricEntry {
    note: "mean decoding time of the dense backbone divided by that of the variant, ± half the 95 % interval of the ratios per round",
    spread: Some(Spread::Interval),
    source: MetricSource::Decode(|result| {
        result.speedup().map(|speedup| Measure { value: speedup.ratio, stderr: speedup.half_width })
    }),
    ..SPEEDUP_DEFAULTS.with_name("decode_speedup", "Decode speedup (×)")
};

/// `decode_predicted`: decoding speedup predicted by the cost model.
pub(super) static DECODE_PREDICTED: MetricEntry = MetricEntry {
    note: "operations of the dense backbone for the new tokens divided by those of the variant, from the cost model (not measured)",
    source: MetricSource::Decode(|result| {
        result.times.is_some().then(|| Measure { value: result.predicted(), stderr: None })
    }),
    ..SPEEDUP_DEFAULTS.with_name("decode_predicted", "Predicted (×)")
};

const SPEEDUP_DEFAULTS: MetricEntry =
    MetricEntry { unit: Unit::Times, direction: Direction::Higher, decimals: 2, ..PROMPT_DEFAULTS };
