//! Tries untrusted inputs in a resource-limited child process before this process uses them (layer 0 of the
//! architecture).
//!
//! Templates, task definitions and rows come from untrusted sources. A template is a program: it can loop forever,
//! double a string forty times, or nest values until the stack overflows. Failed allocations and stack overflows abort
//! a Rust process, so checks within the process are not enough.
//!
//! The child does the same work that this process is about to do. If the child stays within its limits, this process
//! repeats the work and reports any error in the input. If not, this process reports which input exceeded which limit
//! (exit code 2).
//!
//! Only the `ghostlab` program enables the sandbox ([`enable`]). In other programs, only the limits in
//! `ghostlab_definitions` protect against untrusted inputs.

mod child;
mod limits;
mod parent;
mod probe;

pub use child::run as run_child;
pub use limits::STACK_BYTES;
pub use parent::{check_probe, enable};
pub use probe::{Probe, TaskProbe};

/// First argument of a child, which is started from this executable. No command has this name.
const CHILD_ARGUMENT: &str = "__sandbox";

pub fn is_child() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == CHILD_ARGUMENT)
}
