//! `ghostlab reproduce`, `report` and `compare` as a user runs them, on a tiny backbone that the test writes.
#![allow(clippy::unwrap_used, reason = "a test stops at what it lacks")]

mod common;

use std::fs;
use std::process::Output;

use common::world::{World, table};

const TABLE: &str = "artifact:\n  title: A small table\n  table:\n    lead: [backbone, depth, method]\n    dense: true\n    rows:\n      \
    - {criterion: llm-streamline, recovery: [none, ghosted]}\n    metrics: [ppl_test]\n";
const FIGURE: &str =
    "artifact:\n  title: A small figure\n  figure: {kind: bars, metrics: [boundary_mae], axis: Error}\n";
const GRID: &str = "criterion: llm-streamline\nrecovery: [none, ghosted]\n\
    calibration: {corpus: train-train, sequences: 8, length: 64}\nprofile: tiny\nprofiles:\n  tiny: {backbone: NAME, depth: 1}\n";
const SHARED: &str = "corpora:\n  train-train: {path: ../../train.txt, rule: wikitext2}\n  \
    test: {path: ../../test.jsonl, rule: ptb, limit: 5}\nevaluate:\n  perplexity: [{corpus: test, length: 64}]\n";

/// A folder of artifacts: `mini`, a table, and `bars`, a figure, on a backbone of this name.
fn experiments(backbone: &str) -> World {
    let world = World::new();
    for folder in ["experiments/backbones", "experiments/profiles"] {
        fs::create_dir_all(world.path(folder)).unwrap();
    }
    world.write(&format!("experiments/backbones/{backbone}.yaml"), "path: ../../backbone\nsource: a test\n");
    world.write("experiments/profiles/tiny.yaml", SHARED);
    let grid = GRID.replace("NAME", backbone);
    world.write("experiments/mini.yaml", format!("{TABLE}{grid}"));
    world.write("experiments/figure1.yaml", format!("{FIGURE}{grid}"));
    world.write("experiments/methods.yaml", "artifact: {title: Methods, list: methods}\n");
    world
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn made(world: &World, arguments: &[&str]) -> String {
    let output = world.ghostlab(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    text(&output)
}

#[test]
fn a_table_is_made_in_every_form_and_a_second_time_the_same() {
    let world = experiments("mine");
    let said = made(&world, &["reproduce", "mini"]);
    assert!(said.contains("A small table") && said.contains("Ghost Layer (Ours)"), "{said}");
    let folder = world.path("results/mini/tiny");
    let rows = table(&folder.join("mini.csv"));
    assert_eq!(rows.len(), 1 + 3, "a head and three numbers: {rows:?}");
    let forms = ["mini.csv", "mini.parquet", "mini.md", "mini.tex", "numbers.json"];
    let first: Vec<Vec<u8>> = forms.iter().map(|name| fs::read(folder.join(name)).unwrap()).collect();
    let again = made(&world, &["reproduce", "mini"]);
    assert!(again.contains("3 of 3 cells are stored already"), "{again}");
    for (name, before) in forms.iter().zip(first) {
        assert_eq!(fs::read(folder.join(name)).unwrap(), before, "{name} of the second run");
    }
}

#[test]
fn the_latex_compiles() {
    let pdflatex = std::process::Command::new("pdflatex").arg("--version").output();
    if pdflatex.is_err() {
        #[allow(clippy::disallowed_macros, reason = "a test that is skipped says so")]
        {
            eprintln!("skipped: pdflatex is not installed");
        }
        return;
    }
    let world = experiments("mine");
    made(&world, &["reproduce", "mini"]);
    let tex = "\\documentclass{article}\\usepackage{booktabs,graphicx}\\usepackage[table]{xcolor}\n\\begin{document}\n\\input{results/mini/tiny/mini.tex}\n\\end{document}\n";
    world.write("document.tex", tex);
    let output = std::process::Command::new("pdflatex")
        .args(["-interaction=nonstopmode", "-halt-on-error", "document.tex"])
        .current_dir(world.folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn a_figure_is_drawn_without_scoring_and_is_valid_xml() {
    let world = experiments("mine");
    made(&world, &["reproduce", "figure1"]);
    let folder = world.path("results/figure1/tiny");
    let svg = fs::read_to_string(folder.join("figure1.svg")).unwrap();
    let tree = roxmltree::Document::parse(&svg).unwrap();
    assert_eq!(tree.root_element().tag_name().name(), "svg");
    assert!(svg.contains("Ghost Layer (Ours)"));
    assert!(fs::read(folder.join("figure1.png")).unwrap().starts_with(b"\x89PNG"));
    let numbers = fs::read_to_string(folder.join("numbers.json")).unwrap();
    assert!(numbers.contains("boundary_mae") && !numbers.contains("ppl_"), "{numbers}");
}

#[test]
fn without_arguments_it_lists_what_there_is_and_how_far_it_is() {
    let world = experiments("mine");
    let before = made(&world, &["reproduce"]);
    assert!(before.contains("A small table") && before.contains("0 of 3"), "{before}");
    made(&world, &["reproduce", "mini"]);
    let after = made(&world, &["reproduce"]);
    let line = after.lines().find(|line| line.starts_with("mini")).unwrap();
    assert!(line.contains("3 of 3") && line.contains("nothing"), "{after}");
}

#[test]
fn an_unknown_artifact_and_a_misspelt_description_are_named() {
    let world = experiments("mine");
    let output = world.ghostlab(&["reproduce", "mimi"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("did you mean `mini`?"), "{}", text(&output));
    let broken = TABLE.replace("metrics:", "metric:");
    world.write("experiments/mini.yaml", format!("{broken}{}", GRID.replace("NAME", "mine")));
    let output = world.ghostlab(&["reproduce", "mini"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("mini.yaml:8") && text(&output).contains("`metric`"), "{}", text(&output));
}

#[test]
fn a_dense_backbone_that_misses_the_papers_numbers_stops_its_pruned_cells() {
    let world = experiments("llama-3-8b");
    // The name of an artifact and a metric of the paper: the random backbone cannot have LLaMA's perplexity.
    let shared = SHARED.replace("  test:", "  c4:").replace("corpus: test", "corpus: c4");
    world.write("experiments/profiles/tiny.yaml", shared);
    let own = fs::read_to_string(world.path("experiments/mini.yaml")).unwrap().replace("ppl_test", "ppl_c4");
    world.write("experiments/table3.yaml", own);
    let output = world.ghostlab(&["reproduce", "table3"]);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    let said = text(&output);
    assert!(said.contains("the paper has 6.71") && said.contains("--no-gate"), "{said}");
    let csv = world.path("results/table3/tiny/table3.csv");
    let rows = table(&csv);
    assert_eq!(rows.len(), 1 + 3, "what was not run stands there too");
    let stopped = |row: &&Vec<String>| row.iter().any(|text| text.contains("failed: stopped by the gate"));
    assert_eq!(rows.iter().filter(stopped).count(), 2, "{rows:?}");
    made(&world, &["reproduce", "table3", "--no-gate"]);
    let rows = table(&csv);
    assert_eq!(rows.len(), 1 + 3);
    assert!(rows.iter().any(|row| row.iter().any(|text| text == "differs")), "{rows:?}");
}

#[test]
fn all_makes_lists_tables_figures_and_their_page() {
    let world = experiments("mine");
    made(&world, &["reproduce", "all"]);
    let page = fs::read_to_string(world.path("reports/index.html")).unwrap();
    for shown in ["A small table", "A small figure", "data:image/svg+xml", "explain"] {
        assert!(page.contains(shown), "{shown} is not on the page");
    }
    assert!(fs::read_to_string(world.path("results/methods/methods.md")).unwrap().contains("LLM-Streamline"));
}

#[test]
fn two_runs_are_compared_by_setting_and_by_value() {
    let world = experiments("mine");
    made(&world, &["reproduce", "mini", "--results", "one"]);
    let shared = SHARED.replace("limit: 5", "limit: 4");
    world.write("experiments/profiles/tiny.yaml", shared);
    made(&world, &["reproduce", "mini", "--results", "two"]);
    let said = made(&world, &["compare", "one/mini/tiny", "two/mini/tiny"]);
    assert!(said.contains("corpora.test.limit"), "{said}");
    assert!(said.contains("values that differ: 3 of the"), "{said}");
    let same = made(&world, &["compare", "one/mini/tiny", "one/mini/tiny"]);
    assert!(same.contains("settings: the same") && same.contains("are the same"), "{same}");
    let output = world.ghostlab(&["compare", "one/mini/tiny", "nowhere"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
}

#[test]
fn the_audit_finds_what_the_paper_says_twice() {
    let world = World::new();
    let said = made(&world, &["audit"]);
    for found in ["tableA5", "llama-2-7b", "37.87"] {
        assert!(said.contains(found), "{found}");
    }
    assert!(made(&world, &["audit", "--format", "csv"]).lines().count() > 10);
}
