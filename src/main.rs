use std::process::ExitCode;

use ghostlab::installed::{self, Embedded};
use ghostlab::sandbox;

/// mimalloc keeps freed memory for the next step. The system allocator maps each large intermediate again, page by
/// page.
#[global_allocator]
static ALLOCATOR: ghostlab::heap::Heap = ghostlab::heap::Heap;

/// Embedded in the binary instead of the library, which every test links.
static EMBEDDED: Embedded = include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

fn main() -> ExitCode {
    if sandbox::is_child() {
        return sandbox::run_child();
    }
    sandbox::enable();
    installed::embed(&EMBEDDED);
    ghostlab::cli::main()
}
