//! Tests for the command-line program on a tiny backbone written by the test: complete runs, repeated runs and invalid
//! input.

#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

mod columns;
mod engines;
mod installed;
mod plans;
mod rejected_inputs;
mod tasks;
mod working_directory;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common;
use crate::common::world::{World, build_tokenizer, column_index, copa_row, read_rows, run_ok};
use ghostlab::pipeline::stage;
use serde_json::{Value, json};

#[test]
fn second_run_of_a_grid_gives_the_same_table() {
    let world = World::new();
    let mut tables = Vec::new();
    for _ in 0..2 {
        let output = world.run(&[]);
        let screen = String::from_utf8(output.stdout).unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{log}");
        assert!(screen.contains("ghosted") && screen.contains("ppl test@64"), "{screen}");
        let rows = read_rows(&world.path("results/grid/results.csv"));
        assert_eq!(rows.len(), 1 + 9, "expected a header, the dense backbone, and 2 depths × 4 recoveries");
        let perplexity = rows[0].iter().position(|name| name == "ppl test@64").unwrap();
        for row in &rows[1..] {
            assert!(row[perplexity].parse::<f64>().unwrap().is_finite());
        }
        tables.push(rows);
    }
    assert_eq!(tables[0], tables[1]);
    for name in ["results.parquet", "results.md", "run.json"] {
        assert!(world.path("results/grid").join(name).metadata().unwrap().len() > 0, "{name}");
    }
    let record = common::json(&world.path("results/grid/run.json"));
    let hash = &record["inputs"]["train.txt"];
    assert_eq!(hash.as_str().map(str::len), Some(64), "{}", record["inputs"]);
    assert_eq!(record["cells"].as_array().map(Vec::len), Some(9));
    let boundary = &record["cells"][1]["boundaries"][0];
    assert!(boundary["boundary_mae"].is_f64() && boundary["boundary_mae_by_channel"].is_null(), "{boundary}");
    assert!(record["files"]["channels.parquet"].is_string(), "{}", record["files"]);
    assert!(record["crates"]["candle-core"].is_string(), "{}", record["crates"]);
}

#[test]
fn grid_without_pruning_axes_scores_only_dense_backbones() {
    let world = World::new();
    world.run_ok(&[]);
    let full = read_rows(&world.path("results/grid/results.csv"));
    let stored = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    let (head, rest) = stored.split_once("criterion:").unwrap();
    let dense = format!("{head}{}", &rest[rest.find("evaluate:").unwrap()..]);
    world.write("dense.yaml", &dense);
    // The run of the pruned grid has already scored the dense backbone.
    let plan = run_ok(&world, &["plan", "dense.yaml"]);
    assert!(plan.contains("1 complete, 0 to run") && !plan.contains("operator"), "{plan}");
    let store = ["--store", "other"];
    let plan = run_ok(&world, &[&["plan", "dense.yaml"], &store[..]].concat());
    assert!(plan.contains("0 complete, 1 to run") && plan.contains("score tiny on test@64: 1 cell"), "{plan}");
    let run = [&["run", "dense.yaml"], &store[..]].concat();
    let again = "1 of 1 cells cached";
    let first = run_ok(&world, &run);
    assert!(!first.contains(again) && first.contains("ppl test@64"), "{first}");
    let rows = read_rows(&world.path("results/dense/results.csv"));
    let seconds = rows[0].iter().position(|name| name == "seconds");
    let [values, expected] = [&rows[1], &full[1]].map(|row| {
        let values = row.iter().enumerate().filter(|(index, _)| Some(*index) != seconds);
        values.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    });
    assert_eq!(rows.len(), 2, "expected a header and the dense backbone: {rows:?}");
    assert_eq!(values, expected, "scores differ from those of the same backbone in a pruned grid");
    assert!(run_ok(&world, &run).contains(again));
    assert!(run_ok(&world, &[&["plan", "dense.yaml"], &store[..]].concat()).contains("1 complete, 0 to run"));
    assert!(run_ok(&world, &[&run[..], &["--layout", "wide"]].concat()).contains("Dense"));
    let explained = run_ok(&world, &[&["explain", "dense.yaml", "dense"], &store[..]].concat());
    assert!(explained.starts_with("tiny.dense\n") && !explained.contains("selection"), "{explained}");
    assert!(run_ok(&world, &[&["status"], &store[..]].concat()).contains("1 of 1 cells complete"));
    let compared = run_ok(&world, &["compare", "results/dense", "results/grid"]);
    assert!(compared.contains("depth") && compared.contains("all 1 common values are the same"), "{compared}");
    world.write("grid.yaml", stored.replace("depth: [1, 2]\n", ""));
    std::fs::remove_dir_all(world.path("results/grid")).unwrap();
    world.assert_rejected(
        &[],
        2,
        &["grid.yaml:1:1", "missing key `depth`", "all four", "score only the dense backbones"],
    );
}

#[test]
fn set_option_overrides_grid_values() {
    let world = World::new();
    let output = world.run(&["--set", "depth=2", "--set", "recovery=ghosted", "--set", "name=small"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(read_rows(&world.path("results/small/results.csv")).len(), 1 + 2);
}

fn add_tasks(world: &World) {
    let rows: Vec<String> = (0..6).map(|i| copa_row(i).to_string()).collect();
    world.write("copa.jsonl", rows.join("\n"));
    let rte = json!({"sentence1": "w1 w2", "sentence2": "w3", "label": 0});
    world.write("rte.jsonl", format!("{rte}\n{rte}\n"));
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    let grid = grid.replacen("backbone:", "tasks:\n  copa: {path: copa.jsonl}\n  rte: {path: rte.jsonl}\nbackbone:", 1);
    world.write("grid.yaml", grid + "  tasks: [copa, {name: rte, limit: 1}]\n");
}

fn file_names(folder: &Path) -> Vec<String> {
    let listing = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = listing.map(|item| item.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn explain_cell(world: &World, cell: &str) -> (Option<i32>, String) {
    let output = world.ghostlab(&["explain", "grid.yaml", cell]);
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code(), text)
}
