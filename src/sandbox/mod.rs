//! Layer 0: tries untrusted inputs in a resource-limited child process before this process uses them.
//!
//! Templates, task definitions, chat templates and rows come from untrusted sources, and a template is a program: it
//! can loop, double a text forty times, or nest values until the stack overflows. Failed allocations and stack
//! overflows abort a Rust process, so checks within the process do not suffice.
//!
//! The child does exactly the work that this process is about to do, and discards the result. If it stays within its
//! limits, this process repeats the work with the same result and memory use. Otherwise, this process reports which
//! input exceeded which limit (exit code 2).
//!
//! Errors of the child are also discarded. This process produces them again, with the context that its callers add.
//!
//! Only the program enables the sandbox ([`enable`]). Libraries and tests that use this crate process untrusted inputs
//! without a child, protected only by the limits of `ghostlab_definitions`.

mod child;
mod limits;
mod parent;
mod probe;

pub use child::run as run_child;
pub use limits::STACK_BYTES;
pub use parent::{check, enable};
pub use probe::{Probe, TaskProbe};

/// Argument that makes the program run as a child. No command has this name.
const CHILD: &str = "__sandbox";

/// Returns whether this process was started as a child.
pub fn is_child() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == CHILD)
}
