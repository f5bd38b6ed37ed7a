//! A table for a terminal.

use super::table::{LeadPlace, PrintedNumber, Table};
use super::text::TextTable;

/// Stands for a value that is not there.
const NONE: &str = "—";

/// Columns in line; `*` after the best, `°` after the second, `+` or `-` where a paired test tells ours from the best of
/// the others. On a terminal of `width` columns a wider table is folded.
pub fn screen(table: &Table, width: Option<usize>) -> String {
    let mut text = if table.title.is_empty() { String::new() } else { format!("{}\n\n", table.title) };
    text.push_str(&texts(table).screen(width));
    let mut legend = Vec::new();
    if table.has_ranks() {
        legend.push("* best, ° second of a block".to_owned());
    }
    if table.significant() {
        legend.push(format!("+ or -: {}, p < 0.05 on the same items", table.marks()));
    }
    if !legend.is_empty() {
        text.push_str(&format!("\n{}\n", legend.join("; ")));
    }
    table.below().for_each(|note| text.push_str(&format!("{note}\n")));
    text
}

fn texts(table: &Table) -> TextTable {
    let numbers = |all: &[Option<&PrintedNumber>]| {
        let ranks = all.iter().flatten().any(|shown| shown.best || shown.second);
        let marks = all.iter().flatten().any(|shown| !shown.mark().is_empty());
        all.iter().map(|shown| cell(*shown, ranks, marks)).collect()
    };
    TextTable::of(table, |place| place != LeadPlace::Data, &|_, _, text, _| said(text), &numbers)
}

/// On one line: the reason of a failure may have several.
fn said(text: &str) -> String {
    if text.is_empty() { NONE.to_owned() } else { text.split_whitespace().collect::<Vec<_>>().join(" ") }
}

/// Room is kept for ranks and marks where a column has any, so that its points stand below each other.
fn cell(shown: Option<&PrintedNumber>, ranks: bool, marks: bool) -> String {
    let rank = match shown {
        Some(PrintedNumber { best: true, .. }) => "*",
        Some(PrintedNumber { second: true, .. }) => "°",
        _ => " ",
    };
    let mark = shown.map_or("", PrintedNumber::mark);
    let text = shown.map_or(NONE, |shown| &shown.text);
    let (rank, mark) = (if ranks { rank } else { "" }, if marks { format!("{mark:<1}") } else { String::new() });
    format!("{text}{rank}{mark}")
}
