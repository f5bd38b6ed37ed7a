//! `acc_average`: the mean of the tasks.

use super::accuracy::percent;
use super::entry::{MetricEntry, OF_TASK, Of, PairedTest, Shown, TaskSample};
use crate::tasks::{self, Measure, TaskResult};

pub static ENTRY: MetricEntry = MetricEntry {
    id: "acc_average",
    name: "accuracy_average",
    label: "ACC AVG",
    head: "average",
    test: Some(PairedTest::Permutation),
    shown: Shown::Always,
    of: Of::Tasks(estimate),
    ..OF_TASK
};

fn estimate(of: &[TaskSample<'_>]) -> Option<Measure> {
    let all: Vec<TaskResult> = of.iter().map(|task| task.result.clone()).collect();
    tasks::average(&all).map(percent)
}
