//! Snapshot tests for the messages of rejected grids, grouped by the invalid section of the grid.

use std::fs;

use ghostlab::grid::{Grid, GridFile};

use super::fixtures::{GridFolder, Messages, VALID_GRID, grid_with_axes, valid_grid_replacing, valid_grid_with};

/// Evaluated texts of the valid grid.
const EVALUATE: &str = "evaluate:\n  perplexity:\n    - {corpus: wiki, length: 512}\n    - {corpus: c4, length: 512}\n";
const WIKI: &str = "{path: wiki.txt, rule: wikitext2}";
const C4: &str = "{path: c4.txt, rule: c4, limit: 100}";

/// Task definition with one document per row.
const DEFINITION: &str = "\
task: made
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: loglikelihood
doc_to_text: \"{{a}}\"
doc_to_target: \" b\"
metric_list: [{metric: acc}]
";

/// Adds the messages for the valid grid with each replacement, given as (from, to).
fn add_replacements(messages: &mut Messages, folder: &GridFolder, replacements: &[(&str, &str)]) {
    for (from, to) in replacements {
        messages.add(&format!("{from:?} -> {to:?}"), folder.rejection(valid_grid_replacing(from, to), &[]));
    }
}

#[test]
fn axis_and_evaluation_errors_report_their_location() {
    let folder = GridFolder::new();
    let mut messages = Messages::default();
    add_replacements(
        &mut messages,
        &folder,
        &[
            (EVALUATE, ""),
            ("evaluate:\n", "weights: q8_0\nevaluate:\n  latency: {length: 64}\n"),
            ("evaluate:\n", "weights: {type: as-stored, calibrated: rounded}\nevaluate:\n"),
            ("evaluate:\n", "evaluate:\n  metrics: [kl_variant_dense]\n"),
            ("evaluate:\n", "evaluate:\n  metrics: [bits_per_bite]\n"),
            ("evaluate:\n", "evaluate:\n  latency: {length: 0}\n"),
            ("evaluate:\n", "evaluate:\n  latency: {length: 64, batch: 0}\n"),
            ("evaluate:\n", "evaluate:\n  latency: {length: 64, decode: 0}\n"),
            ("evaluate:\n", "evaluate:\n  tasks: {name: copa, shots: 2}\n"),
            ("evaluate:\n", "evaluate:\n  tasks: {definition: made.yaml, multiturn: true}\n"),
            ("evaluate:\n", "evaluate:\n  tasks: {limit: 3}\n"),
            ("sequences: 32", "sequences: 2000000000"),
            ("sequences: 32, length: 512", "sequences: 1000000, length: 1000000"),
            ("backbone: english", "backbone: a/b"),
            ("limit: 100", "limit: .inf"),
            ("limit: 100", "limit: 1e999"),
        ],
    );
    let values: Vec<String> = (1..=400).map(|value| value.to_string()).collect();
    let lists = format!("sequences: [{0}], seed: [{0}]", values.join(", "));
    messages.add(
        "400 values of `sequences` and `seed`",
        folder.rejection(valid_grid_replacing("sequences: 32", &lists), &[]),
    );
    let backbones = "  english: {path: models/english}\n";
    let rounded = valid_grid_replacing(backbones, &format!("{backbones}  english@q8_0: {{path: models/english}}\n"))
        .replace("backbone: english\n", "backbone: [english, english@q8_0]\nweights: q8_0\n");
    messages.add("a backbone `english@q8_0` and `weights: q8_0`", folder.rejection(rounded, &[]));
    let frozen = Grid::from_frozen(&serde_json::json!({"name": 3})).unwrap_err();
    messages.add("a frozen grid of another version", (frozen.to_string(), frozen.exit_code()));
    messages.snapshot("grid_wrong_evaluations");
}

#[test]
fn method_option_errors_report_their_location() {
    let folder = GridFolder::new();
    let mut messages = Messages::default();
    for (criterion, depth, recovery) in [
        ("explicit", "3", "none"),
        ("{name: explicit, layers: [1, 2, 3], order: [1, 2, 3]}", "3", "none"),
        ("{name: explicit, layers: [3, 3, 4]}", "3", "none"),
        ("{name: explicit, layers: [3, 4, 99]}", "3", "none"),
        ("{name: explicit, sublayers: [attention 99, mlp 1]}", "{sublayers: 2}", "none"),
        ("{name: explicit, sublayers: [attention 3]}", "{sublayers: 2}", "none"),
        ("{name: laco, combine: 1}", "3", "none"),
        ("{name: laco, interval: 0}", "3", "none"),
        ("{name: laco, threshold: 1.5}", "3", "none"),
        ("{name: laco, highest: 99}", "3", "none"),
        ("{name: laco, lowest: 15}", "3", "none"),
        ("{name: lorp, clusters: 0}", "3", "none"),
        ("{name: cca, cut: block, iterative: true}", "3", "none"),
        ("{name: shortened-llama, score: ppl}", "3", "none"),
        ("{name: shortened-llama, order: released, iterative: true}", "3", "none"),
        ("{name: shortened-llama, order: released}", "3", "none"),
        ("{name: shortened-llama, order: released, backbone: llama-2-7b}", "3", "none"),
        ("{name: shortgpt, iterative: true}", "3", "merge"),
        ("llm-streamline", "3", "{name: ghosted, solver: svd, ridge: 0.1}"),
        ("llm-streamline", "3", "{name: ghosted, bias: true}"),
        ("llm-streamline", "3", "{name: ghosted, input: normed, solver: svd}"),
        ("llm-streamline", "3", "{name: none, finetune: {sequences: 2, length: 8}}"),
        ("llm-streamline", "3", "{name: ghosted, finetune: 3}"),
        ("llm-streamline", "3", "{name: ghosted, finetune: {sequences: 0, length: 8}}"),
        ("llm-streamline", "3", "{name: ghosted, finetune: {sequences: 5000000, length: 5000}}"),
        ("llm-streamline", "3", "{name: prune-and-comp, granularity: channel, target: stream}"),
        ("llm-streamline", "3", "{name: replaceme-cos, batch: 0}"),
        ("llm-streamline", "3", "{name: replaceme-cos, epochs: 1000000000}"),
        ("llm-streamline", "3", "{name: replaceme-cos, learning_rate: 0}"),
    ] {
        let title = format!("criterion: {criterion}, depth: {depth}, recovery: {recovery}");
        messages.add(&title, folder.rejection(grid_with_axes(criterion, depth, recovery), &[]));
    }
    messages.snapshot("grid_wrong_methods");
}

#[test]
fn search_errors_report_their_location() {
    let folder = GridFolder::new();
    let mut messages = Messages::default();
    for search in [
        "  budget: {}\n",
        "  budget: {layers: 0}\n",
        "  budget: {speedup: 0.9}\n",
        "  budget: {params: 1.5}\n",
        "  budget: {kv_cache: 0}\n",
        "  budget: {latency: 25m}\n",
        "  budget: {memory: 12TB}\n",
        "  budget: {layers: 3}\n  alpha: 0.7\n",
        "  budget: {layers: 3}\n  items: 0\n",
        "  budget: {layers: 3}\n  prompt: {length: 0}\n",
        "  budget: {layers: 3}\n  tasks: {definition: made.yaml}\n",
    ] {
        let text = valid_grid_replacing("evaluate:\n", &format!("search:\n{search}"));
        messages.add(search.trim(), folder.rejection(text, &[]));
    }
    let both = valid_grid_with("search: {budget: {layers: 3}}\n");
    messages.add("`search` and `evaluate`", folder.rejection(both, &[]));
    let without_depths =
        valid_grid_replacing("evaluate:\n", "search:\n  budget: {speedup: 1.3}\n").replace("depth: [3, 5]\n", "");
    messages.add("`search` without depths", folder.rejection(without_depths, &[]));
    messages.snapshot("grid_wrong_searches");
}

#[test]
fn input_source_errors_report_their_location() {
    let folder = GridFolder::new();
    fs::create_dir(folder.root.path().join("shards")).unwrap();
    let mut messages = Messages::default();
    add_replacements(
        &mut messages,
        &folder,
        &[
            (WIKI, "{rule: wikitext2}"),
            (WIKI, "{path: wiki.txt, revision: main, rule: wikitext2}"),
            (WIKI, "{path: wiki.txt, files: wiki.txt, rule: wikitext2}"),
            (WIKI, "{hub: org/texts, rule: wikitext2}"),
            ("{path: models/english}", "{path: models/english, package: model==1}"),
            ("{path: models/english}", "{hub: org/model, package: model}"),
            ("{path: models/english}", "{hub: org/model}"),
            (C4, "{path: c4.txt, rule: c4, shards: one-by-one}"),
            (C4, "{path: c4.txt, rule: c4, shards_read: 2}"),
            (C4, "{path: shards, rule: c4-stream, shards_read: 0}"),
            (C4, "{path: shards, rule: c4-stream, files: [en/a.gz, de/b.gz]}"),
            (C4, "{path: shards, rule: c4-stream}"),
            (C4, "{path: shards, rule: c4-stream, files: 'part.{0..1}.gz'}"),
            (C4, "{path: shards, rule: c4-stream, files: 'part.*.gz'}"),
            (C4, "{path: shards, rule: c4-stream, files: 'part.{0..1.gz'}"),
            (C4, "{path: shards, rule: c4-stream, files: 'part.{01}.gz'}"),
            (C4, "{path: shards, rule: c4-stream, files: 'part.{a..b}.gz'}"),
            (C4, "{path: shards, rule: c4-stream, files: 'part.{3..1}.gz'}"),
        ],
    );
    let absent = VALID_GRID
        .replace("models/english", "models/french")
        .replace("wiki.txt", "wki.txt")
        .replace("c4.txt", "c5.txt");
    messages.add("three missing inputs", folder.rejection(absent, &[]));
    messages.snapshot("grid_wrong_sources");
}

#[test]
fn task_definition_errors_report_their_location() {
    let folder = GridFolder::new();
    fs::create_dir(folder.root.path().join("empty")).unwrap();
    folder.write("rows.jsonl", "{\"a\": \"c\"}\n");
    folder.write("made.yaml", DEFINITION);
    folder.write("other.yaml", &DEFINITION.replace("{{a}}", "{{a}}:"));
    folder.write("shots.yaml", &format!("{DEFINITION}fewshot_split: train\n"));
    folder.write("online.yaml", &DEFINITION.replace("rows.jsonl", "'https://example.org/rows.jsonl'"));
    let without_files = DEFINITION.replace("dataset_kwargs: {data_files: {test: rows.jsonl}}\n", "");
    folder.write("csv.yaml", &without_files.replace("dataset_path: json", "dataset_path: csv"));
    folder.write("arrow.yaml", &without_files.replace("dataset_path: json", "dataset_path: arrow"));
    let mut messages = Messages::default();
    for tasks in [
        "{definition: absent.yaml}",
        "{definition: empty}",
        "[{definition: made.yaml}, {definition: other.yaml}]",
        "{definition: online.yaml}",
        "{definition: csv.yaml}",
        "{definition: arrow.yaml}",
        "{definition: made.yaml, data: {train: rows.jsonl}}",
        "{definition: made.yaml, data: {test: absent.jsonl}}",
        "{definition: shots.yaml, data: rows.jsonl, shots: 1}",
        "{definition: made.yaml, shots: 2000000000}",
        "{definition: made.yaml, max_length: 0}",
        "{definition: made.yaml, limit: 1.5}",
    ] {
        messages
            .add(&format!("tasks: {tasks}"), folder.rejection(valid_grid_with(&format!("  tasks: {tasks}\n")), &[]));
    }
    messages.snapshot("grid_wrong_definitions");
}

#[test]
fn artifact_errors_report_their_location() {
    let folder = GridFolder::new();
    let mut messages = Messages::default();
    let rows = "rows: [{criterion: llm-streamline, recovery: none}]";
    let table = format!("table: {{lead: [method], {rows}, metrics: [ppl_wiki]}}");
    let pareto = "figure: {kind: pareto, metrics: [acc_average]}";
    for (text, artifact) in [
        (VALID_GRID, "title: t".to_owned()),
        (VALID_GRID, format!("title: t, {table}, list: methods")),
        (VALID_GRID, "title: t, figure: {kind: pareto}".to_owned()),
        (VALID_GRID, "title: t, figure: {kind: pareto, metrics: [ppl_wiki], costs: [speedup]}".to_owned()),
        (VALID_GRID, format!("title: t, {pareto}, {table}")),
        (VALID_GRID, "title: t, table: {lead: [method], rows: [], metrics: [ppl_wiki]}".to_owned()),
        ("", "title: t, figure: {kind: layers}".to_owned()),
    ] {
        folder.write("grid.yaml", &format!("{text}artifact: {{{artifact}}}\n"));
        let error = GridFile::read(&folder.file()).and_then(|file| file.description()).unwrap_err();
        let message = error.to_string().replace(&format!("{}/", folder.root.path().display()), "");
        let title = if text.is_empty() { ", without a grid" } else { "" };
        messages.add(&format!("{artifact}{title}"), (message, error.exit_code()));
    }
    messages.snapshot("grid_wrong_artifacts");
}
