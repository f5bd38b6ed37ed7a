//! The grid `tests/real/english.yaml`, shared against variant by variant, side by side in one run.
//!
//! `cargo bench --bench grid [-- WINDOWS]` (100 windows of each corpus by default)
#![allow(clippy::disallowed_macros, clippy::unwrap_used, reason = "a benchmark prints, and stops at what it lacks")]

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use ghostlab::exec::{self, Methods, Settings};
use ghostlab::grid::Grid;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    if !root.join("../shared/real").exists() {
        println!("skipped: there is no shared/real beside the checkout");
        return;
    }
    let windows = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or("100".to_string());
    let limits = ["wikitext2-test", "c4"].map(|corpus| format!("corpora.{corpus}.limit={windows}"));
    let grid = Grid::load(&root.join("tests/real/english.yaml"), &limits, &Methods).unwrap();
    let seconds = |separate: bool| {
        let started = Instant::now();
        let settings = Settings { separate, ..Settings::default() };
        let outcome = exec::run(&grid, settings, &(), &AtomicBool::new(false)).unwrap();
        assert_eq!(outcome.failed(), 0);
        started.elapsed().as_secs_f64()
    };
    println!("{} cells, {windows} windows of each corpus", grid.cells().len());
    for round in 1..=2 {
        let (shared, separate) = (seconds(false), seconds(true));
        println!("round {round}: shared {shared:.1} s, separate {separate:.1} s, ratio {:.2}", shared / separate);
    }
}
