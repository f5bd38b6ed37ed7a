use std::process::ExitCode;

use ghostlab::installed::{self, EmbeddedFiles};
use ghostlab::sandbox;

/// Allocator based on mimalloc, which reuses freed memory. The system allocator would return large temporary buffers to
/// the operating system and map them again page by page.
#[global_allocator]
static ALLOCATOR: ghostlab::heap::Heap = ghostlab::heap::Heap;

/// Files embedded in the program. They are included here and not in the library, because every test binary links the
/// library.
static EMBEDDED: EmbeddedFiles = include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

fn main() -> ExitCode {
    if sandbox::is_child() {
        return sandbox::run_child();
    }
    sandbox::enable();
    installed::register_embedded(&EMBEDDED);
    ghostlab::cli::main()
}
