//! Exports cells to folders and files for other programs, and reads them back. Also tests `score` on a single model.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

mod doctor;
mod folder;
mod merged;
mod operator;
mod score;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::common::world::{World, read_csv, read_rows};
use crate::common::{checkout, fixture, json};
use serde_json::{Value, json};

/// Returns a value from a column of the results table, for a recovery at depth 2 or for the dense backbone.
fn read_value(world: &World, recovery: &str, column: &str) -> f64 {
    let rows = read_rows(&world.path("results/grid/results.csv"));
    let [depth, method, column] =
        ["depth", "recovery", column].map(|name| rows[0].iter().position(|head| head == name).unwrap());
    let expected_depth = if recovery == "dense" { "0" } else { "2" };
    rows.iter().find(|row| row[depth] == expected_depth && (recovery == "dense" || row[method] == recovery)).unwrap()
        [column]
        .parse()
        .unwrap()
}

/// Exports a cell, asserts success, and returns stdout.
fn export(world: &World, cell: &str, folder: &str, more: &[&str]) -> String {
    let output = world.ghostlab(&[&["export", "grid.yaml", cell, "--to", folder], more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the results file contained in the JSON output of `score`.
fn run_score(world: &World, more: &[&str]) -> Value {
    let output = world.ghostlab(&[&["score"], more, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let mut document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document["answer"]["lm_eval"].take()
}

fn score_perplexity(world: &World, model: &str) -> f64 {
    let file = run_score(world, &[model, "--perplexity", "test.jsonl@64", "--windows", "5", "--rule", "ptb"]);
    file["results"]["test@64"]["perplexity,none"].as_f64().unwrap()
}

fn file_names(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn score_of(file: &Value, task: &str, metric: &str) -> f64 {
    file["results"][task][metric].as_f64().unwrap()
}
