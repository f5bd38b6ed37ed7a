//! Events of a run, for progress output and run records.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Start of a job whose progress is counted in tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobStarted {
    /// Id of the job, unique within the run. Several jobs may run at the same time.
    #[serde(rename = "job")]
    pub id: usize,
    pub label: String,
    /// Name of the work item to which the job belongs ([`WorkItem::name`]).
    pub work: String,
    /// Number of tokens that remain to be processed. A token that is processed for several variants counts once.
    pub tokens: usize,
    /// Number of cells that the job scores. May be 0.
    pub cells: usize,
    /// Remaining floating-point operations, as estimated by the cost model.
    pub flops: f64,
}

/// Kind of a work item. Rates in floating-point operations per second are measured for each kind separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    /// Calibration passes, selections, operators and training.
    Calibrate,
    /// Scoring of variants on a text or task.
    Score,
    /// Timing of variants on prompts.
    Time,
}

/// Unfinished work item of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkItem {
    /// Prefix of the lease names or, for a latency measurement, the label of the job.
    #[serde(rename = "work")]
    pub name: String,
    pub backbone: String,
    pub kind: WorkKind,
    /// Remaining floating-point operations, as estimated by the cost model.
    pub flops: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The run has started. `complete` of the `cells` and `scored` of the `scores` are already stored. `flops` is the
    /// estimated remaining work.
    Planned {
        cells: usize,
        complete: usize,
        scores: usize,
        scored: usize,
        flops: f64,
        work: Vec<WorkItem>,
        engine: String,
        /// Machine and device, as written in latency keys.
        machine: String,
        /// ID of the plan's [`Outline`](crate::pipeline::plan::Outline) in the store.
        plan: String,
    },
    Note {
        text: String,
    },
    Started(JobStarted),
    /// A job has processed tokens since its last event. `elsewhere` is true if another process or an earlier run did
    /// the work.
    Advanced {
        job: usize,
        tokens: usize,
        /// Number of tokens that were actually processed. Set if generation may have ended early.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ran: Option<usize>,
        elsewhere: bool,
    },
    Finished {
        job: usize,
    },
    WorkDone {
        work: String,
    },
    /// All finished work is stored, so stopping now loses nothing.
    Kept,
    /// A cell was scored on a text or task (`on`). `value` is a perplexity or an accuracy in percent.
    Scored {
        cell: String,
        on: String,
        value: f64,
    },
    /// A cell is complete. The field `complete` is the total number of complete cells.
    Complete {
        cell: String,
        complete: usize,
    },
    /// A cell has failed. Other cells continue.
    Failed {
        cell: String,
        reason: String,
    },
    /// The run has ended. No event follows.
    Ended {
        complete: usize,
        failed: usize,
        interrupted: bool,
    },
}

/// Consumer of events, which may come from several threads. Each job sends `Started`, `Advanced` and, unless the run is
/// stopped, `Finished`.
pub trait Reporter: Sync {
    fn event(&self, event: Event);
}

/// Reporter that forwards each note only once.
pub struct DistinctNotes<'a> {
    reporter: &'a dyn Reporter,
    reported: Mutex<BTreeSet<String>>,
}

impl<'a> DistinctNotes<'a> {
    pub fn new(reporter: &'a dyn Reporter) -> Self {
        Self { reporter, reported: Mutex::default() }
    }
}

impl Reporter for DistinctNotes<'_> {
    fn event(&self, event: Event) {
        let is_new = match &event {
            Event::Note { text } => self.reported.lock().unwrap_or_else(PoisonError::into_inner).insert(text.clone()),
            _ => true,
        };
        if is_new {
            self.reporter.event(event);
        }
    }
}

/// Reporter that discards all events.
impl Reporter for () {
    fn event(&self, _: Event) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counter(Mutex<usize>);

    impl Reporter for Counter {
        fn event(&self, _: Event) {
            *self.0.lock().unwrap() += 1;
        }
    }

    #[test]
    fn duplicate_notes_are_reported_once() {
        let counter = Counter(Mutex::new(0));
        let distinct = DistinctNotes::new(&counter);
        for text in ["a", "b", "a"] {
            distinct.event(Event::Note { text: text.to_owned() });
        }
        assert_eq!(*counter.0.lock().unwrap(), 2);
    }
}
