//! A disk and a time that tests play in, for the store's own tests and for those of whole grids (`src/exec/run/play_test.rs`).
#![allow(dead_code, reason = "each asks for some of it")]

pub(crate) mod network;
pub(crate) mod played_time;
