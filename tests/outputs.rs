//! Tests for the files that commands write, and for user files that they must not overwrite.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

mod user_file;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::common;
use crate::common::output::combined_output;
use crate::common::world::{World, column_index, copa_row, read_rows, run_ok};
use serde_json::{Value, json};

/// Reads all files under a folder except those in the store.
fn read_files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let entry = entry.unwrap();
            let name = entry.path().strip_prefix(folder).unwrap().display().to_string();
            match entry.file_type().unwrap() {
                kind if kind.is_dir() && name == "data/store" => {}
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => drop(found.insert(name, fs::read(entry.path()).unwrap())),
                _ => {}
            }
        }
    }
    found
}

/// Runs a command. Asserts that it fails with exit code 2, with the given words in its message, and that no file has
/// changed.
fn assert_rejected(world: &World, arguments: &[&str], words: &[&str]) {
    let before = read_files(world.folder.path());
    let output = world.ghostlab(arguments);
    let log = combined_output(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {log}");
    words.iter().for_each(|word| assert!(log.contains(word), "{arguments:?}: `{word}` is not in {log}"));
    assert!(!log.contains("panicked"), "{log}");
    let after = read_files(world.folder.path());
    assert_eq!(file_names(&before), file_names(&after), "{arguments:?}");
    assert!(before == after, "{arguments:?}: a file has changed");
}

fn file_names(files: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    files.keys().cloned().collect::<Vec<_>>()
}

/// Adds a task to the grid, so that a run also writes the answers next to its tables.
fn add_task(world: &World) {
    world.write("copa.jsonl", (0..6).map(|i| format!("{}\n", copa_row(i))).collect::<String>());
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("grid.yaml", format!("tasks:\n  copa: {{path: copa.jsonl}}\n{grid}  tasks: [copa]\n"));
}

#[test]
fn optional_metric_is_in_all_outputs_only_if_requested() {
    let world = World::new();
    let plain = run_ok(&world, &["run", "grid.yaml"]);
    let before = read_files(world.folder.path());
    assert!(
        !contains_byte_perplexity(plain.as_bytes()) && !before.values().any(|bytes| contains_byte_perplexity(bytes))
    );
    let named = run_ok(&world, &["run", "grid.yaml", "--set", "evaluate.metrics=[byte_perplexity]"]);
    assert!(contains_byte_perplexity(named.as_bytes()), "{named}");
    let after = read_files(world.folder.path());
    let new: Vec<&str> = after
        .iter()
        .filter(|(name, bytes)| !before.contains_key(*name) && contains_byte_perplexity(bytes))
        .map(|(name, _)| &**name)
        .collect();
    for view in ["results.csv", "results.parquet", "results.md", "results.tex", "numbers.json", "run.json"] {
        assert!(new.iter().any(|name| name.ends_with(view)), "{view} is not among {new:?}");
    }
    assert!(new.iter().any(|name| name.contains("every_eval_ever")), "{new:?}");
    assert_rejected(
        &world,
        &["run", "grid.yaml", "--set", "evaluate.metrics=[byte_perplexty]"],
        &["did you mean `byte_perplexity`?"],
    );
}

fn contains_byte_perplexity(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    ["byte ppl", "byte_ppl", "byte_perplexity"].iter().any(|name| text.contains(name))
}

#[test]
fn perplexity_standard_error_of_windows_is_in_json_and_csv() {
    let world = World::new();
    let second = std::fs::read_to_string(world.path("grid.yaml")).unwrap() + "    - {corpus: test, length: 32}\n";
    world.write("grid.yaml", second);
    world.run_ok(&[]);
    let numbers = common::stored_numbers(&common::json(&world.path("results/grid/numbers.json")));
    let rows = read_rows(&world.path("results/grid/results.csv"));
    let cell = &numbers[0]["cell"];
    let texts = select_numbers(&numbers, cell, "ppl_test");
    assert_eq!(texts.len(), 2);
    let mut squares = 0.0;
    for number in &texts {
        let losses: Vec<f64> = number["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect();
        let count = losses.len() as f64;
        let error = number["error"].as_f64().unwrap();
        let mean = losses.iter().sum::<f64>() / count;
        let variance = losses.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let expected = mean.exp() * (variance / count).sqrt();
        assert!((error - expected).abs() < 1e-9 * expected, "{error} {expected}");
        let shown: f64 =
            rows[1][column_index(&rows, &format!("{} stderr", number["column"].as_str().unwrap()))].parse().unwrap();
        assert!((shown - error).abs() < 1e-9 * error, "{shown} {error}");
        squares += error * error;
    }
    // Check the standard error of the mean over the two texts.
    let average = &select_numbers(&numbers, cell, "ppl_average")[0];
    assert!((average["error"].as_f64().unwrap() - squares.sqrt() / 2.0).abs() < 1e-9 * squares);
}

fn select_numbers(numbers: &[serde_json::Value], cell: &serde_json::Value, metric: &str) -> Vec<serde_json::Value> {
    numbers.iter().filter(|number| number["cell"] == *cell && number["metric"] == metric).cloned().collect()
}

#[test]
fn output_manifest_is_readable_by_sha256sum() {
    let world = World::new();
    add_task(&world);
    world.run_ok(&[]);
    let folder = world.path("results/grid");
    let list = fs::read_to_string(folder.join(".ghostlab.sha256")).unwrap();
    let listed: Vec<&str> = list.lines().skip(1).map(|line| line.split_once("  ").unwrap().1).collect();
    let mut existing: Vec<String> = read_files(&folder).into_keys().filter(|name| name != ".ghostlab.sha256").collect();
    existing.sort();
    assert_eq!(listed, existing);
    let check = std::process::Command::new("sha256sum");
    let Ok(output) = { check }.args(["--check", "--quiet", ".ghostlab.sha256"]).current_dir(&folder).output() else {
        #[allow(clippy::disallowed_macros, reason = "tests print why they are skipped")]
        {
            eprintln!("skipped: sha256sum is not installed");
        }
        return;
    };
    assert!(output.status.success(), "{}", combined_output(&output));
}

#[test]
fn run_with_other_engine_or_dtype_has_a_separate_folder() {
    let world = World::new();
    world.run_ok(&[]);
    let plain = read_files(&world.path("results/grid"));
    let mut folders = vec!["grid".to_owned()];
    let mut values = vec![read_rows(&world.path("results/grid/results.csv"))];
    for more in [&["--dtype", "bf16"][..], &["--engine", "candle"], &["--engine", "candle", "--dtype", "bf16"]] {
        let log = world.run_ok(more);
        let mut new: Vec<String> = fs::read_dir(world.path("results"))
            .unwrap()
            .map(|dir| dir.unwrap().file_name().into_string().unwrap())
            .collect();
        new.retain(|name| !folders.contains(name));
        let [folder] = new.as_slice() else { panic!("{more:?}: {new:?}") };
        assert!(log.contains(folder.as_str()), "the output does not name the folder: {log}");
        let record = common::json(&world.path("results").join(folder).join("run.json"));
        assert_eq!(record["description"]["engines"]["tiny"], record["engines"]["tiny"]);
        values.push(read_rows(&world.path("results").join(folder).join("results.csv")));
        folders.push(folder.clone());
        assert!(read_files(&world.path("results/grid")) == plain, "{more:?}");
        world.run_ok(more);
        assert_eq!(
            fs::read_dir(world.path("results")).unwrap().count(),
            folders.len(),
            "the second run used another folder"
        );
    }
    for (at, one) in values.iter().enumerate() {
        assert!(values[..at].iter().all(|other| other != one), "{}", folders[at]);
    }
    // Explicit defaults select the same results folder.
    world.run_ok(&["--device", "cpu", "--dtype", "f32", "--engine", "cpu", "--set", "depth=1,2"]);
    assert_eq!(fs::read_dir(world.path("results")).unwrap().count(), folders.len());
    let record = common::json(&world.path("results/grid/run.json"));
    assert_eq!(record["description"]["differs"], json!([]));
}

#[test]
fn doctor_creates_no_files_in_an_empty_folder() {
    let [folder, home] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let world = World::new();
    let (code, output) = run_doctor(&world, home.path(), folder.path(), &[]);
    assert!(
        code == Some(0) && output.contains(&home.path().display().to_string()) && !output.contains("error "),
        "{output}"
    );
    for store in ["data/store", "new"] {
        let (code, output) = run_doctor(&world, home.path(), folder.path(), &["--store", store]);
        assert!(code == Some(0) && output.contains(&format!("{store}, on")) && !output.contains("error "), "{output}");
    }
    // An unreadable store must not be reported as missing.
    fs::create_dir(folder.path().join("newer")).unwrap();
    fs::write(folder.path().join("newer/store.json"), "{\"format\": 99}").unwrap();
    let (code, output) = run_doctor(&world, home.path(), folder.path(), &["--store", "newer"]);
    assert!(code == Some(3) && output.contains("error store") && output.contains("a different version"), "{output}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "doctor created a file");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "doctor created a file");
}

fn run_doctor(world: &World, home: &Path, current_dir: &Path, more: &[&str]) -> (Option<i32>, String) {
    let mut command = world.command(&[&["doctor"], more].concat());
    command.env("XDG_DATA_HOME", home).env("HF_HUB_CACHE", current_dir);
    let output = command.current_dir(current_dir).output().unwrap();
    (output.status.code(), combined_output(&output))
}

#[test]
fn run_with_stored_option_shows_values_and_missing_cells() {
    let world = World::new();
    let output = world.run(&["--stored"]);
    let log = combined_output(&output);
    assert_eq!(output.status.code(), Some(3), "{log}");
    assert!(log.contains("9 of 9 cells incomplete") && !log.contains("failed"), "{log}");
    world.run_ok(&[]);
    // Add a second text. Only the perplexities on the first one are stored.
    world.write("more.jsonl", fs::read_to_string(world.path("test.jsonl")).unwrap().replace("w1 ", "w2 "));
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    let grid = grid.replace("corpora:\n", "corpora:\n  more: {path: more.jsonl, rule: ptb, limit: 5}\n");
    world.write("grid.yaml", grid.replace("perplexity:\n", "perplexity:\n    - {corpus: more, length: 64}\n"));
    let before = read_rows(&world.path("results/grid/results.csv"));
    let output = world.run(&["--stored"]);
    let log = combined_output(&output);
    assert_eq!(output.status.code(), Some(3), "{log}");
    assert!(log.contains("not computed: not scored on more"), "{log}");
    let after = read_rows(&world.path("results/grid/results.csv"));
    assert_eq!(column_values(&before, "ppl test@64"), column_values(&after, "ppl test@64"));
    assert!(column_values(&after, "ppl more@64").iter().all(String::is_empty), "{after:?}");
    world.run_ok(&[]);
    assert_eq!(world.run(&["--stored"]).status.code(), Some(0));
}

fn column_values(rows: &[Vec<String>], name: &str) -> Vec<String> {
    let column = rows[0].iter().position(|head| head == name).unwrap();
    rows[1..].iter().map(|row| row[column].clone()).collect()
}

#[test]
fn plan_and_run_reject_unusable_results_folders_alike() {
    for (name, more, code, words) in [
        ("results/grid/results.csv", &[][..], 2, "results/grid/results.csv"),
        ("results/grid", &[], 3, "a path that is not a folder"),
        ("results", &[], 3, "a folder in which files can be created"),
        ("out/grid/results.md", &["--results", "out"], 2, "out/grid/results.md"),
        ("mine", &["--results", "backbone"], 2, "must not overlap with an input"),
    ] {
        let world = World::new();
        write_user_file(&world, name);
        let before = list_entries(&world);
        let [plan, run] = ["plan", "run"].map(|command| {
            let output = world.ghostlab(&[&[command, "grid.yaml"], more].concat());
            if command == "plan" {
                assert_eq!(list_entries(&world), before, "plan wrote a file");
            }
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        });
        assert!(plan.0 == Some(code) && plan.1.contains(words), "{name}: {plan:?}");
        assert_eq!(plan, run, "{name}");
    }
    // `plan` must not create any folders.
    let world = World::new();
    assert_eq!(world.ghostlab(&["plan", "grid.yaml", "--results", "a/b"]).status.code(), Some(0));
    assert!(!world.path("a").exists() && !world.path("results").exists());
}

fn list_entries(world: &World) -> Vec<String> {
    let all = fs::read_dir(world.folder.path()).unwrap();
    let mut all: Vec<_> = all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

fn write_user_file(world: &World, name: &str) {
    fs::create_dir_all(world.path(name).parent().unwrap()).unwrap();
    world.write(name, "mine");
}
