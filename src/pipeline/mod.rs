//! Plans the computations for a [`Grid`](crate::grid::Grid), runs them, and reads the results from the store.
//!
//! | module | content |
//! | --- | --- |
//! | [`identity`] | settings and input hashes that determine a result |
//! | [`mod@env`] | environment of a job: inputs, models, store, leases, limits and reporter |
//! | [`stage`] | kinds of stored objects, and the jobs that compute them |
//! | [`plan`] | keys of the objects that a grid needs, and the cost of computing those that are missing |
//! | [`outcome`] | results of a grid, read from the store |
//! | [`exec`] | preflight checks, job scheduling, workers, and records of runs |
//!
//! Each module depends only on the modules above it in this table.

pub mod env;
pub mod exec;
pub mod identity;
pub mod outcome;
pub mod plan;
pub mod stage;
