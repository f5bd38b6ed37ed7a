//! All tests of the hub, as one program.

mod common;
mod faults;
#[path = "common/fetching.rs"]
mod fetching;
mod hostile;
