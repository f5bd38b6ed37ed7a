//! Compares the wall time of a grid run, whose cells (single experiments) share computation, with separate runs of each
//! cell.
//!
//! `cargo bench --bench grid [-- GRID.yaml KEY=VALUE …]` runs `tests/real/english.yaml` by default. The key-value pairs
//! work like `--set`.
#![allow(clippy::disallowed_macros, clippy::unwrap_used, reason = "a benchmark prints, and panics on setup errors")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use ghostlab::grid::{Cell, Grid};
use ghostlab::pipeline::exec::{self, RunEnv};
use ghostlab::pipeline::stage;
use ghostlab_store::Store;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    if !root.join("../shared/real").exists() {
        println!("skipped: there is no shared/real next to the checkout");
        return;
    }
    let arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let (overrides, files): (Vec<String>, Vec<String>) = arguments.partition(|argument| argument.contains('='));
    let file = files.first().map_or(root.join("tests/real/english.yaml"), PathBuf::from);
    let grid = Grid::load(&file, None, &overrides).unwrap();
    let seconds = |cells: &[Cell]| {
        // Start each run with an empty store, so that it reuses no results.
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), stage::STORE_WORDS).unwrap();
        let grid = Grid { cells: cells.to_vec(), ..grid.clone() };
        let started = Instant::now();
        let outcome = exec::run(&grid, RunEnv::new(&store)).unwrap();
        assert_eq!(outcome.failed_count(), 0);
        started.elapsed().as_secs_f64()
    };
    println!("{} {}: {} cells", file.display(), overrides.join(" "), grid.cells.len());
    for round in 1..=2 {
        let shared = seconds(&grid.cells);
        let separate = grid.cells.chunks(1).map(&seconds).sum::<f64>();
        println!("round {round}: shared {shared:.1} s, separate {separate:.1} s, ratio {:.2}", shared / separate);
    }
}
