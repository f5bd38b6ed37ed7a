//! Tests for the patterns in `exclude` and `include`.

use super::fixtures::{GridFolder, Messages, valid_grid_with};

/// Returns the labels without the default backbone, criterion and calibration.
fn short_names(cells: &[String]) -> Vec<String> {
    cells
        .iter()
        .map(|cell| cell.replace("english/", "").replace("llm-streamline/", "").replace("/wiki:32x512@0", ""))
        .collect()
}

#[test]
fn exclude_patterns_remove_cells_from_the_product() {
    let folder = GridFolder::new();
    let all = ["dense", "3/none", "3/ghosted", "3/ghosted(solver=svd)", "5/none", "5/ghosted", "5/ghosted(solver=svd)"];
    for (exclude, excluded) in [
        ("{depth: 3}", &[1, 2, 3][..]),
        ("{depth: 31.25%, recovery: ghosted}", &[5, 6]),
        ("{recovery: [none, {name: ghosted, solver: svd}]}", &[1, 3, 4, 6]),
        ("[{depth: 3, recovery: ghosted}, {depth: 5, recovery: none}]", &[2, 3, 4]),
        ("{depth: [3, 5]}", &[1, 2, 3, 4, 5, 6]),
        ("{calibration: {corpus: wiki, sequences: [16, 32]}, depth: 3, recovery: none}", &[1]),
        ("{backbone: english, criterion: llm-streamline, depth: 3}", &[1, 2, 3]),
        ("[{depth: 3}, {depth: 3, recovery: none}]", &[1, 2, 3]),
        ("[]", &[]),
    ] {
        let text = valid_grid_with(&format!("exclude: {exclude}\n"))
            .replace("[none, ghosted]", "[none, ghosted, {name: ghosted, solver: svd}]");
        let expected: Vec<&str> = (0..all.len()).filter(|i| !excluded.contains(i)).map(|i| all[i]).collect();
        assert_eq!(short_names(&folder.cells(&text, &[])), expected, "{exclude}");
    }
}

#[test]
fn only_a_backbone_pattern_excludes_the_dense_cell() {
    let folder = GridFolder::new();
    folder.add_backbone("deep", 32);
    assert!(cells_of_two(&folder, "{backbone: english}").iter().all(|cell| cell.starts_with("deep/")));
    let cells = cells_of_two(&folder, "{backbone: english, depth: [3, 5]}");
    assert_eq!(cells.iter().filter(|cell| cell.starts_with("english/")).collect::<Vec<_>>(), ["english/dense"]);
}

fn cells_of_two(folder: &GridFolder, exclude: &str) -> Vec<String> {
    let text = valid_grid_with(&format!("exclude: {exclude}\n"))
        .replace("models/english}", "models/english}\n  deep: {path: models/deep}")
        .replace("backbone: english\n", "backbone: [english, deep]\n");
    folder.cells(&text, &[])
}

#[test]
fn impossible_cell_is_accepted_if_excluded() {
    let folder = GridFolder::new();
    folder.add_backbone("tiny", 4);
    let text = valid_grid_with("exclude: {backbone: tiny, depth: 5}\n")
        .replace("models/english}", "models/english}\n  tiny: {path: models/tiny}")
        .replace("backbone: english\n", "backbone: [english, tiny]\n")
        .replace("depth: [3, 5]", "depth: [2, 5]");
    assert_eq!(folder.cells(&text, &[]).len(), 5 + 3);
}

#[test]
fn included_cells_are_added_once_after_their_backbone() {
    let folder = GridFolder::new();
    folder.add_backbone("deep", 32);
    let text = valid_grid_with("exclude: {depth: 5}\ninclude:\n  - {depth: [3, 50%], recovery: none}\n  - {backbone: deep, depth: 25%, recovery: {name: ghosted, solver: [svd, normal]}}\n  - {depth: 8}\n")
        .replace("models/english}", "models/english}\n  deep: {path: models/deep}");
    assert_eq!(
        short_names(&folder.cells(&text, &[])),
        [
            "dense",
            "3/none",
            "3/ghosted",
            "8/none",
            "8/ghosted",
            "deep/dense",
            "deep/8/ghosted(solver=svd)",
            "deep/8/ghosted(solver=normal)",
        ]
    );
}

#[test]
fn pattern_and_include_errors_report_their_location() {
    let folder = GridFolder::new();
    let mut messages = Messages::default();
    for more in [
        "exclude: {depht: 3}",
        "exclude: [{depth: 3}, {}]",
        "exclude: [{depth: []}]",
        "exclude: [{depth: }]",
        "exclude: [{depth: 7}]",
        "exclude: [{depth: [3, 25%]}]",
        "exclude: [{depth: 25 %}]",
        "exclude: [{backbone: englsh}]",
        "exclude: [{recovery: [none, ghostd]}]",
        "exclude: [{recovery: {name: ghosted, solver: svd}}]",
        "exclude: [{calibration: {}}]",
        "exclude: [{calibration: {corpus: []}}]",
        "exclude: [{calibration: {corpus: c4, seed: [1, 2]}}]",
        "exclude: [{calibration: {tokens: 3}}]",
        "exclude:",
        "exclude: {backbone: english}",
        "include: {depht: 3}",
        "include: [{}]",
        "include: [{depth: []}]",
        "include: [{depth: 15}]",
        "include: [{depth: [4, 100]}]",
        "include: [{depth: [4, 4]}]",
        "include: [{recovery: ghst}]",
        "include: [{criterion: {name: llm-streamline, cosine: [token, tokens]}}]",
        "include: [{backbone: french}]",
        "include: [{calibration: {corpus: c4}}]",
        "include: [{calibration: {corpus: c5, sequences: 2, length: 8}}]",
    ] {
        messages.add(more, folder.rejection(valid_grid_with(&format!("{more}\n")), &[]));
    }
    messages.snapshot("grid_patterns");
    let text = valid_grid_with("exclude: {depth: 3, recovery: none}\n");
    folder.assert_rejected(&text, &["depth=5"], "16:18", &["`depth` in a pattern matches no cell", "one of 5"]);
    let text = valid_grid_with("exclude: [{depth: 2, recovery: none}]\nexclude_: 3\n");
    folder.assert_rejected(&text, &[], "17:1", &["unknown key `exclude_`", "did you mean `exclude`?"]);
}

#[test]
fn pattern_that_matches_no_cell_is_rejected() {
    let folder = GridFolder::new();
    folder.add_backbone("deep", 32);
    let text = valid_grid_with("exclude: {backbone: deep, depth: 4}\n")
        .replace("models/english}", "models/english}\n  deep: {path: models/deep}")
        .replace("backbone: english\n", "backbone: [english, deep]\n")
        .replace("depth: [3, 5]", "depth: 25%");
    folder.assert_rejected(
        &text,
        &[],
        "17:10",
        &["a pattern matches no cell", "a combination of values that does not occur"],
    );
}
