//! Tests that `ghostlab verify` detects altered results and accepts unaltered ones.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::fs::File;
use std::path::PathBuf;

use crate::common;
use crate::common::world::World;
use ghostlab::files::sha256;
use polars::prelude::{IntoColumn, NamedFrom, ParquetReader, ParquetWriter, SerReader, Series};
use serde_json::Value;

const FOLDER: &str = "results/grid";

/// Creates a run with a dense backbone, two cuts and three recoveries, scored on two texts and a task.
fn create_world() -> World {
    let world = World::large();
    world.write(
        "grid.yaml",
        "backbones:\n  tiny: {path: backbone}\n\
         corpora:\n  train: {path: train.txt, rule: wikitext2}\n  test: {path: test.jsonl, rule: ptb, limit: 5}\n\
         \x20 long: {path: long.jsonl, rule: ptb}\ntasks:\n  copa: {path: copa.jsonl}\n\
         backbone: [tiny]\ncriterion: [llm-streamline]\ndepth: [1, 2]\nrecovery: [none, linearpatch-diag, ghosted]\n\
         calibration:\n  - {corpus: train, sequences: 8, length: 64}\n\
         evaluate:\n  perplexity:\n    - {corpus: test, length: 64}\n    - {corpus: long, length: 64}\n  tasks: [copa]\n",
    );
    world.run_ok(&[]);
    // Empty the store so that `verify` has to recompute everything from the inputs.
    std::fs::remove_dir_all(world.path("data/store")).unwrap();
    std::fs::create_dir_all(world.path("data/store")).unwrap();
    world
}

fn run_verify(world: &World, more: &[&str]) -> (i32, Value) {
    let output = world.ghostlab(&[&["verify", FOLDER, "--json"], more].concat());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!text.contains("panicked"), "{text}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(answer["command"], "verify", "{answer}");
    (output.status.code().unwrap(), answer["answer"]["folders"][0].clone())
}

fn find_check<'a>(folder: &'a Value, kind: &str) -> &'a Value {
    folder["checks"].as_array().unwrap().iter().find(|check| check["kind"] == kind).unwrap()
}

/// Returns the kinds of those checks that found differences.
fn differing_checks(folder: &Value) -> Vec<&str> {
    let all = folder["checks"].as_array().unwrap().iter();
    all.filter(|check| !check["differs"].as_array().unwrap().is_empty())
        .map(|entry| entry["kind"].as_str().unwrap())
        .collect()
}

fn results_path(world: &World, name: &str) -> PathBuf {
    world.path(FOLDER).join(name)
}

/// Alters a JSON file and updates its hash in the list of files, as a forger would.
fn alter_json(world: &World, name: &str, how: impl FnOnce(&mut Value)) {
    let mut value = common::json(&results_path(world, name));
    how(&mut value);
    std::fs::write(results_path(world, name), value.to_string()).unwrap();
    update_hash(world, name);
}

fn update_hash(world: &World, name: &str) {
    let list = results_path(world, ".ghostlab.sha256");
    let (hash, _) = sha256::of_file(&results_path(world, name)).unwrap();
    let text = std::fs::read_to_string(&list).unwrap();
    let lines = text.lines().map(|line| {
        if line.split_once("  ").is_some_and(|(_, file)| file == name) {
            format!("{hash}  {name}\n")
        } else {
            format!("{line}\n")
        }
    });
    std::fs::write(list, lines.collect::<String>()).unwrap();
}

#[test]
fn unmodified_folder_verifies_fully_and_by_sample() {
    let world = create_world();
    let (code, report) = run_verify(&world, &["--share", "100%"]);
    assert_eq!(code, 0, "{report:#}");
    for kind in
        ["files", "items", "tables", "inputs", "windows", "documents", "log_likelihoods", "selections", "operators"]
    {
        let check = find_check(&report, kind);
        assert!(check["agreed"].as_u64() > Some(0) && check["chance"] == 1.0, "{kind}: {check:#}");
        // Results on the same engine and machine are deterministic, except that means may be summed in a different
        // order.
        assert!(check["largest"].as_f64() < Some(1e-6), "{kind}: {check:#}");
    }
    // There are seven cells with 40 documents each.
    assert_eq!(find_check(&report, "documents")["all"], 7 * 40);
    assert_eq!(find_check(&report, "selections")["all"], 6);
    let (code, part) = run_verify(&world, &["--share", "5%"]);
    assert_eq!(code, 0, "{part:#}");
    let drawn = &find_check(&part, "windows")["agreed"];
    let all = &find_check(&part, "windows")["all"];
    assert!(drawn.as_u64() > Some(0) && drawn.as_u64() < all.as_u64(), "{drawn} of {all}");
    assert!(find_check(&part, "windows")["chance"].as_f64() < Some(0.7), "{part:#}");
    // Without `documents.parquet`, the correctness of the answers can still be checked, but the log-likelihoods cannot.
    std::fs::remove_file(results_path(&world, "documents.parquet")).unwrap();
    let (code, bare) = run_verify(&world, &["--share", "100%"]);
    assert_eq!(code, 0, "{bare:#}");
    assert_eq!(find_check(&bare, "documents")["agreed"], 7 * 40);
    assert_eq!(find_check(&bare, "log_likelihoods")["all"], 0);
    assert!(bare["notes"][0].as_str().unwrap().contains("not in the folder"), "{bare:#}");
}

#[test]
fn altered_likelihood_and_loss_are_detected_if_sampled() {
    let world = create_world();
    let file = results_path(&world, "documents.parquet");
    let mut frame = ParquetReader::new(File::open(&file).unwrap()).finish().unwrap();
    let values: Vec<f64> = frame.column("log_likelihood").unwrap().f64().unwrap().iter().map(Option::unwrap).collect();
    let mut altered = values.clone();
    // Alter the less likely choice for the last document, because no other value depends on it.
    let index = if values[values.len() - 1] < values[values.len() - 2] { values.len() - 1 } else { values.len() - 2 };
    altered[index] -= 0.25;
    frame.with_column(Series::new("log_likelihood".into(), altered).into_column()).unwrap();
    ParquetWriter::new(File::create(&file).unwrap()).finish(&mut frame).unwrap();
    update_hash(&world, "documents.parquet");
    let (code, folder) = run_verify(&world, &["--share", "100%"]);
    assert_eq!((code, differing_checks(&folder)), (4, vec!["log_likelihoods"]), "{folder:#}");
    let found = &find_check(&folder, "log_likelihoods")["differs"];
    assert_eq!(found.as_array().unwrap().len(), 1, "{found:#}");
    assert!((found[0]["by"].as_f64().unwrap() - 0.25).abs() < 1e-9, "{found:#}");
    assert!(found[0]["at"].as_str().unwrap().contains("copa"), "{found:#}");
    // A partial verification detects the alteration if and only if its sample contains the altered chunk of documents.
    let mut codes = Vec::new();
    for seed in 0..6 {
        let seed = seed.to_string();
        let (code, folder) = run_verify(&world, &["--share", "20%", "--seed", &seed]);
        let check = find_check(&folder, "log_likelihoods");
        assert_eq!(code == 4, !check["differs"].as_array().unwrap().is_empty());
        assert!(check["chance"].as_f64() < Some(1.0));
        codes.push(code);
    }
    assert!(codes.contains(&4) && codes.contains(&0), "all seeds draw the same sample: {codes:?}");

    alter_json(&world, "numbers.json", |numbers| {
        let number = common::stored_number(numbers, |value| value["losses"].is_array());
        // Raise one loss and lower another by the same amount so that the perplexity stays the same.
        for (index, by) in [(0, 0.01), (1, -0.01)] {
            let loss = number["losses"][index].as_f64().unwrap();
            number["losses"][index] = (loss + by).into();
        }
    });
    let (code, folder) = run_verify(&world, &["--share", "100%"]);
    assert_eq!((code, differing_checks(&folder)), (4, vec!["windows", "log_likelihoods"]), "{folder:#}");
    assert_eq!(find_check(&folder, "windows")["differs"].as_array().unwrap().len(), 2);
}

#[test]
fn altered_layer_table_cell_and_hash_are_found() {
    let world = create_world();
    let lists = std::fs::read_to_string(results_path(&world, ".ghostlab.sha256")).unwrap();
    let run = std::fs::read_to_string(results_path(&world, "run.json")).unwrap();
    alter_json(&world, "run.json", |run| {
        let cells = run["cells"].as_array_mut().unwrap();
        let cell =
            cells.iter_mut().find(|cell| cell["removed"].as_array().is_some_and(|cell| cell.len() == 1)).unwrap();
        cell["removed"][0] = (cell["removed"][0].as_u64().unwrap() + 1).into();
    });
    let (code, folder) = run_verify(&world, &["--share", "100%"]);
    assert_eq!((code, differing_checks(&folder)), (4, vec!["selections"]), "{folder:#}");
    std::fs::write(results_path(&world, "run.json"), run).unwrap();
    std::fs::write(results_path(&world, ".ghostlab.sha256"), &lists).unwrap();

    // Alter one digit of one cell in each format of the table. Even a sample of 1 % suffices to detect it, because
    // tables are checked completely.
    for name in ["results.csv", "results.md"] {
        let text = std::fs::read_to_string(results_path(&world, name)).unwrap();
        let line = text.lines().rfind(|line| line.contains("ghosted")).unwrap();
        let start = line.char_indices().rev().filter(|(_, c)| *c == '.').map(|(at, _)| at - 1);
        let at = start.into_iter().find(|at| line.as_bytes()[*at].is_ascii_digit()).unwrap();
        let digit = if line.as_bytes()[at] == b'7' { "8" } else { "7" };
        let other = format!("{}{digit}{}", &line[..at], &line[at + 1..]);
        std::fs::write(results_path(&world, name), text.replace(line, &other)).unwrap();
        update_hash(&world, name);
        let (code, folder) = run_verify(&world, &["--share", "1%"]);
        assert_eq!((code, differing_checks(&folder)), (4, vec!["tables"]), "{name}: {line}\n{other}\n{folder:#}");
        std::fs::write(results_path(&world, name), text).unwrap();
        std::fs::write(results_path(&world, ".ghostlab.sha256"), &lists).unwrap();
    }

    // Change an accuracy so that it contradicts its items.
    let numbers = std::fs::read_to_string(results_path(&world, "numbers.json")).unwrap();
    alter_json(&world, "numbers.json", |numbers| {
        let number = common::stored_number(numbers, |value| value["right"].is_string() && value["metric"] == "copa");
        number["value"] = (number["value"].as_f64().unwrap() + 1.0).into();
    });
    let (code, folder) = run_verify(&world, &["--share", "1%"]);
    assert_eq!(code, 4);
    assert!(differing_checks(&folder).contains(&"items"), "{folder:#}");
    std::fs::write(results_path(&world, "numbers.json"), numbers).unwrap();

    let first = lists.lines().nth(1).unwrap().chars().next().unwrap();
    let other = if first == 'a' { 'b' } else { 'a' };
    let (head, rest) = lists.split_once('\n').unwrap();
    std::fs::write(results_path(&world, ".ghostlab.sha256"), format!("{head}\n{other}{}", &rest[1..])).unwrap();
    let (code, folder) = run_verify(&world, &["--share", "1%"]);
    assert_eq!((code, differing_checks(&folder)), (4, vec!["files"]), "{folder:#}");
}

#[test]
fn inputs_are_found_by_hash_and_missing_ones_are_named() {
    let world = create_world();
    std::fs::create_dir(world.path("elsewhere")).unwrap();
    std::fs::rename(world.path("backbone"), world.path("elsewhere/backbone")).unwrap();
    let (code, folder) = run_verify(&world, &["--share", "5%"]);
    assert_eq!((code, differing_checks(&folder).len()), (3, 0), "{folder:#}");
    let cannot = &find_check(&folder, "inputs")["cannot"];
    assert!(
        cannot.as_array().unwrap().iter().all(|report| {
            report["at"].as_str().unwrap().contains("backbone tiny")
                && report["lacks"].as_str().unwrap().contains("SHA-256")
        }),
        "{cannot:#}"
    );
    let (code, folder) = run_verify(&world, &["--share", "5%", "--inputs", "elsewhere"]);
    assert_eq!(code, 0, "{folder:#}");
    // A file with different bytes is not accepted as the input.
    let config = world.path("elsewhere/backbone/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}\n")).unwrap();
    let (code, folder) = run_verify(&world, &["--share", "5%", "--inputs", "elsewhere"]);
    assert_eq!(code, 3, "{folder:#}");
    let output = world.ghostlab(&["verify", "nowhere"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8(output.stderr).unwrap().contains("no results to check"));
}

#[test]
fn packed_record_verifies_like_its_folder() {
    let world = create_world();
    let packed = pack_record(&world, "one.zip");
    assert_eq!(packed["folders"], serde_json::json!(["grid"]), "{packed}");
    pack_record(&world, "two.zip");
    let archive = std::fs::read(world.path("one.zip")).unwrap();
    assert_eq!(archive, std::fs::read(world.path("two.zip")).unwrap(), "packing is not reproducible");
    let (code, answer) = verify_file(&world, "one.zip");
    assert_eq!(code, 0, "{answer:#}");
    let folders = answer["answer"]["folders"].as_array().unwrap();
    assert_eq!((&folders[0]["name"], &folders[1]["folder"]), (&"archive".into(), &"one.zip/grid".into()));
    assert!(find_check(&folders[1], "windows")["agreed"].as_u64() > Some(0), "{answer:#}");

    // Alter one byte of an entry in the archive. Its checksum detects this, and the error names the entry.
    let offset = archive.windows(9).rposition(|text| text == b"\"values\":").unwrap();
    let mut broken = archive.clone();
    broken[offset + 1] = b'V';
    std::fs::write(world.path("broken.zip"), broken).unwrap();
    let (code, answer) = verify_file(&world, "broken.zip");
    assert_eq!(code, 2, "{answer:#}");
    assert!(answer["error"]["where"].as_str().unwrap().contains("numbers.json"), "{answer:#}");
    // An existing user file is not replaced.
    std::fs::write(world.path("mine.zip"), "mine").unwrap();
    let output = world.ghostlab(&["record", "pack", "results", "--to", "mine.zip"]);
    assert_eq!(output.status.code(), Some(2));
    // A folder cannot be packed if one of its files differs from what the run wrote.
    std::fs::write(results_path(&world, "results.csv"), "other").unwrap();
    let output = world.ghostlab(&["record", "pack", "results", "--to", "one.zip"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && text.contains("results.csv"), "{text}");
}

fn pack_record(world: &World, to: &str) -> Value {
    let output = world.ghostlab(&["record", "pack", "results", "--to", to, "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice::<Value>(&output.stdout).unwrap()["answer"].clone()
}

fn verify_file(world: &World, file: &str) -> (i32, Value) {
    let output = world.ghostlab(&["verify", file, "--share", "20%", "--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code().unwrap(), answer)
}

/// Creates a run with a dense backbone and a cut. It is scored on generated answers, on the likelihood of a text, and
/// on the likelihood of a last word.
fn world_with_definitions() -> World {
    let world = World::new();
    std::fs::create_dir(world.path("defs")).unwrap();
    world.write(
        "rows.jsonl",
        (0..72).map(|i| format!("{{\"text\": \"w{i} w{} w{}\"}}\n", i * 7 % 299, i * 31 % 299)).collect::<String>(),
    );
    write_definition(
        &world,
        "answers",
        "output_type: generate_until\ndoc_to_text: \"{{text}}\"\ndoc_to_target: \"1\"\n\
         generation_kwargs: {until: [\"w7 \"], do_sample: false, max_gen_toks: 4}\n\
         filter_list:\n  - name: digit\n    filter: [{function: regex, regex_pattern: \"w([0-9])\"}, {function: take_first}]\n\
         metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n",
    );
    write_definition(
        &world,
        "rolling",
        "output_type: loglikelihood_rolling\ndoc_to_text: \"\"\ndoc_to_target: \"{{text}}\"\n\
         metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]\n",
    );
    write_definition(
        &world,
        "last",
        "output_type: loglikelihood\ndoc_to_text: \"{{text}}\"\ndoc_to_target: \" w5 w6\"\n\
         metric_list: [{metric: perplexity}, {metric: acc}]\n",
    );
    world.write(
        "grid.yaml",
        "backbones:\n  tiny: {path: backbone}\ncorpora:\n  train: {path: train.txt, rule: wikitext2}\n\
         backbone: [tiny]\ncriterion: [llm-streamline]\ndepth: [1]\nrecovery: [none]\n\
         calibration:\n  - {corpus: train, sequences: 8, length: 64}\n\
         evaluate:\n  tasks: [{definition: defs/}]\n",
    );
    world.run_ok(&[]);
    std::fs::remove_dir_all(world.path("data/store")).unwrap();
    std::fs::create_dir_all(world.path("data/store")).unwrap();
    world
}

fn write_definition(world: &World, name: &str, rest: &str) {
    let head = "dataset_path: json\ndataset_kwargs: {data_files: {test: ../rows.jsonl}}\ntest_split: test\n";
    world.write(&format!("defs/{name}.yaml"), format!("task: {name}\n{head}{rest}"));
}

#[test]
fn generated_answers_and_perplexities_are_recomputed() {
    let world = world_with_definitions();
    let numbers = std::fs::read_to_string(results_path(&world, "numbers.json")).unwrap();
    let lists = std::fs::read_to_string(results_path(&world, ".ghostlab.sha256")).unwrap();
    let run = || {
        let (code, folder) = run_verify(&world, &["--share", "100%"]);
        let found = differing_checks(&folder).into_iter().map(str::to_owned).collect::<Vec<_>>();
        std::fs::write(results_path(&world, "numbers.json"), &numbers).unwrap();
        std::fs::write(results_path(&world, ".ghostlab.sha256"), &lists).unwrap();
        (code, found, folder)
    };
    let (code, _, folder) = run();
    assert_eq!(code, 0, "{folder:#}");
    // Each of the two cells has two documents per row: one with a generated answer, and one with a scored last word.
    // Each cell also has three log-likelihoods per row and the total of each. They are those of the last word, and of
    // the text under two metrics.
    assert_eq!(find_check(&folder, "documents")["agreed"], 2 * 2 * 72);
    assert_eq!(find_check(&folder, "log_likelihoods")["agreed"], 2 * (3 * 72 + 3));
    assert_eq!(find_check(&folder, "windows")["all"], 0);
    assert_eq!(folder["notes"], serde_json::json!([]));
    // Partial verification samples one of the two chunks (72 prompts in total).
    let (code, part) = run_verify(&world, &["--share", "20%"]);
    assert_eq!(code, 0, "{part:#}");
    let drawn = find_check(&part, "documents")["agreed"].as_u64();
    assert!(drawn > Some(0) && drawn < Some(2 * 2 * 72), "{part:#}");

    // Reverse the order of correct and wrong answers, because no other value depends on it.
    alter_json(&world, "numbers.json", |numbers| {
        let number = common::stored_number(numbers, |value| value["metric"].as_str().unwrap().contains("exact_match"));
        let (count, digits) = number["right"].as_str().unwrap().split_once(':').unwrap();
        let other: String = digits.chars().rev().collect();
        assert_ne!(other, digits);
        number["right"] = format!("{count}:{other}").into();
    });
    let (code, found, folder) = run();
    assert_eq!((code, found), (4, vec!["documents".to_owned()]), "{folder:#}");
    let at = find_check(&folder, "documents")["differs"][0]["at"].as_str().unwrap();
    assert!(at.contains("answers") && at.contains("document"), "{at}");

    for metric in ["word_perplexity", "/perplexity"] {
        let is_wanted = |number: &Value| number["metric"].as_str().unwrap().contains(metric);
        alter_json(&world, "numbers.json", |numbers| {
            let stored = common::stored_number(numbers, is_wanted);
            for (index, by) in [(3, 0.5), (4, -0.5)] {
                let loss = stored["losses"][index].as_f64().unwrap();
                stored["losses"][index] = (loss + by).into();
            }
        });
        let (code, found, folder) = run();
        assert_eq!((code, found), (4, vec!["log_likelihoods".to_owned()]), "{folder:#}");
        assert_eq!(find_check(&folder, "log_likelihoods")["differs"].as_array().unwrap().len(), 2, "{folder:#}");
        alter_json(&world, "numbers.json", |numbers| {
            let stored = common::stored_number(numbers, is_wanted);
            stored["value"] = (stored["value"].as_f64().unwrap() * 0.9).into();
        });
        let (code, found, folder) = run();
        assert!(code == 4 && found.contains(&"log_likelihoods".to_owned()), "{folder:#}");
        assert_eq!(found.contains(&"items".to_owned()), metric == "/perplexity", "{folder:#}");
    }
}
