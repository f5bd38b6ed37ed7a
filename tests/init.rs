//! Tests for `init`, which writes a first grid for the models in a folder and reports the models that it skips.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::path::Path;
use std::process::Output;

use crate::common::fixture;
use crate::common::world::World;

/// Creates a folder `models` with unusable models and usable ones. One of the usable models is in an organization's
/// folder.
fn create_world() -> World {
    let world = World::new();
    std::fs::create_dir_all(world.path("models/org")).unwrap();
    for folder in ["models/plain", "models/org/other", "models/cut", "models/unknown", "models/7b", "models/shallow"] {
        copy_backbone(&world, folder);
    }
    let weights = world.path("models/cut/model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    let config = world.path("models/unknown/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("LlamaForCausalLM", "GPT2LMHeadModel")).unwrap();
    std::fs::remove_file(world.path("models/shallow/tokenizer.json")).unwrap();
    std::fs::create_dir(world.path("models/.git")).unwrap();
    std::fs::create_dir(world.path("models/empty")).unwrap();
    std::fs::remove_file(world.path("grid.yaml")).unwrap();
    world
}

fn copy_backbone(world: &World, folder: &str) {
    std::fs::create_dir_all(world.path(folder)).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(world.path("backbone").join(name), world.path(folder).join(name)).unwrap();
    }
}

fn run_ghostlab(world: &World, arguments: &[&str]) -> Output {
    let experiments = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments");
    world.command(arguments).env("GHOSTLAB_EXPERIMENTS", experiments).env_remove("GHOSTLAB_STORE").output().unwrap()
}

fn run_expecting(world: &World, arguments: &[&str], code: i32) -> (String, String) {
    let output = run_ghostlab(world, arguments);
    let out = String::from_utf8(output.stdout).unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {out}{log}");
    (out, log)
}

#[test]
fn plan_accepts_init_grid_that_lists_skipped_models() {
    let world = create_world();
    let (out, log) = run_expecting(&world, &["init", "models"], 0);
    assert!(out.contains("grid.yaml: a grid for 7b, other, plain"), "{out}");
    let text = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    for (model, reason) in [
        ("models/cut", "truncated or damaged"),
        ("models/unknown", "unknown architecture"),
        ("models/shallow", "tokenizer.json"),
    ] {
        for text in [&text, &log] {
            let is_reported = text.lines().any(|line| line.contains(model) && line.contains(reason));
            assert!(is_reported, "{model} {reason}: {text}");
        }
    }
    // The grid defines every backbone. Its comments list the possible values for each key.
    assert!(text.contains("plain: {path: models/plain}") && text.contains("\"7b\": {path: "), "{text}");
    for words in [
        "shortgpt",
        "prune-and-comp",
        "linearpatch-diag",
        "generated: true",
        "hellaswag",
        "bos",
        "operator_sequences",
        "`limit: 100`",
    ] {
        if words != "bos" {
            assert!(text.contains(words), "`{words}` is not in {text}");
        }
    }
    assert!(text.lines().all(|line| line.len() < 400), "{text}");
    let (plan, _) = run_expecting(&world, &["plan", "grid.yaml", "--json"], 0);
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let grid = &plan["answer"]["grids"][0];
    // The grid has three backbones. Each has a dense cell and, at each depth listed in the comments, cells with four
    // recoveries.
    let depths: Vec<&str> = text.lines().filter(|line| line.contains(" of its ")).collect();
    assert_eq!(depths.len(), 3, "{text}");
    assert_eq!(grid["cells"], grid["cells_to_run"].as_array().unwrap().len());
    assert_eq!(grid["cells"].as_u64().unwrap() % 3, 0);
    assert!(grid["cells"].as_u64().unwrap() >= 3 * 5, "{}", grid["cells"]);
}

#[test]
fn init_overwrites_a_file_only_with_force() {
    let world = create_world();
    world.write("grid.yaml", "mine");
    let (_, log) = run_expecting(&world, &["init", "models"], 2);
    assert!(log.contains("grid.yaml") && log.contains("--force"), "{log}");
    assert_eq!(std::fs::read_to_string(world.path("grid.yaml")).unwrap(), "mine");
    run_expecting(&world, &["init", "models", "--to", "models/new.yaml", "-q"], 0);
    let text = std::fs::read_to_string(world.path("models/new.yaml")).unwrap();
    assert!(text.contains("plain: {path: plain}"), "paths are not relative to the grid's folder: {text}");
    run_expecting(&world, &["plan", "models/new.yaml"], 0);
    run_expecting(&world, &["init", "models", "--force"], 0);
    assert!(std::fs::read_to_string(world.path("grid.yaml")).unwrap().contains("backbones:"));
}

#[test]
fn init_uses_or_splits_the_given_corpus_files() {
    let world = create_world();
    let arguments = ["init", "backbone", "--corpus", "train.txt", "--corpus", "test.jsonl", "--to", "own.yaml"];
    run_expecting(&world, &arguments, 0);
    let text = std::fs::read_to_string(world.path("own.yaml")).unwrap();
    assert!(text.contains("train: {path: train.txt, rule: wikitext2}") && !text.contains("generated"), "{text}");
    assert!(text.contains("calibration: {corpus: train, ") && text.contains("- {corpus: test, length: "), "{text}");
    let (run, _) = run_expecting(&world, &["run", "own.yaml", "--set", "depth=1", "--set", "recovery=[none]"], 0);
    assert!(run.contains("ppl test@"), "{run}");
    let (_, log) = run_expecting(&world, &["init", "backbone", "--corpus", "train.txt", "--to", "one.yaml"], 0);
    let text = std::fs::read_to_string(world.path("one.yaml")).unwrap();
    assert!(log.contains("split train.txt into train-calibration.jsonl (calibration)"), "{log}");
    assert!(text.contains("calibration: {corpus: train-calibration, "), "{text}");
    assert!(text.contains("- {corpus: train-scored, length: ") && !text.contains("path: train.txt"), "{text}");
    let joined = read_text(&world, "train-calibration.jsonl") + " " + &read_text(&world, "train-scored.jsonl");
    let train = read_text(&world, "train.txt");
    assert!(joined.split_whitespace().eq(train.split_whitespace()), "the two parts do not contain the whole text");
    let (run, _) = run_expecting(&world, &["run", "one.yaml", "--set", "depth=1", "--set", "recovery=[none]"], 0);
    assert!(run.contains("ppl train-scored@"), "{run}");
    // Files from an earlier split are reused. Other files with the same names are not overwritten.
    run_expecting(&world, &["init", "backbone", "--corpus", "train.txt", "--to", "again.yaml"], 0);
    world.write("train-scored.jsonl", "mine");
    let (_, log) = run_expecting(&world, &["init", "backbone", "--corpus", "train.txt", "--to", "more.yaml"], 2);
    assert!(log.contains("train-scored.jsonl") && log.contains("--force"), "{log}");
    assert!(!world.path("more.yaml").exists());
    world.write("short.txt", "w1 w2 w3");
    let (_, log) = run_expecting(&world, &["init", "backbone", "--corpus", "short.txt", "--to", "x.yaml"], 2);
    assert!(log.contains("short.txt") && log.contains("too short"), "{log}");
    assert!(!world.path("x.yaml").exists() && !world.path("short-calibration.jsonl").exists());
}

fn read_text(world: &World, name: &str) -> String {
    ghostlab::corpus::read_rows(world.path(name), None).unwrap().join(" ")
}

#[test]
fn init_accepts_gguf_files_but_no_other_files() {
    let world = create_world();
    // Use a tokenizer that can be stored in a GGUF file.
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tiny/llama");
    world.write(
        "grid.yaml",
        format!(
            "backbones: {{tiny: {{path: {}}}}}\nbackbone: tiny\ncorpora: {{test: {{path: test.jsonl, rule: ptb}}}}\n\
             evaluate: {{perplexity: {{corpus: test, length: 64}}}}\n",
            model.display()
        ),
    );
    run_expecting(&world, &["export", "grid.yaml", "dense", "--gguf", "f32", "--to", "tiny.gguf"], 0);
    let (out, _) = run_expecting(&world, &["init", "tiny.gguf", "--corpus", "train.txt", "--to", "own.yaml"], 0);
    assert!(out.contains("own.yaml: a grid for tiny"), "{out}");
    run_expecting(&world, &["plan", "own.yaml"], 0);
    let (_, log) =
        run_expecting(&world, &["init", "tiny.gguf", "--corpus", "train.txt", "--to", "tiny.gguf", "--force"], 2);
    assert!(log.contains(", an input"), "{log}");
    let (_, log) = run_expecting(&world, &["init", "train.txt", "--to", "x.yaml"], 3);
    assert!(log.contains("no model found") && log.contains(".gguf"), "{log}");
}

#[test]
fn init_rejects_folders_without_model_and_accepts_fixtures() {
    let world = create_world();
    let (_, log) = run_expecting(&world, &["init", "models/empty"], 3);
    assert!(log.contains("no model found"), "{log}");
    let (_, log) = run_expecting(&world, &["init", "models/cut"], 2);
    assert!(log.contains("truncated or damaged"), "{log}");
    let (_, log) = run_expecting(&world, &["init", "nosuch"], 3);
    assert!(log.contains("nosuch"), "{log}");
    // Use the fixtures to cover all known architectures.
    let known = std::fs::read_dir(fixture("arch")).unwrap().map(|item| item.unwrap().path());
    for folder in known.filter(|folder| folder.join("config.json").is_file()) {
        let name = format!("known/{}", folder.file_name().unwrap().to_str().unwrap());
        std::fs::create_dir_all(world.path(&name)).unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(folder.join(file), world.path(&name).join(file)).unwrap();
        }
        std::fs::copy(world.path("backbone/tokenizer.json"), world.path(&name).join("tokenizer.json")).unwrap();
    }
    run_expecting(&world, &["init", "known"], 0);
    run_expecting(&world, &["plan", "grid.yaml"], 0);
}
