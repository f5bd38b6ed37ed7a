//! Grid files: accepted input, rejected input, and the positions in error messages.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a helper of a test fails like a test: by a panic"
)]

mod cells;
mod house;
mod mistakes;
mod named;
mod patterns;
mod profiles;
mod read;
mod schema;
mod sublayers;
