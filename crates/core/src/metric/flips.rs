//! Metrics of the documents of a task that a variant answers differently than the dense model.

use super::entry::{Direction, MetricEntry, OF_TASK, Of, Shown, TaskSample};
use crate::tasks::{AccuracyKind, DocumentResult, Measure};

/// Defaults of a metric of flips: percent of the documents, by the choice that the task's own column counts.
const OF_FLIPS: MetricEntry = MetricEntry { direction: Direction::Lower, shown: Shown::IfNamed, ..OF_TASK };

/// `flips_copa`: documents whose chosen answer is not the dense model's.
pub(super) static CHANGED: MetricEntry = MetricEntry {
    id: "flips",
    name: "flips",
    label: " (flips)",
    head: "flips",
    note: "documents whose chosen answer is not the dense model's, in percent",
    of: Of::Task(|sample| share(sample, |_, _, dense, variant| dense != variant)),
    ..OF_FLIPS
};

/// `right_to_wrong_copa`: documents that only the dense model answers correctly.
pub(super) static RIGHT_TO_WRONG: MetricEntry = MetricEntry {
    id: "right_to_wrong",
    name: "right_to_wrong",
    label: " (right → wrong)",
    head: "right → wrong",
    note: "documents that the dense model answers correctly and the variant does not, in percent",
    of: Of::Task(|sample| share(sample, |[dense, variant], kind, _, _| dense.right(kind) && !variant.right(kind))),
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
    of: Of::Task(|sample| share(sample, |[dense, variant], kind, _, _| !dense.right(kind) && variant.right(kind))),
    ..OF_FLIPS
};

/// Computes the percentage of documents for which `holds` of the dense model's and the variant's answer, with the standard
/// error of a share. `None` without the dense model's answers, or without a document.
fn share(
    sample: &TaskSample<'_>,
    holds: fn([&DocumentResult; 2], AccuracyKind, Option<usize>, Option<usize>) -> bool,
) -> Option<Measure> {
    let kind = sample.result.task.column;
    let chosen = |document: &DocumentResult| match kind {
        AccuracyKind::Acc => document.pred,
        AccuracyKind::AccNorm => document.pred_norm,
    };
    let mut documents = 0.0;
    let mut held = 0.0;
    for (dense, variant) in sample.dense?.documents().zip(sample.answers.documents()) {
        documents += 1.0;
        if dense.id != variant.id {
            return None;
        }
        held += f64::from(u8::from(holds([&dense, &variant], kind, chosen(&dense), chosen(&variant))));
    }
    let value = held / documents;
    let stderr = (value * (1.0 - value) / (documents - 1.0)).sqrt();
    let stderr = Some(100.0 * stderr).filter(|error| error.is_finite());
    value.is_finite().then_some(Measure { value: 100.0 * value, stderr })
}
