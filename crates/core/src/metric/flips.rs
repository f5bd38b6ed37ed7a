//! Flip metrics: shares of a task's documents that a variant answers differently from the dense model.

use super::entry::{Direction, MetricEntry, OF_TASK, Of, PairedTest, Shown};
use crate::tasks::Flip;

/// Defaults for flip metrics, which are percentages of documents. They use the accuracy metric that the task reports.
const OF_FLIPS: MetricEntry =
    MetricEntry { direction: Direction::Lower, test: Some(PairedTest::Mcnemar), shown: Shown::IfNamed, ..OF_TASK };

/// `flips_copa`: documents whose chosen answer differs from the dense model's.
pub(super) static CHANGED: MetricEntry = MetricEntry {
    id: "flips",
    name: "flips",
    label: " (flips)",
    head: "flips",
    note: "documents whose chosen answer differs from the dense model's, in percent",
    of: Of::Flips(Flip::Changed),
    ..OF_FLIPS
};

/// `right_to_wrong_copa`: documents that only the dense model answers correctly.
pub(super) static RIGHT_TO_WRONG: MetricEntry = MetricEntry {
    id: "right_to_wrong",
    name: "right_to_wrong",
    label: " (right → wrong)",
    head: "right → wrong",
    note: "documents that the dense model answers correctly and the variant does not, in percent",
    of: Of::Flips(Flip::RightToWrong),
    ..OF_FLIPS
};

/// `wrong_to_right_copa`: documents that only the variant answers correctly.
pub(super) static WRONG_TO_RIGHT: MetricEntry = MetricEntry {
    id: "wrong_to_right",
    name: "wrong_to_right",
    label: " (wrong → right)",
    head: "wrong → right",
    note: "documents that the variant answers correctly and the dense model does not, in percent",
    direction: Direction::Higher,
    of: Of::Flips(Flip::WrongToRight),
    ..OF_FLIPS
};
