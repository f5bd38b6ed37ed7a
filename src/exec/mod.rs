//! Floor 4: running a grid. Order, preflight, limits, events, interruption; what a job computes is the science's business.
//!
//! A run makes the artifacts that its plan names and the store lacks, and reads its outcome from the store.

mod calibration;
mod context;
mod event;
mod operator;
mod outcome;
mod pass;
mod prepare;
mod record;
mod registry;
mod run;
mod schedule;
mod score;
mod selection;
mod tokens;
mod wait;

pub use event::{Event, Job, Reporter};
pub use operator::{BoundaryResult, PlacedRepair};
pub use outcome::{CellResult, GridOutcome, MadeFrom, TaskProtocol, TaskScores, TextProtocol};
pub use prepare::prepare;
pub use record::{Recorder, RunRecord, Stage};
pub use registry::Methods;
pub use run::{Settings, run};
pub use wait::claim;
