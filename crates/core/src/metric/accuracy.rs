//! `arc_easy`: the documents of a task that are answered rightly, by the task's own column (`acc` or `acc_norm`).

use super::entry::{MetricEntry, OF_TASK, Of, PairedTest, Shown, TaskSample};
use crate::tasks::Measure;

pub static ENTRY: MetricEntry = MetricEntry {
    name: "accuracy",
    test: Some(PairedTest::Mcnemar),
    shown: Shown::Always,
    of: Of::Task(estimate),
    ..OF_TASK
};

fn estimate(of: &TaskSample<'_>) -> Option<Measure> {
    Some(percent(of.result.column()))
}

pub(super) fn percent(of: Measure) -> Measure {
    Measure { value: 100.0 * of.value, stderr: of.stderr.map(|error| 100.0 * error) }
}
