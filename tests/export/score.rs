//! Tests for `score`, which evaluates a single model.

use super::*;

#[test]
fn score_reuses_the_dense_cell_of_a_grid() {
    let world = World::large();
    world.run_ok(&["--set", "recovery=none", "--set", "criterion=shortgpt", "--set", "depth=2", "--set", "name=grid"]);
    let store = world.path("data/store");
    let before = list_score_files(&store);
    let tasks = ["--tasks", "copa.jsonl"];
    let texts = ["--perplexity", "test.jsonl@64", "--windows", "5", "--rule", "ptb"];
    let file = run_score(&world, &[&["backbone"][..], &tasks, &texts].concat());
    assert_eq!(list_score_files(&store), before, "scores of the grid are not reused");
    for (ours, column) in [
        (score_of(&file, "test@64", "perplexity,none"), "ppl test@64"),
        (100.0 * score_of(&file, "copa", "acc,none"), "copa"),
    ] {
        let grid = read_value(&world, "dense", column);
        assert!((ours / grid - 1.0).abs() < 1e-12, "{ours} and {grid}");
    }
    assert!(score_of(&file, "test@64", "perplexity_stderr,none") > 0.0);
    assert!(score_of(&file, "test@64", "bits_per_byte,none") > 0.0);
    // A different document limit requires new scores.
    let fewer = run_score(&world, &["backbone", "--tasks", "copa.jsonl", "--documents", "10"]);
    assert_eq!(fewer["n-samples"]["copa"]["effective"], 10);
    assert_ne!(list_score_files(&store), before);
}

#[test]
fn score_prints_a_table_with_standard_errors() {
    let world = World::large();
    let arguments = ["score", "backbone", "--tasks", "copa.jsonl", "--perplexity", "test.jsonl@64", "--rule", "ptb"];
    let output = world.ghostlab(&[&arguments[..], &["--output", "scores.json"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    for part in ["backbone (", "scored on", "±", "bits per byte", "test@64", "perplexity", "copa", "40 documents"] {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
    assert_eq!(json(&world.path("scores.json"))["config"]["model"], "ghostlab");
}

#[test]
fn score_uses_corpora_and_tasks_of_the_backbone_profile() {
    let world = World::large();
    for folder in ["experiments/profiles", "experiments/backbones"] {
        fs::create_dir_all(world.path(folder)).unwrap();
    }
    world.write(
        "experiments/profiles/mine.yaml",
        "corpora:\n  c4: {path: ../../test.jsonl, rule: ptb, limit: 3}\ntasks:\n  copa: {path: ../../copa.jsonl}\nevaluate: {tasks: [copa]}\n",
    );
    let (code, output) = score_table(&world, &["backbone"]);
    assert!(
        code == Some(3) && output.contains("super_glue") && output.contains("with --fetch to download it"),
        "{output}"
    );
    let (code, named) = score_table(&world, &["backbone", "--profile", "mine"]);
    assert!(code == Some(0) && named.contains("3 windows") && named.contains("40 documents"), "{named}");
    world.write("experiments/backbones/little.yaml", "path: ../../backbone\nprofile: mine\n");
    let (code, by_entry) = score_table(&world, &["backbone"]);
    assert!(code == Some(0) && by_entry.contains("3 windows"), "{by_entry}");
    let (code, by_name) = score_table(&world, &["little"]);
    assert!(code == Some(0) && by_name.contains("3 windows"), "{by_name}");
}

#[test]
fn unscorable_input_is_rejected_before_anything_runs() {
    let world = World::new();
    fs::create_dir(world.path("empty")).unwrap();
    for (arguments, code, words) in [
        (&["score", "backbone"][..], 2, &["nothing to score", "--perplexity"][..]),
        (&["score", "../nowhere/at/all", "--tasks", "copa"], 3, &["model not found"]),
        (&["score", "backbone", "--tasks", "copy.jsonl"], 2, &["copy.jsonl"]),
        (&["score", "backbone", "--tasks", "tasks/copa.jsonl"], 2, &["file not found", "tasks/copa.jsonl"]),
        (&["score", "backbone", "--perplexity", "texts/test.txt@64"], 2, &["file not found", "texts/test.txt"]),
        (&["score", "org/name", "--perplexity", "test.jsonl"], 3, &["--fetch"]),
        (
            &["score", "empty", "--tasks", "copa"],
            3,
            &["no config.json", "an empty folder", "config.json, tokenizer.json"],
        ),
        (
            &["score", ".", "--perplexity", "test.jsonl@64"],
            3,
            &["no config.json", "backbone, ", "did you mean `./backbone`?"],
        ),
        (
            &["score", "backbone", "--tasks", "arc_eazy"],
            2,
            &["unknown task `arc_eazy`", "NAME=FILE", "did you mean `arc_easy`?"],
        ),
        (
            &["score", "backbone", "--tasks", "nosuch=test.jsonl"],
            2,
            &["unknown task `nosuch`", "NAME=FILE", "where:    --tasks", "arc_easy, arc_challenge"],
        ),
        (&["score", "backbone", "--perplexity", "test.jsonl@nan"], 2, &["invalid window length", "`nan`"]),
        (&["score", "backbone", "--perplexity", "test.jsonl@1"], 2, &["--perplexity test.jsonl@1", "2 to 1073741824"]),
        (
            &["score", "backbone", "--perplexity", "nosuch"],
            2,
            &["unknown text `nosuch`", "FILE@TOKENS", "--perplexity"],
        ),
        (&["score", "backbone", "--tasks", "copa", "--profile", "none"], 3, &["unknown profile", "profiles/none.yaml"]),
    ] {
        let output = world.command(arguments).env("HF_HUB_CACHE", world.path("hub")).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        for word in words {
            assert!(error.contains(word), "{arguments:?}: `{word}` is not in {error}");
        }
    }
}

/// Lists the files with scores in a store.
fn list_score_files(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path.display().to_string().contains("scores-v") {
                found.insert(path.display().to_string());
            }
        }
    }
    found
}

fn score_table(world: &World, more: &[&str]) -> (Option<i32>, String) {
    let output = world.ghostlab(&[&["score"], more, &["--perplexity", "c4@64", "--tasks", "copa"]].concat());
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}
