use std::process::ExitCode;

use ghostlab::installed::{self, Embedded};
use ghostlab::sandbox;

/// Freed memory is kept for the next step: the system's allocator maps each large intermediate again, page by page.
#[global_allocator]
static ALLOCATOR: ghostlab::heap::Heap = ghostlab::heap::Heap;

/// In the binary instead of the library, which every test links.
static EMBEDDED: Embedded = include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

fn main() -> ExitCode {
    if sandbox::is_child() {
        return sandbox::run_child();
    }
    sandbox::enable();
    installed::embed(&EMBEDDED);
    ghostlab::cli::main()
}
