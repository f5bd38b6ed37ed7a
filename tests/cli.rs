//! The program as a user runs it, on a tiny backbone that the test writes: a whole grid, a second run, and every kind of bad input.
#![allow(clippy::unwrap_used, reason = "a test stops at what it lacks")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::fixture;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder with a backbone (the `llama-gqa` fixture with a tokenizer of 300 words), two corpora and a grid.
struct World {
    folder: TempDir,
}

impl World {
    fn new() -> Self {
        let world = Self { folder: TempDir::new().unwrap() };
        std::fs::create_dir(world.path("backbone")).unwrap();
        for name in ["config.json", "model.safetensors"] {
            std::fs::copy(fixture("arch/llama-gqa").join(name), world.path("backbone").join(name)).unwrap();
        }
        world.write("backbone/tokenizer.json", tokenizer(300).to_string());
        // A deterministic text in which each word depends on the two before it.
        let words = |seed: usize, count: usize| {
            let (mut a, mut b) = (seed, seed + 1);
            let mut text = Vec::new();
            for _ in 0..count {
                (a, b) = (b, (a * 31 + b * 17 + 7) % 299);
                text.push(format!("w{b}"));
            }
            text.join(" ")
        };
        world.write("train.txt", words(3, 6000));
        world.write("test.jsonl", format!("{}\n{}\n", json!({"text": words(5, 400)}), json!({"text": words(8, 300)})));
        world.write(
            "grid.yaml",
            "backbones:\n  tiny: {path: backbone}\n\
             corpora:\n  train: {path: train.txt, rule: wikitext2}\n  test: {path: test.jsonl, rule: ptb, limit: 5}\n\
             backbone: [tiny]\ncriterion: [llm-streamline]\ndepth: [1, 2]\n\
             recovery: [none, linearpatch-diag, linearpatch-rotate, ghosted]\n\
             calibration:\n  - {corpus: train, sequences: 8, length: 64}\n\
             evaluate:\n  perplexity:\n    - {corpus: test, length: 64}\n",
        );
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn run(&self, more: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_ghostlab"))
            .current_dir(self.folder.path())
            .args(["run", "grid.yaml"])
            .args(more)
            .output()
            .unwrap()
    }

    fn change_config(&self, key: &str, value: Value) {
        let path = self.path("backbone/config.json");
        let mut config = common::json(&path);
        config[key] = value;
        std::fs::write(path, config.to_string()).unwrap();
    }

    /// Runs, expects failure with this exit code before any result, and these words in the message.
    fn refuses(&self, more: &[&str], code: i32, words: &[&str]) {
        let output = self.run(more);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        for word in words {
            assert!(text.contains(word), "`{word}` is not in:\n{text}");
        }
        assert!(text.contains("error: ") && !text.contains("panicked"), "{text}");
        assert!(!self.path("results/grid/results.csv").exists(), "a refused run left a table");
    }
}

/// A tokenizer of whole words `w0`, `w1`, …
fn tokenizer(words: usize) -> Value {
    let vocab: serde_json::Map<String, Value> = (0..words).map(|i| (format!("w{i}"), json!(i))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}
    })
}

fn table(path: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| line.split(',').map(str::to_string).collect()).collect()
}

#[test]
fn a_grid_runs_and_a_second_run_gives_the_same_table() {
    let world = World::new();
    let mut tables = Vec::new();
    for _ in 0..2 {
        let output = world.run(&[]);
        let (screen, log) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(0), "{log}");
        assert!(screen.contains("ghosted") && screen.contains("ppl test@64"), "{screen}");
        let mut rows = table(&world.path("results/grid/results.csv"));
        assert_eq!(rows.len(), 1 + 9, "a header, the dense backbone, 2 depths x 4 recoveries");
        let seconds = rows[0].iter().position(|name| name == "seconds").unwrap();
        let perplexity = rows[0].iter().position(|name| name == "ppl test@64").unwrap();
        for row in &mut rows[1..] {
            row.remove(seconds);
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

/// Silences the first channel of the residual stream: nothing is written to it by the embedding or by any layer.
fn silence_a_channel(world: &World) {
    let path = world.path("backbone/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let entries: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    for (name, info) in entries.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__") {
        let start = 8 + header + info["data_offsets"][0].as_u64().unwrap() as usize;
        let columns = info["shape"].as_array().unwrap().last().unwrap().as_u64().unwrap() as usize;
        if name.ends_with("embed_tokens.weight") {
            for row in 0..320 {
                bytes[start + row * columns * 4..][..4].fill(0);
            }
        } else if name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") {
            bytes[start..start + columns * 4].fill(0);
        }
    }
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn every_layer_but_one_can_go() {
    let world = World::new();
    let output = world.run(&[
        "--set",
        "criterion=[{name: shortgpt, last_layer: allow}, shortgpt, shortened-llama, sleb, angular, {name: explicit, layers: [1, 2, 3]}]",
        "--set",
        "recovery=[none, prune-and-comp, linearpatch-diag, ghosted, {name: ghosted, boundary: layer}]",
        "--set",
        "depth=3",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(table(&world.path("results/grid/results.csv")).len(), 1 + 1 + 6 * 5);
    for depth in ["0", "4"] {
        std::fs::remove_dir_all(world.path("results")).ok();
        world.refuses(&["--set", &format!("depth={depth}")], 2, &["depth"]);
    }
}

#[test]
fn a_dead_channel_is_repaired_around_and_said() {
    let world = World::new();
    silence_a_channel(&world);
    let output = world.run(&["--set", "recovery=[linearpatch-diag, prune-and-comp, replaceme-ls, ghosted]"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = table(&world.path("results/grid/results.csv"));
    let notes = rows[0].iter().position(|name| name == "notes").unwrap();
    let note = |recovery: &str| rows.iter().find(|row| row[5] == recovery).unwrap()[notes].clone();
    assert!(note("linearpatch-diag").contains("1 silent channels keep scale 1"), "{rows:?}");
    assert!(note("prune-and-comp").contains("1 silent channels keep factor 1"), "{rows:?}");
    for recovery in ["replaceme-ls", "ghosted"] {
        assert!(note(recovery).contains("rank 63 of 64"), "{rows:?}");
    }
}

#[test]
fn a_cell_that_cannot_be_repaired_fails_alone() {
    let world = World::new();
    let output = world.run(&[
        "--set",
        "criterion=[{name: explicit, layers: [0, 2]}]",
        "--set",
        "depth=2",
        "--set",
        "recovery=[none, replaceme-ls, ghosted]",
    ]);
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{log}");
    let rows = std::fs::read_to_string(world.path("results/grid/results.csv")).unwrap();
    let failed: Vec<&str> = rows.lines().filter(|line| line.contains("failed: ")).collect();
    assert_eq!(failed.len(), 1, "{rows}");
    assert!(failed[0].contains("replaceme-ls") && failed[0].contains("no layer stands before layer 0"), "{rows}");
}

#[test]
fn a_stored_calibration_is_used_again_until_something_changes() {
    let world = World::new();
    let passes = |more: &[&str]| {
        let output = world.run(more);
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{log}");
        (log.matches("one pass").count(), log)
    };
    assert_eq!(passes(&[]).0, 1);
    let first = table(&world.path("results/grid/results.csv"));
    assert_eq!(passes(&[]).0, 0, "everything was stored");
    let again = table(&world.path("results/grid/results.csv"));
    let seconds = first[0].iter().position(|name| name == "seconds").unwrap();
    let timeless = |rows: Vec<Vec<String>>| -> Vec<String> {
        rows.into_iter()
            .map(|mut row| {
                row.remove(seconds);
                row.join(",")
            })
            .collect()
    };
    assert_eq!(timeless(first), timeless(again));
    assert_eq!(passes(&["--set", "calibration.seed=1"]).0, 1, "other tokens");
    assert_eq!(passes(&["--set", "recovery=[ghosted, replaceme-ls]"]).0, 1, "another site");
    assert_eq!(passes(&["--set", "recovery=[ghosted, {name: ghosted, solver: svd}]"]).0, 0, "the same sites");
    // A damaged shard is named, and made anew.
    let mut shards = Vec::new();
    find(&world.path("data/store/activations-v1"), "000000.f32", &mut shards);
    assert!(!shards.is_empty());
    for shard in &shards {
        let mut bytes = std::fs::read(shard).unwrap();
        bytes[100] ^= 1;
        std::fs::write(shard, bytes).unwrap();
    }
    let (count, log) = passes(&[]);
    assert!(count == 1 && log.contains("a stored artifact is damaged"), "{log}");
    assert_eq!(passes(&[]).0, 0);
}

fn find(folder: &Path, name: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, name, found);
        } else if path.file_name().is_some_and(|file| file == name) {
            found.push(path);
        }
    }
}

#[test]
fn every_criterion_and_every_recovery_gives_a_row() {
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
    let rows = std::fs::read_to_string(world.path("results/grid/results.csv")).unwrap_or_default();
    // Where a rule takes layer 0, ReplaceMe has no layer to change: that alone may fail.
    for line in rows.lines().filter(|line| line.contains("failed: ")) {
        assert!(line.contains("replaceme") && line.contains("no layer stands before layer 0"), "{line}");
    }
    assert_eq!(rows.lines().count(), 1 + 1 + 6 * 2 * 9, "{log}");
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
    let dense = common::json(&world.path("results/grid/lm_eval/tiny_dense.json"));
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
fn an_activation_that_is_not_finite_is_named_and_the_dense_backbone_is_scored() {
    let world = World::new();
    // A weight so large that the MLP of layer 1 overflows.
    let path = world.path("backbone/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let entries: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let range = &entries["model.layers.1.mlp.down_proj.weight"]["data_offsets"];
    let [start, end] = [0, 1].map(|i| 8 + header + range[i].as_u64().unwrap() as usize);
    for weight in bytes[start..end].chunks_exact_mut(4) {
        weight.copy_from_slice(&3e38f32.to_le_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    let output = world.run(&[]);
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = std::fs::read_to_string(world.path("results/grid/results.csv")).unwrap();
    let pruned: Vec<&str> = rows.lines().filter(|line| line.contains("llm-streamline")).collect();
    assert_eq!(pruned.len(), 8);
    for line in pruned {
        assert!(line.contains("residual stream entering layer 2, calibration sequence 0"), "{line}");
    }
}

#[test]
fn a_second_pass_and_separate_runs_give_the_same_perplexities() {
    use ghostlab::exec::{Methods, Settings, run};
    use ghostlab::grid::Grid;
    let world = World::new();
    let grid = Grid::load(&world.path("grid.yaml"), &[], &Methods).unwrap();
    let perplexities = |settings: Settings| -> Vec<f64> {
        let folder = TempDir::new().unwrap();
        let store = ghostlab::store::Store::open(folder.path()).unwrap();
        let outcome = run(&grid, settings, &store, &(), &std::sync::atomic::AtomicBool::new(false)).unwrap();
        outcome.cells.iter().map(|result| result.perplexity[0].unwrap()).collect()
    };
    let expected = perplexities(Settings::default());
    for settings in [
        Settings { spool_bytes: 0, ..Settings::default() },
        Settings { separate: true, ..Settings::default() },
        Settings { batch_tokens: 1, ..Settings::default() },
    ] {
        for (ours, expected) in perplexities(settings).iter().zip(&expected) {
            // Batches of another size round otherwise inside the matrix product.
            let tolerance = if settings.batch_tokens == 1 { 1e-4 } else { 1e-6 };
            common::assert_close(&format!("{settings:?}"), *ours, *expected, tolerance);
        }
    }
}

#[test]
fn a_run_that_is_asked_to_stop_says_so() {
    use ghostlab::exec::{Methods, Settings, run};
    use ghostlab::grid::Grid;
    let world = World::new();
    let grid = Grid::load(&world.path("grid.yaml"), &[], &Methods).unwrap();
    let store = ghostlab::store::Store::open(&world.path("store")).unwrap();
    let error = run(&grid, Settings::default(), &store, &(), &std::sync::atomic::AtomicBool::new(true)).unwrap_err();
    assert_eq!(error.exit_code(), 130);
}
