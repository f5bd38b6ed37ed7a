//! Tests for verdicts, claims, and the gate that compares dense backbones with the paper's.

use super::*;

/// Creates experiments on a backbone that is named after one of the paper's models. They are scored on windows of
/// `length` tokens (2048 in the paper). The weights are random, so they do not give the paper's numbers.
fn world_with_paper_settings(length: usize) -> World {
    let world = experiments("llama-3-8b");
    world.write(
        "experiments/profiles/tiny.yaml",
        format!(
            "corpora:\n  train-train: {{path: ../../train.txt, rule: wikitext2}}\n  \
             wikitext2: {{path: ../../train.txt, rule: wikitext2}}\n\
             evaluate:\n  perplexity: [{{corpus: wikitext2, length: {length}}}]\n"
        ),
    );
    let artifact =
        fs::read_to_string(world.path("experiments/mini.yaml")).unwrap().replace("ppl_test", "ppl_wikitext2");
    // Use the name of one of the paper's tables.
    world.write("experiments/table3.yaml", artifact);
    world
}

#[test]
fn gate_skips_cells_if_dense_perplexity_differs_from_paper() {
    let world = world_with_paper_settings(2048);
    let output = world.ghostlab(&["reproduce", "table3"]);
    assert_eq!(output.status.code(), Some(4), "{}", combined_output(&output));
    let log = combined_output(&output);
    assert!(log.contains("the paper has 5.47") && log.contains("--no-gate"), "{log}");
    let csv = world.path("results/table3/tiny/table3.csv");
    let rows = read_rows(&csv);
    assert_eq!(rows.len(), 1 + 3, "skipped cells must be listed");
    assert_eq!(
        rows.iter().filter(|row| row.iter().any(|text| text.contains("failed: stopped by the gate"))).count(),
        2,
        "{rows:?}"
    );
    // A figure shows no perplexity, but the gate still compares its backbone with the paper's.
    let output = world.ghostlab(&["reproduce", "figure1"]);
    assert_eq!(output.status.code(), Some(4), "{}", combined_output(&output));
    assert!(combined_output(&output).contains("the paper has 5.47"), "{}", combined_output(&output));
    run_ok(&world, &["reproduce", "figure1", "--no-gate"]);
}

#[test]
fn verdict_requires_the_protocol_of_the_paper() {
    let world = world_with_paper_settings(2048);
    run_ok(&world, &["reproduce", "table3", "--no-gate"]);
    assert_eq!(read_column(&world, "verdict")[0], "differs");
    let world = world_with_paper_settings(64);
    let output = run_ok(&world, &["reproduce", "table3"]);
    assert!(output.contains("other protocol: windows of 64 tokens (paper: 2048)"), "{output}");
    assert!(output.contains("cannot check whether it is the paper's model"), "{output}");
    assert!(read_column(&world, "verdict").iter().all(String::is_empty), "{:?}", read_column(&world, "verdict"));
    assert!(read_column(&world, "other_protocol")[0].contains("windows of 64 tokens"));
    assert!(!read_column(&world, "paper")[0].is_empty() && !read_column(&world, "difference")[0].is_empty());
}

#[test]
fn protocol_is_below_the_table_in_every_format() {
    let world = experiments("mine");
    let shared = SHARED.replace("train.txt, rule: wikitext2}", "train.txt, rule: wikitext2, generated: true}");
    world.write("experiments/profiles/tiny.yaml", shared);
    let output = run_ok(&world, &["reproduce", "mini"]);
    let folder = world.path("results/mini/tiny");
    let line = "profile tiny; perplexity on test: the first 5 of 10 windows of 64 tokens; \
        calibration: 8 sequences of 64 tokens of train-train (generated)";
    assert!(output.contains(&format!("Protocol: {line}.")), "{output}");
    for form in ["mini.md", "mini-notes.tex"] {
        assert!(fs::read_to_string(folder.join(form)).unwrap().contains(line), "{form}");
    }
    let rows = read_rows(&folder.join("mini.csv"));
    assert!(rows.iter().any(|row| row.iter().any(|text| text == line)), "{rows:?}");
    assert!(fs::read_to_string(folder.join("page.json")).unwrap().contains(line));
}

#[test]
fn evaluation_on_the_calibration_text_gives_a_warning() {
    let world = World::new();
    world.write("again.txt", fs::read(world.path("train.txt")).unwrap());
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write(
        "grid.yaml",
        grid.replace("test: {path: test.jsonl", "test: {path: again.txt").replace("depth: [1, 2]", "depth: 1"),
    );
    let run = world.run(&[]);
    let warning = "`train` and `test` are the same file, used for both calibration and evaluation";
    assert!(String::from_utf8_lossy(&run.stderr).contains(warning), "{}", combined_output(&run));
    assert!(!String::from_utf8_lossy(&run.stdout).contains(warning), "{}", combined_output(&run));
    let table = fs::read_to_string(world.path("results/grid/results.md")).unwrap();
    assert!(table.contains(&format!("Warning: {}", warning.replace('`', "\\`"))), "{table}");
}

#[test]
fn limit_of_all_documents_reuses_the_unlimited_cell() {
    let world = World::new();
    world.write("copa.jsonl", (0..12).map(|i| {
        format!(
            "{{\"premise\": \"w{i} w7.\", \"question\": \"cause\", \"choice1\": \"w1.\", \"choice2\": \"w3.\", \"label\": {}}}\n",
            i % 2
        )
    }).collect::<String>());
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    run_with_task(&world, &grid, "copa");
    let same = run_with_task(&world, &grid, "{name: copa, limit: 12}");
    assert!(same.contains("2 of 2 cells cached"), "{same}");
    assert!(same.contains("all 12 documents (the limit of 12 excludes none)"), "{same}");
    let fewer = run_with_task(&world, &grid, "{name: copa, limit: 11}");
    assert!(!fewer.contains("2 of 2 cells cached") && fewer.contains("11 of 12 documents"), "{fewer}");
}

#[test]
fn claim_joins_only_runs_with_equal_settings_and_inputs() {
    let world = experiments("llama-3-8b");
    for name in ["table2", "tableA7"] {
        world.write(&format!("experiments/{name}.yaml"), format!("{TABLE}{}", GRID.replace("NAME", "llama-3-8b")));
    }
    let output = run_ok(&world, &["reproduce", "table2", "-v"]);
    assert_eq!(
        verdict_text(&output),
        "tableA7 has no results: run `ghostlab reproduce tableA7 --profile tiny`: UNKNOWN"
    );
    // The verdict on the claim is unknown, because the table has no accuracies.
    assert!(output.contains("ours llama-3-8b 1: unknown: acc_average has no value for ghosted"), "{output}");
    let both = verdict_text(&run_ok(&world, &["reproduce", "tableA7"]));
    assert_eq!(both, "0 of 1, 1 unknown, all needed: UNKNOWN", "the artifacts must be comparable");
    let open = verdict_text(&run_ok(&world, &["reproduce", "tableA7", "--no-gate"]));
    assert_eq!(open, "tableA7 was computed with --no-gate, the other without: UNKNOWN");
    let text = fs::read_to_string(world.path("test.jsonl")).unwrap();
    world.write("test.jsonl", text.repeat(2));
    let other = verdict_text(&run_ok(&world, &["reproduce", "tableA7"]));
    assert_eq!(other, "table2 and tableA7 differ in measure.0.windows.text.bytes of llama-3-8b, ppl_test: UNKNOWN");
    let both = verdict_text(&run_ok(&world, &["reproduce", "table2"]));
    assert_eq!(both, "0 of 1, 1 unknown, all needed: UNKNOWN", "after a rerun the artifacts must be comparable");
    world.write("experiments/profiles/tiny.yaml", SHARED.replace("limit: 5", "limit: 4"));
    let other = verdict_text(&run_ok(&world, &["reproduce", "tableA7"]));
    assert_eq!(other, "table2 and tableA7 differ in measure.0.windows.limit of llama-3-8b, ppl_test: UNKNOWN");
}

fn verdict_text(output: &str) -> String {
    let line = output.lines().find(|line| line.starts_with("tableA7-corpus")).unwrap();
    line.split_once("ours (tiny) ").unwrap().1.to_owned()
}

fn run_with_task(world: &World, grid: &str, task: &str) -> String {
    let scored = "evaluate:\n  perplexity:\n    - {corpus: test, length: 64}\n";
    let grid = grid.replace(scored, &format!("tasks:\n  copa: {{path: copa.jsonl}}\nevaluate: {{tasks: [{task}]}}\n"));
    world.write("grid.yaml", grid);
    combined_output(&world.run(&["--set", "depth=1", "--set", "recovery=none", "--set", "name=limited"]))
}
