//! Metrics for task answers: the built-in accuracy and the metrics from lm-evaluation-harness.

use super::entry::{
    DEFAULTS, DifferenceKind, Direction, MetricEntry, MetricSource, MetricVisibility, PairedTest, Spread,
    TASK_DEFAULTS, Unit,
};
use crate::tasks::{self, Measure};

/// `arc_easy`: percentage of documents that are answered correctly, using the metric that the task reports (`acc` or
/// `acc_norm`).
pub static TASK: MetricEntry = MetricEntry {
    name: "accuracy",
    test: Some(PairedTest::Mcnemar),
    visibility: MetricVisibility::Always,
    source: MetricSource::Task,
    ..TASK_DEFAULTS
};

/// `acc_average`: mean accuracy over the tasks.
pub static ACCURACY: MetricEntry = MetricEntry {
    id: "acc_average",
    name: "accuracy_average",
    label: "ACC AVG",
    head: "average",
    test: Some(PairedTest::Permutation),
    visibility: MetricVisibility::Always,
    source: MetricSource::Tasks(|accuracies| tasks::average(accuracies).map(Measure::in_percent)),
    ..TASK_DEFAULTS
};

/// Metrics from lm-evaluation-harness under their original names, such as `mmlu_anatomy(shots=5)/acc,none`. An id
/// consists of a task or group as written in the grid, a `/`, the metric, a comma, and the filter pipeline.
pub(super) static HARNESS_METRICS: [MetricEntry; 15] = [
    percent("acc", "task.acc"),
    percent("acc_norm", "task.acc_norm"),
    percent("acc_bytes", "task.acc_bytes"),
    percent("acc_mutual_info", "task.acc_mutual_info"),
    percent("exact_match", "task.exact_match"),
    MetricEntry { test: None, ..percent("f1", "task.f1") },
    harness_metric("mcc", "task.mcc", Direction::Higher),
    harness_metric("brier_score", "task.brier_score", Direction::Lower),
    harness_metric("perplexity", "task.perplexity", Direction::Lower),
    harness_metric("word_perplexity", "task.word_perplexity", Direction::Lower),
    harness_metric("byte_perplexity", "task.byte_perplexity", Direction::Lower),
    MetricEntry { unit: Unit::Bits, ..harness_metric("bits_per_byte", "task.bits_per_byte", Direction::Lower) },
    harness_metric("bleu", "task.bleu", Direction::Higher),
    harness_metric("chrf", "task.chrf", Direction::Higher),
    // lm-evaluation-harness declares higher values to be better, although TER is an error rate.
    harness_metric("ter", "task.ter", Direction::Higher),
];

const HARNESS_DEFAULTS: MetricEntry = MetricEntry {
    spread: Some(Spread::StandardError),
    visibility: MetricVisibility::Always,
    source: MetricSource::Defined,
    ..DEFAULTS
};

const fn percent(harness: &'static str, name: &'static str) -> MetricEntry {
    MetricEntry {
        id: harness,
        name,
        unit: Unit::Percent,
        direction: Direction::Higher,
        difference: DifferenceKind::Absolute,
        test: Some(PairedTest::Mcnemar),
        ..HARNESS_DEFAULTS
    }
}

const fn harness_metric(harness: &'static str, name: &'static str, direction: Direction) -> MetricEntry {
    MetricEntry { id: harness, name, direction, decimals: 4, ..HARNESS_DEFAULTS }
}
