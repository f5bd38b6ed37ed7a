//! A table for a terminal.

use super::layout::{Row, View};
use crate::error::printable;

/// Columns in line; `*` after the best, `°` after the second, `+` or `-` where a paired test tells ours from the best of
/// the others.
pub fn screen(view: &View) -> String {
    let heads: Vec<String> =
        view.lead.iter().cloned().chain(view.columns.iter().map(|column| column.head.clone())).collect();
    let lines: Vec<Vec<String>> = view.rows.iter().map(cells).collect();
    let width =
        |at: usize| lines.iter().map(|line| &line[at]).chain([&heads[at]]).map(|text| text.chars().count()).max();
    let widths: Vec<usize> = (0..heads.len()).map(|at| width(at).unwrap_or(0)).collect();
    let lead = view.lead.len();
    let joined = |line: &[String]| {
        let cell = |(at, text): (usize, &String)| {
            let width = widths[at];
            if at < lead { format!("{text:<width$}") } else { format!("{text:>width$}") }
        };
        format!("{}\n", line.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end())
    };
    let mut text = format!("{}\n\n", view.title);
    if !view.groups.is_empty() {
        text.push_str(&over(view, &widths));
    }
    // The marks stand after the numbers; the heads stand over the numbers.
    text.push_str(&joined(&heads));
    let rule = |sign: &str| widths.iter().map(|&width| sign.repeat(width)).collect::<Vec<_>>().join("  ") + "\n";
    text.push_str(&rule("─"));
    for (row, line) in view.rows.iter().zip(&lines) {
        let before = view.rows.iter().take_while(|other| !std::ptr::eq(*other, row)).last();
        if before.is_some_and(|before| before.block != row.block) {
            text.push_str(&rule("┄"));
        }
        text.push_str(&joined(line));
    }
    text.push_str("\n* best, ° second of a block");
    if view.significant() {
        text.push_str("; + or -: ours is better or worse than the best other repair of the same selection, p < 0.05 on the same items");
    }
    text.push('\n');
    view.notes.iter().for_each(|note| text.push_str(&format!("{note}\n")));
    printable(&text).into_owned()
}

/// The heads over groups of columns.
fn over(view: &View, widths: &[usize]) -> String {
    let lead: usize = widths[..view.lead.len()].iter().map(|width| width + 2).sum();
    let mut text = " ".repeat(lead);
    let mut at = view.lead.len();
    for (head, count) in &view.groups {
        let width = widths[at..at + count].iter().map(|width| width + 2).sum::<usize>() - 2;
        text.push_str(&format!("{head:^width$}  "));
        at += count;
    }
    format!("{}\n", text.trim_end())
}

fn cells(row: &Row) -> Vec<String> {
    let cell = |shown: &Option<super::layout::Shown>| match shown {
        None => "— ".to_owned(),
        Some(shown) => {
            let rank = match (shown.best, shown.second) {
                (true, _) => "*",
                (_, true) => "°",
                _ => " ",
            };
            let mark = shown.paired.as_ref().map_or("", super::paired::Paired::mark);
            format!("{}{rank}{mark}", shown.text)
        }
    };
    row.lead.iter().cloned().chain(row.cells.iter().map(cell)).collect()
}
