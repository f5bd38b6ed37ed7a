//! Tests for `--store-limit`: which objects are evicted, which are kept, and what `plan` predicts.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::path::Path;

use crate::common::world::World;
use crate::common::{checkout, file_name};
use ghostlab::pipeline::stage;
use ghostlab_store::{InventoryItem, Store};

/// Returns the total size in bytes and the number of stored objects of one kind.
fn stored_size(world: &World, kind: &str) -> (u64, usize) {
    let entries = Store::open_read_only(&world.path("data/store"), stage::STORE_WORDS).unwrap().entries();
    let stage = format!("{kind}-v");
    let same_kind: Vec<&InventoryItem> = entries.iter().filter(|entry| entry.stage.starts_with(&stage)).collect();
    (same_kind.iter().map(|entry| entry.bytes()).sum(), same_kind.len())
}

fn total_bytes(world: &World) -> u64 {
    ["tokens", "activations", "selection", "operator", "scores"].map(|kind| stored_size(world, kind).0).iter().sum()
}

/// Overrides for two grids whose only common objects are tokens.
const DEPTH_TWO: [&str; 2] = ["--set", "depth=2"];
const DEPTH_ONE: [&str; 2] = ["--set", "depth=1"];

#[test]
fn store_limit_evicts_objects_that_the_grid_does_not_need() {
    let world = World::new();
    let unlimited = World::new();
    world.run_ok(&DEPTH_TWO);
    let before = total_bytes(&world);
    assert!(stored_size(&world, "activations").1 > 0);
    unlimited.run_ok(&DEPTH_ONE);
    // The limit is so small that everything from the other grid is evicted. Activations are kept until all operators
    // from their pass are stored.
    let limit = ["--store-limit", "0.000001"];
    let planned = world.ghostlab(&[&["plan", "grid.yaml"], &DEPTH_ONE[..], &limit].concat());
    let output = String::from_utf8(planned.stdout).unwrap();
    assert!(output.contains("evicts: 4 operator-v") && output.contains("over the limit"), "{output}");
    assert!(!output.contains("activations-v"), "{output}");
    assert_eq!(total_bytes(&world), before, "plan changed the store");
    let log = world.run_ok(&[&DEPTH_ONE[..], &limit].concat());
    assert!(log.contains("store limit 0.00 GB: ") && log.contains("this grid needs the space"), "{log}");
    assert!(world.tables() == unlimited.tables());
    assert_eq!(stored_size(&world, "activations").1, 0, "activations remain although their operators are stored");
    for kind in ["tokens", "selection", "operator", "scores"] {
        // Compare counts rather than sizes, because an operator is stored with the time that it took to solve.
        assert_eq!(stored_size(&world, kind).1, stored_size(&unlimited, kind).1, "{kind}");
    }
    let again = world.run_ok(&[&DEPTH_ONE[..], &limit].concat());
    assert!(!again.contains("calibrate") && world.tables() == unlimited.tables(), "{again}");
}

#[test]
fn store_limit_applies_to_a_grid_without_calibration() {
    let world = World::new();
    world.run_ok(&DEPTH_TWO);
    assert!(stored_size(&world, "operator").1 > 0);
    let mut dense = String::new();
    for line in std::fs::read_to_string(world.path("grid.yaml")).unwrap().lines() {
        let cut_lines = ["criterion", "depth", "recovery", "calibration", "  - {corpus: train"];
        if !cut_lines.iter().any(|start| line.starts_with(start)) {
            dense += line;
            dense += "\n";
        }
    }
    world.write("grid.yaml", dense);
    let log = world.run_ok(&["--store-limit", "0.000001"]);
    assert!(log.contains("store limit 0.00 GB: ") && !log.contains("calibrate"), "{log}");
    assert_eq!(stored_size(&world, "operator").1, 0, "operators of the other grid remain");
}

#[test]
fn no_object_is_evicted_below_the_store_limit() {
    let world = World::new();
    world.run_ok(&DEPTH_TWO);
    let others = stored_size(&world, "activations");
    let log = world.run_ok(&[&DEPTH_ONE[..], &["--store-limit", "1"]].concat());
    assert!(!log.contains("store limit"), "{log}");
    assert!(stored_size(&world, "activations").0 >= others.0);
}

/// Counts the files and folders that the store needs for its cells.
fn count_inodes(world: &World) -> usize {
    fn count_entries(folder: &Path) -> usize {
        let entries = std::fs::read_dir(folder).into_iter().flatten().map(Result::unwrap);
        entries.map(|entry| 1 + count_entries(&entry.path())).sum()
    }
    // Skip activations, because they are intermediate. With a store limit, they are evicted once their operators are
    // stored.
    let kinds = std::fs::read_dir(world.path("data/store")).unwrap().map(|entry| entry.unwrap().path());
    kinds
        .filter(|path| file_name(path).contains("-v") && !file_name(path).starts_with("activations-v"))
        .map(|path| count_entries(&path))
        .sum()
}

#[test]
fn cell_with_nine_tasks_and_three_texts_adds_at_most_4_inodes() {
    let world = World::new();
    let tiny = checkout().join("data/tiny");
    let tiny = tiny.display();
    let tasks = ["arc_easy", "arc_challenge", "hellaswag", "winogrande", "boolq", "openbookqa", "rte", "copa", "race"];
    let texts = [("wiki-test", "wikitext2"), ("web-validation", "c4"), ("news-validation", "ptb")];
    let mut grid = format!("backbones:\n  tiny: {{path: {tiny}/llama}}\ncorpora:\n");
    for (name, rule) in texts {
        grid += &format!("  {name}: {{path: {tiny}/corpora/{name}.jsonl.gz, rule: {rule}, limit: 2}}\n");
    }
    grid += &format!("  train: {{path: {tiny}/corpora/web-train.jsonl.gz, rule: c4}}\ntasks:\n");
    for name in tasks {
        grid += &format!("  {name}: {{path: {tiny}/tasks/{name}.jsonl.gz}}\n");
    }
    grid += "backbone: [tiny]\ncriterion: [llm-streamline]\ndepth: [2, 4, 6]\n\
             recovery: [none, prune-and-comp, linearpatch-diag, ghosted, replaceme-ls]\n\
             calibration: [{corpus: train, sequences: 8, length: 64}]\nevaluate:\n  perplexity:\n";
    texts.iter().for_each(|(name, _)| grid += &format!("    - {{corpus: {name}, length: 64}}\n"));
    grid += "  tasks:\n";
    tasks.iter().for_each(|name| grid += &format!("    - {{name: {name}, limit: 4}}\n"));
    world.write("grid.yaml", grid);
    world.run_ok(&["--set", "recovery=none"]);
    let before = count_inodes(&world);
    world.run_ok(&[]);
    // The run adds twelve cells. Each has one operator and twelve scores, and the scores share files.
    let added = count_inodes(&world) - before;
    assert!(added <= 4 * 12, "{added} inodes for 12 cells");
    assert_eq!(stored_size(&world, "scores").1, 12 * 16);
}
