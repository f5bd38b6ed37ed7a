//! Shared by the integration tests: what those of the core have, and the world in which the program is run.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test file uses its own part, and stops at what it lacks"
)]

#[path = "../../crates/core/tests/common/mod.rs"]
mod of_core;
pub mod pairs;
pub mod seen;
pub mod world;

pub use of_core::{assert_close, checkout, engines, fixture, flat, json, numbers, relative_error, shared, tensors};
