//! Turns the cells of a grid into stored objects, and reads their results.
//!
//! | module | content |
//! | --- | --- |
//! | [`identity`] | settings and input hashes that determine a result |
//! | [`env`] | environment of a job: inputs, models, store, leases, limits and reporter |
//! | [`stage`] | kinds of stored objects, and the jobs that compute them |
//! | [`plan`] | keys of the objects that a grid needs, which of them are stored, and the cost of the others |
//! | [`outcome`] | results of a grid, read from the store |
//! | [`exec`] | runs the jobs of a plan: preflight checks, schedule, workers, events |
//!
//! Each module depends only on the modules above it in this table.

pub mod env;
pub mod exec;
pub mod identity;
pub mod outcome;
pub mod plan;
pub mod stage;
