//! Simulated disk and clock, for the tests of this crate and of complete grids
//! (`src/pipeline/exec/grid_run/play_test.rs`).
#![allow(dead_code, reason = "no test uses all items of this module")]

pub(crate) mod network;
pub(crate) mod played_time;
mod server;
