//! What happens during a run, told to whoever shows it.

/// A piece of work whose progress is counted in tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    pub label: String,
    /// Tokens of text, each counted once however many variants read it.
    pub tokens: usize,
    /// Cells that this job scores; 0 where it scores none.
    pub cells: usize,
    /// Its floating-point operations by the cost model.
    pub flops: f64,
}

/// A step of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// What the whole run will cost by the cost model, in floating-point operations.
    Planned {
        flops: f64,
    },
    /// Something worth a line.
    Note(String),
    Started(Job),
    /// Tokens done since the last event of the job.
    Advanced {
        tokens: usize,
    },
    Finished,
}

/// Shows events. The order is: `Planned`, then for each job `Started`, any number of `Advanced`, `Finished`; notes anywhere.
pub trait Reporter {
    fn event(&self, event: Event);
}

/// Shows nothing.
impl Reporter for () {
    fn event(&self, _: Event) {}
}
