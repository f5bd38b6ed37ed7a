//! Runs the program against a local fake of the Hugging Face Hub. Files named by a grid are fetched, pinned, verified
//! and used.

#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

mod locked;
mod packages;
mod papers;
mod shards;

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::common::output::combined_output;
use crate::common::world::World;
use crate::common::{fixture, json};
use crate::server::{Answer, COMMIT, FakeHub, Fault, ServedFile, TOKEN, large, no_fault, small};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::Value;

const MODEL: &str = "meta/tiny";

/// Returns the files that the fake hub serves: the files of the test backbone, and a second weight file that must not
/// be downloaded.
fn served_files(world: &World) -> Vec<ServedFile> {
    vec![
        small_backbone_file(world, "config.json"),
        small_backbone_file(world, "tokenizer.json"),
        large("model.safetensors", backbone_file(world, "model.safetensors")),
        large("consolidated.pth", vec![1, 2, 3]),
    ]
}

fn backbone_file(world: &World, name: &str) -> Vec<u8> {
    fs::read(world.path("backbone").join(name)).unwrap()
}

fn small_backbone_file(world: &World, name: &str) -> ServedFile {
    small(name, &String::from_utf8(backbone_file(world, name)).unwrap())
}

/// Runs the program with the given hub and a cache inside the world's folder.
fn run_with_hub(world: &World, hub: &str, arguments: &[&str], more: &[(&str, &str)]) -> Output {
    let mut command = world.command(arguments);
    for name in
        ["HF_HOME", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "GHOSTLAB_STORE", "GHOSTLAB_EXPERIMENTS"]
    {
        command.env_remove(name);
    }
    command.env("HF_ENDPOINT", hub).env("HF_HUB_CACHE", world.path("cache")).env("HF_TOKEN", TOKEN);
    command.envs(more.iter().copied()).output().unwrap()
}

/// Asserts that the exit code is `code`, and that neither the output nor any file contains the token. Returns the
/// output.
fn assert_exit(world: &World, output: &Output, code: i32) -> String {
    let log = combined_output(output);
    assert_eq!(output.status.code(), Some(code), "{log}");
    assert!(!log.contains(TOKEN), "{log}");
    let mut folders = vec![world.folder.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                let bytes = fs::read(entry.path()).unwrap();
                let holds = bytes.windows(TOKEN.len()).any(|part| part == TOKEN.as_bytes());
                assert!(!holds, "the token is in {}", entry.path().display());
            }
        }
    }
    log
}

/// Creates a world whose backbone is available only from the hub.
fn world_of_a_hub_model() -> (World, Vec<ServedFile>) {
    let world = World::new();
    let files = served_files(&world);
    fs::remove_dir_all(world.path("backbone")).unwrap();
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write(
        "grid.yaml",
        grid.replace("tiny: {path: backbone}", &format!("tiny: {{hub: {MODEL}}}")).replace("depth: [1, 2]", "depth: 1"),
    );
    (world, files)
}

#[test]
fn grid_with_hub_model_runs_after_suggested_fetch() {
    let (world, files) = world_of_a_hub_model();
    let server = FakeHub::start(MODEL, files, no_fault());
    let output = run(&world, &server, &["run", "grid.yaml"], 3);
    assert!(output.contains("backbone `tiny` not found") && output.contains("`ghostlab fetch grid.yaml`"), "{output}");
    assert!(
        run(&world, &server, &["doctor", "grid.yaml"], 3).contains("error "),
        "doctor does not report the missing backbone"
    );
    assert!(server.requests().is_empty(), "a request reached the hub");

    let listed = run(&world, &server, &["fetch", "grid.yaml", "--dry-run"], 0);
    assert!(
        listed.contains("meta/tiny/model.safetensors")
            && listed.contains("to fetch")
            && !listed.contains("consolidated"),
        "{listed}"
    );
    assert!(!world.path("cache").exists(), "the dry run wrote a file");
    let fetched = run(&world, &server, &["fetch", "grid.yaml"], 0);
    assert!(fetched.contains("fetched 3 files") && fetched.contains("not pinned in"), "{fetched}");

    server.forget();
    let done = run(&world, &server, &["run", "grid.yaml"], 0);
    assert!(done.contains("wrote "), "{done}");
    assert!(server.requests().is_empty(), "a cache hit sent a request");
    let record = json(&world.path("results/grid/run.json"));
    let hub = &record["grid"]["backbones"]["tiny"]["hub"];
    assert_eq!((hub["repository"].as_str(), hub["commit"].as_str()), (Some("meta/tiny@main"), Some(COMMIT)));
    assert_eq!(hub["pinned"], Value::Bool(false));
    let healthy = run(&world, &server, &["doctor", "grid.yaml"], 0);
    assert!(healthy.contains("4 layers, hidden size 64") && healthy.contains("to pin meta/tiny"), "{healthy}");

    // Once the files are pinned, `fetch` sends no requests, as in offline mode.
    let pinned = run(&world, &server, &["fetch", "grid.yaml", "--lock"], 0);
    assert!(pinned.contains(COMMIT) && pinned.contains("wrote hub.lock"), "{pinned}");
    let lock = json(&world.path("hub.lock"));
    let files = &lock["repositories"]["meta/tiny@main"]["files"];
    assert_eq!(files.as_object().unwrap().len(), 3);
    server.forget();
    assert!(run(&world, &server, &["fetch", "grid.yaml"], 0).contains("3 already cached"));
    let offline = run_with_hub(&world, &server.address, &["fetch", "grid.yaml"], &[("HF_HUB_OFFLINE", "1")]);
    assert!(assert_exit(&world, &offline, 0).contains("3 already cached"));
    assert!(run(&world, &server, &["doctor", "grid.yaml"], 0).contains("with the hashes of hub.lock"));
    assert!(server.requests().is_empty());
}

fn run(world: &World, server: &FakeHub, arguments: &[&str], code: i32) -> String {
    assert_exit(world, &run_with_hub(world, &server.address, arguments, &[]), code)
}

#[test]
fn hub_refusals_are_reported_without_the_token() {
    let (world, files) = world_of_a_hub_model();
    let gated: Fault = Box::new(|request, _, answer| match request.path.contains("/resolve/") || request.elsewhere {
        true => Answer::new(403)
            .with("x-error-code", "GatedRepo")
            .with("x-error-message", format!("{} may not", request.header("authorization").unwrap_or_default())),
        false => answer,
    });
    let server = FakeHub::start(MODEL, files, gated);
    for more in [&[][..], &["--events"], &["--lock"]] {
        let arguments = [&["fetch", "grid.yaml"], more].concat();
        let log = assert_exit(&world, &run_with_hub(&world, &server.address, &arguments, &[]), 3);
        assert!(log.contains("requires accepting its license") && log.contains("[token]"), "{log}");
    }
    let unset = run_with_hub(&world, &server.address, &["fetch", "grid.yaml"], &[("HF_TOKEN", "")]);
    assert!(assert_exit(&world, &unset, 3).contains("HF_TOKEN"));
    let bad = run_with_hub(&world, &server.address, &["fetch", "../x/y"], &[]);
    assert_exit(&world, &bad, 2);
}

#[test]
fn local_path_takes_precedence_over_the_hub() {
    let world = World::new();
    let server = FakeHub::start(MODEL, served_files(&world), no_fault());
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    let both = format!("tiny: {{path: backbone, hub: {MODEL}}}");
    world.write("grid.yaml", grid.replace("tiny: {path: backbone}", &both).replace("depth: [1, 2]", "depth: 1"));
    assert!(run(&world, &server, &["fetch", "grid.yaml"], 0).contains("nothing to fetch"));
    run(&world, &server, &["run", "grid.yaml"], 0);
    let elsewhere = run(&world, &server, &["run", "grid.yaml", "--set", "backbones.tiny.path=none"], 3);
    assert!(elsewhere.contains("backbone folder not found") && elsewhere.contains("--set"), "{elsewhere}");
    assert!(server.requests().is_empty());
    fs::rename(world.path("backbone"), world.path("moved")).unwrap();
    assert!(run(&world, &server, &["plan", "grid.yaml"], 3).contains("or a folder at backbone"));
}

#[test]
fn dataset_is_fetched_by_name_configuration_and_split() {
    let world = World::new();
    let files = vec![
        small("first/test.jsonl", &labeled_rows(1)),
        small("second/test.jsonl", &labeled_rows(20)),
        small("second/train.jsonl", &labeled_rows(30)),
        small("second/dev.jsonl", &labeled_rows(40)),
        small("README.md", "A data set.\n"),
    ];
    let server = FakeHub::start("datasets/org/texts", files, no_fault());
    world.write(
        "made.yaml",
        "task: made\ndataset_path: org/texts\ndataset_name: second\ntraining_split: train\ntest_split: test\n\
         output_type: multiple_choice\ndoc_to_text: text\ndoc_to_choice: [w1, w2]\ndoc_to_target: label\n",
    );
    world.write(
        "grid.yaml",
        "backbones:\n  tiny: {path: backbone}\nbackbone: tiny\nevaluate:\n  tasks: {definition: made.yaml, shots: 1}\n",
    );
    world.write("backbone/tokenizer_config.json", "{\"bos_token\": \"w1\"}");
    let output = run(&world, &server, &["run", "grid.yaml"], 3);
    assert!(output.contains("task `made` not found") && output.contains("`ghostlab fetch grid.yaml`"), "{output}");
    let fetched = run(&world, &server, &["fetch", "grid.yaml"], 0);
    assert!(fetched.contains("fetched 2 files"), "{fetched}");
    server.forget();
    assert!(run(&world, &server, &["run", "grid.yaml"], 0).contains("wrote "));
    assert!(server.requests().is_empty(), "a cache hit sent a request");
    let results = json(&world.path("results/grid/lm_eval/tiny.dense.json"));
    assert_eq!(results["n-samples"]["made"]["original"], 4);
    let record = json(&world.path("results/grid/run.json"));
    assert_eq!(record["grid"]["definitions"]["made"]["hub"]["repository"], "datasets/org/texts@main");

    // With a revision, the dataset comes from the hub, unless the local folder exists.
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("grid.yaml", grid.replace("shots: 1", "shots: 1, data: rows, revision: main"));
    run(&world, &server, &["run", "grid.yaml"], 0);
    fs::create_dir(world.path("rows")).unwrap();
    world.write("rows/test.jsonl", labeled_rows(20));
    world.write("rows/train.jsonl", labeled_rows(30));
    fs::remove_dir_all(world.path("cache")).unwrap();
    run(&world, &server, &["run", "grid.yaml"], 0);
    world.write("grid.yaml", grid.replace("shots: 1", "shots: 1, data: absent"));
    assert!(run(&world, &server, &["run", "grid.yaml"], 3).contains("task data not found"));
}

fn labeled_rows(from: usize) -> String {
    (from..from + 4).map(|at| format!("{{\"text\": \"w{at} w3\", \"label\": {}}}\n", at % 2)).collect::<String>()
}

#[test]
fn corpus_can_be_one_file_of_a_dataset_branch() {
    let world = World::new();
    let text = fs::read_to_string(world.path("test.jsonl")).unwrap();
    let server = FakeHub::start("datasets/org/texts", vec![large("en/test.jsonl", text.into_bytes())], no_fault());
    let entry = "test: {hub: org/texts, revision: refs/convert/parquet, files: en/test.jsonl, rule: ptb, limit: 5}";
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write(
        "grid.yaml",
        grid.replace("test: {path: test.jsonl, rule: ptb, limit: 5}", entry).replace("depth: [1, 2]", "depth: 1"),
    );
    run(&world, &server, &["fetch", "grid.yaml"], 0);
    run(&world, &server, &["run", "grid.yaml"], 0);
    let reference = world.path("cache/datasets--org--texts/refs/refs/convert/parquet");
    assert_eq!(fs::read_to_string(reference).unwrap(), COMMIT);
    world
        .write("grid.yaml", fs::read_to_string(world.path("grid.yaml")).unwrap().replace(", files: en/test.jsonl", ""));
    assert!(run(&world, &server, &["run", "grid.yaml"], 2).contains("missing key `files` in"));
}
