//! Fuzz targets for all parsers of external input. Each target is a function that takes bytes. The targets check that
//! parsers do not panic, that messages contain no raw control characters, and that accepted input satisfies its
//! invariants.
//!
//! `tests/hostile.rs` runs them on seeded mutations in every build. cargo-fuzz runs them indefinitely (`just fuzz
//! grid`). Add each input that breaks a target to its seeds.
#![allow(clippy::unwrap_used, clippy::panic, dead_code, unreachable_pub, reason = "fuzz targets fail by panicking")]

mod backbone;
pub mod commands;
mod corpus;
mod definition;
mod grid;
mod store;
pub mod watch;

use std::fs;
use std::path::{Path, PathBuf};

use ghostlab::error::Error;
use tempfile::TempDir;

/// Fuzz target for one kind of input.
pub struct FuzzTarget {
    pub name: &'static str,
    /// Valid inputs, and inputs that made earlier versions fail.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Parses the data. Panics if an invariant is violated.
    pub run: fn(&[u8]),
}

pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "grid", seeds: grid::grid_seeds, run: grid::fuzz_grid },
    FuzzTarget { name: "config", seeds: backbone::config_seeds, run: backbone::fuzz_config },
    FuzzTarget { name: "tokenizer", seeds: backbone::tokenizer_seeds, run: backbone::fuzz_tokenizer },
    FuzzTarget { name: "weights", seeds: backbone::weights_seeds, run: backbone::fuzz_weights },
    FuzzTarget { name: "gguf", seeds: backbone::gguf_seeds, run: backbone::fuzz_gguf },
    FuzzTarget { name: "corpus", seeds: corpus::corpus_seeds, run: corpus::fuzz_corpus },
    FuzzTarget { name: "task", seeds: corpus::task_seeds, run: corpus::fuzz_task },
    FuzzTarget { name: "race", seeds: corpus::race_seeds, run: corpus::fuzz_race },
    FuzzTarget { name: "definition", seeds: definition::definition_seeds, run: definition::fuzz_definition },
    FuzzTarget { name: "template", seeds: definition::template_seeds, run: definition::fuzz_template },
    FuzzTarget { name: "meta", seeds: store::meta_seeds, run: store::fuzz_meta },
    FuzzTarget { name: "pack", seeds: store::pack_seeds, run: store::fuzz_pack },
    FuzzTarget { name: "record", seeds: store::record_seeds, run: store::fuzz_record },
    FuzzTarget { name: "journal", seeds: store::journal_seeds, run: store::fuzz_journal },
    FuzzTarget { name: "command", seeds: commands::command_seeds, run: commands::fuzz_command },
    FuzzTarget { name: "plan", seeds: commands::plan_seeds, run: commands::fuzz_plan },
];

fn find_target(name: &str) -> &'static FuzzTarget {
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| panic!("no target {name}"))
}

pub fn run(name: &str, data: &[u8]) {
    (find_target(name).run)(data);
}

/// Writes the seeds of a target to the corpus folder of cargo-fuzz.
pub fn write_seeds(name: &str) {
    let folder = Path::new("fuzz/corpus").join(name);
    fs::create_dir_all(&folder).unwrap();
    for (number, seed) in (find_target(name).seeds)().iter().enumerate() {
        fs::write(folder.join(format!("seed-{number}")), seed).unwrap();
    }
}

/// Returns the path of a file in the checkout. This module is compiled in the main package and in the fuzz package,
/// which is a subfolder of the checkout.
fn checkout(path: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = if here.ends_with("fuzz") { here.parent().unwrap() } else { here };
    root.join(path)
}

fn read_file(path: &str) -> Vec<u8> {
    fs::read(checkout(path)).unwrap()
}

/// Checks that an error has the exit code of a user error, and that its message is safe to print to a terminal.
fn assert_user_error(error: &Error) {
    assert!(matches!(error.exit_code(), 2 | 3), "{error}");
    let message = error.to_string();
    assert!(!message.contains(|c: char| c.is_control() && c != '\n' && c != '\t'), "{message:?}");
}

fn with_file<T>(name: &str, data: &[u8], read: impl FnOnce(&Path) -> T) -> T {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, data).unwrap();
    read(&path)
}
