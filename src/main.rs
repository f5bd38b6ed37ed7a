use std::process::ExitCode;

/// Freed memory is kept for the next step: with the system's allocator each large intermediate is mapped anew, page by page.
#[global_allocator]
static ALLOCATOR: ghostlab::heap::Heap = ghostlab::heap::Heap;

fn main() -> ExitCode {
    ghostlab::cli::main()
}
