//! `ghostlab reproduce`, `report` and `compare` end to end, on a tiny backbone written by the test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::SystemTime;

use crate::common;
use crate::common::world::{World, table};

const TABLE: &str = "artifact:\n  title: A small table\n  table:\n    lead: [backbone, depth, method]\n    dense: true\n    rows:\n      \
    - {criterion: llm-streamline, recovery: [none, ghosted]}\n    metrics: [ppl_test]\n";
const FIGURE: &str =
    "artifact:\n  title: A small figure\n  figure: {kind: bars, metrics: [boundary_mae], axis: Error}\n";
const GRID: &str = "criterion: llm-streamline\nrecovery: [none, ghosted]\n\
    calibration: {corpus: train-train, sequences: 8, length: 64}\nprofile: tiny\nprofiles:\n  tiny: {backbone: NAME, depth: 1}\n";
const SHARED: &str = "corpora:\n  train-train: {path: ../../train.txt, rule: wikitext2}\n  \
    test: {path: ../../test.jsonl, rule: ptb, limit: 5}\nevaluate:\n  perplexity: [{corpus: test, length: 64}]\n";

/// Creates a folder of artifacts on a backbone of this name: `mini`, a table, and `bars`, a figure.
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
    let output = made(&world, &["reproduce", "mini"]);
    assert!(output.contains("A small table") && output.contains("Ghost Layer (Ours)"), "{output}");
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

/// Returns the files below a folder with their modification times.
fn times(folder: &Path) -> BTreeMap<PathBuf, SystemTime> {
    let mut found = BTreeMap::new();
    for path in fs::read_dir(folder).unwrap().map(|item| item.unwrap().path()) {
        match path.is_dir() {
            true => found.extend(times(&path)),
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
    let nothing = "its files are unchanged: nothing to do";
    let printed = || {
        let output = world.ghostlab(&mini);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (first, log) = printed();
    assert!(!log.contains(nothing), "{log}");
    let before = times(&world.path("results"));
    let tables = fs::read(world.path("results/mini/tiny/mini.csv")).unwrap();
    let (again, log) = printed();
    assert!(log.contains(nothing) && again.contains("A small table"), "{log}");
    assert_eq!(again, first);
    assert!(times(&world.path("results")) == before, "nothing is written");
    // Missing files are created again.
    let anew = || {
        let output = made(&world, &mini);
        assert!(!output.contains(nothing), "{output}");
        assert_eq!(fs::read(world.path("results/mini/tiny/mini.csv")).unwrap(), tables);
        output
    };
    fs::remove_file(world.path("results/mini/tiny/mini.md")).unwrap();
    anew();
    assert!(world.path("results/mini/tiny/mini.md").is_file());
    assert!(made(&world, &mini).contains(nothing));
    // A file changed by a user is not replaced silently.
    let csv = world.path("results/mini/tiny/mini.csv");
    let all_tables = tables.clone();
    fs::write(&csv, "mine").unwrap();
    let refused = world.ghostlab(&mini);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("mini.csv"), "{}", text(&refused));
    fs::write(&csv, all_tables).unwrap();
    assert!(made(&world, &mini).contains(nothing));
    // Damage to a stored object is detected even if its length is unchanged.
    let packs = world.path("data/store").read_dir().unwrap().map(|item| item.unwrap().path().join("packs"));
    let pack = packs.filter_map(|folder| folder.read_dir().ok()).flatten().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&pack).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&pack, bytes).unwrap();
    anew();
    // A changed description invalidates the results.
    assert!(made(&world, &mini).contains(nothing));
    world.write(
        "experiments/mini.yaml",
        fs::read_to_string(world.path("experiments/mini.yaml")).unwrap().replace("small table", "small  table"),
    );
    assert!(!made(&world, &mini).contains(nothing));
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
    let tex = "\\documentclass{article}\\usepackage{adjustbox,booktabs,graphicx,multirow,url}\\usepackage[table]{xcolor}\n\\begin{document}\n\\input{results/mini/tiny/mini.tex}\n\\end{document}\n";
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
fn figure_never_labels_one_of_several_cells_as_all() {
    let world = experiments("mine");
    let figure = |kind: &str, metrics: &str| {
        let text = format!("artifact:\n  title: A figure\n  figure: {{kind: {kind}, {metrics}axis: Error}}\n");
        world.write("experiments/figure1.yaml", format!("{text}{}", GRID.replace("NAME", "mine")));
    };
    for (kind, metrics) in [("bars", "metrics: [boundary_mae], "), ("channels", "")] {
        figure(kind, metrics);
        made(&world, &["reproduce", "figure1"]);
        let two = ["--set", "calibration=[{corpus: train-train, sequences: 8, length: 64, seed: [0, 1]}]"];
        let output = world.ghostlab(&[&["reproduce", "figure1"], &two[..]].concat());
        let log = text(&output);
        assert_eq!(output.status.code(), Some(2), "{kind}: {log}");
        assert!(log.contains("cannot tell two cells of its grid apart") && log.contains("seed-1"), "{kind}: {log}");
    }
}

#[test]
fn without_arguments_it_lists_what_there_is_and_how_far_it_is() {
    let world = experiments("mine");
    let before = made(&world, &["reproduce"]);
    assert!(before.contains("A small table") && before.contains("0 of 3"), "{before}");
    assert_eq!(fs::read_dir(world.path("data/store")).unwrap().count(), 0, "to list is not to make anything");
    made(&world, &["reproduce", "mini"]);
    let after = made(&world, &["reproduce"]);
    let line = after.lines().find(|line| line.starts_with("mini")).unwrap();
    assert!(line.contains("3 of 3") && line.contains("nothing"), "{after}");
}

#[test]
fn listing_notices_changed_objects_inputs_and_settings() {
    let world = experiments("mine");
    let listed = || made(&world, &["reproduce"]);
    let standing = |prefix: &str| listed().lines().find(|line| line.starts_with(prefix)).unwrap().to_owned();
    made(&world, &["reproduce", "figure1"]);
    assert!(standing("mini").contains("0 of 3") && standing("figure1").contains("2 of 2"), "{}", listed());
    // The listing includes new objects in the store.
    made(&world, &["reproduce", "mini"]);
    assert!(standing("mini").contains("3 of 3"), "{}", listed());
    // Damaged objects of unchanged length,
    let packs = world.path("data/store").read_dir().unwrap().map(|item| item.unwrap().path().join("packs"));
    let pack = packs.filter_map(|folder| folder.read_dir().ok()).flatten().next().unwrap().unwrap().path();
    let packed = fs::read(&pack).unwrap();
    let mut bytes = packed.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&pack, bytes).unwrap();
    assert!(!standing("mini").contains("3 of 3"), "{}", listed());
    fs::write(&pack, packed).unwrap();
    assert!(standing("mini").contains("3 of 3"), "{}", listed());
    // changed inputs and changed settings invalidate the results.
    world.write("test.jsonl", format!("{}\n", serde_json::json!({"text": "w1 w2 w3 ".repeat(90)})));
    assert!(standing("mini").contains("0 of 3"), "{}", listed());
    let shared = fs::read_to_string(world.path("experiments/profiles/tiny.yaml")).unwrap();
    world.write("experiments/profiles/tiny.yaml", shared.replace("path: ../../test.jsonl", "path: ../../gone.jsonl"));
    assert!(standing("mini").contains("gone.jsonl"), "{}", listed());
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

/// Creates artifacts on a backbone with the name of one in the paper, scored by the paper's protocol. The random
/// weights give different numbers.
fn as_in_the_paper(length: usize) -> World {
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
    // Use the name of one of the paper's artifacts.
    world.write("experiments/table3.yaml", artifact);
    world
}

#[test]
fn dense_backbone_off_the_papers_numbers_stops_its_cells() {
    let world = as_in_the_paper(2048);
    let output = world.ghostlab(&["reproduce", "table3"]);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    let log = text(&output);
    assert!(log.contains("the paper has 5.47") && log.contains("--no-gate"), "{log}");
    let csv = world.path("results/table3/tiny/table3.csv");
    let rows = table(&csv);
    assert_eq!(rows.len(), 1 + 3, "cells that were not run are listed too");
    assert_eq!(
        rows.iter().filter(|row| row.iter().any(|text| text.contains("failed: stopped by the gate"))).count(),
        2,
        "{rows:?}"
    );
    // A figure shows no perplexity, but its backbone must still match the paper's.
    let output = world.ghostlab(&["reproduce", "figure1"]);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    assert!(text(&output).contains("the paper has 5.47"), "{}", text(&output));
    made(&world, &["reproduce", "figure1", "--no-gate"]);
}

#[test]
fn a_verdict_stands_only_where_the_protocol_is_the_papers() {
    let column = |world: &World, name: &str| {
        let rows = table(&world.path("results/table3/tiny/table3.csv"));
        let at = rows[0].iter().position(|head| head == name).unwrap();
        rows[1..].iter().map(|row| row[at].clone()).collect::<Vec<_>>()
    };
    let world = as_in_the_paper(2048);
    made(&world, &["reproduce", "table3", "--no-gate"]);
    assert_eq!(column(&world, "verdict")[0], "differs");
    let world = as_in_the_paper(64);
    let output = made(&world, &["reproduce", "table3"]);
    assert!(output.contains("other protocol: windows of 64 tokens, not 2048"), "{output}");
    assert!(output.contains("whether it is the paper's is not known"), "{output}");
    assert!(column(&world, "verdict").iter().all(String::is_empty), "{:?}", column(&world, "verdict"));
    assert!(column(&world, "other_protocol")[0].contains("windows of 64 tokens"));
    assert!(!column(&world, "paper")[0].is_empty() && !column(&world, "difference")[0].is_empty());
}

#[test]
fn how_numbers_were_made_stands_under_the_table_in_every_form() {
    let world = experiments("mine");
    let shared = SHARED.replace("train.txt, rule: wikitext2}", "train.txt, rule: wikitext2, generated: true}");
    world.write("experiments/profiles/tiny.yaml", shared);
    let output = made(&world, &["reproduce", "mini"]);
    let folder = world.path("results/mini/tiny");
    let line = "profile tiny; perplexity on test: the first 5 of 10 windows of 64 tokens; \
        calibration: 8 sequences of 64 tokens of train-train (generated)";
    assert!(output.contains(&format!("Protocol: {line}.")), "{output}");
    for form in ["mini.md", "mini-notes.tex"] {
        assert!(fs::read_to_string(folder.join(form)).unwrap().contains(line), "{form}");
    }
    let rows = table(&folder.join("mini.csv"));
    assert!(rows.iter().any(|row| row.iter().any(|text| text == line)), "{rows:?}");
    assert!(fs::read_to_string(folder.join("page.json")).unwrap().contains(line));
}

#[test]
fn a_text_that_is_calibrated_on_and_evaluated_on_is_warned_of() {
    let world = World::new();
    world.write("again.txt", fs::read(world.path("train.txt")).unwrap());
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write(
        "grid.yaml",
        grid.replace("test: {path: test.jsonl, rule: ptb, limit: 5}", "test: {path: again.txt, rule: ptb, limit: 5}"),
    );
    let run = world.run(&["--set", "depth=1"]);
    let warning = "`train` and `test` are the same file, calibrated on and evaluated on";
    assert!(String::from_utf8_lossy(&run.stderr).contains(warning), "{}", text(&run));
    assert!(String::from_utf8_lossy(&run.stdout).contains(warning), "{}", text(&run));
}

#[test]
fn limit_above_all_documents_is_the_unlimited_cell() {
    let world = World::new();
    world.write("copa.jsonl", (0..12).map(|i| {
        format!(
            "{{\"premise\": \"w{i} w7.\", \"question\": \"cause\", \"choice1\": \"w1.\", \"choice2\": \"w3.\", \"label\": {}}}\n",
            i % 2
        )
    }).collect::<String>());
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    let with = |task: &str| {
        let scored = "evaluate:\n  perplexity:\n    - {corpus: test, length: 64}\n";
        let grid =
            grid.replace(scored, &format!("tasks:\n  copa: {{path: copa.jsonl}}\nevaluate: {{tasks: [{task}]}}\n"));
        world.write("grid.yaml", grid);
        text(&world.run(&["--set", "depth=1", "--set", "recovery=none", "--set", "name=limited"]))
    };
    with("copa");
    let same = with("{name: copa, limit: 12}");
    assert!(same.contains("2 of 2 cells are stored already"), "{same}");
    assert!(same.contains("all 12 documents (a limit of 12 leaves none out)"), "{same}");
    let fewer = with("{name: copa, limit: 11}");
    assert!(!fewer.contains("2 of 2 cells are stored already") && fewer.contains("11 of 12 documents"), "{fewer}");
}

#[test]
fn a_claim_joins_only_runs_of_the_same_settings_and_inputs() {
    let world = experiments("llama-3-8b");
    for name in ["table2", "tableA7"] {
        world.write(&format!("experiments/{name}.yaml"), format!("{TABLE}{}", GRID.replace("NAME", "llama-3-8b")));
    }
    let judged = |output: &str| {
        let line = output.lines().find(|line| line.starts_with("tableA7-corpus")).unwrap();
        line.split_once("ours (tiny) ").unwrap().1.to_owned()
    };
    let output = made(&world, &["reproduce", "table2"]);
    assert_eq!(judged(&output), "tableA7 is not made: `ghostlab reproduce tableA7 --profile tiny` makes it: UNKNOWN");
    // A rival method without a cell, and missing measurements.
    assert!(output.contains("ours llama-3-8b 1: unknown: acc_average has no value for ghosted"), "{output}");
    let both = judged(&made(&world, &["reproduce", "tableA7"]));
    assert_eq!(both, "0 of 1, 1 unknown, all needed: UNKNOWN", "they may be read together");
    let open = judged(&made(&world, &["reproduce", "tableA7", "--no-gate"]));
    assert_eq!(open, "tableA7 was made with --no-gate, and the other not: UNKNOWN");
    let text = fs::read_to_string(world.path("test.jsonl")).unwrap();
    world.write("test.jsonl", text.repeat(2));
    let other = judged(&made(&world, &["reproduce", "tableA7"]));
    assert_eq!(other, "table2 and tableA7 differ in measure.0.windows.text.bytes of llama-3-8b, ppl_test: UNKNOWN");
    let both = judged(&made(&world, &["reproduce", "table2"]));
    assert_eq!(both, "0 of 1, 1 unknown, all needed: UNKNOWN", "made again, they are equal");
    world.write("experiments/profiles/tiny.yaml", SHARED.replace("limit: 5", "limit: 4"));
    let other = judged(&made(&world, &["reproduce", "tableA7"]));
    assert_eq!(other, "table2 and tableA7 differ in measure.0.windows.limit of llama-3-8b, ppl_test: UNKNOWN");
}

#[test]
fn all_makes_lists_tables_figures_and_their_page() {
    let world = experiments("mine");
    made(&world, &["reproduce", "all"]);
    let page = fs::read_to_string(world.path("reports/index.html")).unwrap();
    for shown in ["A small table", "A small figure", "data:image/svg+xml", "explain"] {
        assert!(page.contains(shown), "{shown} is not on the page");
    }
    // Lists are artifacts of the paper like measurements.
    let (_, list) = page.split_once("data-name=\"methods\"").unwrap();
    assert!(list.split_once("</table>").unwrap().0.contains("LLM-Streamline"), "the rows of the list");
    assert!(fs::read_to_string(world.path("results/methods/methods.md")).unwrap().contains("LLM-Streamline"));
}

#[test]
fn all_skips_artifacts_without_the_profile() {
    let world = experiments("mine");
    let table = fs::read_to_string(world.path("experiments/mini.yaml")).unwrap();
    world.write("experiments/mini.yaml", format!("{table}  other: {{backbone: mine, depth: 1}}\n"));
    world.write("experiments/profiles/other.yaml", SHARED);
    let output = made(&world, &["reproduce", "all", "--profile", "other"]);
    assert!(output.contains("skipped, because they have no profile `other`: figure1\n"), "{output}");
    assert!(!output.contains("not made") && !output.contains("unknown profile"), "{output}");
    assert!(world.path("results/mini/other/mini.md").exists() && world.path("results/methods/methods.md").exists());
    // Neither an explicitly named artifact nor an unknown profile is skipped silently.
    for arguments in [["reproduce", "figure1", "--profile", "other"], ["reproduce", "all", "--profile", "none"]] {
        let output = world.ghostlab(&arguments);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains("profile `"), "{}", text(&output));
    }
}

fn part<'a>(page: &'a str, start: &str, end: &str) -> &'a str {
    page.split_once(start).and_then(|(_, rest)| rest.split_once(end)).unwrap_or_else(|| panic!("no {start}")).0
}

#[test]
fn page_notes_who_made_each_number_when_and_from_what() {
    let world = experiments("mine");
    made(&world, &["reproduce", "mini"]);
    let page = fs::read_to_string(world.path("reports/index.html")).unwrap();
    // Text shared by notes is stored once, and linked.
    let note = |name: &str| {
        let article = part(&page, &format!("<h3>tiny/mini/{name}"), "</article>");
        let shared = article.split("<a href=\"#").skip(1).filter_map(|rest| rest.split('"').next());
        let shared = shared.map(|id| part(&page, &format!("<div class=\"shared\" id=\"{id}\">"), "</div>"));
        shared.fold(article.to_owned(), |all, part| all + part)
    };
    let dense = note("mine.dense");
    let note = note("mine.streamline");
    let value = |name: &str| part(&note, &format!("<dt>{name}</dt><dd>"), "</dd>");
    assert_eq!(value("program"), format!("ghostlab {}", env!("CARGO_PKG_VERSION")));
    assert!(value("command").contains("reproduce mini"), "{note}");
    assert!(value("machine").contains("threads"), "{note}");
    // Outside a checkout, no commit is recorded.
    let record: serde_json::Value =
        serde_json::from_slice(&fs::read(world.path("results/mini/tiny/run.json")).unwrap()).unwrap();
    if let Some(commit) = record["commit"].as_str() {
        assert!(value("commit").starts_with(commit), "{note}");
    }
    let year = &record["finished"].as_str().unwrap()[..5];
    assert!(note.contains(&format!("</code></td><td>{year}")), "when each part was finished: {note}");
    // The inputs of a repaired cell (weights, tokenizer and both texts) have the recorded hashes.
    for file in ["model.safetensors", "config.json", "tokenizer.json", "train.txt", "test.jsonl"] {
        let (path, hash) = record["inputs"].as_object().unwrap().iter().find(|(path, _)| path.ends_with(file)).unwrap();
        let row = format!("<code>{path}</code></th><td><code>{}</code>", hash.as_str().unwrap());
        assert!(note.contains(&row), "{file}: {note}");
    }
    assert!(dense.contains("test.jsonl") && !dense.contains("train.txt"), "only what a cell was made from: {dense}");
}

#[test]
fn every_profile_that_has_results_is_on_the_page() {
    let world = experiments("mine");
    let artifact = fs::read_to_string(world.path("experiments/mini.yaml")).unwrap();
    world.write("experiments/mini.yaml", format!("{artifact}  deeper: {{backbone: mine, depth: 2}}\n"));
    world.write("experiments/profiles/deeper.yaml", SHARED);
    made(&world, &["reproduce", "mini"]);
    made(&world, &["reproduce", "mini", "--profile", "deeper"]);
    let page = fs::read_to_string(world.path("reports/index.html")).unwrap();
    for profile in ["tiny", "deeper"] {
        assert!(page.contains(&format!("id=\"artifact-{profile}/mini\"")), "{profile}");
    }
    let claims = part(&page, "<section id=\"claims\"", "</section>");
    assert!(claims.contains("Table 2, deeper"), "claims are asked of every profile: {claims}");
}

#[test]
fn two_runs_are_compared_by_setting_and_by_value() {
    let world = experiments("mine");
    made(&world, &["reproduce", "mini", "--results", "one"]);
    let shared = SHARED.replace("limit: 5", "limit: 4");
    world.write("experiments/profiles/tiny.yaml", shared);
    made(&world, &["reproduce", "mini", "--results", "two"]);
    let log = made(&world, &["compare", "one/mini/tiny", "two/mini/tiny"]);
    assert!(log.contains("corpora.test.limit"), "{log}");
    assert!(log.contains("values that differ: 3 of the"), "{log}");
    let same = made(&world, &["compare", "one/mini/tiny", "one/mini/tiny"]);
    assert!(same.contains("settings: the same") && same.contains("are the same"), "{same}");
    let output = world.ghostlab(&["compare", "one/mini/tiny", "nowhere"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
}

#[test]
fn another_text_under_the_same_name_is_told_and_not_paired() {
    let world = experiments("mine");
    made(&world, &["reproduce", "mini", "--results", "one"]);
    let lines = fs::read_to_string(world.path("test.jsonl")).unwrap();
    world.write("test.jsonl", lines.replace("w1", "w2"));
    made(&world, &["reproduce", "mini", "--results", "two"]);
    // A folder's only profile need not be named.
    let log = made(&world, &["compare", "one/mini", "two/mini"]);
    assert!(log.contains("settings: the same") && log.contains("corpora.test"), "{log}");
    assert!(log.contains("not the same items") && !log.contains("p ="), "{log}");
    let output = world.ghostlab(&["compare", "one/mini", "twi/mini/tiny"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    let output = world.ghostlab(&["compare", "one/mini/tiny", "one/mini/tony"]);
    assert!(text(&output).contains("did you mean `one/mini/tiny`?"), "{}", text(&output));
}

#[test]
fn two_backbones_stand_side_by_side_where_they_are_mapped() {
    let world = experiments("mine");
    made(&world, &["reproduce", "mini"]);
    let other = fs::read_to_string(world.path("experiments/mini.yaml")).unwrap().replace("mine", "yours");
    world.write("experiments/mono.yaml", other);
    world.write("experiments/backbones/yours.yaml", "path: ../../backbone\n");
    made(&world, &["reproduce", "mono"]);
    // The same backbone under two names is recognized.
    for map in [&[][..], &["--map", "mine=yours"]] {
        let output = made(&world, &[&["compare", "results/mini", "results/mono"], map].concat());
        assert!(output.contains("that both have are the same") && !output.contains("only in"), "{output}");
    }
    fs::create_dir(world.path("other")).unwrap();
    for file in fs::read_dir(world.path("backbone")).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), world.path("other").join(file.file_name())).unwrap();
    }
    let mut config = common::json(&world.path("other/config.json"));
    config["rms_norm_eps"] = 1e-3.into();
    world.write("other/config.json", config.to_string());
    world.write("experiments/backbones/yours.yaml", "path: ../../other\n");
    made(&world, &["reproduce", "mono"]);
    let log = made(&world, &["compare", "results/mini", "results/mono"]);
    assert!(log.contains("no condition is in both") && log.contains("--map mine=yours"), "{log}");
    let log = made(&world, &["compare", "results/mini", "results/mono", "--map", "mine=yours"]);
    assert!(log.contains("values that differ") && !log.contains("only in"), "{log}");
    let output = world.ghostlab(&["compare", "results/mini", "results/mono", "--map", "mime=yours"]);
    assert!(text(&output).contains("did you mean `mine`?"), "{}", text(&output));
}

#[test]
fn settings_from_outside_make_an_artifact_of_their_own() {
    let world = experiments("mine");
    made(&world, &["reproduce", "mini"]);
    let before = fs::read(world.path("results/mini/tiny/mini.csv")).unwrap();
    let page = fs::read(world.path("reports/index.html")).unwrap();
    let output = world.ghostlab(&["reproduce", "mini", "--set", "depth=2", "--events"]);
    let screen = String::from_utf8_lossy(&output.stdout);
    assert!(screen.lines().all(|line| line.starts_with("{\"time\":")) && screen.contains("\"scored\""), "{screen}");
    let mut folders = fs::read_dir(world.path("results/mini")).unwrap().map(|item| item.unwrap().path());
    let folder = folders.find(|path| path.to_string_lossy().contains("tiny+depth=2-")).unwrap();
    assert!(table(&folder.join("mini.csv")).iter().all(|row| row[4] != "1"), "no row of depth 1");
    assert_eq!(fs::read(world.path("results/mini/tiny/mini.csv")).unwrap(), before);
    assert_eq!(fs::read(world.path("reports/index.html")).unwrap(), page, "the page shows what the files describe");
}

#[test]
fn run_artifact_has_its_own_folder_and_page_lists_gaps() {
    let world = experiments("mine");
    // `run` scores a text that the table does not show.
    let more = SHARED.replace("corpora:\n", "corpora:\n  more: {path: ../../test.jsonl, rule: ptb, limit: 3}\n");
    let more = more.replace("perplexity: [", "perplexity: [{corpus: more, length: 64}, ");
    world.write("experiments/profiles/tiny.yaml", more);
    made(&world, &["reproduce", "mini"]);
    let csv = || fs::read(world.path("results/mini/tiny/mini.csv")).unwrap();
    let before = csv();
    // The table is complete; the additional text of `run` is not stored.
    let output = world.ghostlab(&["run", "experiments/mini.yaml", "--stored"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    let names = || -> Vec<String> {
        let all = fs::read_dir(world.path("results/mini")).unwrap();
        let mut all: Vec<String> = all.map(|item| item.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    };
    let [plain, named] = names().try_into().unwrap();
    assert!(plain == "tiny" && named.starts_with("tiny+run-"), "{plain} {named}");
    let rows = table(&world.path("results/mini").join(&named).join("results.csv"));
    let column = rows[0].iter().position(|head| head == "ppl test@64").unwrap();
    assert!(rows[1..].iter().all(|row| row[column].parse::<f64>().is_ok()), "{rows:?}");
    made(&world, &["run", "experiments/mini.yaml"]);
    let output = made(&world, &["reproduce", "mini", "--dtype", "bf16", "--kernels", "portable"]);
    assert!(output.contains("(cpu-bf16): neither on the page nor held against the paper's claims"), "{output}");
    assert_eq!(csv(), before);
    assert_eq!(names().len(), 3, "{:?}", names());
    let output = made(&world, &["report"]);
    let page = fs::read_to_string(world.path("reports/index.html")).unwrap();
    assert!(page.contains("A small table"));
    for (folder, reason) in
        [(named.as_str(), "as it is described: run"), ("tiny+cpu-bf16-", "as it is described: cpu-bf16")]
    {
        let line =
            output.lines().find(|line| line.contains(&format!("mini/{folder}"))).unwrap_or_else(|| panic!("{output}"));
        assert!(line.contains(reason), "{line}");
        assert!(page.contains(&format!("mini/{folder}")), "the page says it too");
    }
}

#[test]
fn run_and_reproduce_of_an_artifact_keep_separate_folders() {
    let [run, reproduce] = [["run", "experiments/mini.yaml"], ["reproduce", "mini"]];
    for order in [[run, reproduce], [reproduce, run]] {
        let world = experiments("mine");
        // The evaluations differ: `run` scores a text that the table does not show.
        let more = SHARED.replace("corpora:\n", "corpora:\n  more: {path: ../../test.jsonl, rule: ptb, limit: 3}\n");
        let more = more.replace("perplexity: [", "perplexity: [{corpus: more, length: 64}, ");
        world.write("experiments/profiles/tiny.yaml", more);
        let folders = || -> Vec<String> {
            let all = fs::read_dir(world.path("results/mini")).unwrap();
            all.map(|item| format!("results/mini/{}", item.unwrap().file_name().into_string().unwrap())).collect()
        };
        made(&world, &order[0]);
        let [first] = folders().try_into().unwrap();
        let before = kept(&world, &first);
        made(&world, &order[1]);
        assert_eq!(folders().len(), 2, "{order:?}: {:?}", folders());
        assert_eq!(kept(&world, &first), before, "{order:?}");
        // Stored results are complete for both, and shown unchanged.
        let both: Vec<_> = folders().iter().map(|folder| (folder.clone(), kept(&world, folder))).collect();
        let output = made(&world, &["run", "experiments/mini.yaml", "--stored"]);
        assert!(!output.contains("failed") && !output.contains("not made yet"), "{output}");
        let output = made(&world, &order[0]);
        assert!(output.contains("3 of 3 cells are stored already"), "{output}");
        for (folder, files) in both {
            let tables = |files: &std::collections::BTreeMap<String, Vec<u8>>| -> Vec<(String, Vec<u8>)> {
                let is_table = |name: &str| [".csv", ".md", "numbers.json"].iter().any(|end| name.ends_with(end));
                files
                    .iter()
                    .filter(|(name, _)| is_table(name))
                    .map(|(name, content)| (name.clone(), content.clone()))
                    .collect()
            };
            let before = tables(&files);
            assert!(before.len() >= 3, "{:?}", files.keys());
            assert_eq!(tables(&kept(&world, &folder)), before, "{order:?}: {folder}");
        }
        made(&world, &["report"]);
        let page = fs::read_to_string(world.path("reports/index.html")).unwrap();
        assert!(page.contains("A small table"), "{order:?}");
    }
}

#[test]
fn a_page_of_a_users_own_is_not_replaced() {
    let world = experiments("mine");
    fs::create_dir(world.path("reports")).unwrap();
    world.write("reports/index.html", "mine");
    for command in [&["reproduce", "mini"][..], &["report", "--results", "experiments"]] {
        let output = world.ghostlab(command);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains("reports/index.html"), "{}", text(&output));
    }
    assert!(!world.path("results").exists(), "nothing was run");
    assert_eq!(fs::read_to_string(world.path("reports/index.html")).unwrap(), "mine");
}

#[test]
fn an_artifact_with_tasks_leaves_every_choice_beside_its_table() {
    let world = experiments("mine");
    world.write("copa.jsonl", (0..6).map(|i| {
        format!(
            "{{\"premise\": \"w{i} w7.\", \"question\": \"cause\", \"choice1\": \"w1\", \"choice2\": \"w3 w4\", \"label\": {}}}",
            i % 2
        )
    }).collect::<Vec<_>>().join("\n"));
    let shared =
        SHARED.replace("evaluate:\n", "tasks:\n  copa: {path: ../../copa.jsonl}\nevaluate:\n  tasks: [copa]\n");
    world.write("experiments/profiles/tiny.yaml", shared);
    let artifact = fs::read_to_string(world.path("experiments/mini.yaml")).unwrap().replace("ppl_test", "copa");
    world.write("experiments/mini.yaml", artifact);
    made(&world, &["reproduce", "mini"]);
    let folder = world.path("results/mini/tiny");
    assert!(folder.join("documents.parquet").is_file());
    assert_eq!(fs::read_dir(folder.join("lm_eval")).unwrap().count(), 3);
    let record = common::json(&folder.join("run.json"));
    assert!(record["files"]["documents.parquet"].is_string() && record["files"]["numbers.json"].is_string());
}

#[test]
fn the_plan_of_an_artifact_is_what_reproduce_does() {
    let world = experiments("mine");
    let shared = SHARED.replace("evaluate:", "  other: {path: ../../train.txt, rule: ptb}\nevaluate:");
    let shared = shared.replace("perplexity: [", "perplexity: [{corpus: other, length: 64}, ");
    world.write("experiments/profiles/tiny.yaml", shared);
    let artifact = fs::read_to_string(world.path("experiments/mini.yaml")).unwrap();
    let artifact = artifact.replace("criterion: llm-streamline,", "criterion: shortened-llama,");
    world.write(
        "experiments/mini.yaml",
        artifact.replace("\ncriterion: llm-streamline", "\ncriterion: shortened-llama"),
    );
    let plan = made(&world, &["plan", "experiments/mini.yaml"]);
    assert!(plan.contains("3 cells") && plan.contains("`reproduce mini`"), "{plan}");
    assert!(!plan.contains("other@64"), "what the table does not show: {plan}");
    assert!(plan.contains("choose layers of mine by shortened-llama"), "{plan}");
    assert!(!plan.contains("first time") && !plan.contains("changed:"), "nothing comparable is stored: {plan}");
    let trials = |plan: &str| -> Vec<usize> {
        let line = plan.lines().find(|line| line.starts_with("trials")).unwrap();
        line.split_whitespace().skip(1).map(|count| count.parse().unwrap()).collect()
    };
    assert!(trials(&plan)[0] > 0 && trials(&plan)[1] == 0, "{plan}");
    let output = made(&world, &["reproduce", "mini"]);
    assert!(output.contains(&format!("({} trials)", trials(&plan)[2])), "{output}");
    let plan = made(&world, &["plan", "experiments/mini.yaml"]);
    assert!(plan.contains("3 complete, 0 to run") && trials(&plan)[2] == 0, "{plan}");
    // Another depth adds cells and replaces none; another seed replaces them.
    let plan = made(&world, &["plan", "experiments/mini.yaml", "--set", "depth=1,2"]);
    assert!(plan.contains("2 to run") && !plan.contains("changed:"), "{plan}");
    let plan = made(&world, &["plan", "experiments/mini.yaml", "--set", "calibration.seed=7"]);
    assert!(plan.contains("seed: 0 → 7"), "{plan}");
}

#[test]
fn the_audit_finds_what_the_paper_says_twice() {
    let world = World::new();
    let output = made(&world, &["audit"]);
    for found in ["tableA5", "llama-2-7b", "37.87"] {
        assert!(output.contains(found), "{found}");
    }
    assert!(made(&world, &["audit", "--format", "csv"]).lines().count() > 10);
}

#[test]
fn the_audit_checks_anybodys_table() {
    let world = World::new();
    // ARC-Easy has 2376 documents: 1845 correct are 77.65 %, and no count prints as 77.70. COPA has 100. The mean of
    // 77.65 and 82.00 is 79.825.
    world.write(
        "wide.csv",
        "Method,ARC-e,COPA,Avg\nDense,77.65,82.00,79.83\nMine,77.70,61.00,69.35\nTheirs,60.02,70.00,71.00\n",
    );
    let asked = ["audit", "wide.csv", "--tasks", "ARC-e=arc_easy,COPA=copa", "--average", "Avg"];
    let log = made(&world, &[&asked[..], &["--format", "csv"]].concat());
    let lines: Vec<&str> = log.lines().collect();
    assert!(
        lines.iter().any(|line| line.starts_with("contradiction,average,wide,Theirs,Avg,65.0100,71.00")
            && line.ends_with("wide.csv:4")),
        "{log}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.contains(",count,") && line.contains("Mine,ARC-e,") && line.ends_with("wide.csv:3")),
        "{log}"
    );
    assert!(!log.contains(",Dense,"), "{log}");
    // Across tables, one method has two values.
    world.write("other.csv", "Method,COPA\nTheirs,69.00\n");
    let log = made(&world, &["audit", "wide.csv", "other.csv", "--tasks", "COPA=copa", "--format", "csv"]);
    assert!(log.contains("contradiction,agreement,\"wide, other\",Theirs,COPA,70.00 (wide),69.00 (other)"), "{log}");
    // The same numbers in the paper's long format give the same finding.
    world.write(
        "tidy.csv",
        "artifact,backbone,total_layers,pruned_layers,criterion,recovery,finetuned,calibration,metric,value,std\n\
         t,b,32,7,sleb,none,false,c4,arc_easy,77.70,\n",
    );
    let log = made(&world, &["audit", "tidy.csv", "--json"]);
    assert!(log.contains("\"count\"") && log.contains("tidy.csv:2"), "{log}");
    for (name, text, words) in [
        ("wide.csv", "Method,ARC-e\nDense,x\n", &["wide.csv:2", "`x`"][..]),
        ("wide.csv", "Method,ARC\nDense,1.00\n", &["wide.csv:1", "`ARC-e`"]),
    ] {
        world.write(name, text);
        let output = world.ghostlab(&["audit", name, "--tasks", "ARC-e=arc_easy"]);
        assert_eq!(output.status.code(), Some(2), "{}", self::text(&output));
        assert!(words.iter().all(|word| self::text(&output).contains(word)), "{}", self::text(&output));
    }
}

/// Reads the committed files below a folder by path.
fn kept(world: &World, folder: &str) -> std::collections::BTreeMap<String, Vec<u8>> {
    let mut found = std::collections::BTreeMap::new();
    let Ok(listing) = fs::read_dir(world.path(folder)) else { return found };
    for entry in listing.map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let path = format!("{folder}/{name}");
        if entry.file_type().unwrap().is_dir() {
            found.extend(kept(world, &path));
        } else if !ghostlab::artifact::NOT_RECORDED.contains(&name.as_str()) {
            found.insert(path.clone(), fs::read(world.path(&path)).unwrap());
        }
    }
    found
}

/// Artifact with a race between two cells of the other artifact (`WHOLE`).
const RACES: &str = "artifact:\n  title: Races of the small table\n  races: {beside: whole, metrics: [ppl_test]}\n";
const WHOLE: &str = "artifact:\n  title: All items\n  table:\n    lead: [backbone, method]\n    rows:\n\
    \x20     - {criterion: llm-streamline, recovery: [none, ghosted]}\n    metrics: [ppl_test]\n";

#[test]
fn races_are_recorded_with_labels_and_stay_to_the_byte() {
    let world = World::large();
    for folder in ["experiments/backbones", "experiments/profiles"] {
        fs::create_dir_all(world.path(folder)).unwrap();
    }
    world.write("experiments/backbones/mine.yaml", "path: ../../backbone\nsource: a test\n");
    world.write("experiments/profiles/tiny.yaml", "corpora:\n  train: {path: ../../train.txt, rule: wikitext2}\n");
    let axes = "corpora:\n  train: {rule: wikitext2}\n  test: {path: ../long.jsonl, rule: ptb}\nbackbone: [mine]\ncriterion: llm-streamline\n\
        depth: 1\nrecovery: [none, ghosted]\ncalibration: {corpus: train, sequences: 8, length: 64}\nprofile: tiny\nprofiles: {tiny: {}}\n";
    let scored = "evaluate: {perplexity: {corpus: test, length: 64}}\n";
    let raced = "search: {budget: {layers: 1}, perplexity: {corpus: test, length: 64}}\n";
    world.write("experiments/whole.yaml", format!("{WHOLE}{axes}{scored}"));
    world.write("experiments/races.yaml", format!("{RACES}{axes}{raced}"));
    let alone = made(&world, &["reproduce", "races"]);
    assert!(alone.contains("whole is not made here"), "{alone}");
    fs::remove_dir_all(world.path("results")).unwrap();

    let output = made(&world, &["reproduce", "whole", "races", "--record"]);
    assert!(output.contains("races: recorded") && output.contains("1 of 4"), "{output}");
    let all = || kept(&world, "results");
    let recorded = all();
    let csv = String::from_utf8(recorded["results/races/tiny/races.csv"].clone()).unwrap();
    // The best row of the other artifact is one of the two racing cells, identified by its label.
    assert!(csv.lines().count() == 2 && csv.contains("LLM-Streamline"), "{csv}");
    let full_table = table(&world.path("results/whole/tiny/whole.csv"));
    let at = full_table[0].iter().position(|head| head == "value").unwrap();
    let least = full_table[1..].iter().map(|row| row[at].parse::<f64>().unwrap()).fold(f64::INFINITY, f64::min);
    assert!(csv.contains(&format!(": {least:.2}")), "of perplexities the least is the best: {csv} {full_table:?}");
    assert!(csv.contains("won alone") || csv.contains("not separated") || csv.contains("out after round"), "{csv}");
    let page = String::from_utf8(fs::read(world.path("reports/index.html")).unwrap()).unwrap();
    assert!(page.contains("Races of the small table"), "the page shows them");
    let again = made(&world, &["reproduce", "races"]);
    assert!(again.contains("races: identical to the recorded run in results/races/tiny"), "{again}");
    made(&world, &["reproduce", "races", "--record"]);
    assert_eq!(all(), recorded, "recorded again");
    // Another item order is another run, so the recorded run is kept.
    let races = world.path("experiments/races.yaml");
    fs::write(&races, fs::read_to_string(&races).unwrap().replace("search: {", "search: {seed: 5, ")).unwrap();
    let other = made(&world, &["reproduce", "races"]);
    assert!(other.contains("races: differs from the recorded run in results/races/tiny"), "{other}");
    let now = all();
    assert!(recorded.iter().all(|(name, bytes)| now.get(name) == Some(bytes)), "the recorded run was touched");
    // Numeric checks skip races.
    made(&world, &["verify", "results", "--share", "100%"]);
}

#[test]
fn recorded_run_stays_and_different_runs_go_next_to_it() {
    let world = experiments("mine");
    let all = || -> std::collections::BTreeMap<_, _> {
        ["results", "reports"].into_iter().flat_map(|folder| kept(&world, folder)).collect()
    };
    let log = made(&world, &["reproduce", "mini", "methods", "--record"]);
    assert!(log.contains("mini: recorded"), "{log}");
    let recorded = all();
    let names: Vec<&str> = recorded.keys().map(String::as_str).collect();
    for name in [
        "results/methods/methods.md",
        "results/mini/tiny/claims.md",
        "results/mini/tiny/run.json",
        "reports/index.html",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    let folder = world.folder.path().display().to_string();
    for (name, bytes) in &recorded {
        assert!(!String::from_utf8_lossy(bytes).contains(&folder), "{name} tells where it was made");
    }

    // Reproduced from the store, recorded again, and reproduced elsewhere without the large files.
    let again = made(&world, &["reproduce", "mini", "methods"]);
    assert!(again.contains("mini: identical to the recorded run in results/mini/tiny"), "{again}");
    assert!(again.contains("page of all artifacts: reports/index.html"), "{again}");
    assert_eq!(all(), recorded, "made again");
    made(&world, &["reproduce", "mini", "methods", "--record"]);
    assert_eq!(all(), recorded, "recorded again");
    fs::remove_file(world.path("results/mini/tiny/channels.parquet")).unwrap();
    for folder in ["lm_eval", "every_eval_ever"].map(|name| world.path("results/mini/tiny").join(name)) {
        fs::remove_dir_all(&folder).or_else(|error| if folder.exists() { Err(error) } else { Ok(()) }).unwrap();
    }
    let elsewhere = made(&world, &["reproduce", "mini", "--store", "other"]);
    assert!(elsewhere.contains("mini: identical to the recorded run"), "{elsewhere}");
    assert!(world.path("results/mini/tiny/channels.parquet").is_file(), "the missing files are there now");
    // Every Eval Ever files contain their creation time, so their hashes change and they are not restored.
    let bare = |mut all: std::collections::BTreeMap<_, _>| {
        all.retain(|name: &String, _: &mut Vec<u8>| !name.contains("/every_eval_ever/"));
        all
    };
    assert!(bare(all()) == bare(recorded), "made from nothing");

    // Simulate a rounding difference of another machine.
    let path = world.path("results/mini/tiny/numbers.json");
    let mut numbers = common::json(&path);
    let value = &mut numbers["numbers"]["cells"][1]["values"][0]["value"];
    *value = (value.as_f64().unwrap() * (1.0 + 1e-9)).into();
    fs::write(&path, numbers.to_string()).unwrap();
    let recorded = all();
    let log = made(&world, &["reproduce", "mini"]);
    assert!(
        log.contains(
            "mini: differs from the recorded run in results/mini/tiny: 1 of 11 numbers, most by 1.00e-9 of its"
        ),
        "{log}"
    );
    assert!(log.contains("page of all artifacts: reports/here/index.html"), "{log}");
    let now = all();
    assert!(recorded.iter().all(|(name, bytes)| now.get(name) == Some(bytes)), "the recorded run was touched");
    assert!(now.contains_key("results/mini/tiny+here/mini.csv"));
    let compared = made(&world, &["compare", "results/mini/tiny", "results/mini/tiny+here"]);
    assert!(compared.contains("mini"), "{compared}");

    // Only artifacts without overrides can be recorded.
    let output = world.ghostlab(&["reproduce", "mini", "--record", "--dtype", "bf16"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("only an artifact as it is described is recorded"), "{}", text(&output));
}

#[test]
fn run_with_recorded_numbers_stays_in_its_place() {
    let world = experiments("mine");
    made(&world, &["reproduce", "mini", "--record"]);
    // Simulate a record of another processor, which differs in the last bits but in no displayed number.
    let record = world.path("results/mini/tiny/run.json");
    let mut run = common::json(&record);
    run["files"]["channels.parquet"] = "0".repeat(64).into();
    let error = &mut run["cells"][1]["boundaries"][0]["boundary_mae"];
    *error = (error.as_f64().unwrap() * (1.0 + 1e-12)).into();
    fs::write(&record, run.to_string()).unwrap();
    let parquet = world.path("results/mini/tiny/channels.parquet");
    fs::remove_file(&parquet).unwrap();
    let list = world.path("results/mini/tiny/.ghostlab.sha256");
    let text = fs::read_to_string(&list).unwrap();
    let (hash, _) = text.lines().find(|line| line.ends_with("channels.parquet")).unwrap().split_once(' ').unwrap();
    fs::write(&list, text.replace(hash, &"0".repeat(64))).unwrap();
    fs::remove_dir_all(world.path("results/mini/tiny/every_eval_ever")).unwrap();

    let output = made(&world, &["reproduce", "mini"]);
    assert!(output.contains("mini: numbers identical to the recorded run in results/mini/tiny; "), "{output}");
    assert!(output.contains("channels.parquet: only its hash is in the record"), "{output}");
    assert!(output.contains("by at most 1.0e-12 of their value"), "{output}");
    assert!(output.contains("no printed digit changes"), "{output}");
    assert!(output.contains("page of all artifacts: reports/index.html"), "{output}");
    assert!(!world.path("results/mini/tiny+here").exists(), "the run went somewhere else");
    let written = output.lines().find_map(|line| line.split_once("written: ")).unwrap().1;
    for file in written.split(", ") {
        assert!(world.path(file).exists(), "{file} is not there: {output}");
    }
    assert!(!written.contains("channels.parquet"), "{written}");
}

#[test]
fn listing_shows_the_date_in_the_record() {
    let world = experiments("mine");
    made(&world, &["reproduce", "mini"]);
    let record = world.path("results/mini/tiny/run.json");
    let mut run = common::json(&record);
    run["finished"] = "2001-02-03T04:05:06Z".into();
    fs::write(&record, run.to_string()).unwrap();
    let listed = made(&world, &["reproduce"]);
    let line = listed.lines().find(|line| line.starts_with("mini")).unwrap();
    assert!(line.contains("2001-02-03T04:05:06Z"), "{listed}");
}

#[test]
fn git_keeps_what_a_record_keeps_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let git = |arguments: &[&str]| {
        let output = std::process::Command::new("git").args(arguments).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    git(&["init", "-q"]);
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/.gitignore"), folder.path().join(".gitignore")).unwrap();
    let kept = [
        "reports/.ghostlab.sha256",
        "reports/audit.html",
        "reports/index.html",
        "results/figure1/tiny/figure1.svg",
        "results/table1/table1.md",
        "results/table2/tiny/.ghostlab.sha256",
        "results/table2/tiny/claims.md",
        "results/table2/tiny/run.json",
        "results/table2/tiny/table2.parquet",
    ];
    let large = ghostlab::artifact::NOT_RECORDED.map(|name| format!("results/table2/tiny/{name}"));
    let others = [
        "data/store/store.json",
        "reports/here/index.html",
        "results/mine/results.csv",
        "results/mine/tiny/results.csv",
        "results/table2/.tiny.1.0.part/run.json",
        "results/table2/paper/run.json",
        "results/table2/tiny+depth=2-1a2b3c4d/run.json",
        "results/table2/tiny+here/run.json",
        "results/table2/tiny/eval_results/a.yaml",
        "results/table2/tiny/every_eval_ever/a.json",
        "results/table2/tiny/lm_eval/a.json",
    ];
    for name in kept.iter().chain(&others).map(ToString::to_string).chain(large) {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let untracked = git(&["ls-files", "--others", "--exclude-standard"]);
    let untracked: Vec<&str> = untracked.lines().filter(|name| *name != ".gitignore").collect();
    assert_eq!(untracked, kept);
}

#[test]
fn altered_verdict_and_figure_value_are_detected() {
    let world = experiments("mine");
    made(&world, &["reproduce", "figure1", "--record"]);
    let folder = "results/figure1/tiny";
    // Only claims and tables are examined.
    let checked = || {
        let output = world.ghostlab(&["verify", folder, "--share", "1%", "--json"]);
        let answer: serde_json::Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
        let checks = answer["answer"]["folders"][0]["checks"].as_array().unwrap().clone();
        let find = |kind: &str| checks.iter().find(|check| check["kind"] == kind).unwrap().clone();
        (output.status.code(), find("claims"), find("tables"), text(&output))
    };
    let (code, claims, tables, log) = checked();
    assert_eq!(code, Some(0), "{log}");
    assert!(claims["agreed"].as_u64() > Some(0) && tables["agreed"].as_u64() > Some(0), "{log}");
    assert!(log.contains("to compute: "), "{log}");
    let path = world.path(folder).join("claims.md");
    let before = fs::read_to_string(&path).unwrap();
    let verdict = |line: &str| line.trim_end_matches(" |").rsplit(" | ").next().unwrap().to_owned();
    let line = before.lines().nth(2).unwrap();
    let other = if verdict(line) == "HOLDS" { "FAILS" } else { "HOLDS" };
    let altered = format!("{}{other} |", line.strip_suffix(&format!("{} |", verdict(line))).unwrap());
    fs::write(&path, before.replace(line, &altered)).unwrap();
    let (code, claims, _, log) = checked();
    let differs = claims["differs"].as_array().unwrap();
    assert_eq!((code, differs.len()), (Some(4), 1), "{log}");
    assert!(differs[0]["recorded"].as_str().unwrap().ends_with(&format!("{other} |")), "{log}");
    fs::write(&path, before).unwrap();
    let path = world.path(folder).join("figure1.csv");
    let rows = table(&path);
    let column = rows[0].iter().position(|head| head == "value").unwrap();
    let data = fs::read_to_string(&path).unwrap();
    fs::write(&path, data.replacen(&rows[1][column], "0.125", 1)).unwrap();
    let (code, _, tables, log) = checked();
    assert_eq!((code, tables["differs"].as_array().unwrap().len()), (Some(4), 1), "{log}");
}
