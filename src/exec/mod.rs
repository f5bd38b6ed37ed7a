//! Floor 2: running a grid. Order, preflight, limits, events, interruption; what a job computes is the science's business.
//!
//! A run makes the artifacts that its plan names and the store lacks, and reads its outcome from the store.

mod calibration;
mod cell_result;
mod context;
mod evaluation;
mod event;
mod known_objects;
mod latency;
mod lock;
mod models;
mod outcome;
mod overview;
mod preflight;
mod preflight_limits;
mod prepare;
mod programs;
mod record;
mod run;
mod sample;
mod schedule;
mod score;
mod settings;
mod share;
mod stored;
mod time_left;
mod timing_lock;
mod tokenise;
mod wait;

pub use cell_result::{CellResult, MadeFrom, Measured, TaskScores};
pub use event::{Event, JobStarted, Reporter, Work, WorkKind};
pub use outcome::{GridOutcome, TaskProtocol, TextProtocol, TextRead};
pub use overview::{FailedCell, FailureView, JobView, Overview, PlanView, RunView, WorkerView};
pub use preflight::{Preflight, Where, preflight};
pub use prepare::prepare;
pub use programs::stored_program;
pub use record::{Recorder, RunRecord, RunState};
pub use run::{Worked, run, stored, work};
pub use sample::{Computed, Draw, SampleCost, SampledCell, SampledItems, SampledScores, sample, sample_cost};
pub use settings::RunSettings;
pub use share::WorkerLimits;
pub use time_left::TimeLeft;
pub use timing_lock::timing_claim;
pub use wait::claim;
