//! Runs a grid: preflight checks, job scheduling, resource limits, events and interruption. The jobs are defined in
//! [`stage`](super::stage).

mod grid_run;
mod harness_samples;
mod overview;
mod preflight;
mod run_record;
mod sample;
mod schedule;
mod stored_outcome;
mod time_left;
mod worker_state;

pub use grid_run::{Runner, WorkerOutcome, run, work};
pub use harness_samples::harness_samples;
pub use overview::{FailedCell, FailureView, JobView, Overview, PlanView, RunView, WorkerView};
pub use preflight::{Preflight, SurveyHook, TargetMachine, preflight};
pub use run_record::{Recorder, RunRecord, RunState};
pub use sample::{
    ChunkSampler, DefinedItems, DocumentLoss, SampleCost, SampledCell, SampledItems, SampledScores,
    estimate_sample_cost, score_sample,
};
pub use stored_outcome::read_stored;
pub use time_left::TimeLeft;

pub use crate::pipeline::env::coordination::{lease, timing_lease};
pub use crate::pipeline::env::event::{DistinctNotes, Event, JobStarted, Reporter, WorkItem, WorkKind};
pub use crate::pipeline::env::run_env::RunEnv;
pub use crate::pipeline::env::run_settings::{RunSettings, WorkerLimits};
pub use crate::pipeline::outcome::{CellResult, EvalResult, GridOutcome, TaskScores, UsedObject};
pub use crate::pipeline::stage::group::stored_program;
