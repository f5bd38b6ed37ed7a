use std::process::ExitCode;

use ghostlab::installed::{self, Embedded};
use ghostlab::sandbox;

/// Freed memory is kept for the next step: with the system's allocator each large intermediate is mapped anew, page by page.
#[global_allocator]
static ALLOCATOR: ghostlab::heap::Heap = ghostlab::heap::Heap;

/// Here and not in the library, which every test has in it.
static EMBEDDED: Embedded = include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

fn main() -> ExitCode {
    if sandbox::is_child() {
        return sandbox::run_child();
    }
    sandbox::enable();
    installed::embed(&EMBEDDED);
    ghostlab::cli::main()
}
