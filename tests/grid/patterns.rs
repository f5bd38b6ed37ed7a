//! `exclude` and `include`.

use super::house::{Place, with};

/// Returns the labels without their common parts.
fn short(cells: &[String]) -> Vec<String> {
    cells
        .iter()
        .map(|cell| cell.replace("english/", "").replace("llm-streamline/", "").replace("/wiki:32x512@0", ""))
        .collect()
}

#[test]
fn patterns_leave_cells_of_the_product_out() {
    let folder = Place::new();
    let all = ["dense", "3/none", "3/ghosted", "3/ghosted(solver=svd)", "5/none", "5/ghosted", "5/ghosted(solver=svd)"];
    for (exclude, gone) in [
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
        let text = with(&format!("exclude: {exclude}\n"))
            .replace("[none, ghosted]", "[none, ghosted, {name: ghosted, solver: svd}]");
        let expected: Vec<&str> = (0..all.len()).filter(|i| !gone.contains(i)).map(|i| all[i]).collect();
        assert_eq!(short(&folder.cells(&text, &[])), expected, "{exclude}");
    }
}

#[test]
fn only_a_backbone_pattern_excludes_the_dense_cell() {
    let folder = Place::new();
    folder.backbone("deep", 32);
    let two = |exclude: &str| {
        let text = with(&format!("exclude: {exclude}\n"))
            .replace("models/english}", "models/english}\n  deep: {path: models/deep}")
            .replace("backbone: english\n", "backbone: [english, deep]\n");
        folder.cells(&text, &[])
    };
    assert!(two("{backbone: english}").iter().all(|cell| cell.starts_with("deep/")));
    let cells = two("{backbone: english, depth: [3, 5]}");
    assert_eq!(cells.iter().filter(|cell| cell.starts_with("english/")).collect::<Vec<_>>(), ["english/dense"]);
}

#[test]
fn a_cell_that_is_left_out_need_not_be_possible() {
    let folder = Place::new();
    folder.backbone("tiny", 4);
    let text = with("exclude: {backbone: tiny, depth: 5}\n")
        .replace("models/english}", "models/english}\n  tiny: {path: models/tiny}")
        .replace("backbone: english\n", "backbone: [english, tiny]\n")
        .replace("depth: [3, 5]", "depth: [2, 5]");
    assert_eq!(folder.cells(&text, &[]).len(), 5 + 3);
}

#[test]
fn includes_are_added_once_after_their_backbones_product() {
    let folder = Place::new();
    folder.backbone("deep", 32);
    let text = with("exclude: {depth: 5}\ninclude:\n  - {depth: [3, 50%], recovery: none}\n  - {backbone: deep, depth: 25%, recovery: {name: ghosted, solver: [svd, normal]}}\n  - {depth: 8}\n")
        .replace("models/english}", "models/english}\n  deep: {path: models/deep}");
    assert_eq!(
        short(&folder.cells(&text, &[])),
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
fn mistakes_in_patterns_and_includes_are_placed() {
    let folder = Place::new();
    for (more, at, parts) in [
        ("exclude: {depht: 3}", "16:11", &["unknown key `depht` in `exclude`", "did you mean `depth`?"][..]),
        (
            "exclude: [{depth: 3}, {}]",
            "16:23",
            &["a pattern is empty", "backbone, criterion, depth, recovery, calibration", "it would mean every cell"],
        ),
        ("exclude: [{depth: []}]", "16:19", &["`exclude[0].depth` is empty", "leave the key out"]),
        ("exclude: [{depth: }]", "16:17", &["`exclude[0].depth` has the wrong type", "found:    nothing"]),
        ("exclude: [{depth: 7}]", "16:19", &["`depth` in a pattern matches no cell", "one of 3, 5", "found:    `7`"]),
        ("exclude: [{depth: [3, 25%]}]", "16:23", &["`depth` in a pattern matches no cell", "found:    `25%`"]),
        ("exclude: [{depth: 25 %}]", "16:19", &["write `25%`, without a space"]),
        (
            "exclude: [{backbone: englsh}]",
            "16:22",
            &["`backbone` in a pattern matches no cell", "did you mean `english`?"],
        ),
        (
            "exclude: [{recovery: [none, ghostd]}]",
            "16:29",
            &["`recovery` in a pattern matches no cell", "one of none, ghosted", "did you mean `ghosted`?"],
        ),
        (
            "exclude: [{recovery: {name: ghosted, solver: svd}}]",
            "16:22",
            &["`recovery` in a pattern matches no cell", "found:    `ghosted(solver=svd)`"],
        ),
        ("exclude: [{calibration: {}}]", "16:25", &["a calibration in a pattern is empty"]),
        ("exclude: [{calibration: {corpus: []}}]", "16:34", &["`exclude[0].calibration[0].corpus` is empty"]),
        (
            "exclude: [{calibration: {corpus: c4, seed: [1, 2]}}]",
            "16:25",
            &["`calibration` in a pattern matches no cell", "one of wiki:32x512@0", "`corpus: c4, seed: 1 or 2`"],
        ),
        ("exclude: [{calibration: {tokens: 3}}]", "16:26", &["unknown key `tokens` in `exclude[0].calibration`"]),
        ("exclude:", "16:", &["`exclude` has the wrong type", "found:    nothing"]),
        ("exclude: {backbone: english}", "16:10", &["no cell is left"]),
        ("include: {depht: 3}", "16:11", &["unknown key `depht` in `include`", "did you mean `depth`?"]),
        ("include: [{}]", "16:11", &["an entry of `include` is empty"]),
        ("include: [{depth: []}]", "16:19", &["the axis `include[0].depth` is empty"]),
        ("include: [{depth: 15}]", "16:19", &["keeps the first and the last layer"]),
        ("include: [{depth: [4, 100]}]", "16:23", &["would leave nothing of the backbone `english`"]),
        ("include: [{depth: [4, 4]}]", "16:23", &["the axis `include[0].depth` has the same value twice"]),
        ("include: [{recovery: ghst}]", "16:22", &["unknown recovery `ghst`"]),
        (
            "include: [{criterion: {name: llm-streamline, cosine: [token, tokens]}}]",
            "16:62",
            &["wrong options for `llm-streamline`", "`tokens`"],
        ),
        ("include: [{backbone: french}]", "16:22", &["unknown backbone `french`"]),
        ("include: [{calibration: {corpus: c4}}]", "16:25", &["`include[0].calibration` has no key `sequences`"]),
        ("include: [{calibration: {corpus: c5, sequences: 2, length: 8}}]", "16:34", &["unknown corpus `c5`"]),
    ] {
        folder.refuses(&with(&format!("{more}\n")), &[], at, parts);
    }
    let text = with("exclude: {depth: 3, recovery: none}\n");
    folder.refuses(&text, &["depth=5"], "16:18", &["`depth` in a pattern matches no cell", "one of 5"]);
    let text = with("exclude: [{depth: 2, recovery: none}]\nexclude_: 3\n");
    folder.refuses(&text, &[], "17:1", &["unknown key `exclude_`", "did you mean `exclude`?"]);
}

#[test]
fn values_that_are_never_together_match_no_cell() {
    let folder = Place::new();
    folder.backbone("deep", 32);
    let text = with("exclude: {backbone: deep, depth: 4}\n")
        .replace("models/english}", "models/english}\n  deep: {path: models/deep}")
        .replace("backbone: english\n", "backbone: [english, deep]\n")
        .replace("depth: [3, 5]", "depth: 25%");
    folder.refuses(&text, &[], "17:10", &["a pattern matches no cell", "never together"]);
}
