//! Events of a run, for display and records.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Start of a job whose progress is counted in tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobStarted {
    /// Job id, which is unique within the run. Several jobs may run at a time.
    #[serde(rename = "job")]
    pub id: usize,
    pub label: String,
    /// Name of the piece of work that the job belongs to ([`Work::work`]).
    pub work: String,
    /// Number of remaining tokens, each counted once for all variants.
    pub tokens: usize,
    /// Number of cells that the job scores; may be 0.
    pub cells: usize,
    /// Remaining work estimated by the cost model, in floating-point operations.
    pub flops: f64,
}

/// Kind of a piece of work. Each kind has its own rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    /// Calibration passes, selections, operators, and training.
    Calibrate,
    /// Scoring of a text or task.
    Score,
    /// Timing of prompts.
    Time,
}

/// Remaining piece of work of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Lease name prefix, or name of the prompt.
    pub work: String,
    pub backbone: String,
    pub kind: WorkKind,
    /// Remaining work estimated by the cost model, in floating-point operations.
    pub flops: f64,
}

/// Event of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Start of the run: total and stored numbers of cells and scores, and the estimated remaining work.
    Planned {
        cells: usize,
        complete: usize,
        scores: usize,
        scored: usize,
        flops: f64,
        /// Pieces of the remaining work.
        work: Vec<Work>,
        engine: String,
        /// Machine and device, as named in the keys of latencies.
        machine: String,
        /// Id of the stored plan outline.
        plan: String,
    },
    /// Message for the user.
    Note {
        text: String,
    },
    Started(JobStarted),
    /// Tokens done since the last event of the job. `elsewhere` is true if another process or an earlier run did the
    /// work.
    Advanced {
        job: usize,
        tokens: usize,
        /// Number of tokens that were actually processed, if generation may have ended early.
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
    /// All work so far is stored, so stopping now loses nothing.
    Kept,
    /// Score of a cell: a perplexity, or an accuracy in percent.
    Scored {
        cell: String,
        on: String,
        value: f64,
    },
    /// Completion of a cell. `complete` counts all complete cells.
    Complete {
        cell: String,
        complete: usize,
    },
    /// Failure of a cell. Other cells continue.
    Failed {
        cell: String,
        reason: String,
    },
    /// End of the run. No event follows.
    Ended {
        complete: usize,
        failed: usize,
        interrupted: bool,
    },
}

/// Consumer of events. Each job sends `Started`, `Advanced` and, unless the run stops, `Finished`, possibly from
/// several threads.
pub trait Reporter: Sync {
    fn event(&self, event: Event);
}

/// Reporter that forwards each distinct note once.
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

/// Discards all events.
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
    fn equal_notes_are_reported_once() {
        let counter = Counter(Mutex::new(0));
        let distinct = DistinctNotes::new(&counter);
        for text in ["a", "b", "a"] {
            distinct.event(Event::Note { text: text.to_owned() });
        }
        assert_eq!(*counter.0.lock().unwrap(), 2);
    }
}
