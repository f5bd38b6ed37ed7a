//! Compares the complete grid on the real backbone with `reference.json`, which covers all 911 windows of the
//! WikiText-2 test split. Selections must be equal, scores must agree within 1e-4, and perplexities within a relative
//! error of 1e-3.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::io::Write;
use std::path::Path;

use crate::common::world::World;
use crate::common::{assert_close, checkout, json, numbers, python, shared, smollm2_path};
use crate::exported;
use flate2::Compression;
use flate2::write::GzEncoder;
use ghostlab::corpus::{Tokenizer, WindowRule, calibration_windows, evaluation_windows, read_rows};
use ghostlab::grid::Grid;
use ghostlab::model::{EngineName, EngineRequest};
use ghostlab::pipeline::exec::{self, RunEnv, RunSettings};
use ghostlab::pipeline::plan::Plan;
use ghostlab::pipeline::stage;
use ghostlab_store::Store;
use serde_json::Value;

/// Allocator of the `ghostlab` program. Runs take longer with the system allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[test]
fn calibration_and_evaluation_windows_match_reference() {
    let Some(folder) = shared("real") else { return };
    let reference = json(&folder.join("reference.json"));
    let tokenizer = Tokenizer::load(folder.join("backbone/tokenizer.json")).unwrap();
    let [validation, test] = ["wikitext2-validation.parquet", "wikitext2-test.parquet"]
        .map(|name| read_rows(folder.join("corpora").join(name), None).unwrap());
    let drawn = calibration_windows(WindowRule::Wikitext2, &validation, &tokenizer, 32, 512, 0).unwrap();
    let starts: Vec<f64> = drawn.starts.iter().map(|start| start.token as f64).collect();
    assert_eq!(starts, numbers(&reference["window_starts"]));
    assert_eq!(drawn.corpus_tokens as u64, reference["calibration_tokens"].as_u64().unwrap());
    let cut = evaluation_windows(WindowRule::Wikitext2, &test, &tokenizer, 512, None).unwrap();
    assert_eq!(cut.corpus_tokens as u64, reference["evaluation_tokens"].as_u64().unwrap());
    assert_eq!(cut.count() as u64, reference["windows"].as_u64().unwrap());
}

#[test]
#[ignore = "slow: five cells on 911 windows"]
fn grid_matches_the_reference_on_all_windows() {
    assert_equals_reference(RunSettings::default(), &["none", "ghosted"]);
}

/// candle is five times slower, so this test runs only on request.
#[test]
#[ignore = "very slow: nine cells on 911 windows with candle"]
#[allow(clippy::disallowed_macros, reason = "tests print why they are skipped")]
fn grid_by_candle_matches_the_reference_on_all_windows() {
    if std::env::var_os("GHOSTLAB_LONG").is_none() {
        println!("skipped: takes half an hour on two cores (set GHOSTLAB_LONG=1 to run it)");
        return;
    }
    let engine = EngineRequest {
        engine: Some(EngineName::Candle),
        device: Some("cpu".parse().unwrap()),
        dtype: Some("f32".parse().unwrap()),
        kernels: None,
    };
    let recoveries = ["none", "linearpatch-diag", "linearpatch-rotate", "ghosted"];
    assert_equals_reference(RunSettings::with_engine(engine), &recoveries);
}

fn assert_equals_reference(settings: RunSettings, recoveries: &[&str]) {
    let Some(folder) = shared("real") else { return };
    let reference = json(&folder.join("reference.json"));
    let grid = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real/english.yaml");
    let overrides = [
        "evaluate.perplexity=[{corpus: wikitext2-test, length: 512}]".to_string(),
        // The limit is larger than the number of windows (911), so all of them are used.
        "corpora.wikitext2-test.limit=100000".to_string(),
        format!("recovery=[{}]", recoveries.join(", ")),
    ];
    let grid = Grid::load(&grid, None, &overrides).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), stage::STORE_WORDS).unwrap();
    let outcome = exec::run(&grid, RunEnv { settings, ..RunEnv::new(&store) }).unwrap();
    // The dense cell, and one for each depth and recovery.
    assert_eq!(outcome.cells.len(), 1 + 2 * recoveries.len());
    let engine_name = settings.engine.engine.map_or("cpu", EngineName::name);
    assert!(outcome.engines.values().all(|engine| engine.name == engine_name), "{:?}", outcome.engines);
    for result in &outcome.cells {
        assert_eq!(result.failure, None, "{}", result.cell);
        let perplexity = result.texts[0].sample.as_ref().unwrap().perplexity();
        let Some(recovery) = &result.cell.recovery else {
            assert_close("dense", perplexity, reference["perplexity"]["dense"].as_f64().unwrap(), 1e-3);
            continue;
        };
        let depth = result.cell.depth.to_string();
        let expected = reference["perplexity"][&depth][&recovery.name].as_f64().unwrap();
        assert_close(&result.cell.to_string(), perplexity, expected, 1e-3);
        let selection = &reference["selection"][&depth];
        let removed: Vec<f64> = result.removed.whole_layers().into_iter().map(|layer| layer as f64).collect();
        assert_eq!(removed, numbers(&selection["removed"]));
        let expected = numbers(&selection["scores"]);
        assert_eq!(result.scores.len(), expected.len());
        for ((start, ours), expected) in result.scores.iter().zip(expected) {
            assert!((ours - expected).abs() <= 1e-4, "score of start {start}: {ours} {expected}");
        }
    }
}

/// Plans table 2 with the profile `smollm2`, using the real model and synthetic texts in place of C4.
#[test]
fn smollm2_profile_plans_table2_after_fetch() {
    let Some(model) = smollm2_path() else { return };
    let world = World::new();
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    copy_folder(&checkout.join("experiments"), &world.path("experiments"));
    copy_folder(&checkout.join("data/tiny/tasks"), &world.path("local/tasks"));
    std::fs::create_dir_all(world.path("local/corpora")).unwrap();
    let mut text = GzEncoder::new(Vec::new(), Compression::default());
    for document in 0..80 {
        let words: Vec<String> = (0..1200).map(|word| format!("word{}", (word * 7 + document) % 900)).collect();
        writeln!(text, "{}", serde_json::json!({"text": words.join(" ")})).unwrap();
    }
    world.write("local/corpora/c4-sample.jsonl.gz", text.finish().unwrap());
    let message = run_offline(&world, &["plan", "table2", "--profile", "smollm2"], 3);
    assert!(message.contains("ghostlab fetch smollm2"), "{message}");
    run_offline(&world, &["fetch", "smollm2", "--from", model.to_str().unwrap()], 0);
    let message = run_offline(&world, &["fetch", "table2", "--profile", "smollm2", "--data", "local"], 0);
    assert!(message.contains("task arc_easy: copied") && message.contains("corpus c4-train: copied"), "{message}");
    let message = run_offline(&world, &["plan", "table2", "--profile", "smollm2"], 0);
    assert!(message.contains("profile smollm2): 19 cells") && !message.contains("warning: "), "{message}");
    let message = run_offline(
        &world,
        &["plan", "table2", "--profile", "smollm2", "--set", "calibration.operator_sequences=4"],
        0,
    );
    assert!(message.contains("2048 tokens, 3.6 for each of its 576 channels"), "{message}");
    let texts = ["--corpus", "local/corpora/c4-sample.jsonl.gz", "--corpus", "train.txt"];
    let message =
        run_offline(&world, &[&["init", model.to_str().unwrap(), "--to", "own.yaml"], &texts[..]].concat(), 0);
    assert!(message.contains("own.yaml: a grid for "), "{message}");
}

fn run_offline(world: &World, arguments: &[&str], code: i32) -> String {
    let mut command = world.command(arguments);
    command.env("HF_ENDPOINT", "http://127.0.0.1:1").env("HF_HUB_CACHE", world.path("cache"));
    command.env_remove("GHOSTLAB_EXPERIMENTS").env_remove("GHOSTLAB_STORE");
    let output = command.output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        match entry.path().is_dir() {
            true => copy_folder(&entry.path(), &to.join(entry.file_name())),
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

/// Exports the winner of a search with 80 % of the parameters, and two models without 7 of 30 layers. transformers
/// must load all three, generate text, and compute this program's logits.
#[test]
fn smollm2_search_winner_and_repairs_run_in_transformers() {
    let Some(model) = smollm2_path() else { return };
    let Some(python) = python::python("torch and transformers") else { return };
    let world = World::new();
    let texts = checkout().join("data/tiny/corpora");
    // Without 7 layers, 82 % of the parameters remain, so these cells are not candidates.
    world.write(
        "grid.yaml",
        format!(
            "backbones: {{smollm2: {{path: {}}}}}\n\
             corpora:\n  train: {{path: {texts}/wiki-train.jsonl.gz, rule: wikitext2}}\n\
             \x20 test: {{path: {texts}/wiki-test.jsonl.gz, rule: wikitext2}}\n\
             backbone: smollm2\ncriterion: llm-streamline\ndepth: [7, 8]\nrecovery: [none, ghosted]\n\
             include: [{{criterion: llm-drop, depth: {{mlp: 11}}, recovery: none}}]\n\
             calibration: {{corpus: train, sequences: 8, length: 512}}\n\
             search: {{budget: {{params: 0.8}}, perplexity: {{corpus: test, length: 64}}, items: 10}}\n",
            model.display(),
            texts = texts.display()
        ),
    );
    std::fs::create_dir(world.path("out")).unwrap();
    let winner = export_winner(&world);
    let cells = ["smollm2.streamline-7.none", "smollm2.streamline-7.ghosted", &winner];
    for cell in &cells[..2] {
        run_offline(&world, &["export", "grid.yaml", cell, "--to", &format!("out/{cell}")], 0);
    }
    let [none, ghosted] = ["none", "ghosted"]
        .map(|recovery| world.path(&format!("out/smollm2.streamline-7.{recovery}/modeling_ghostlab.py")).exists());
    assert!(!none && ghosted, "only the export with an operator needs code");

    let out = world.path("logits.safetensors").display().to_string();
    let text = "Question: What does the pet of Anna eat?\nAnswer: The";
    let folders = cells.map(|cell| world.path("out").join(cell).display().to_string());
    let arguments = ["generate", &out, text].into_iter().chain(folders.iter().map(String::as_str));
    exported::run_script(&python, &arguments.collect::<Vec<_>>());
    let mut grid = Grid::load(&world.path("grid.yaml"), None, &[]).unwrap();
    grid.cells.retain(|cell| cells.contains(&cell.name.as_str()));
    assert_eq!(grid.cells.len(), cells.len());
    let store = Store::open(&world.path("data/store"), stage::STORE_WORDS).unwrap();
    let settings = RunSettings::default();
    let plan = Plan::new(&grid, &store, settings).unwrap();
    exported::compare(&world.folder, &plan, &store, Path::new(&out), largest_error);
}

/// Searches the grid, and exports the winner to a folder with its name. Returns the name.
fn export_winner(world: &World) -> String {
    let output = world.ghostlab(&["search", "grid.yaml", "--export", "winner", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let found = serde_json::from_slice::<Value>(&output.stdout).unwrap()["answer"]["searches"][0].take();
    let candidates = found["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 3, "{found}");
    assert!(candidates.iter().all(|candidate| candidate["params"].as_f64().unwrap() <= 0.8), "{found}");
    let winner = found["winner"].as_str().unwrap().to_owned();
    std::fs::rename(world.path("winner"), world.path("out").join(&winner)).unwrap();
    winner
}

/// Returns the largest error of a logit. The error is absolute for small logits and relative for large ones, as in
/// `tools/exported.py`.
fn largest_error(ours: &[f64], theirs: &[f64]) -> f64 {
    ours.iter().zip(theirs).map(|(a, b)| (a - b).abs() / (1.0 + b.abs())).fold(0.0, f64::max)
}
