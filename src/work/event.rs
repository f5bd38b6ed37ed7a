//! Events of a run, for display and records.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// A piece of work whose progress is counted in tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobStarted {
    /// Its place in the run, by which every event names it; several may be under way at a time.
    #[serde(rename = "job")]
    pub id: usize,
    pub label: String,
    /// The piece of the plan that it belongs to.
    pub work: String,
    /// Tokens of text that are left to do, each counted once however many variants read it.
    pub tokens: usize,
    /// Cells that this job scores; 0 where it scores none.
    pub cells: usize,
    /// Remaining work, in floating-point operations by the cost model.
    pub flops: f64,
}

/// Kind of a piece of a plan: each kind has its own rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    /// Passes over a calibration, selections, operators, training.
    Calibrate,
    /// Scoring a text or a task.
    Score,
    /// Timing prompts.
    Time,
}

/// A piece of a plan that is left to do: a calibration, a text or task to score, a prompt to time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Identifier: the prefix of its claims, or the prompt's name.
    pub work: String,
    pub backbone: String,
    pub kind: WorkKind,
    /// Remaining work, in floating-point operations by the cost model.
    pub flops: f64,
}

/// A step of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The planned work: cells and their scores, the stored number of both, and the remaining work by the cost model.
    Planned {
        cells: usize,
        complete: usize,
        scores: usize,
        scored: usize,
        flops: f64,
        /// The pieces of that.
        work: Vec<Work>,
        /// Engine, device and float type.
        engine: String,
        /// The machine with its device that computes, as keys of times name it.
        machine: String,
        /// The outline of what there is to do, in the store.
        plan: String,
    },
    /// Something worth a line.
    Note {
        text: String,
    },
    Started(JobStarted),
    /// Tokens done since the last event of the job.
    /// `elsewhere`: another process, or an earlier run, has done them.
    Advanced {
        job: usize,
        tokens: usize,
        /// How many of them really ran, where that is known only now: a text that is generated may end early.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ran: Option<usize>,
        elsewhere: bool,
    },
    Finished {
        job: usize,
    },
    /// A piece of the plan is complete.
    WorkDone {
        work: String,
    },
    /// All work so far is stored: ending now loses nothing.
    Kept,
    /// A cell has been scored: a perplexity, or an accuracy in percent.
    Scored {
        cell: String,
        on: String,
        value: f64,
    },
    /// A cell is complete, with the number of complete cells.
    Complete {
        cell: String,
        complete: usize,
    },
    /// A cell failed, with the reason; the others continue.
    Failed {
        cell: String,
        reason: String,
    },
    /// The end of the run; no event follows.
    Ended {
        complete: usize,
        failed: usize,
        interrupted: bool,
    },
}

/// Takes events. For each job comes `Started`, any number of `Advanced`, and `Finished` unless the run stops; several
/// threads may tell at once.
pub trait Reporter: Sync {
    fn event(&self, event: Event);
}

/// Reporter that passes each note on once. The grids of a search share their warnings.
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

/// Shows nothing.
impl Reporter for () {
    fn event(&self, _: Event) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reporter that counts events.
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
