//! Metrics of the time and the memory that a prompt takes, and the tokens behind it.

use super::entry::{Direction, MetricEntry, Nearness, OF_PROMPT, Of, Spread, Unit};
use crate::tasks::Measure;

/// `prefill_ms`: the time of a pass over a prompt.
pub static PREFILL: MetricEntry = MetricEntry {
    note: "milliseconds of a forward pass, with their standard deviation",
    unit: Unit::Milliseconds,
    spread: Some(Spread::OverRounds),
    of: Of::Prompt(|result| {
        result.spread().map(|spread| Measure { value: spread.mean, stderr: Some(spread.deviation) })
    }),
    ..OF_PROMPT.called("prefill_ms", "Prefill (ms)")
};

/// `speedup`: the dense backbone's time over the own.
pub static SPEEDUP: MetricEntry = MetricEntry {
    note: "the dense backbone's mean time over the own, with half the 95 % interval of the rounds' ratios",
    spread: Some(Spread::Interval),
    of: Of::Prompt(|result| {
        result.speedup().map(|speedup| Measure { value: speedup.ratio, stderr: speedup.half_width })
    }),
    ..TIMES.called("speedup", "Speedup (×)")
};

/// `peak_memory_percent`: the high-water mark of tensors in a pass over a prompt, of the dense backbone's.
pub static MEMORY: MetricEntry = MetricEntry {
    note: "weights and the most intermediates at a time, in % of the dense backbone's",
    unit: Unit::Percent,
    nearness: Nearness::Difference,
    of: Of::Prompt(|result| result.memory_percent().map(|value| Measure { value, stderr: None })),
    ..OF_PROMPT.called("peak_memory_percent", "Memory (%)")
};

/// `peak_memory_mb`: the high-water mark of tensors in a pass over a prompt, in millions of bytes.
pub static MEMORY_SIZE: MetricEntry = MetricEntry {
    note: "the same in millions of bytes",
    unit: Unit::Megabytes,
    of: Of::Prompt(|result| result.bytes().map(|bytes| Measure { value: bytes as f64 / 1e6, stderr: None })),
    ..OF_PROMPT.called("peak_memory_mb", "Memory (MB)")
};

/// `decode_tps`: tokens that are decoded in a second behind a prompt.
pub static DECODE: MetricEntry = MetricEntry {
    note: "tokens a second of all sequences together, behind the prompt, with their standard deviation",
    unit: Unit::PerSecond,
    direction: Direction::Higher,
    spread: Some(Spread::OverRounds),
    of: Of::Decode(|result| result.rate().map(|spread| Measure { value: spread.mean, stderr: Some(spread.deviation) })),
    ..OF_PROMPT.called("decode_tps", "Decode (tokens/s)")
};

/// `decode_speedup`: the dense backbone's time to decode over the own.
pub static DECODE_SPEEDUP: MetricEntry = MetricEntry {
    note: "the dense backbone's mean time to decode the new tokens over the own, with half the 95 % interval of the rounds' ratios",
    spread: Some(Spread::Interval),
    of: Of::Decode(|result| {
        result.speedup().map(|speedup| Measure { value: speedup.ratio, stderr: speedup.half_width })
    }),
    ..TIMES.called("decode_speedup", "Decode speedup (×)")
};

/// `decode_predicted`: the speedup at decoding by the cost model.
pub(super) static DECODE_PREDICTED: MetricEntry = MetricEntry {
    note: "the dense backbone's operations for the new tokens over the own, by the cost model: nothing is measured",
    of: Of::Decode(|result| result.times.is_some().then(|| Measure { value: result.predicted(), stderr: None })),
    ..TIMES.called("decode_predicted", "Predicted (×)")
};

/// How many times as fast.
const TIMES: MetricEntry = MetricEntry { unit: Unit::Times, direction: Direction::Higher, decimals: 2, ..OF_PROMPT };
