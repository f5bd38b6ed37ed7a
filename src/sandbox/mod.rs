//! Tries untrusted inputs in a child process under limits, before this process uses them. Layer 0.
//!
//! A template, a task definition, a chat template or a row comes from a stranger, and a template is a program: it can loop,
//! double a text forty times or nest values until the stack overflows. An allocation that fails and a stack that overflows
//! abort a Rust process, so no check inside the process is enough. The child process does exactly what this process is about
//! to do and discards the result. If the child stays within its limits, this process repeats the work and gets the same
//! result in the same memory; if the child does not, this process reports which input exceeded which limit (exit code 2).
//!
//! Errors of the child are discarded, too: this process makes them again, with the places that its callers add.
//!
//! Only the program enables the sandbox ([`enable`]). A library that uses this crate, as tests do, runs untrusted inputs
//! without a child, with the limits of `ghostlab_definitions` alone.

mod child;
mod limits;
mod parent;
mod probe;

pub use child::run as run_child;
pub use limits::STACK_BYTES;
pub use parent::{check, enable};
pub use probe::{Probe, TaskProbe};

/// Argument that makes the program a child. No command has this name.
const CHILD: &str = "__sandbox";

/// Whether this process was started as a child.
pub fn is_child() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == CHILD)
}
