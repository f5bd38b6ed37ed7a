//! Tests for the expansion of axes into cells, with depths given as lists and as fractions of the layers.

use ghostlab::criterion::Depth;

use super::fixtures::{GridFolder, Messages, dense_grid_with, labels, valid_grid_replacing, valid_grid_with};

const CALIBRATION: &str = "  - {corpus: wiki, sequences: 32, length: 512}\n";

#[test]
fn fractional_depth_is_resolved_for_each_backbone() {
    let folder = GridFolder::new();
    folder.add_backbone("deep", 32);
    let text = valid_grid_replacing("depth: [3, 5]", "depth: [4, 25%, 12.5%]")
        .replace("[none, ghosted]", "none")
        .replace("backbone: english", "backbone: [english, deep]")
        .replace("models/english}", "models/english}\n  deep: {path: models/deep}");
    let grid = folder.load(&text, &[]).unwrap();
    let cells: Vec<String> = labels(&grid.cells).iter().map(|cell| cell.replace("/none/wiki:32x512@0", "")).collect();
    assert_eq!(
        cells,
        [
            "english/dense",
            "english/llm-streamline/4",
            "english/llm-streamline/2",
            "deep/dense",
            "deep/llm-streamline/4",
            "deep/llm-streamline/8",
        ]
    );
    assert_eq!(grid.depth, [4, 2, 8], "expected the distinct counts in cell order");
}

#[test]
fn grid_axes_are_the_distinct_values_of_its_cells() {
    let folder = GridFolder::new();
    folder.add_backbone("deep", 32);
    let text = valid_grid_with("exclude: {recovery: none}\ninclude: {backbone: deep, depth: 25%, calibration: {corpus: c4, sequences: 2, length: 8}}\n")
        .replace("models/english}", "models/english}\n  deep: {path: models/deep}");
    let grid = folder.load(&text, &[]).unwrap();
    assert_eq!(grid.backbone, ["english", "deep"]);
    assert_eq!(grid.depth, [3, 5, 8]);
    let recoveries: Vec<String> = grid.recovery.iter().map(ToString::to_string).collect();
    assert_eq!(recoveries, ["ghosted", "none"], "`include` does not add `none`");
    assert_eq!(grid.calibration.iter().map(ToString::to_string).collect::<Vec<_>>(), ["wiki:32x512@0", "c4:2x8@0"]);
    assert_eq!(
        labels(&grid.cells)[3..],
        ["deep/dense", "deep/llm-streamline/8/none/c4:2x8@0", "deep/llm-streamline/8/ghosted/c4:2x8@0"]
    );
    // Inputs that no cell uses are dropped from the grid.
    let grid = folder
        .load(valid_grid_with("exclude: {depth: 3}\n"), &["evaluate.perplexity=[{corpus: wiki, length: 8}]"])
        .unwrap();
    assert_eq!((grid.depth, grid.corpora.len()), (vec![Depth::layers(5)], 1));
}

#[test]
fn grid_without_pruning_axes_has_only_dense_cells() {
    let folder = GridFolder::new();
    folder.add_backbone("deep", 32);
    let text = dense_grid_with("").replace("models/english}", "models/english}\n  deep: {path: models/deep}");
    let grid = folder.load(text.replace("backbone: english", "backbone: [deep, english]"), &[]).unwrap();
    assert_eq!(labels(&grid.cells), ["deep/dense", "english/dense"]);
    assert!(grid.criterion.is_empty() && grid.depth.is_empty() && grid.calibration.is_empty());
    assert_eq!(grid.resolved().unwrap()["recovery"], serde_json::json!([]));
    assert_eq!(grid.corpora.len(), 2, "only evaluated corpora must be kept");
}

#[test]
fn include_in_a_dense_grid_must_specify_the_full_cut() {
    let folder = GridFolder::new();
    folder.add_backbone("deep", 32);
    let axes = "criterion: llm-streamline, depth: 25%, recovery: [none, ghosted], calibration: {corpus: wiki, sequences: 2, length: 8}";
    let cells = folder.cells(&dense_grid_with(&format!("include: {{{axes}}}\n")), &[]);
    let cut = ["english/llm-streamline/4/none/wiki:2x8@0", "english/llm-streamline/4/ghosted/wiki:2x8@0"];
    assert_eq!(cells, [&["english/dense"][..], &cut].concat());
    let more = format!("include: {{{axes}, backbone: deep}}\nexclude: {{backbone: english}}\n");
    let text = dense_grid_with(&more).replace("models/english}", "models/english}\n  deep: {path: models/deep}");
    assert_eq!(folder.cells(&text, &[])[..2], ["deep/dense", "deep/llm-streamline/8/none/wiki:2x8@0"]);
    let mut messages = Messages::default();
    for more in [
        "include: [{criterion: llm-streamline, depth: 3}]",
        "include: [{backbone: english}]",
        "include: [{}]",
        "exclude: [{depth: 3}]",
        "exclude: [{backbone: english}]",
        "recovery: ghosted",
    ] {
        messages.add(more, folder.rejection(dense_grid_with(&format!("{more}\n")), &[]));
    }
    messages.snapshot("grid_dense_patterns");
}

#[test]
fn calibration_lists_expand_in_key_order() {
    let folder = GridFolder::new();
    let text = valid_grid_replacing(
        CALIBRATION,
        "  - {seed: [0, 1], length: 64, sequences: [8, 4], corpus: [wiki, c4], operator_sequences: [4, 2]}\n",
    );
    let grid = folder.load(&text, &[]).unwrap();
    let calibrations: Vec<String> = grid.calibration.iter().map(ToString::to_string).collect();
    assert_eq!(calibrations.len(), 16);
    assert_eq!(
        calibrations[..6],
        [
            "wiki:8x64@0(operator_sequences=4)",
            "wiki:8x64@0(operator_sequences=2)",
            "wiki:8x64@1(operator_sequences=4)",
            "wiki:8x64@1(operator_sequences=2)",
            "wiki:4x64@0",
            "wiki:4x64@0(operator_sequences=2)",
        ]
    );
    assert_eq!(calibrations[8], "c4:8x64@0(operator_sequences=4)");
}

#[test]
fn option_lists_and_length_lists_become_axes() {
    let folder = GridFolder::new();
    let text = valid_grid_replacing(
        "[none, ghosted]",
        "[none, {name: ghosted, solver: [svd, normal], boundary: [layer, region]}]",
    )
    .replace(
        "criterion: llm-streamline",
        "criterion: [{name: explicit, layers: [[3, 7, 8], [4, 8, 9]]}, {name: explicit, layers: [1, 2, 3]}]",
    )
    .replace("depth: [3, 5]", "depth: 3")
    .replace("{corpus: c4, length: 512}", "{corpus: c4, length: [64, 128]}");
    let grid = folder.load(&text, &[]).unwrap();
    fn format_methods(methods: &[impl ToString]) -> Vec<String> {
        methods.iter().map(ToString::to_string).collect()
    }
    assert_eq!(
        format_methods(&grid.recovery),
        [
            "none",
            "ghosted(boundary=layer,solver=svd)",
            "ghosted(boundary=region,solver=svd)",
            "ghosted(boundary=layer,solver=normal)",
            "ghosted(boundary=region,solver=normal)",
        ]
    );
    assert_eq!(
        format_methods(&grid.criterion),
        ["explicit(layers=[3,7,8])", "explicit(layers=[4,8,9])", "explicit(layers=[1,2,3])"]
    );
    let texts: Vec<String> = grid.evaluate.perplexity.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["wiki@512", "c4@64", "c4@128"]);
}

#[test]
fn depth_and_list_errors_report_their_location() {
    let folder = GridFolder::new();
    let mut messages = Messages::default();
    for (from, to) in [
        ("depth: [3, 5]", "depth: [3, 25 %]"),
        ("depth: [3, 5]", "depth: 0%"),
        ("depth: [3, 5]", "depth: [100%]"),
        ("depth: [3, 5]", "depth: '3'"),
        ("depth: [3, 5]", "depth: [25%, 25.0%]"),
        ("depth: [3, 5]", "depth: 99%"),
        ("depth: [3, 5]", "depth: 93%"),
        ("sequences: 32", "sequences: []"),
        ("corpus: wiki, sequences", "corpus: [wiki, wiki], sequences"),
        ("corpus: wiki, sequences", "corpus: [wiki, wki], sequences"),
        ("length: 512}\nevaluate", "length: [512, 1]}\nevaluate"),
        ("length: 512}\nevaluate", "length: 512, seed: [1, x]}\nevaluate"),
        ("length: 512}\nevaluate", "length: 512, seed: }\nevaluate"),
        ("sequences: 32, length: 512}", "sequences: [8, 16], length: 64, operator_sequences: [8, 16]}"),
        ("length: 512}\nevaluate", "length: 512}\n  - {corpus: [c4, wiki], sequences: 32, length: 512}\nevaluate"),
        ("[none, ghosted]", "{name: ghosted, solver: [svd, smd]}"),
        ("[none, ghosted]", "{name: ghosted, solver: []}"),
        ("[none, ghosted]", "{name: ghosted, solver: [svd, svd]}"),
        ("[none, ghosted]", "{name: ghosted, solvr: [svd, normal]}"),
        ("[none, ghosted]", "{name: ghosted, solver: [svd, normal], boundary: [layer, lair]}"),
        ("[none, ghosted]", "[{name: ghosted, solver: svd}, {name: ghosted, solver: [normal, svd]}]"),
        ("[none, ghosted]", "[ghsted, {name: [none, ghosted]}]"),
        ("criterion: llm-streamline", "criterion: {name: explicit, layers: [3, x]}"),
        ("criterion: llm-streamline", "criterion: {name: explicit, layers: [[3, 4, 5], [3, x]]}"),
        ("criterion: llm-streamline", "criterion: {name: explicit, layers: [3, 4]}"),
        ("{corpus: c4, length: 512}", "{corpus: c4, length: []}"),
        ("{corpus: c4, length: 512}", "{corpus: wiki, length: [64, 512]}"),
    ] {
        messages.add(&format!("{from:?} -> {to:?}"), folder.rejection(valid_grid_replacing(from, to), &[]));
    }
    messages.snapshot("grid_depths_and_lists");
}

#[test]
fn corpus_and_length_lists_expand_to_all_pairs() {
    let folder = GridFolder::new();
    let text = valid_grid_replacing(
        "    - {corpus: wiki, length: 512}\n    - {corpus: c4, length: 512}\n",
        "    - {corpus: [wiki, c4], length: [512, 64]}\n",
    );
    let grid = folder.load(&text, &[]).unwrap();
    let columns: Vec<String> = grid.evaluate.perplexity.iter().map(ToString::to_string).collect();
    assert_eq!(columns, ["wiki@512", "wiki@64", "c4@512", "c4@64"]);
    assert_eq!(grid.corpora.keys().collect::<Vec<_>>(), ["c4", "wiki"]);
    folder.assert_rejected(
        &text.replace("[wiki, c4]", "[wiki, c4, wiki]"),
        &[],
        "14:27",
        &["duplicate value in `evaluate.perplexity[0].corpus`"],
    );
    folder.assert_rejected(&text.replace("[wiki, c4]", "[wiki, nosuch]"), &[], "14:23", &["unknown corpus `nosuch`"]);
}
