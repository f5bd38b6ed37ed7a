//! From a grid's cells to stored objects and their results.
//!
//! | module | content |
//! | --- | --- |
//! | [`identity`] | everything that a number depends on |
//! | [`env`] | environment of a job: inputs, models, store, leases, limits and reporter |
//! | [`stage`] | kinds of stored objects, and the jobs that compute them |
//! | [`plan`] | keys of all required objects, which of them are stored, and the costs |
//! | [`outcome`] | results of a grid, read from the store |
//! | [`exec`] | runs the jobs of a plan: preflight checks, schedule, workers, events |
//!
//! Each module uses only those above it in this table.

pub mod env;
pub mod exec;
pub mod identity;
pub mod outcome;
pub mod plan;
pub mod stage;
