//! End-to-end tests for `ghostlab reproduce`, `report` and `compare` on a tiny backbone written by the test.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

mod audit;
mod claims;
mod compared;
mod folders;
mod listing;
mod recorded;
mod report_page;
mod sublayers;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::common;
use crate::common::output::combined_output;
use crate::common::world::{World, read_rows, run_ok};

const TABLE: &str = "artifact:\n  title: A small table\n  table:\n    lead: [backbone, depth, method]\n    dense: true\n    rows:\n      \
    - {criterion: llm-streamline, recovery: [none, ghosted]}\n    metrics: [ppl_test]\n";

const FIGURE: &str =
    "artifact:\n  title: A small figure\n  figure: {kind: bars, metrics: [boundary_mae], axis: Error}\n";

const GRID: &str = "criterion: llm-streamline\nrecovery: [none, ghosted]\n\
    calibration: {corpus: train-train, sequences: 8, length: 64}\nprofile: tiny\nprofiles:\n  tiny: {backbone: NAME, depth: 1}\n";

const SHARED: &str = "corpora:\n  train-train: {path: ../../train.txt, rule: wikitext2}\n  \
    test: {path: ../../test.jsonl, rule: ptb, limit: 5}\nevaluate:\n  perplexity: [{corpus: test, length: 64}]\n";

/// Creates experiments on a backbone with the given name: the table `mini`, the figure `figure1`, and `methods`, which
/// lists the methods.
pub(crate) fn experiments(backbone: &str) -> World {
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

#[test]
fn table_is_reproduced_identically_in_every_format() {
    let world = experiments("mine");
    let output = run_ok(&world, &["reproduce", "mini"]);
    assert!(output.contains("A small table") && output.contains("Ghost Layer (Ours)"), "{output}");
    let folder = world.path("results/mini/tiny");
    let rows = read_rows(&folder.join("mini.csv"));
    assert_eq!(rows.len(), 1 + 3, "expected a header and three numbers: {rows:?}");
    let forms = ["mini.csv", "mini.parquet", "mini.md", "mini.tex", "numbers.json"];
    let first: Vec<Vec<u8>> = forms.iter().map(|name| fs::read(folder.join(name)).unwrap()).collect();
    let again = run_ok(&world, &["reproduce", "mini"]);
    assert!(again.contains("3 of 3 cells cached"), "{again}");
    for (name, before) in forms.iter().zip(first) {
        assert_eq!(fs::read(folder.join(name)).unwrap(), before, "the second run changed {name}");
    }
}

/// Returns the files under a folder, each with its modification time.
fn modification_times(folder: &Path) -> BTreeMap<PathBuf, SystemTime> {
    let mut found = BTreeMap::new();
    for path in fs::read_dir(folder).unwrap().map(|item| item.unwrap().path()) {
        match path.is_dir() {
            true => found.extend(modification_times(&path)),
            false => {
                found.insert(path.clone(), path.metadata().unwrap().modified().unwrap());
            }
        }
    }
    found
}

#[test]
fn finished_artifact_is_rebuilt_only_after_a_change() {
    let world = experiments("mine");
    let mini = ["reproduce", "mini"];
    let up_to_date = "up to date (";
    let (first, log) = stdout_and_stderr(&world, &mini);
    assert!(!log.contains(up_to_date), "{log}");
    let before = modification_times(&world.path("results"));
    let tables = fs::read(world.path("results/mini/tiny/mini.csv")).unwrap();
    let (again, log) = stdout_and_stderr(&world, &mini);
    assert!(log.contains(up_to_date) && again.contains("A small table"), "{log}");
    assert_eq!(again, first);
    assert!(modification_times(&world.path("results")) == before, "a file was written");
    // Missing files are written again.
    let rebuild = || {
        let output = run_ok(&world, &mini);
        assert!(!output.contains(up_to_date), "{output}");
        assert_eq!(fs::read(world.path("results/mini/tiny/mini.csv")).unwrap(), tables);
        output
    };
    fs::remove_file(world.path("results/mini/tiny/mini.md")).unwrap();
    rebuild();
    assert!(world.path("results/mini/tiny/mini.md").is_file());
    assert!(run_ok(&world, &mini).contains(up_to_date));
    // A file that the user changed is not replaced silently.
    let csv = world.path("results/mini/tiny/mini.csv");
    let all_tables = tables.clone();
    fs::write(&csv, "mine").unwrap();
    let rejected = world.ghostlab(&mini);
    assert_eq!(rejected.status.code(), Some(2), "{}", combined_output(&rejected));
    assert!(combined_output(&rejected).contains("mini.csv"), "{}", combined_output(&rejected));
    fs::write(&csv, all_tables).unwrap();
    assert!(run_ok(&world, &mini).contains(up_to_date));
    // Damage to a stored object is detected even if the length of its file is unchanged.
    let packs = world.path("data/store").read_dir().unwrap().map(|item| item.unwrap().path().join("packs"));
    let pack = packs.filter_map(|folder| folder.read_dir().ok()).flatten().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&pack).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&pack, bytes).unwrap();
    rebuild();
    // Results are out of date once the description of the table changes.
    assert!(run_ok(&world, &mini).contains(up_to_date));
    world.write(
        "experiments/mini.yaml",
        fs::read_to_string(world.path("experiments/mini.yaml")).unwrap().replace("small table", "small  table"),
    );
    assert!(!run_ok(&world, &mini).contains(up_to_date));
}

fn stdout_and_stderr(world: &World, arguments: &[&str]) -> (String, String) {
    let output = world.ghostlab(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", combined_output(&output));
    (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn reproduced_latex_tables_compile() {
    let pdflatex = std::process::Command::new("pdflatex").arg("--version").output();
    if pdflatex.is_err() {
        #[allow(clippy::disallowed_macros, reason = "tests print why they are skipped")]
        {
            eprintln!("skipped: pdflatex is not installed");
        }
        return;
    }
    let world = experiments("mine");
    run_ok(&world, &["reproduce", "mini"]);
    let tex = "\\documentclass{article}\\usepackage{adjustbox,booktabs,graphicx,multirow,url}\\usepackage[table]{xcolor}\n\\begin{document}\n\\input{results/mini/tiny/mini.tex}\n\\end{document}\n";
    world.write("document.tex", tex);
    let output = std::process::Command::new("pdflatex")
        .args(["-interaction=nonstopmode", "-halt-on-error", "document.tex"])
        .current_dir(world.folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", combined_output(&output));
}

#[test]
fn figure_is_drawn_without_scoring_and_is_valid_xml() {
    let world = experiments("mine");
    run_ok(&world, &["reproduce", "figure1"]);
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
fn figure_with_several_cells_at_one_position_is_rejected() {
    let world = experiments("mine");
    for (kind, metrics) in [("bars", "metrics: [boundary_mae], "), ("channels", "")] {
        let artifact = format!("artifact:\n  title: A figure\n  figure: {{kind: {kind}, {metrics}axis: Error}}\n");
        world.write("experiments/figure1.yaml", format!("{artifact}{}", GRID.replace("NAME", "mine")));
        run_ok(&world, &["reproduce", "figure1"]);
        let two = ["--set", "calibration=[{corpus: train-train, sequences: 8, length: 64, seed: [0, 1]}]"];
        let output = world.ghostlab(&[&["reproduce", "figure1"], &two[..]].concat());
        let log = combined_output(&output);
        assert_eq!(output.status.code(), Some(2), "{kind}: {log}");
        assert!(log.contains("have the same position and label") && log.contains("seed-1"), "{kind}: {log}");
    }
}

fn list_artifacts(world: &World) -> String {
    run_ok(world, &["reproduce"])
}

fn read_column(world: &World, name: &str) -> Vec<String> {
    let rows = read_rows(&world.path("results/table3/tiny/table3.csv"));
    let at = rows[0].iter().position(|head| head == name).unwrap();
    rows[1..].iter().map(|row| row[at].clone()).collect::<Vec<_>>()
}

fn text_between<'a>(page: &'a str, start: &str, end: &str) -> &'a str {
    page.split_once(start).and_then(|(_, rest)| rest.split_once(end)).unwrap_or_else(|| panic!("no {start}")).0
}

/// Reads the files under a folder that are part of a record, keyed by path.
fn read_record_files(world: &World, folder: &str) -> std::collections::BTreeMap<String, Vec<u8>> {
    let mut found = std::collections::BTreeMap::new();
    let Ok(listing) = fs::read_dir(world.path(folder)) else { return found };
    for entry in listing.map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let path = format!("{folder}/{name}");
        if entry.file_type().unwrap().is_dir() {
            found.extend(read_record_files(world, &path));
        } else if !ghostlab::results::NOT_RECORDED.contains(&name.as_str()) {
            found.insert(path.clone(), fs::read(world.path(&path)).unwrap());
        }
    }
    found
}
