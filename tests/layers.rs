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
criterion: [llm-streamline, shortgpt, shortened-llama, angular, cca]
depth: 1
recovery: none
calibration: {corpus: train, sequences: 8, length: 64}
include:
  - {criterion: llm-drop, depth: {sublayers: 1}}
  - {criterion: nbl, depth: {attention: 1}}
evaluate: {perplexity: {corpus: test, length: 64}}
";

fn answer(world: &World, arguments: &[&str]) -> Value {
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
fn first_ranked_candidate_is_what_a_grid_removes() {
    let world = World::large();
    world.write("grid.yaml", GRID);
    let size = ["--corpus", "train.txt", "--sequences", "8", "--length", "64"];
    let ranked = answer(&world, &[&["layers", "backbone"], &size[..], &["--json"]].concat());
    let columns = ranked["criteria"].as_array().unwrap();
    assert_eq!(columns.len(), 8, "expected one entry per criterion, and two for llm-drop");
    let output = world.ghostlab(&["run", "grid.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    for (criterion, cell) in [
        ("llm-streamline", "tiny.streamline-1.none"),
        ("shortgpt", "tiny.shortgpt-1.none"),
        ("shortened-llama", "tiny.shortened-1.none"),
        ("angular", "tiny.angular-1.none"),
        ("cca", "tiny.cca-1.none"),
        ("llm-drop", "tiny.llm-drop-sublayers-1.none"),
        ("nbl", "tiny.nbl-attention-1.none"),
    ] {
        let explained = answer(&world, &["explain", "grid.yaml", cell, "--json"]);
        assert_eq!(explained["removed_layers"], json!([first_ranked(columns, criterion)]), "{criterion}");
    }
}

#[test]
fn figure_is_drawn_and_never_written_over() {
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
