//! Snapshot tests for tables on terminals that are 120 and 80 columns wide.

use super::run_tables_test::{CellFixture, cell, results, task, text};
use super::{Table, long, screen, wrap};

/// Builds the table for a typical grid with one backbone, dense and pruned at three depths with five recoveries.
fn user_grid_table() -> Table {
    let recoveries = ["none", "prune-and-comp", "replaceme-ls", "linearpatch-rotate", "ghosted"];
    let values: Vec<Vec<Option<f64>>> = (0..16)
        .map(|at| {
            let at = f64::from(at);
            vec![Some(18.5 + at * at), Some(22.25 + 3.0 * at), Some(31.0 + 2.0 * at), Some(62.0 - 1.5 * at)]
        })
        .collect();
    let mut cells = vec![cell("my-llama-3.2-1b-instruct", 0, "none", &values[0])];
    for (at, values) in values.iter().enumerate().skip(1) {
        let depth = [2, 4, 6][(at - 1) / 5];
        let row = cell("my-llama-3.2-1b-instruct", depth, recoveries[(at - 1) % 5], values);
        let failure = (at == 8).then_some("a tensor is not finite");
        cells.push(CellFixture { failure, ..row });
    }
    let mut results = results(vec![text("wikitext2-test"), text("c4-validation"), text("ptb-test"), task()], &cells);
    for cell in results.cells.iter_mut().filter(|cell| cell.cell.depth.count > 0) {
        cell.calibration = Some("c4-train:128x2048@0, operators from 32".into());
    }
    long(
        &results,
        "",
        vec!["A note that is longer than a line of a narrow terminal is broken between its words.".into()],
    )
}

fn expected(name: &str) -> String {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/screen");
    std::fs::read_to_string(folder.join(name).with_extension("txt")).unwrap()
}

fn assert_fits(text: &str, width: usize) {
    let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > width).collect();
    assert_eq!(wide, Vec::<&str>::new(), "{text}");
}

#[test]
fn user_grid_is_not_split_at_80_and_120_columns() {
    for width in [80, 120] {
        let text = screen(&user_grid_table(), Some(width));
        assert_fits(&text, width);
        assert_eq!(text, expected(&format!("own-grid-{width}")), "{width} columns");
    }
}

#[test]
fn too_wide_table_is_split_into_even_parts() {
    let corpora = ["a", "b", "c", "d", "e"];
    let values = [Some(10.0), Some(11.0), Some(12.0), Some(13.0), Some(14.0)];
    let rows = [cell("mine", 2, "none", &values), cell("mine", 2, "ghosted", &values)];
    let table = long(&results(corpora.map(text).to_vec(), &rows), "", Vec::new());
    let text = screen(&table, Some(32));
    assert_fits(&text, 32);
    let parts: Vec<&str> = text.lines().filter(|line| line.starts_with("column")).collect();
    assert_eq!(parts, ["columns 1–2 of 5", "columns 3–5 of 5"], "{text}");
    let narrow = screen(&table, Some(3));
    assert!(narrow.contains("column 5 of 5"), "every column is shown: {narrow}");
}

#[test]
fn notes_are_wrapped_between_words() {
    let cases = [
        ("one two three", 7, "one two\nthree"),
        ("one two three", 80, "one two three"),
        ("a-very-long-word and more", 10, "a-very-long-word\nand more"),
        ("", 10, ""),
    ];
    for (text, width, expected) in cases {
        assert_eq!(wrap(text, Some(width)), expected, "{text} in {width}");
    }
    assert_eq!(wrap("one  two", None), "one  two", "no terminal");
}
