//! `mmlu_anatomy(shots=5)/acc,none`: metrics of tasks by definitions of lm-evaluation-harness, under its names. An id is a task
//! or group as the grid writes it, and behind a `/` the metric and the pipeline of filters.

use super::entry::{BARE, Direction, MetricEntry, Nearness, Of, PairedTest, Shown, Unit};

/// The harness' metrics.
pub(super) static ENTRIES: [MetricEntry; 15] = [
    percent("acc", "task.acc"),
    percent("acc_norm", "task.acc_norm"),
    percent("acc_bytes", "task.acc_bytes"),
    percent("acc_mutual_info", "task.acc_mutual_info"),
    percent("exact_match", "task.exact_match"),
    MetricEntry { test: None, ..percent("f1", "task.f1") },
    other("mcc", "task.mcc", Direction::Higher),
    other("brier_score", "task.brier_score", Direction::Lower),
    other("perplexity", "task.perplexity", Direction::Lower),
    other("word_perplexity", "task.word_perplexity", Direction::Lower),
    other("byte_perplexity", "task.byte_perplexity", Direction::Lower),
    MetricEntry { unit: Unit::Bits, ..other("bits_per_byte", "task.bits_per_byte", Direction::Lower) },
    other("bleu", "task.bleu", Direction::Higher),
    other("chrf", "task.chrf", Direction::Higher),
    // The harness' own direction.
    other("ter", "task.ter", Direction::Higher),
];

const DEFINED: MetricEntry = MetricEntry { has_error: true, shown: Shown::Always, of: Of::Defined, ..BARE };

const fn percent(harness: &'static str, name: &'static str) -> MetricEntry {
    MetricEntry {
        id: harness,
        name,
        unit: Unit::Percent,
        direction: Direction::Higher,
        nearness: Nearness::Difference,
        test: Some(PairedTest::Mcnemar),
        ..DEFINED
    }
}

const fn other(harness: &'static str, name: &'static str, direction: Direction) -> MetricEntry {
    MetricEntry { id: harness, name, direction, decimals: 4, ..DEFINED }
}
