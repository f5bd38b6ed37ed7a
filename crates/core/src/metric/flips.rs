//! Flip metrics: percentages of a task's documents that a variant answers differently from the dense model. In
//! lm-evaluation-harness tasks, every metric that marks answers as right or wrong has its own set of flip metrics.

use super::entry::{Direction, MetricEntry, MetricSource, MetricVisibility, PairedTest, TASK_DEFAULTS};
use crate::tasks::Flip;

/// Defaults for flip metrics, which are percentages of documents. For built-in tasks, they use the accuracy metric that
/// the task reports.
const FLIPS_DEFAULTS: MetricEntry = MetricEntry {
    direction: Direction::Lower,
    test: Some(PairedTest::Mcnemar),
    visibility: MetricVisibility::IfNamed,
    ..TASK_DEFAULTS
};

/// `flips_copa`: changed answers.
pub(super) static CHANGED_ANSWERS: MetricEntry = MetricEntry {
    id: "flips",
    name: "flips",
    label: " (flips)",
    head: "flips",
    note: "documents whose chosen answer differs from the dense model's, in percent",
    source: MetricSource::Flips(Flip::Changed),
    ..FLIPS_DEFAULTS
};

/// `right_to_wrong_copa`: answers that become wrong.
pub(super) static RIGHT_TO_WRONG: MetricEntry = MetricEntry {
    id: "right_to_wrong",
    name: "right_to_wrong",
    label: " (right → wrong)",
    head: "right → wrong",
    note: "documents that the dense model answers correctly and the variant does not, in percent",
    source: MetricSource::Flips(Flip::RightToWrong),
    ..FLIPS_DEFAULTS
};

/// `wrong_to_right_copa`: answers that become right.
pub(super) static WRONG_TO_RIGHT: MetricEntry = MetricEntry {
    id: "wrong_to_right",
    name: "wrong_to_right",
    label: " (wrong → right)",
    head: "wrong → right",
    note: "documents that the variant answers correctly and the dense model does not, in percent",
    direction: Direction::Higher,
    source: MetricSource::Flips(Flip::WrongToRight),
    ..FLIPS_DEFAULTS
};
