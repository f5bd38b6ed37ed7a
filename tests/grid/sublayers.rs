//! Tests for depths given in sublayers: the resulting cells, their names, and rejected grids.

use ghostlab::criterion::DepthUnit;

use super::fixtures::{GridFolder, Messages, grid_with_axes, valid_grid_replacing};

#[test]
fn sublayer_depths_produce_safe_cell_names() {
    let folder = GridFolder::new();
    let depth = "[{attention: 8}, {mlp: 25%}, {sublayers: 12}]";
    let grid = folder.load(grid_with_axes("[llm-drop, {name: finercut, distance: js}]", depth, "none"), &[]).unwrap();
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
fn listed_sublayers_produce_safe_cell_names() {
    let folder = GridFolder::new();
    let criterion = "{name: explicit, sublayers: [[attention 3, mlp 8], [4]]}";
    let grid = folder.load(grid_with_axes(criterion, "{sublayers: 2}", "none"), &[]).unwrap();
    let names: Vec<String> = grid.cells.iter().skip(1).map(ToString::to_string).collect();
    let name = "english.explicit-sublayers-2.none.sublayers";
    assert_eq!(names, [format!("{name}-attention-3-mlp-8"), format!("{name}-4")]);
}

#[test]
fn repaired_attention_sublayers_have_distinct_cell_names() {
    let folder = GridFolder::new();
    let grid = folder
        .load(grid_with_axes("[llm-drop, nbl]", "{attention: 4}", "[nbl, {name: nbl, input: normed}]"), &[])
        .unwrap();
    let names: Vec<String> = grid.cells.iter().skip(1).map(ToString::to_string).collect();
    assert_eq!(
        names,
        [
            "english.llm-drop-attention-4.nbl",
            "english.llm-drop-attention-4.nbl.input-normed",
            "english.nbl-attention-4.nbl",
            "english.nbl-attention-4.nbl.input-normed",
        ]
    );
}

#[test]
fn include_combines_sublayer_cuts_with_layer_cuts() {
    let folder = GridFolder::new();
    let text = valid_grid_replacing(
        "evaluate:",
        "include:\n  - {criterion: llm-drop, depth: {attention: 4}, recovery: none}\nevaluate:",
    );
    let grid = folder.load(text, &[]).unwrap();
    assert_eq!(grid.cells.last().unwrap().to_string(), "english.llm-drop-attention-4.none");
    assert_eq!(grid.cells.len(), 1 + 2 * 2 + 1);
}

#[test]
fn invalid_depths_and_methods_are_rejected_at_their_line() {
    let folder = GridFolder::new();
    let mut messages = Messages::default();
    for (criterion, depth, recovery) in [
        ("llm-streamline", "{attention: 4}", "none"),
        ("llm-drop", "4", "none"),
        ("llm-drop", "{attention: 17}", "none"),
        ("llm-drop", "{sublayers: 32}", "none"),
        ("llm-drop", "{heads: 4}", "none"),
        ("llm-drop", "{attention: 4, mlp: 2}", "none"),
        ("llm-drop", "{attention: 0}", "none"),
        ("llm-drop", "{attention: 4}", "ghosted"),
        ("llm-streamline", "4", "[none, nbl]"),
        ("{name: lorp, iterative: true}", "4", "none"),
    ] {
        let title = format!("criterion: {criterion}, depth: {depth}, recovery: {recovery}");
        messages.add(&title, folder.rejection(grid_with_axes(criterion, depth, recovery), &[]));
    }
    messages.snapshot("grid_sublayers");
}

#[test]
fn search_skips_recoveries_that_cannot_repair_iteratively() {
    let folder = GridFolder::new();
    let grid_text = grid_with_axes("{name: shortgpt, iterative: true}", "3", "[none, merge]");
    let rejected = folder.load(&grid_text, &[]).unwrap_err().to_string();
    assert!(rejected.contains("`merge` cannot repair layers that are removed one by one"), "{rejected}");
    let grid = folder.load(grid_text.replace("evaluate:\n", "search:\n  budget: {layers: 3}\n"), &[]).unwrap();
    let recoveries: Vec<&str> =
        grid.cells.iter().filter_map(|cell| Some(cell.recovery.as_ref()?.name.as_str())).collect();
    assert_eq!(recoveries, ["none"]);
}
