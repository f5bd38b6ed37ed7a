//! Compares `ghostlab layers` with grids that remove a single layer or sublayer.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use crate::common::world::World;
use serde_json::{Value, json};

const GRID: &str = "\
backbones: {tiny: {path: backbone}}
corpora:
  train: {path: train.txt, rule: wikitext2}
  test: {path: test.jsonl, rule: ptb, limit: 1}
backbone: tiny
criterion: [llm-streamline, shortgpt, shortened-llama, sleb, angular, cca]
depth: 1
recovery: none
calibration: {corpus: train, sequences: 8, length: 64}
include:
  - {criterion: llm-drop, depth: {sublayers: 1}}
  - {criterion: block-pruner, depth: {sublayers: 1}}
  - {criterion: finercut, depth: {sublayers: 1}}
  - {criterion: nbl, depth: {sublayers: 1}}
evaluate: {perplexity: {corpus: test, length: 64}}
";

fn run_answer(world: &World, arguments: &[&str]) -> Value {
    let output = world.ghostlab(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice::<Value>(&output.stdout).unwrap()["answer"].take()
}

/// Returns the candidate with rank 1, in the notation of `explain`.
fn first_ranked(columns: &[Value], criterion: &str) -> Value {
    let columns = columns.iter().filter(|column| column["criterion"] == criterion);
    let mut scores = columns.flat_map(|column| {
        let scores = column["scores"].as_array().unwrap();
        scores.iter().map(|score| (column["of"].as_str().unwrap(), score))
    });
    let (target, first) = scores.find(|(_, score)| score["rank"] == 1).unwrap();
    if target == "layer" { first["layer"].clone() } else { json!(format!("{target} {}", first["layer"])) }
}

#[test]
fn grid_removes_the_first_ranked_candidate() {
    let world = World::large();
    world.write("grid.yaml", GRID);
    let size = ["--corpus", "train.txt", "--sequences", "8", "--length", "64"];
    let ranked = run_answer(&world, &[&["layers", "backbone"], &size[..], &["--json"]].concat());
    let columns = ranked["criteria"].as_array().unwrap();
    assert_eq!(columns.len(), 14, "expected one entry per criterion, and two for criteria of both sublayers");
    let output = world.ghostlab(&["run", "grid.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    for (criterion, cell) in [
        ("llm-streamline", "tiny.streamline-1.none"),
        ("shortgpt", "tiny.shortgpt-1.none"),
        ("shortened-llama", "tiny.shortened-1.none"),
        ("sleb", "tiny.sleb-1.none"),
        ("angular", "tiny.angular-1.none"),
        ("cca", "tiny.cca-1.none"),
        ("llm-drop", "tiny.llm-drop-sublayers-1.none"),
        ("block-pruner", "tiny.block-pruner-sublayers-1.none"),
        ("finercut", "tiny.finercut-sublayers-1.none"),
        ("nbl", "tiny.nbl-sublayers-1.none"),
    ] {
        let explained = run_answer(&world, &["explain", "grid.yaml", cell, "--json"]);
        assert_eq!(explained["removed_layers"], json!([first_ranked(columns, criterion)]), "{criterion}");
    }
}

/// Greedy criteria store only the score of the candidate that they remove. The other scores come from their trials,
/// which score the model without one of the candidates.
#[test]
fn greedy_criteria_list_the_trials_of_their_first_step() {
    let world = World::large();
    let line = ["layers", "backbone", "--corpus", "train.txt", "--sequences", "8", "--length", "64", "--json"];
    let ranked = run_answer(&world, &line);
    let columns = ranked["criteria"].as_array().unwrap();
    let layers = usize::try_from(ranked["layers"].as_u64().unwrap()).unwrap();
    for (criterion, candidates) in [("sleb", layers), ("block-pruner", 2 * layers), ("finercut", 2 * layers)] {
        let mut scores = scores_of(columns, criterion);
        assert_eq!(scores.len(), candidates, "{criterion}");
        scores.sort_by_key(|score| score["rank"].as_u64());
        let values: Vec<f64> = scores.iter().map(|score| score["score"].as_f64().unwrap()).collect();
        assert!(values.is_sorted() && values[0] < values[candidates - 1], "{criterion}: {values:?}");
    }
    // Both criteria score a layer by the perplexity without it.
    assert_eq!(scores_of(columns, "sleb"), scores_of(columns, "shortened-llama"));
    let quick = run_answer(&world, &[&line[..], &["--no-trials"]].concat());
    let names: Vec<&str> =
        quick["criteria"].as_array().unwrap().iter().map(|column| column["criterion"].as_str().unwrap()).collect();
    assert_eq!(names, ["llm-streamline", "shortgpt", "angular", "cca", "llm-drop", "llm-drop", "nbl", "nbl"]);
}

/// Returns the scores of a criterion for all candidates: layers, attention sublayers and MLPs.
fn scores_of(columns: &[Value], criterion: &str) -> Vec<Value> {
    let columns = columns.iter().filter(|column| column["criterion"] == criterion);
    columns.flat_map(|column| column["scores"].as_array().unwrap().clone()).collect()
}

#[test]
fn layer_figure_is_overwritten_only_with_force() {
    let world = World::large();
    let size = ["--corpus", "train.txt", "--sequences", "8", "--length", "64"];
    let line = [&["layers", "backbone"], &size[..], &["--criteria", "shortgpt", "--figure", "ranks.svg"]].concat();
    assert_eq!(world.ghostlab(&line).status.code(), Some(0));
    let drawn = std::fs::read(world.path("ranks.svg")).unwrap();
    assert!(drawn.starts_with(b"<svg"));
    assert_eq!(world.ghostlab(&line).status.code(), Some(2));
    assert_eq!(world.ghostlab(&[&line[..], &["--force"]].concat()).status.code(), Some(0));
    assert_eq!(std::fs::read(world.path("ranks.svg")).unwrap(), drawn);
}
