//! End-to-end tests for criteria, recoveries and the store: all combinations, degenerate backbones, and repeated runs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

mod repair;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::world::{World, read_csv, read_rows};
use ghostlab::grid::{Cell, Grid};
use ghostlab::pipeline::exec::{self, RunEnv, RunSettings};
use ghostlab::pipeline::stage;
use ghostlab_store::{InventoryItem, Store};
use serde_json::Value;
use tempfile::TempDir;

#[test]
fn all_layers_but_one_can_be_removed() {
    let world = World::new();
    let output = world.run(&[
        "--set",
        "criterion=[{name: shortgpt, last_layer: allow}, shortgpt, shortened-llama, sleb, angular, {name: explicit, layers: [1, 2, 3]}]",
        "--set",
        "recovery=[none, prune-and-comp, linearpatch-diag, ghosted, {name: ghosted, boundary: layer}]",
        "--set",
        "depth=3",
    ]);
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert_eq!(read_results(&world, &log).len(), 1 + 1 + 6 * 5);
    for depth in ["0", "4"] {
        std::fs::remove_dir_all(world.path("results")).ok();
        world.assert_rejected(&["--set", &format!("depth={depth}")], 2, &["depth"]);
    }
}

#[test]
fn methods_not_in_the_paper_run_and_reject_bad_options() {
    let world = World::new();
    let grid = [
        "--set",
        "criterion=[cca, {name: cca, cut: block}, {name: explicit, layers: [1, 3]}, lorp]",
        "--set",
        "recovery=[none, ghosted, affine, mean, {name: rank, rank: 8}, sequential, {name: ghosted, ridge: auto}, \
         {name: ghosted, input: normed}, {name: ghosted, input: normed, bias: true}]",
        "--set",
        "depth=2",
    ];
    let log = world.run_ok(&grid);
    let rows = read_csv(&results_path(&world, &log));
    assert_eq!(rows.len(), 1 + 1 + 4 * 9);
    let log = world.run_ok(&grid);
    assert!(log.contains("37 of 37 cells cached"), "{log}");
    assert_eq!(read_csv(&results_path(&world, &log)), rows, "operators from the store differ");
    // A single-block cut has no earlier operator to take into account, so `sequential` gives the same result as
    // `ghosted`.
    let score = rows[0].iter().position(|name| name.starts_with("ppl")).unwrap();
    let scores: BTreeMap<&str, &str> = rows
        .iter()
        .filter(|row| row.iter().any(|cell| cell.contains("cut=block")))
        .map(|row| (row[5].as_str(), row[score].as_str()))
        .collect();
    assert_eq!(scores["sequential"], scores["ghosted"]);
    let others = ["none", "ghosted", "affine", "mean", "ghosted(input=normed)", "ghosted(bias=true,input=normed)"];
    let distinct: BTreeSet<&str> = others.into_iter().map(|recovery| scores[recovery]).collect();
    assert_eq!(distinct.len(), others.len());
    for (recovery, expected) in [
        ("{name: affine, finetune: {sequences: 2, length: 16}}", "does not support fine-tuning"),
        ("{name: rank, finetune: {sequences: 2, length: 16}}", "does not support fine-tuning"),
        ("{name: sequential, finetune: {sequences: 2, length: 16}}", "does not support fine-tuning"),
        ("{name: rank, rank: 65}", "at most 64"),
        ("{name: rank, rank: 0}", "1 or more"),
        ("{name: ghosted, ridge: much}", "auto"),
        ("{name: ghosted, ridge: auto, solver: svd}", "solver: normal"),
        ("{name: ghosted, bias: true}", "affine"),
        ("{name: ghosted, input: normed, ridge: auto}", "input: normed"),
        ("{name: ghosted, input: normed, finetune: {sequences: 2, length: 16}}", "does not support fine-tuning"),
    ] {
        std::fs::remove_dir_all(world.path("results")).ok();
        world.assert_rejected(&["--set", &format!("recovery=[{recovery}]")], 2, &[expected]);
    }
}

#[test]
fn stored_calibration_is_reused_until_inputs_change() {
    let world = World::new();
    assert_eq!(count_passes(&world, &[]).0, 1);
    let first = read_rows(&world.path("results/grid/results.csv"));
    assert_eq!(count_passes(&world, &[]).0, 0, "cached objects were recomputed");
    let again = read_rows(&world.path("results/grid/results.csv"));
    assert_eq!(first, again);
    assert_eq!(count_passes(&world, &["--set", "calibration.seed=1"]).0, 1, "another seed needs another pass");
    assert_eq!(
        count_passes(&world, &["--set", "recovery=[ghosted, replaceme-ls]"]).0,
        1,
        "other recorded activations need another pass"
    );
    assert_eq!(
        count_passes(&world, &["--set", "recovery=[ghosted, {name: ghosted, solver: svd}]"]).0,
        0,
        "equal recorded activations must share a pass"
    );
    let mut shards = Vec::new();
    find_files(&world.path("data/store/activations-v5"), "rows.f32", &mut shards);
    assert!(!shards.is_empty());
    for shard in &shards {
        let mut bytes = std::fs::read(shard).unwrap();
        bytes[100] ^= 1;
        std::fs::write(shard, bytes).unwrap();
    }
    // Operators and scores are stored, so the damaged activations are read only for a new method.
    let (count, log) =
        count_passes(&world, &["--set", "recovery=[{name: ghosted, boundary: layer}]", "--set", "depth=1"]);
    assert!(count == 1 && log.contains("a stored object is damaged"), "{log}");
    assert_eq!(count_passes(&world, &[]).0, 0);
}

#[test]
fn equivalent_spellings_of_a_method_share_cell_and_key() {
    let world = World::new();
    world.run_ok(&["--set", "recovery=[ghosted, prune-and-comp]", "--set", "criterion=[llm-streamline, sleb]"]);
    let log = world.run_ok(&[
        "--set",
        "recovery=[{name: ghosted, solver: normal, boundary: region}, {name: prune-and-comp, granularity: channel}]",
        "--set",
        "criterion=[{name: llm-streamline, cosine: channel-series}, sleb]",
    ]);
    assert!(log.contains("9 of 9 cells cached"), "{log}");
    let log =
        world.run_ok(&["--set", "recovery=[{name: ghosted, solver: normal}, ghosted, {name: ghosted, solver: svd}]"]);
    assert!(log.contains("3 of 5 cells cached"), "{log}");
    let rows = read_results(&world, &log);
    let labels: Vec<&str> = rows[1..].iter().map(|row| row[5].as_str()).collect();
    assert_eq!(labels[1..3], ["ghosted(solver=normal)", "ghosted(solver=svd)"], "labels do not follow the grid");
    // A pattern matches all equivalent spellings of a method.
    let log = world.run_ok(&["--set", "exclude=[{recovery: {name: ghosted, solver: normal}}]"]);
    assert_eq!(read_results(&world, &log).len(), 1 + 1 + 2 * 3);
}

#[test]
fn operator_sequences_matter_only_to_methods_that_use_them() {
    let world = World::new();
    let grid = [
        "--set",
        "criterion=[llm-streamline, shortgpt]",
        "--set",
        "recovery=[none, prune-and-comp, replaceme-ls, linearpatch-diag, ghosted]",
    ];
    world.run_ok(&grid);
    let log = world.run_ok(&[&grid[..], &["--set", "calibration.operator_sequences=4"]].concat());
    // The run recomputes all cells with `ghosted`. It recomputes those with `linearpatch-diag` unless the criterion
    // removes a single block.
    assert!(log.contains("15 of 21 cells cached"), "{log}");
}

#[test]
fn object_key_lists_the_input_objects() {
    let world = World::new();
    world.run_ok(&["--set", "criterion=[llm-streamline, sleb, {name: explicit, order: [1, 2]}]"]);
    let stored = Store::open_read_only(&world.path("data/store"), stage::STORE_WORDS).unwrap().entries();
    assert_eq!(distinct_inputs(&stored, "selection-v5", "llm-streamline"), ["activations: activations"]);
    assert_eq!(distinct_inputs(&stored, "selection-v5", "sleb"), ["scores: scores"]);
    assert_eq!(distinct_inputs(&stored, "selection-v5", "explicit"), [""]);
    assert_eq!(
        distinct_inputs(&stored, "operator-v4", "llm-streamline"),
        ["activations: activations, selection: selection"]
    );
}

#[test]
fn linearpatch_sequence_count_depends_on_the_criterion() {
    let world = World::new();
    // ShortGPT is not a block criterion, although the three layers that it removes here are adjacent. The official code
    // fits LinearPatch's scales on all sequences for block criteria, but for ShortGPT only on the sequences for
    // operators.
    let few = last_perplexity(&world, "shortgpt", "3", "2");
    let all = last_perplexity(&world, "shortgpt", "3", "8");
    assert_ne!(few, all);
    let listed = "{name: explicit, layers: [0, 1, 2]}";
    assert_eq!(last_perplexity(&world, listed, "3", "2"), all, "the explicit block has a different perplexity");
    assert_ne!(last_perplexity(&world, "shortgpt", "1", "2"), last_perplexity(&world, "shortgpt", "1", "8"));
    assert_eq!(
        last_perplexity(&world, "llm-streamline", "1", "2"),
        last_perplexity(&world, "llm-streamline", "1", "8")
    );
    let store = ghostlab_store::Store::open_read_only(&world.path("data/store"), stage::STORE_WORDS).unwrap();
    let solved = store.entries().into_iter().filter_map(|entry| match entry.object {
        Ok(artifact) => {
            let key = artifact.meta().key.clone();
            (key["kind"] == "operator")
                .then(|| (key["of"]["selection"]["of"]["criterion"].to_string(), key["of"]["sequences"].to_string()))
        }
        _ => None,
    });
    let solved: std::collections::BTreeSet<(String, String)> = solved.collect();
    let expected = [("\"explicit\"", "8"), ("\"llm-streamline\"", "8"), ("\"shortgpt\"", "2"), ("\"shortgpt\"", "8")];
    assert_eq!(solved, expected.map(|(criterion, count)| (criterion.to_owned(), count.to_owned())).into());
}

#[test]
fn same_file_in_another_format_is_a_different_text() {
    let world = World::new();
    // The file is valid both as plain text and as JSON lines.
    std::fs::rename(world.path("test.jsonl"), world.path("test.txt")).unwrap();
    let as_text = run_dense_cell(&world, "test.txt", "data/store");
    std::fs::rename(world.path("test.txt"), world.path("test.jsonl")).unwrap();
    let as_rows = run_dense_cell(&world, "test.jsonl", "data/store");
    assert_eq!(
        run_dense_cell(&world, "test.jsonl", "data/another"),
        as_rows,
        "the scores differ from those computed in a new store"
    );
    assert_ne!(as_text, as_rows);
}

#[test]
fn only_scale_factors_are_equal_per_region_and_per_layer() {
    let world = World::new();
    let methods = ["prune-and-comp", "replaceme-ls", "replaceme-cos"];
    let by_layer = methods.map(|name| format!("{{name: {name}, boundary: layer}}"));
    let both = format!("recovery=[none, {}, {}]", methods.join(", "), by_layer.join(", "));
    let log = world.run_ok(&["--set", "depth=2", "--set", &both]);
    let rows = read_results(&world, &log);
    let column = rows[0].iter().position(|name| name == "ppl test@64").unwrap();
    let value: Vec<f64> = rows[2..].iter().map(|row| row[column].parse().unwrap()).collect();
    let [none, factors, squares, cosines, factors_by_layer, squares_by_layer, cosines_by_layer] = value[..] else {
        panic!("{rows:?}")
    };
    // The factors of the layers in a region multiply to the factor of the whole region. ReplaceMe's maps do not.
    assert!((factors / factors_by_layer - 1.0).abs() < 1e-5 && factors != none, "{factors} {factors_by_layer}");
    assert!((squares / squares_by_layer - 1.0).abs() > 1e-4, "{squares} {squares_by_layer}");
    assert!((cosines / cosines_by_layer - 1.0).abs() > 1e-6, "{cosines} {cosines_by_layer}");
}

/// Returns the path of the results table in the folder named in a log. Runs with different settings write to different
/// folders.
fn results_path(world: &World, log: &str) -> PathBuf {
    let (_, after) = log.split_once(" files to ").unwrap();
    world.path(after.lines().next().unwrap()).join("results.csv")
}

fn read_results(world: &World, log: &str) -> Vec<Vec<String>> {
    read_rows(&results_path(world, log))
}

fn find_files(folder: &Path, name: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find_files(&path, name, found);
        } else if path.file_name().is_some_and(|file| file == name) {
            found.push(path);
        }
    }
}

#[test]
fn each_criterion_and_recovery_pair_has_a_result_row() {
    let world = World::new();
    let output = world.run(&[
        "--set",
        "criterion=[llm-streamline, shortgpt, shortened-llama, sleb, angular, {name: explicit, order: [1, 3]}]",
        "--set",
        "recovery=[none, prune-and-comp, {name: prune-and-comp, granularity: scalar}, replaceme-ls, \
                  {name: replaceme-cos, epochs: 1}, linearpatch-diag, {name: linearpatch-rotate, boundary: layer}, \
                  ghosted, {name: ghosted, solver: svd, boundary: layer}]",
    ]);
    let log = String::from_utf8(output.stderr).unwrap();
    let rows = std::fs::read_to_string(results_path(&world, &log)).unwrap();
    // If a criterion removes layer 0, there is no layer that ReplaceMe could change. No other cell may fail.
    for line in rows.lines().filter(|line| line.contains("failed: ")) {
        assert!(line.contains("replaceme") && line.contains("no layer before layer 0"), "{line}");
    }
    assert_eq!(rows.lines().count(), 1 + 1 + 6 * 2 * 9, "{log}");
}

#[test]
fn perplexities_are_independent_of_chunks_and_memory() {
    let world = World::new();
    let grid = Grid::load(&world.path("grid.yaml"), None, &[]).unwrap();
    let expected = run_perplexities(&grid, &grid.cells, RunSettings::default());
    let separate = grid.cells.chunks(1).flat_map(|cell| run_perplexities(&grid, cell, RunSettings::default()));
    assert_eq!(separate.collect::<Vec<_>>(), expected, "the result of a chunk depends on other variants");
    let starved =
        run_perplexities(&grid, &grid.cells, RunSettings { memory: Some(20_000_000), ..RunSettings::default() });
    assert_eq!(starved, expected, "weights loaded on demand give other results");
    for settings in [
        RunSettings { spool_bytes: 0, ..RunSettings::default() },
        RunSettings { jobs: 3, ..RunSettings::default() },
        RunSettings { batch_tokens: Some(1), ..RunSettings::default() },
    ] {
        for (ours, expected) in run_perplexities(&grid, &grid.cells, settings).iter().zip(&expected) {
            // Matrix products round differently at other batch sizes.
            let tolerance = if settings.batch_tokens == Some(1) { 1e-4 } else { 1e-6 };
            common::assert_close(&format!("{settings:?}"), *ours, *expected, tolerance);
        }
    }
}

/// Returns the notes in the first row with the given recovery.
fn find_note(rows: &[Vec<String>], recovery: &str) -> String {
    let notes = rows[0].iter().position(|name| name == "notes").unwrap();
    rows.iter().find(|row| row[5] == recovery).unwrap()[notes].clone()
}

/// Runs the grid. Returns the number of calibration passes and the log.
fn count_passes(world: &World, more: &[&str]) -> (usize, String) {
    let output = world.run(more);
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{log}");
    (log.matches("one pass").count(), log)
}

/// Returns the distinct input objects of the objects that a stage stored for a criterion.
fn distinct_inputs(stored: &[InventoryItem], stage: &str, criterion: &str) -> Vec<String> {
    let keys = stored
        .iter()
        .filter(|entry| entry.stage == stage)
        .map(|entry| match &entry.object {
            Ok(artifact) => artifact.meta().key.clone(),
            Err(error) => panic!("{error}"),
        })
        .filter(|key| {
            let selection = if stage.starts_with("selection") { key } else { &key["of"]["selection"] };
            selection["of"]["criterion"] == criterion
        });
    let parents = keys.map(|key| {
        let parents = key["of"].as_object().unwrap().iter().filter(|(_, value)| value.get("kind").is_some());
        let parents = parents.map(|(name, parent)| {
            assert!(parent["version"].as_u64().is_some(), "{parent}");
            format!("{name}: {}", parent["kind"].as_str().unwrap())
        });
        parents.collect::<Vec<_>>().join(", ")
    });
    let mut parents: Vec<String> = parents.collect();
    parents.dedup();
    parents
}

fn last_perplexity(world: &World, criterion: &str, depth: &str, operator_sequences: &str) -> String {
    let set = [
        format!("criterion=[{criterion}]"),
        format!("depth={depth}"),
        "recovery=[linearpatch-diag]".to_owned(),
        format!("calibration=[{{corpus: train, sequences: 8, operator_sequences: {operator_sequences}, length: 64}}]"),
    ];
    let log = world.run_ok(&set.iter().flat_map(|assignment| ["--set", assignment]).collect::<Vec<_>>());
    // Parse the file as CSV, because lists of layers contain commas.
    let rows = read_csv(&results_path(world, &log));
    let column = rows[0].iter().position(|name| name == "ppl test@64").unwrap();
    rows.last().unwrap()[column].clone()
}

fn run_dense_cell(world: &World, file: &str, store: &str) -> Vec<String> {
    let file = format!("corpora.test.path={file}");
    let log = world.run_ok(&["--set", &file, "--set", "recovery=none", "--store", store]);
    read_results(world, &log)[1].clone()
}

fn run_perplexities(grid: &Grid, cells: &[Cell], settings: RunSettings) -> Vec<f64> {
    let folder = TempDir::new().unwrap();
    let store = ghostlab_store::Store::open(folder.path(), stage::STORE_WORDS).unwrap();
    let grid = Grid { cells: cells.to_vec(), ..grid.clone() };
    let outcome = exec::run(&grid, RunEnv { settings, ..RunEnv::new(&store) }).unwrap();
    outcome.cells.iter().map(|result| result.texts[0].sample.as_ref().unwrap().perplexity()).collect()
}
