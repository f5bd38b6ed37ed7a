//! Tests that the layer diagram shows cuts of sublayers, and that figures and tables of whole layers reject them.

use super::*;
use crate::common::world::read_csv;

/// Creates experiments in which `figure2` consists of `part` (a figure or a table) and a grid that removes attention
/// sublayers.
fn experiments_without_attention_sublayers(part: &str) -> World {
    let world = experiments("mine");
    let grid = "criterion: llm-drop\ndepth: {attention: 2}\nrecovery: none\n\
        include:\n  - {criterion: nbl, recovery: nbl}\n\
        calibration: {corpus: train-train, sequences: 8, length: 64}\n\
        profile: tiny\nprofiles:\n  tiny: {backbone: mine}\n";
    world.write("experiments/figure2.yaml", format!("artifact:\n  title: Removed attentions\n  {part}\n{grid}"));
    world
}

#[test]
fn layer_diagram_shows_removed_and_replaced_attention() {
    let world = experiments_without_attention_sublayers("figure: {kind: layers}");
    run_ok(&world, &["reproduce", "figure2"]);
    let folder = world.path("results/figure2/tiny");
    let svg = fs::read_to_string(folder.join("figure2.svg")).unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let nodes = document.descendants().filter(|node| node.tag_name().name() == "text");
    let texts: Vec<&str> = nodes.filter_map(|node| node.text()).collect();
    // The backbone has four layers. For each selection, the figure shows the dense stack and a stack in which two
    // attention sublayers are removed or replaced.
    for (start, expected) in [
        ("LLM-Drop", 1),
        ("NBL bound", 1),
        ("2 of 4 attentions removed: ", 1),
        ("2 of 4 attentions replaced: ", 1),
        ("Dense", 2),
        ("Pruned", 1),
        ("Repaired", 1),
        ("attention", 4 + 4 + 4 + 2),
        ("MLP", 4 * 4),
        // The stack contains two labels, and the legend contains one.
        ("affine map", 2 + 1),
        ("kept sublayer", 1),
        ("removed sublayer", 1),
        ("Ghosted Layer", 0),
    ] {
        let found = texts.iter().filter(|text| text.starts_with(start)).count();
        assert_eq!(found, expected, "{start}: {texts:?}");
    }
    assert!(fs::read(folder.join("figure2.png")).unwrap().starts_with(b"\x89PNG"));

    let rows = read_csv(&folder.join("figure2.csv"));
    let [unit, criterion, removed, replaced] =
        ["unit", "criterion", "removed", "replaced"].map(|name| rows[0].iter().position(|head| head == name).unwrap());
    assert_eq!(rows.len(), 1 + 2, "{rows:?}");
    for (row, name) in rows[1..].iter().zip(["llm-drop", "nbl"]) {
        assert_eq!((row[unit].as_str(), row[criterion].as_str()), ("attention", name));
        assert!(row[removed].starts_with("attention "), "{row:?}");
        assert_eq!(row[replaced], if name == "nbl" { row[removed].as_str() } else { "" });
    }
    let page = fs::read_to_string(world.path("reports/index.html")).unwrap();
    let section = text_between(&page, "id=\"artifact-tiny/figure2\"", "</section>");
    assert!(section.contains("data:image/svg+xml"), "the page does not show the figure");
    run_ok(&world, &["verify", "results/figure2/tiny"]);
}

#[test]
fn figures_and_tables_that_count_layers_reject_sublayers() {
    let table = "table: {lead: [depth, method], rows: [{criterion: llm-drop, recovery: none}], metrics: [ppl_test]}";
    for (part, words) in [
        (
            "figure: {kind: bars, metrics: [boundary_mae], axis: Error}",
            ["the figure supports only whole layers", "`pareto`"],
        ),
        (
            "figure: {kind: depths, metrics: [ppl_test], axis: ppl}",
            ["the figure supports only whole layers", "`layers`"],
        ),
        (table, ["the table supports only whole layers", "`removed`"]),
    ] {
        let world = experiments_without_attention_sublayers(part);
        let output = world.ghostlab(&["reproduce", "figure2"]);
        let log = combined_output(&output);
        assert_eq!(output.status.code(), Some(2), "{part}: {log}");
        assert!(words.iter().all(|word| log.contains(word)), "{part}: {log}");
        assert!(!world.path("results/figure2").exists(), "{part}: wrote results");
    }
}
