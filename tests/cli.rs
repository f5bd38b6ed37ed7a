//! The program as a user runs it, on a tiny backbone that the test writes: a whole grid, a second run, and every kind of bad input.
#![allow(clippy::unwrap_used, reason = "a test stops at what it lacks")]

mod common;

use common::world::{World, table, tokenizer};
use serde_json::{Value, json};

#[test]
fn a_grid_runs_and_a_second_run_gives_the_same_table() {
    let world = World::new();
    let mut tables = Vec::new();
    for _ in 0..2 {
        let output = world.run(&[]);
        let (screen, log) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(0), "{log}");
        assert!(screen.contains("ghosted") && screen.contains("ppl test@64"), "{screen}");
        let rows = table(&world.path("results/grid/results.csv"));
        assert_eq!(rows.len(), 1 + 9, "a header, the dense backbone, 2 depths x 4 recoveries");
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
    assert!(record["crates"]["candle-core"].is_string(), "{}", record["crates"]);
}

#[test]
fn an_override_changes_the_grid() {
    let world = World::new();
    let output = world.run(&["--set", "depth=2", "--set", "recovery=ghosted", "--set", "name=small"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(table(&world.path("results/small/results.csv")).len(), 1 + 2);
}

#[test]
fn a_truncated_weight_file_is_refused() {
    let world = World::new();
    let path = world.path("backbone/model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    world.refuses(&[], 2, &["truncated or damaged", "model.safetensors"]);
    std::fs::write(&path, &bytes[..5]).unwrap();
    world.refuses(&[], 2, &["truncated or damaged"]);
}

#[test]
fn a_tensor_of_the_wrong_shape_is_named() {
    let world = World::new();
    world.change_config("intermediate_size", json!(96));
    world.refuses(&[], 2, &["wrong shape", "mlp.gate_proj", "[96, 64]", "[112, 64]"]);
}

#[test]
fn missing_and_left_over_tensors_are_named() {
    let world = World::new();
    world.change_config("num_hidden_layers", json!(5));
    world.refuses(&[], 2, &["missing", "model.layers.4."]);
    world.change_config("num_hidden_layers", json!(3));
    world.refuses(&["--set", "depth=1"], 2, &["does not use", "model.layers.3."]);
}

#[test]
fn an_unknown_architecture_is_refused_with_the_known_ones() {
    let world = World::new();
    world.change_config("architectures", json!(["GPT2LMHeadModel"]));
    world.refuses(&[], 2, &["unknown architecture", "GPT2LMHeadModel", "LlamaForCausalLM"]);
}

#[test]
fn a_tokenizer_larger_than_the_embedding_is_refused() {
    let world = World::new();
    world.write("backbone/tokenizer.json", tokenizer(400).to_string());
    world.refuses(&[], 2, &["exceeds the embedding", "below 320", "ids up to 399"]);
}

#[test]
fn a_corpus_too_short_for_one_window_is_refused() {
    let world = World::new();
    world.write("test.jsonl", format!("{}\n", json!({"text": "w1 w2 w3"})));
    world.refuses(&[], 2, &["corpus `test`", "3"]);
}

#[test]
fn text_that_is_not_utf8_is_refused_with_its_line() {
    let world = World::new();
    world.write("train.txt", b"w1 w2\nw3 \xff w4\n");
    world.refuses(&[], 2, &["not UTF-8", "train.txt:2"]);
}

#[test]
fn a_nan_weight_is_named_with_its_tensor() {
    let world = World::new();
    let path = world.path("backbone/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let entries: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let start = entries["model.layers.2.mlp.up_proj.weight"]["data_offsets"][0].as_u64().unwrap() as usize;
    let at = 8 + header + start + 4 * 7;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    world.refuses(&[], 2, &["not a finite number", "model.layers.2.mlp.up_proj.weight", "element 7"]);
}

#[test]
fn an_unwritable_results_folder_is_refused_before_the_run() {
    let world = World::new();
    world.write("occupied", "");
    world.refuses(&["--results", "occupied/here"], 3, &["results folder"]);
}

#[test]
fn typing_errors_in_the_grid_are_placed() {
    let world = World::new();
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    for (from, to, words) in [
        ("recovery:", "recovry:", ["grid.yaml:9", "did you mean `recovery`?"]),
        ("ghosted]", "ghostd]", ["grid.yaml:9", "did you mean `ghosted`?"]),
        ("depth: [1, 2]", "depth: [1, 4]", ["grid.yaml:8", "below 4"]),
        ("depth: [1, 2]", "depth: [3]", ["grid.yaml:8", "at most 2"]),
        ("depth: [1, 2]", "depth: []", ["grid.yaml:8", "empty"]),
        ("depth: [1, 2]", "depth: [1]\ndepth: [2]", ["grid.yaml:9", "twice"]),
        ("llm-streamline]", "{name: llm-streamline, cosin: token}]", ["grid.yaml:7", "cosin"]),
    ] {
        assert!(grid.contains(from));
        world.write("grid.yaml", grid.replacen(from, to, 1));
        world.refuses(&[], 2, &words);
    }
    world.write("grid.yaml", grid.replace("train.txt", "nowhere.txt"));
    world.refuses(&[], 3, &["grid.yaml:4", "nowhere.txt"]);
}

/// A grid that scores two tasks as well.
fn with_tasks(world: &World) {
    let copa = |premise: usize, label: usize| json!({"premise": format!("w{premise} w7 w8."), "question": "cause", "choice1": "w1 w2.", "choice2": "w3 w4 w5.", "label": label});
    let rows: Vec<String> = (0..6).map(|i| copa(i, i % 2).to_string()).collect();
    world.write("copa.jsonl", rows.join("\n"));
    let rte = json!({"sentence1": "w1 w2", "sentence2": "w3", "label": 0});
    world.write("rte.jsonl", format!("{rte}\n{rte}\n"));
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    let grid = grid.replacen("backbone:", "tasks:\n  copa: {path: copa.jsonl}\n  rte: {path: rte.jsonl}\nbackbone:", 1);
    world.write("grid.yaml", grid + "  tasks: [copa, {name: rte, limit: 1}]\n");
}

#[test]
fn tasks_have_their_columns_and_every_choice_is_kept() {
    let world = World::new();
    with_tasks(&world);
    let output = world.run(&[]);
    let screen = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(screen.lines().next().unwrap().contains("copa  rte(limit=1)  average  seconds"), "{screen}");
    let rows = table(&world.path("results/grid/results.csv"));
    let column = |name: &str| rows[0].iter().position(|other| other == name).unwrap();
    for row in &rows[1..] {
        let [copa, rte, average] =
            ["copa", "rte(limit=1)", "average"].map(|name| row[column(name)].parse::<f64>().unwrap());
        assert!((average - (copa + rte) / 2.0).abs() < 1e-9 && (0.0..=100.0).contains(&copa));
        assert!(row[column("copa ±")].parse::<f64>().unwrap() >= 0.0);
    }
    let dense =
        common::json(&world.path("results/grid/lm_eval").join(ghostlab::files::name::of("tiny/dense") + ".json"));
    assert_eq!(dense["n-samples"]["rte"], json!({"original": 2, "effective": 1}));
    let markdown = std::fs::read_to_string(world.path("results/grid/results.md")).unwrap();
    assert!(markdown.contains("6 of 6 documents (not the whole published split)"), "{markdown}");
    let parquet = std::fs::File::open(world.path("results/grid/documents.parquet")).unwrap();
    let frame = {
        use polars::prelude::{ParquetReader, SerReader};
        ParquetReader::new(parquet).finish().unwrap()
    };
    assert_eq!(frame.height(), 9 * (6 * 2 + 2), "cells x choices");
}

#[test]
fn mistakes_about_tasks_are_placed() {
    let world = World::new();
    with_tasks(&world);
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    for (from, to, code, words) in [
        ("tasks: [copa,", "tasks: [coppa,", 2, ["grid.yaml:18", "did you mean `copa`?"]),
        (
            "  copa: {path: copa.jsonl}",
            "  copa: {path: copa.jsonl, task: copy}",
            2,
            ["grid.yaml:7", "did you mean `copa`?"],
        ),
        ("path: rte.jsonl", "path: nowhere.jsonl", 3, ["grid.yaml:8", "nowhere.jsonl"]),
        ("limit: 1", "limt: 1", 2, ["grid.yaml:18", "did you mean `limit`?"]),
        ("limit: 1", "limit: 0", 2, ["grid.yaml:18", "found"]),
        ("limit: 1", "bos: maybe", 2, ["grid.yaml:18", "never"]),
    ] {
        assert!(grid.contains(from), "{from}");
        world.write("grid.yaml", grid.replacen(from, to, 1));
        world.refuses(&[], code, &words);
    }
    world.write("grid.yaml", &grid);
    world.write("copa.jsonl", "{\"premise\": 3}\n");
    world.refuses(&[], 2, &["copa", "copa.jsonl"]);
}

#[test]
fn a_run_that_is_asked_to_stop_says_so() {
    use ghostlab::exec::{Methods, Settings, run};
    use ghostlab::grid::Grid;
    let world = World::new();
    let grid = Grid::load(&world.path("grid.yaml"), None, &[], &Methods).unwrap();
    let store = ghostlab::store::Store::open(&world.path("store")).unwrap();
    let error = run(&grid, Settings::default(), &store, &(), &std::sync::atomic::AtomicBool::new(true)).unwrap_err();
    assert_eq!(error.exit_code(), 130);
}
