//! Depths of sublayers: what cells they make, what they are called, and what is refused.

use ghostlab::criterion::DepthUnit;

use super::house::{Place, good_but};

/// Returns the good grid with other criteria, depths and recoveries.
fn grid(criterion: &str, depth: &str, recovery: &str) -> String {
    let axes = format!("criterion: {criterion}\ndepth: {depth}\nrecovery: {recovery}\n");
    good_but("criterion: llm-streamline\ndepth: [3, 5]\nrecovery: [none, ghosted]\n", &axes)
}

#[test]
fn depths_of_sublayers_make_cells_with_safe_names() {
    let folder = Place::new();
    let depth = "[{attention: 8}, {mlp: 25%}, {sublayers: 12}]";
    let grid = folder.load(grid("[llm-drop, {name: finercut, distance: js}]", depth, "none"), &[]).unwrap();
    let names: Vec<String> = grid.cells.iter().map(ToString::to_string).collect();
    assert_eq!(
        names,
        [
            "english.dense",
            "english.llm-drop-attention-8.none",
            "english.llm-drop-mlp-4.none",
            "english.llm-drop-sublayers-12.none",
            "english.finercut-attention-8.none",
            "english.finercut-mlp-4.none",
            "english.finercut-sublayers-12.none",
        ]
    );
    let depths: Vec<(usize, DepthUnit)> = grid.depth.iter().map(|depth| (depth.count, depth.unit)).collect();
    assert_eq!(depths, [(8, DepthUnit::Attention), (4, DepthUnit::Mlp), (12, DepthUnit::Sublayers)]);
}

#[test]
fn attentions_are_repaired_under_names_of_their_own() {
    let folder = Place::new();
    let criteria = "[llm-drop, nbl, {name: nbl, input: normed}]";
    let grid = folder.load(grid(criteria, "{attention: 4}", "[nbl, {name: nbl, input: normed}]"), &[]).unwrap();
    let names: Vec<String> = grid.cells.iter().skip(1).map(ToString::to_string).collect();
    assert_eq!(
        names,
        [
            "english.llm-drop-attention-4.nbl",
            "english.llm-drop-attention-4.nbl.input-normed",
            "english.nbl-attention-4.nbl",
            "english.nbl-attention-4.nbl.input-normed",
            "english.nbl-attention-4.input-normed.nbl",
            "english.nbl-attention-4.input-normed.nbl.input-normed",
        ]
    );
}

#[test]
fn sublayers_are_combined_with_layers_by_include() {
    let folder = Place::new();
    let text =
        good_but("evaluate:", "include:\n  - {criterion: llm-drop, depth: {attention: 4}, recovery: none}\nevaluate:");
    let grid = folder.load(text, &[]).unwrap();
    assert_eq!(grid.cells.last().unwrap().to_string(), "english.llm-drop-attention-4.none");
    assert_eq!(grid.cells.len(), 1 + 2 * 2 + 1);
}

#[test]
fn depths_that_do_not_fit_are_refused_where_they_stand() {
    let folder = Place::new();
    for (criterion, depth, recovery, words) in [
        ("llm-streamline", "{attention: 4}", "none", &["8:", "removes whole layers", "llm-drop"][..]),
        ("llm-drop", "4", "none", &["8:", "removes sublayers", "`{attention: 4}`"]),
        ("llm-drop", "{attention: 17}", "none", &["8:", "at most 16"]),
        ("llm-drop", "{sublayers: 32}", "none", &["8:", "at most 31"]),
        ("llm-drop", "{heads: 4}", "none", &["`attention`, `mlp` and `sublayers`"]),
        ("llm-drop", "{attention: 4, mlp: 2}", "none", &["`{attention: 8}`"]),
        ("llm-drop", "{attention: 0}", "none", &["a depth is 0"]),
        ("llm-drop", "{attention: 4}", "ghosted", &["`ghosted` repairs whole layers", "`recovery: none`", "include"]),
        ("llm-drop", "{mlp: 4}", "nbl", &["`nbl` repairs a cut of attention", "`{attention: 4}`", "4 mlp"]),
        ("llm-streamline", "4", "[none, nbl]", &["8:", "`{attention: 4}`", "include"]),
    ] {
        let error = folder.load(grid(criterion, depth, recovery), &[]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        for word in words {
            assert!(error.to_string().contains(word), "{criterion} {depth} {recovery}: no `{word}` in\n{error}");
        }
    }
}
