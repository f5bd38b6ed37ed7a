//! A table for a terminal.

use std::ops::Range;

use super::layout::{Row, View};
use crate::error::printable;

/// Columns in line; `*` after the best, `°` after the second, `+` or `-` where a paired test tells ours from the best of
/// the others. On a terminal of `width` columns a wider table is folded: several tables one below the other, each with the
/// columns that lead.
pub fn screen(view: &View, width: Option<usize>) -> String {
    let heads: Vec<String> =
        view.lead.iter().cloned().chain(view.columns.iter().map(|column| column.head.clone())).collect();
    let lines: Vec<Vec<String>> = view.rows.iter().map(cells).collect();
    let most =
        |at: usize| lines.iter().map(|line| &line[at]).chain([&heads[at]]).map(|text| text.chars().count()).max();
    let widths: Vec<usize> = (0..heads.len()).map(|at| most(at).unwrap_or(0)).collect();
    let page = Page { view, heads: &heads, lines: &lines, widths: &widths };
    let parts = folded(&widths, view.lead.len(), width);
    let (mut text, count) = (format!("{}\n\n", view.title), view.columns.len());
    for (index, part) in parts.iter().enumerate() {
        if parts.len() > 1 {
            let (line, lead) = (if index == 0 { "" } else { "\n" }, view.lead.len());
            text.push_str(&format!("{line}columns {}–{} of {count}\n", part.start - lead + 1, part.end - lead));
        }
        text.push_str(&page.part(part));
    }
    text.push_str("\n* best, ° second of a block");
    if view.significant() {
        text.push_str("; + or -: ours is better or worse than the best other repair of the same selection, p < 0.05 on the same items");
    }
    text.push('\n');
    view.notes.iter().for_each(|note| text.push_str(&format!("{note}\n")));
    printable(&text).into_owned()
}

/// The columns of each table, behind those that lead; one where all fit.
fn folded(widths: &[usize], lead: usize, width: Option<usize>) -> Vec<Range<usize>> {
    let taken = |of: &[usize]| of.iter().map(|width| width + 2).sum::<usize>();
    let room = width.unwrap_or(usize::MAX).saturating_sub(taken(&widths[..lead])).saturating_add(2);
    let mut parts: Vec<Range<usize>> = Vec::new();
    for at in lead..widths.len() {
        match parts.last_mut() {
            Some(part) if taken(&widths[part.start..=at]) <= room => part.end = at + 1,
            _ => parts.push(at..at + 1),
        }
    }
    parts
}

/// A table as texts.
struct Page<'a> {
    view: &'a View,
    heads: &'a [String],
    lines: &'a [Vec<String>],
    widths: &'a [usize],
}

impl Page<'_> {
    /// Some of its columns behind those that lead.
    fn part(&self, part: &Range<usize>) -> String {
        let lead = self.view.lead.len();
        let chosen = || (0..lead).chain(part.clone());
        let joined = |line: &[String]| {
            let cell = |at: usize| {
                let (text, width) = (&line[at], self.widths[at]);
                if at < lead { format!("{text:<width$}") } else { format!("{text:>width$}") }
            };
            format!("{}\n", chosen().map(cell).collect::<Vec<_>>().join("  ").trim_end())
        };
        let rule = |sign: &str| chosen().map(|at| sign.repeat(self.widths[at])).collect::<Vec<_>>().join("  ") + "\n";
        let mut text = String::new();
        if !self.view.groups.is_empty() {
            text.push_str(&self.over(part));
        }
        // The marks stand after the numbers; the heads stand over the numbers.
        text.push_str(&joined(self.heads));
        text.push_str(&rule("─"));
        for (at, line) in self.lines.iter().enumerate() {
            if at > 0 && self.view.rows[at - 1].block != self.view.rows[at].block {
                text.push_str(&rule("┄"));
            }
            text.push_str(&joined(line));
        }
        text
    }

    /// The heads over groups of columns, as far as these are shown.
    fn over(&self, part: &Range<usize>) -> String {
        let lead = self.view.lead.len();
        let mut text = " ".repeat(self.widths[..lead].iter().map(|width| width + 2).sum());
        let mut at = lead;
        for (head, count) in &self.view.groups {
            let shown = at.max(part.start)..(at + count).min(part.end);
            at += count;
            if shown.start < shown.end {
                let width = self.widths[shown].iter().map(|width| width + 2).sum::<usize>() - 2;
                text.push_str(&format!("{head:^width$}  "));
            }
        }
        format!("{}\n", text.trim_end())
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_do_not_fit_stand_below() {
        let widths = [10, 5, 6, 6, 6, 30];
        let whole = std::slice::from_ref(&(2..6));
        assert_eq!(folded(&widths, 2, None), whole);
        assert_eq!(folded(&widths, 2, Some(200)), whole);
        // The lead takes 19 with the space behind it: two of six fit into 33, none beside the widest.
        assert_eq!(folded(&widths, 2, Some(33)), [2..4, 4..5, 5..6]);
        assert_eq!(folded(&widths, 2, Some(5)), [2..3, 3..4, 4..5, 5..6], "each column stands somewhere");
    }
}
