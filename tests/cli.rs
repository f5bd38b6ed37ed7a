//! Runs the program like a user on a tiny backbone written by the test: a whole grid, a second run, and all kinds of
//! bad input.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common;
use crate::common::world::{World, table, tokenizer};
use ghostlab::stage;
use serde_json::{Value, json};

#[test]
fn a_grid_runs_and_a_second_run_gives_the_same_table() {
    let world = World::new();
    let mut tables = Vec::new();
    for _ in 0..2 {
        let output = world.run(&[]);
        let screen = String::from_utf8(output.stdout).unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
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
    let boundary = &record["cells"][1]["boundaries"][0];
    assert!(boundary["boundary_mae"].is_f64() && boundary["boundary_mae_by_channel"].is_null(), "{boundary}");
    assert!(record["files"]["channels.parquet"].is_string(), "{}", record["files"]);
    assert!(record["crates"]["candle-core"].is_string(), "{}", record["crates"]);
}

#[test]
fn a_grid_without_the_axes_of_a_cut_scores_its_backbones() {
    let world = World::new();
    world.runs(&[]);
    let full = table(&world.path("results/grid/results.csv"));
    let stored = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    let (head, rest) = stored.split_once("criterion:").unwrap();
    let dense = format!("{head}{}", &rest[rest.find("evaluate:").unwrap()..]);
    world.write("dense.yaml", &dense);
    let output = |arguments: &[&str]| {
        let output = world.ghostlab(arguments);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {text}");
        text
    };
    // The pruned grid has already scored the dense backbone.
    let plan = output(&["plan", "dense.yaml"]);
    assert!(plan.contains("1 complete, 0 to run") && !plan.contains("operator"), "{plan}");
    let store = ["--store", "other"];
    let plan = output(&[&["plan", "dense.yaml"], &store[..]].concat());
    assert!(plan.contains("0 complete, 1 to run") && plan.contains("score tiny on test@64: 1 cell"), "{plan}");
    let run = [&["run", "dense.yaml"], &store[..]].concat();
    let again = "1 of 1 cells are stored already";
    let first = output(&run);
    assert!(!first.contains(again) && first.contains("ppl test@64"), "{first}");
    let rows = table(&world.path("results/dense/results.csv"));
    let seconds = rows[0].iter().position(|name| name == "seconds");
    let values = |row: &[String]| {
        let values = row.iter().enumerate().filter(|(index, _)| Some(*index) != seconds);
        values.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    assert_eq!(rows.len(), 2, "a header and the dense backbone: {rows:?}");
    assert_eq!(values(&rows[1]), values(&full[1]), "as in a grid that prunes");
    assert!(output(&run).contains(again));
    assert!(output(&[&["plan", "dense.yaml"], &store[..]].concat()).contains("1 complete, 0 to run"));
    assert!(output(&[&run[..], &["--layout", "wide"]].concat()).contains("Dense"));
    let explained = output(&[&["explain", "dense.yaml", "dense"], &store[..]].concat());
    assert!(explained.starts_with("tiny.dense\n") && !explained.contains("selection"), "{explained}");
    assert!(output(&[&["status"], &store[..]].concat()).contains("1 of 1 cells complete"));
    let compared = output(&["compare", "results/dense", "results/grid"]);
    assert!(compared.contains("depth") && compared.contains("all 1 that both have are the same"), "{compared}");
    world.write("grid.yaml", stored.replace("depth: [1, 2]\n", ""));
    std::fs::remove_dir_all(world.path("results/grid")).unwrap();
    world.refuses(&[], 2, &["grid.yaml:1:1", "has no key `depth`", "all four", "scores its dense backbones"]);
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
fn unlike_vocabularies_are_compared_in_bits_per_byte() {
    let world = World::new();
    world.runs(&[]);
    let alike = table(&world.path("results/grid/results.csv"));
    assert!(!alike[0].iter().any(|name| name.starts_with("bits/byte")), "{:?}", alike[0]);
    // The other tokenizer lacks an unused word, so tokens and numbers are the same.
    std::fs::create_dir(world.path("other")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(world.path("backbone").join(name), world.path("other").join(name)).unwrap();
    }
    world.write("other/tokenizer.json", tokenizer(299).to_string());
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    let grid = grid.replace("tiny: {path: backbone}", "tiny: {path: backbone}\n  other: {path: other}");
    world.write("grid.yaml", grid.replace("backbone: [tiny]", "backbone: [tiny, other]"));
    world.runs(&[]);
    let rows = table(&world.path("results/grid/results.csv"));
    let column = |name: &str| rows[0].iter().position(|head| head == name).unwrap();
    let perplexity = column("ppl test@64");
    let bits = column("bits/byte test@64");
    // Expected by hand: five windows of 64 words; the scored text of a window begins after its first word.
    let texts = std::fs::read_to_string(world.path("test.jsonl")).unwrap();
    let texts =
        texts.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["text"].as_str().unwrap().to_owned());
    let text = texts.collect::<Vec<_>>().join("\n\n");
    let ends: Vec<usize> =
        text.split_whitespace().map(|word| word.as_ptr() as usize - text.as_ptr() as usize + word.len()).collect();
    let bytes: usize = ends[..5 * 64].chunks(64).map(|window| window[63] - window[0]).sum();
    for row in &rows[1..] {
        let [perplexity, bits] = [perplexity, bits].map(|at| row[at].parse::<f64>().unwrap());
        let expected = perplexity.ln() * 63.0 * 5.0 / std::f64::consts::LN_2 / bytes as f64;
        assert!((bits - expected).abs() <= 1e-12 * expected, "{bits} {expected}");
    }
    assert_eq!(rows.len(), 1 + 2 * 9);
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
fn explain_names_deviations_of_the_official_code() {
    let world = World::new();
    for (cell, expected) in [
        ("streamline-1.linearpatch-diag", Some("the official code divides LinearPatch's sums by 128")),
        ("streamline-1.ghosted", None),
    ] {
        let output = world.ghostlab(&["explain", "grid.yaml", cell]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(
            text.lines().filter(|line| line.starts_with("the official code")).count(),
            usize::from(expected.is_some())
        );
        assert!(expected.is_none_or(|words| text.contains(words)), "{text}");
    }
}

#[test]
fn more_calibration_tokens_than_text_are_noted() {
    let world = World::new();
    for (sequences, noted) in [("8", false), ("200", true)] {
        let sequences = format!("calibration.sequences={sequences}");
        let log = world.runs(&["--set", &sequences, "--set", "recovery=[none]", "--set", "depth=[1]"]);
        let note = "calibration train:200x64@0 draws 12800 tokens from a text of 6000: its windows overlap 2.1-fold";
        assert_eq!(log.contains(note), noted, "{log}");
    }
}

#[test]
fn missing_tokenizer_is_named_with_its_grid_line_and_remedy() {
    let world = World::new();
    std::fs::remove_file(world.path("backbone/tokenizer.json")).unwrap();
    world.refuses(&[], 3, &["the model has no tokenizer.json", "grid.yaml:2", "tokenizer.save_pretrained"]);
}

#[test]
fn lfs_pointer_in_place_of_a_model_file_is_named() {
    let pointer =
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32\nsize 12345\n";
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        let world = World::new();
        world.write(&format!("backbone/{file}"), pointer);
        world.refuses(&[], 3, &["Git LFS pointer", file, "git lfs pull"]);
    }
}

#[test]
fn text_limit_stands_at_the_end_of_help() {
    let world = World::new();
    for command in ["run", "man", "completions"] {
        let help = String::from_utf8(world.ghostlab(&[command, "-h"]).stdout).unwrap();
        let (before, after) = help.split_once("Limits:").unwrap();
        assert!(!before.contains("--text <GB>") && after.contains("--text <GB>"), "{help}");
    }
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
        assert!(row[column("copa stderr")].parse::<f64>().unwrap() >= 0.0);
    }
    let dense = common::json(&world.path("results/grid/lm_eval").join("tiny.dense.json"));
    assert_eq!(dense["n-samples"]["rte"], json!({"original": 2, "effective": 1}));
    let markdown = std::fs::read_to_string(world.path("results/grid/results.md")).unwrap();
    assert!(markdown.contains("all 6 documents (not the whole published split)"), "{markdown}");
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
    use ghostlab::exec::{RunSettings, run};
    use ghostlab::grid::Grid;
    let world = World::new();
    let grid = Grid::load(&world.path("grid.yaml"), None, &[]).unwrap();
    let store = ghostlab_store::Store::open(&world.path("store"), stage::WORDS).unwrap();
    let error = run(&grid, RunSettings::default(), &store, &(), &std::sync::atomic::AtomicBool::new(true)).unwrap_err();
    assert_eq!(error.exit_code(), 130);
}

fn names(folder: &Path) -> Vec<String> {
    let listing = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = listing.map(|item| item.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn impossible_job_is_refused_with_figures_before_work() {
    let world = World::new();
    world.refuses(&["--memory", "0.001"], 3, &["more memory", "backbone tiny", "0.00 GB by --memory; "]);
    let kinds = String::from_utf8(world.ghostlab(&["cache", "ls"]).stdout).unwrap();
    assert!(kinds.contains("tokens-v") && !kinds.contains("activations-v") && !kinds.contains("scores-v"), "{kinds}");
    // The flag from the hint fixes the error.
    let log = String::from_utf8(world.run(&["--memory", "0.001"]).stderr).unwrap();
    let asked = log.split_once("hint:     --memory ").unwrap().1.split(' ').next().unwrap();
    world.runs(&["--memory", asked]);
    // Stored results need no memory.
    world.runs(&["--memory", "0.001"]);
}

#[test]
fn plan_refuses_what_run_refuses_in_the_same_words() {
    let run_with = |world: &World, command: &str, more: &[&str]| {
        let output = world.ghostlab(&[&[command, "grid.yaml", "-q"], more].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        // Free memory may change between calls.
        let lines: Vec<String> = text.lines().filter(|line| !line.contains("found:")).map(str::to_owned).collect();
        (output.status.code(), lines)
    };
    let cut = |world: &World, name: &str| {
        let bytes = std::fs::read(world.path(name)).unwrap();
        world.write(name, &bytes[..bytes.len() / 2]);
    };
    let no_change: &dyn Fn(&World) = &|_| {};
    for (change, more, code) in [
        (no_change, &["--memory", "0.001"][..], 3),
        (no_change, &["--set", "calibration.length=100000"], 2),
        (no_change, &["--set", "evaluate.perplexity.length=100000"], 2),
        (&|world| cut(world, "backbone/model.safetensors"), &[], 2),
        (&|world| cut(world, "backbone/tokenizer.json"), &[], 2),
        (&|world| std::fs::remove_file(world.path("train.txt")).unwrap(), &[], 3),
        (&|world| world.write("test.jsonl", "{\"text\": 3}\n"), &[], 2),
    ] {
        let [run, plan] = ["run", "plan"].map(|command| {
            let world = World::new();
            change(&world);
            let (code, lines) = run_with(&world, command, more);
            (code, lines.join("\n").replace(&world.folder.path().display().to_string(), ""))
        });
        assert_eq!(run.0, Some(code), "{more:?}: {}", run.1);
        assert_eq!(run, plan, "{more:?}");
    }
}

#[test]
fn plan_says_how_many_files_and_folders_a_run_makes_at_most() {
    let world = World::large();
    let plan =
        || -> Value { serde_json::from_slice(&world.ghostlab(&["plan", "grid.yaml", "--json"]).stdout).unwrap() };
    let count = |folder: &Path| -> u64 {
        fn below(folder: &Path) -> u64 {
            let items = std::fs::read_dir(folder).unwrap().map(|item| item.unwrap().path());
            items.map(|path| 1 + if path.is_dir() { below(&path) } else { 0 }).sum()
        }
        below(folder)
    };
    let before = plan();
    let run = &before["answer"]["grids"][0]["cost"]["run"];
    let reported = run["inodes"].as_u64().unwrap();
    let had = count(&world.path("data/store"));
    assert!(run["free_inodes"].is_null() || run["free_inodes"].as_u64().unwrap() > 0);
    let text = String::from_utf8(world.ghostlab(&["plan", "grid.yaml"]).stdout).unwrap();
    assert!(text.contains("files and folders: "), "{text}");
    world.runs(&[]);
    let made = count(&world.path("data/store")) - had;
    assert!(made <= reported && reported <= 3 * made, "{made} were made, {reported} were told");
}

#[test]
fn other_settings_have_their_own_folder_and_never_mix() {
    let world = World::new();
    with_tasks(&world);
    world.runs(&[]);
    let files = || -> Vec<Vec<u8>> {
        ["results.csv", "run.json", "documents.parquet"]
            .map(|name| std::fs::read(world.path("results/grid").join(name)).unwrap())
            .to_vec()
    };
    let before = files();
    let log = world.runs(&["--set", "depth=2"]);
    assert_eq!(files(), before);
    let folder = names(&world.path("results")).into_iter().find(|name| name.starts_with("grid+depth=2-")).unwrap();
    assert!(log.contains(&folder), "the screen says where: {log}");
    assert_eq!(table(&world.path("results").join(&folder).join("results.csv")).len(), 1 + 5);
    assert_eq!(names(&world.path("results").join(&folder).join("lm_eval")).len(), 5);
    // The grid file itself is changed: its folder holds only the new run.
    world.write("results/grid/notes.txt", "mine");
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("grid.yaml", grid.replace("depth: [1, 2]", "depth: [2]"));
    let log = world.runs(&[]);
    assert!(log.contains("holds a run with other settings (depth)"), "{log}");
    assert_eq!(table(&world.path("results/grid/results.csv")).len(), 1 + 5);
    assert_eq!(names(&world.path("results/grid/lm_eval")).len(), 5, "none of the run before");
    assert_eq!(std::fs::read_to_string(world.path("results/grid/notes.txt")).unwrap(), "mine");
    assert_eq!(names(&world.path("results")).len(), 2, "nothing half-written is left");
}

#[test]
fn a_reader_that_goes_ends_the_output_quietly() {
    let world = World::new();
    world.runs(&[]);
    let experiments = concat!(env!("CARGO_MANIFEST_DIR"), "/experiments");
    let record = common::json(&world.path("results/grid/run.json"));
    let key = record["cells"][0]["made_from"][0]["key"].as_str().unwrap().to_owned();
    let commands: [&[&str]; 18] = [
        &["cache", "ls"],
        &["cache", "ls", "--all"],
        &["cache", "verify"],
        &["cache", "gc"],
        &["cache", "path", &key],
        &["status", "--all"],
        &["plan", "grid.yaml"],
        &["explain", "grid.yaml", "dense"],
        &["run", "grid.yaml"],
        &["run", "grid.yaml", "--events"],
        &["compare", "results/grid", "results/grid"],
        &["reproduce", "--experiments", experiments],
        &["reproduce", "table1", "--experiments", experiments],
        &["report"],
        &["audit"],
        &["schema"],
        &["--help"],
        &["--version"],
    ];
    for arguments in commands {
        let mut child = world.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !log.contains("panicked"), "{arguments:?}: {}: {log}", output.status);
    }
    // A full disk is an error for results on stdout, but not for progress messages on stderr.
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(world.command(&["schema"]).stdout(full()).output().unwrap().status.code(), Some(3));
    world.write("test.jsonl", std::fs::read_to_string(world.path("test.jsonl")).unwrap().replace("w7", "w8"));
    assert!(world.command(&["run", "grid.yaml"]).stderr(full()).output().unwrap().status.success());
}

#[test]
fn part_of_a_cell_name_resolves_or_lists_candidates() {
    let world = World::new();
    let explain = |cell: &str| {
        let output = world.ghostlab(&["explain", "grid.yaml", cell]);
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), text)
    };
    // Full name, a suffix, and a former name.
    for cell in ["tiny.streamline-1.ghosted", "streamline-1.ghosted", "depth/1/ghosted"] {
        let (code, text) = explain(cell);
        assert!(code == Some(0) && text.starts_with("tiny.streamline-1.ghosted\n"), "{cell}: {text}");
    }
    let (code, text) = explain("tiny/llm-streamline/1/ghosted/train:8x64@0");
    assert!(code == Some(0) && text.starts_with("tiny.streamline-1.ghosted\n"), "{text}");
    for cell in ["ghosted", "recovery/ghosted", "llm-streamline/ghosted"] {
        let (code, text) = explain(cell);
        assert_eq!(code, Some(2), "{cell}");
        for candidate in ["tiny.streamline-1.ghosted", "tiny.streamline-2.ghosted"] {
            assert!(text.lines().any(|line| line.trim() == candidate), "{cell}: {text}");
        }
    }
    for cell in ["1/ghostd", "streamline-1.ghostd"] {
        let (code, text) = explain(cell);
        assert!(code == Some(2) && text.contains("did you mean `ghosted`?"), "{cell}: {text}");
    }
}

#[test]
fn older_results_are_compared_under_their_names() {
    let world = World::new();
    world.runs(&[]);
    let mut numbers = std::fs::read_to_string(world.path("results/grid/numbers.json")).unwrap();
    numbers = numbers.replace("\"tiny.dense\"", "\"tiny/dense\"");
    for depth in [1, 2] {
        for recovery in ["none", "linearpatch-diag", "linearpatch-rotate", "ghosted"] {
            let (now, before) = (
                format!("\"tiny.streamline-{depth}.{recovery}\""),
                format!("\"tiny/llm-streamline/{depth}/{recovery}/train:8x64@0\""),
            );
            assert!(numbers.contains(&now), "{now} in {numbers}");
            numbers = numbers.replace(&now, &before);
        }
    }
    assert!(!numbers.contains("tiny.streamline"), "{numbers}");
    std::fs::create_dir(world.path("results/before")).unwrap();
    world.write("results/before/numbers.json", numbers);
    let output = world.ghostlab(&["compare", "results/before", "results/grid"]);
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.contains("that both have are the same") && !output.contains("only in"), "{output}");
    assert!(output.contains("settings: the same") && !output.contains("identity: one of the two"), "{output}");
}

#[test]
fn the_wide_layout_has_a_column_for_each_backbone_and_depth() {
    let world = World::new();
    with_tasks(&world);
    let output = world.run(&["--layout", "wide"]);
    let screen = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = screen.lines().collect();
    assert!(lines[0] == "average" && lines[2].ends_with("tiny 1/4  tiny 2/4"), "{screen}");
    assert!(lines.iter().any(|line| line.starts_with("+ Linear Patch (Diag)")), "{screen}");
    let markdown = std::fs::read_to_string(world.path("results/grid/wide.md")).unwrap();
    assert!(markdown.contains("| LLM-Streamline |") && markdown.contains("**"), "{markdown}");
    let output = world.run(&["--layout", "wide", "--metric", "ppl tst@64"]);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && log.contains("did you mean `ppl test@64`?"), "{log}");
}

#[test]
fn from_elsewhere_the_checkouts_store_is_used_or_the_users_own() {
    let world = World::new();
    world.runs(&[]);
    let elsewhere = tempfile::tempdir().unwrap();
    let home = tempfile::tempdir().unwrap();
    let grid = world.path("grid.yaml");
    let ghostlab = |arguments: &[&str]| {
        let mut command = world.command(arguments);
        let output = command.current_dir(elsewhere.path()).env("XDG_DATA_HOME", home.path()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (code, text) = ghostlab(&["plan", grid.to_str().unwrap()]);
    assert!(code == Some(0) && text.contains("9 complete, 0 to run"), "{text}");
    let (code, text) = ghostlab(&["run", grid.to_str().unwrap()]);
    assert!(code == Some(0) && text.contains("9 of 9 cells are stored already"), "{text}");
    for arguments in [&["status"][..], &["cache", "ls"]] {
        let (code, text) = ghostlab(arguments);
        assert!(code == Some(0), "{text}");
    }
    let (code, text) = ghostlab(&["report"]);
    assert!(code == Some(3) && text.contains("--results"), "{text}");
    let elsewhere_grid = std::fs::read_to_string(&grid).unwrap();
    let root = world.folder.path().display();
    let elsewhere_grid = elsewhere_grid.replace("path: ", &format!("path: {root}/"));
    std::fs::write(elsewhere.path().join("own.yaml"), elsewhere_grid).unwrap();
    let (code, text) = ghostlab(&["plan", "own.yaml"]);
    assert!(code == Some(0) && text.contains("0 complete") && !home.path().join("ghostlab").exists(), "{text}");
    let begins = format!("a store begins at {}", home.path().join("ghostlab/store").display());
    let (code, text) = ghostlab(&["run", "own.yaml"]);
    assert!(code == Some(0) && text.contains(&begins), "{text}");
    let (code, text) = ghostlab(&["run", "own.yaml"]);
    assert!(code == Some(0) && text.contains("9 of 9 cells are stored already") && !text.contains(&begins), "{text}");
    let named = world
        .command(&["plan", "own.yaml"])
        .current_dir(elsewhere.path())
        .env("GHOSTLAB_STORE", world.path("data/store"))
        .output();
    assert!(
        String::from_utf8_lossy(&named.unwrap().stdout).contains("9 complete"),
        "the same contents, wherever they lie"
    );
    let (code, text) = ghostlab(&["plan", "owm.yaml"]);
    assert!(code == Some(3) && text.contains("did you mean `own.yaml`?"), "{text}");
    assert!(!elsewhere.path().join("data").exists(), "no store was begun in the current folder");
    // An explicitly named store that does not exist is a usage error.
    for arguments in [&["status", "--store", "data/stor"][..], &["cache", "ls", "--store", "data/stor"]] {
        let output = world.ghostlab(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(3) && text.contains("did you mean `data/store`?"), "{text}");
    }
}

#[test]
fn events_carry_time_values_and_one_name_for_a_job() {
    let world = World::new();
    let output = world.run(&["--events"]);
    let events: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_kind = |kind: &str| events.iter().filter(|event| event["event"] == kind).collect::<Vec<_>>();
    assert!(events.iter().all(|event| event["time"].as_str().is_some_and(|time| time.ends_with('Z'))));
    let times: Vec<&str> = events.iter().filter_map(|event| event["time"].as_str()).collect();
    assert!(times.is_sorted(), "{times:?}");
    let jobs: Vec<&Value> = of_kind("started").iter().map(|event| &event["job"]).collect();
    for event in of_kind("advanced").into_iter().chain(of_kind("finished")) {
        assert!(jobs.contains(&&event["job"]), "{event}");
    }
    assert_eq!(of_kind("planned")[0]["scores"], 9);
    let rows = table(&world.path("results/grid/results.csv"));
    let column = rows[0].iter().position(|name| name == "ppl test@64").unwrap();
    let mut expected: Vec<f64> = rows[1..].iter().map(|row| row[column].parse().unwrap()).collect();
    let mut reported: Vec<f64> = of_kind("scored").iter().map(|event| event["value"].as_f64().unwrap()).collect();
    expected.sort_by(f64::total_cmp);
    reported.sort_by(f64::total_cmp);
    assert_eq!(reported, expected);
    assert_eq!(of_kind("complete").last().unwrap()["complete"], 9);
    let status = world.ghostlab(&["status"]);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.contains("9 of 9 cells complete, 9 of 9 scores"), "{status}");
}

#[test]
fn a_run_that_was_stopped_has_counted_what_it_did() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use ghostlab::exec::{Event, Recorder, Reporter, RunRecord, RunSettings, RunState, run};
    use ghostlab::grid::Grid;
    struct Stops<'a>(&'a AtomicBool);
    impl Reporter for Stops<'_> {
        fn event(&self, event: Event) {
            if matches!(event, Event::Scored { .. }) {
                self.0.store(true, Relaxed);
            }
        }
    }
    let world = World::new();
    with_tasks(&world);
    let store = ghostlab_store::Store::open(&world.path("store"), stage::WORDS).unwrap();
    let load = |overrides: &[String]| Grid::load(&world.path("grid.yaml"), None, overrides).unwrap();
    run(&load(&["depth=1".to_owned()]), RunSettings::default(), &store, &(), &AtomicBool::new(false)).unwrap();
    let grid = load(&[]);
    let stop = AtomicBool::new(false);
    let stops = Stops(&stop);
    let recorder = Recorder::start(&grid, &world.path("results"), &store, &stops).unwrap();
    let error = run(&grid, RunSettings::default(), &store, &recorder, &stop).unwrap_err();
    recorder.end(&error);
    let record = RunRecord::all(&store).into_iter().next().unwrap();
    assert_eq!(record.stage, RunState::Interrupted);
    // The dense cell and those of depth 1 were complete; at depth 2 the first evaluation was finished.
    assert_eq!((record.complete, record.cells), (5, 9));
    assert_eq!((record.scored, record.scores), (5 * 3 + 4, 9 * 3));
}

#[test]
fn engines_and_dtypes_have_separate_comparable_results() {
    let world = World::new();
    world.runs(&["--results", "own"]);
    let candle = ["--engine", "candle", "--results"];
    // Objects of another engine are not reused.
    let log = world.runs(&[&candle[..], &["other"]].concat());
    assert!(!log.contains("stored already"), "{log}");
    let log = world.runs(&[&candle[..], &["again"]].concat());
    assert!(log.contains("9 of 9 cells are stored already"), "{log}");
    world.runs(&["--dtype", "bf16", "--kernels", "portable", "--results", "half"]);
    let only = |results: &str| format!("{results}/{}", names(&world.path(results))[0]);
    let [cpu, other, half] =
        ["own", "other", "half"].map(|results| common::json(&world.path(&only(results)).join("numbers.json")));
    assert_eq!(cpu["engines"]["tiny"], json!({"name": "cpu", "dtype": "f32", "device": "cpu"}));
    assert_eq!(other["engines"]["tiny"], json!({"name": "candle", "dtype": "f32", "device": "cpu"}));
    assert_eq!(half["engines"]["tiny"], json!({"name": "cpu", "dtype": "bf16", "device": "cpu"}));
    let [cpu, other, half] = [&cpu, &other, &half].map(|results: &Value| -> Vec<f64> {
        let numbers = common::stored_numbers(results);
        numbers.iter().filter(|n| n["metric"] == "ppl_test").map(|n| n["value"].as_f64().unwrap()).collect()
    });
    assert_eq!(cpu.len(), 9);
    for ((ours, other), half) in cpu.iter().zip(&other).zip(&half) {
        assert!(((ours - other) / ours).abs() < 1e-4, "{ours} {other}");
        assert!(half != ours && ((ours - half) / ours).abs() < 0.05, "{ours} {half}");
    }
    let output = |arguments: &[&str]| {
        let output = world.ghostlab(arguments);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {text}");
        text
    };
    let compared = output(&["compare", "own/grid", &only("half")]);
    for words in ["backbones.tiny", "cpu f32 on cpu", "cpu bf16 on cpu", "beyond the tolerance", "settings: the same"] {
        assert!(compared.contains(words), "`{words}` is not in {compared}");
    }
    let plan = output(&["plan", "grid.yaml", "--engine", "candle", "--dtype", "f16"]);
    assert!(plan.contains("0 complete, 9 to run") && plan.contains("engine: candle f16 on cpu"), "{plan}");
    let bf16 = |kernels| output(&["plan", "grid.yaml", "--dtype", "bf16", "--kernels", kernels]);
    assert!(bf16("portable").contains("9 complete, 0 to run"));
    // Another kernel family is another device class. It can be planned for on any machine.
    let plan = bf16("amx");
    assert!(plan.contains("0 complete, 9 to run") && plan.contains("engine: cpu bf16 on cpu-amx"), "{plan}");
    // The other engine gives other numbers for the same dtype.
    assert!(output(&["plan", "grid.yaml", "--engine", "candle", "--dtype", "bf16"]).contains("0 complete, 9 to run"));
}

#[test]
fn kernels_that_cannot_run_here_are_refused_before_any_work() {
    let world = World::new();
    world.refuses(&["--kernels", "amx"], 2, &["bf16 only", "--dtype bf16"]);
    world.refuses(&["--kernels", "amx", "--engine", "candle", "--dtype", "bf16"], 2, &["leave --kernels out"]);
    let doctor = world.ghostlab(&["doctor"]);
    if String::from_utf8_lossy(&doctor.stdout).contains("kernels: amx in bf16") {
        world.runs(&["--kernels", "amx", "--dtype", "bf16"]);
    } else {
        let words = ["kernel family `amx`", "AMX-BF16", "--kernels portable"];
        world.refuses(&["--kernels", "amx", "--dtype", "bf16"], 3, &words);
        let worker = world.ghostlab(&["worker", "grid.yaml", "--kernels", "amx", "--dtype", "bf16"]);
        assert_eq!(worker.status.code(), Some(3));
        assert!(words.iter().all(|word| String::from_utf8_lossy(&worker.stderr).contains(word)));
    }
}

#[test]
fn an_engine_that_cannot_run_here_is_refused_with_what_can() {
    let world = World::new();
    world.refuses(&["--engine", "cpu", "--dtype", "f16"], 2, &["f16 on cpu", "--engine candle"]);
    if cfg!(not(feature = "cuda")) {
        world.refuses(&["--device", "cuda:1"], 3, &["device cuda:1", "tools/cuda_build.sh"]);
    }
    for (option, value) in [("--device", "gpu"), ("--dtype", "f8"), ("--engine", "torch"), ("--kernels", "mkl")] {
        let output = world.run(&[option, value]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && text.contains(option) && text.contains("none of"), "{text}");
    }
}

/// Installs the program in its own folder.
#[cfg(unix)]
fn installed() -> (tempfile::TempDir, PathBuf) {
    let prefix = tempfile::tempdir().unwrap();
    let program = prefix.path().join("bin/ghostlab");
    std::fs::create_dir(prefix.path().join("bin")).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_ghostlab"), &program).unwrap();
    (prefix, program)
}

/// Runs an installed program in an empty folder, with user data in `home`.
#[cfg(unix)]
fn works_in_an_empty_folder(program: &Path, home: &Path) {
    let empty = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(program);
        command.current_dir(empty.path()).env_remove("GHOSTLAB_STORE").env_remove("GHOSTLAB_EXPERIMENTS");
        let output = command.env("XDG_DATA_HOME", home).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(run(&["plan", "figure3"]).contains("grid figure3"));
    assert!(run(&["reproduce"]).contains("table2"));
    // Use a bundled model by name. Results go to the current folder, the store to the user's data folder.
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tiny/corpora/wiki-test.jsonl.gz");
    let arguments = ["score", "tiny-llama", "--windows", "1", "--length", "64", "--perplexity", text.to_str().unwrap()];
    assert!(run(&arguments).contains("1 windows"));
    assert!(home.join("ghostlab/store/store.json").is_file() && !empty.path().join("data").exists());
    run(&["init", Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tiny/llama").to_str().unwrap()]);
    assert!(std::fs::read_to_string(empty.path().join("grid.yaml")).unwrap().contains("arc_easy"));
}

#[cfg(unix)]
#[test]
fn installed_program_works_in_an_empty_folder() {
    let ((prefix, program), home) = (installed(), tempfile::tempdir().unwrap());
    let share = prefix.path().join("share/ghostlab");
    std::fs::create_dir_all(share.join("data")).unwrap();
    for folder in ["experiments", "data/tiny"] {
        std::os::unix::fs::symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), share.join(folder)).unwrap();
    }
    works_in_an_empty_folder(&program, home.path());
    assert!(!share.join("data/store").exists() && !share.join("results").exists());
    let names = names(&home.path().join("ghostlab"));
    assert!(names.iter().all(|name| !name.starts_with("share")), "files next to it stay: {names:?}");
}

#[cfg(unix)]
#[test]
fn bare_program_unpacks_experiments_to_the_users_data() {
    let ((_prefix, program), home) = (installed(), tempfile::tempdir().unwrap());
    works_in_an_empty_folder(&program, home.path());
    let names = names(&home.path().join("ghostlab"));
    let [share] = names.iter().filter(|name| name.starts_with("share-")).collect::<Vec<_>>()[..] else {
        panic!("{names:?}");
    };
    let share = home.path().join("ghostlab").join(share);
    for name in ["experiments/table2.yaml", "data/tiny/qwen3/model.safetensors", "data/tiny/tasks/copa.jsonl.gz"] {
        let original = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
        assert!(std::fs::read(share.join(name)).unwrap() == original, "{name}");
    }
    assert!(!share.join("data/store").exists() && !share.join("results").exists());
}

#[test]
fn one_setting_distinguishes_cells_wherever_shown() {
    let world = World::new();
    let output = |arguments: &[&str]| {
        let output = world.ghostlab(arguments);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let seeds =
        ["--set", "calibration=[{corpus: train, sequences: 8, length: 64, seed: [0, 1]}]", "--set", "name=seeds"];
    let asked = [&["run", "grid.yaml", "--set", "depth=2", "--layout", "wide"], &seeds[..]].concat();
    let wide = output(&asked);
    assert!(wide.contains("seed 0") && wide.contains("seed 1"), "{wide}");
    let same = output(&["compare", "results/seeds", "results/seeds"]);
    assert!(same.contains("that both have are the same") && !same.contains("only in"), "{same}");

    let rows = table(&world.path("results/seeds/results.csv"));
    let column = |name: &str| rows[0].iter().position(|head| head == name).unwrap_or_else(|| panic!("{:?}", rows[0]));
    let ghosted = rows[1..].iter().filter(|row| row[column("recovery")] == "ghosted");
    let found: Vec<_> =
        ghosted.map(|row| ["corpus", "sequences", "length", "seed"].map(|name| row[column(name)].clone())).collect();
    assert_eq!(found, [["train", "8", "64", "0"], ["train", "8", "64", "1"]]);

    // One seed each: the numbers are paired, and the seed is reported.
    for (name, seed) in [("one", "0"), ("two", "1")] {
        let name = format!("name={name}");
        let seed = format!("calibration.seed={seed}");
        output(&["run", "grid.yaml", "--set", "depth=2", "--set", &name, "--set", &seed]);
    }
    let apart = output(&["compare", "results/one", "results/two"]);
    assert!(apart.contains("paired anyway") && apart.contains("calibration.seed"), "{apart}");
    assert!(!apart.contains("only in") && !apart.contains("paired with none"), "{apart}");
    // One of the two seeds is paired, the other is left over.
    let half = output(&["compare", "results/seeds", "results/two"]);
    assert!(half.contains("that both have are the same") && half.contains("only in A: "), "{half}");
    assert!(!half.contains("only in B") && !half.contains("values that differ"), "{half}");
}

#[test]
fn options_have_columns_of_their_own_in_the_files() {
    let world = World::new();
    world.runs(&[
        "--set",
        "depth=2",
        "--set",
        "recovery=[{name: ghosted, solver: [normal, svd]}]",
        "--set",
        "name=grid",
    ]);
    let rows = table(&world.path("results/grid/results.csv"));
    let column = |name: &str| rows[0].iter().position(|head| head == name).unwrap_or_else(|| panic!("{:?}", rows[0]));
    let found: Vec<_> = rows[2..]
        .iter()
        .map(|row| (row[column("recovery.name")].clone(), row[column("recovery.solver")].clone()))
        .collect();
    let expected = ["normal", "svd"].map(|solver| ("ghosted".to_owned(), solver.to_owned()));
    assert_eq!(found, expected);
    assert_eq!(rows[1][column("recovery.solver")], "", "the dense backbone has none");
}
