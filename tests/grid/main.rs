//! Tests for grid files: accepted and rejected grids, and the positions in error messages.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "test helpers fail by panicking"
)]

mod cells;
mod fixtures;
mod messages;
mod mistakes;
mod named;
mod patterns;
mod profiles;
mod read;
mod schema;
mod sublayers;
