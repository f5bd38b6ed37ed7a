//! Tables as columns of strings, from which terminal, Markdown and LaTeX output is built. This module also formats
//! Markdown.

use super::table::{PrintedNumber, RowHeader, Table, TableRow, Visibility};
use crate::error::printable;

/// Placeholder for a missing value.
pub(super) const NONE: &str = "—";

#[derive(Debug, Clone, Default)]
pub(super) struct TextTable {
    pub columns: Vec<TextColumn>,
    /// Number of leading columns. They name the row and are repeated in every part of a split table.
    pub lead: usize,
    /// Headers that span several non-leading columns, each with its number of columns; empty if columns are not
    /// grouped.
    pub groups: Vec<(String, usize)>,
    /// Index of the first row of every block except the first.
    pub breaks: Vec<usize>,
}

/// Column of strings. Numbers are right-aligned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TextColumn {
    pub head: String,
    pub cells: Vec<String>,
    pub is_number: bool,
}

impl TextTable {
    /// Converts the visible columns of a table into columns of strings. `words` formats a text cell, given its column,
    /// row index and text, and whether the column is a leading one. `numbers` formats a column of numbers.
    pub(super) fn new(
        table: &Table,
        is_visible: fn(Visibility) -> bool,
        words: &dyn Fn(&RowHeader, usize, &str, bool) -> String,
        numbers: &dyn Fn(&[Option<&PrintedNumber>]) -> Vec<String>,
    ) -> Self {
        let header_columns =
            |leads: &[RowHeader], cells: fn(&TableRow) -> &[String], is_lead: bool| -> Vec<TextColumn> {
                leads
                    .iter()
                    .enumerate()
                    .filter(|(_, lead)| is_visible(lead.visibility))
                    .map(|(at, lead)| TextColumn {
                        head: lead.head.clone(),
                        cells: table
                            .rows
                            .iter()
                            .enumerate()
                            .map(|(index, row)| words(lead, index, &cells(row)[at], is_lead))
                            .collect(),
                        is_number: lead.count,
                    })
                    .collect()
            };
        let lead = header_columns(&table.lead, |row| &row.lead, true);
        let measured = table.columns.iter().enumerate().map(|(at, column)| {
            let all: Vec<_> = table.rows.iter().map(|row| row.cells[at].as_ref()).collect();
            TextColumn { head: column.head.clone(), cells: numbers(&all), is_number: true }
        });
        Self {
            lead: lead.len(),
            groups: table.groups.clone(),
            breaks: (0..table.rows.len())
                .filter(|&at| at > 0 && table.rows[at - 1].block != table.rows[at].block)
                .collect(),
            columns: lead
                .into_iter()
                .chain(measured)
                .chain(header_columns(&table.tail, |row| &row.tail, false))
                .collect(),
        }
    }

    /// Formats a Markdown table. Group headers are appended to column headers. Headers are escaped, but cells are not.
    pub(super) fn markdown(&self) -> String {
        let groups: Vec<&String> =
            self.groups.iter().flat_map(|(head, count)| std::iter::repeat_n(head, *count)).collect();
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut text = line(
            self.columns
                .iter()
                .enumerate()
                .map(|(at, column)| match at.checked_sub(self.lead).and_then(|at| groups.get(at)) {
                    Some(group) => escape_markdown(&format!("{} ({group})", column.head)),
                    None => escape_markdown(&column.head),
                })
                .collect(),
        );
        text.push_str(&line(
            self.columns.iter().map(|column| if column.is_number { "---:" } else { "---" }.to_owned()).collect(),
        ));
        for row in 0..self.columns.first().map_or(0, |column| column.cells.len()) {
            text.push_str(&line(self.columns.iter().map(|column| column.cells[row].clone()).collect()));
        }
        text
    }
}

/// Capitalizes the first letter of a string.
pub fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}

/// Escapes a string for use in a Markdown cell.
pub fn escape_markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for c in printable(&line).chars() {
        if matches!(c, '\\' | '|' | '*' | '_' | '`' | '[' | ']' | '<' | '>') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Formats a table as Markdown. The best value is bold, the second best is underlined, and the names of our rows are in
/// italics. A legend below the table explains these marks.
pub fn markdown(table: &Table) -> String {
    let mut text = match table.title.as_str() {
        "" => String::new(),
        title => format!("**{}**\n\n", escape_markdown(title)),
    };
    let texts = TextTable::new(
        table,
        |visibility| visibility == Visibility::Everywhere,
        &|_: &RowHeader, row: usize, text: &str, is_lead: bool| match (text, table.rows[row].ours && is_lead) {
            ("", _) => NONE.to_owned(),
            (text, true) => format!("*{}*", escape_markdown(text)),
            (text, false) => escape_markdown(text),
        },
        &|all: &[Option<&PrintedNumber>]| {
            all.iter().map(|shown| shown.map_or_else(|| NONE.to_owned(), format_number)).collect()
        },
    );
    text.push_str(&texts.markdown());
    let mut legend = Vec::new();
    if table.has_ranks() {
        let ours = if table.rows.iter().any(|row| row.ours) { "; in italics: ours" } else { "" };
        legend.push(format!("Bold: best of a block; underlined: second{ours}."));
    }
    if table.has_significant_tests() {
        legend.push(format!("⁺ and ⁻: {}.", table.marks_legend()));
    }
    if table.has_paper() {
        legend.push(format!("Small: the paper's value, our difference from it, and a sign: {}.", table.sign_legend()));
    }
    let legend = Some(legend.join(" ")).filter(|legend| !legend.is_empty());
    let caption = Some(table.caption.trim().to_owned()).filter(|caption| !caption.is_empty());
    let notes = table.footer_lines().map(|note| escape_markdown(note));
    legend.into_iter().chain(notes).chain(caption).for_each(|part| text.push_str(&format!("\n{part}\n")));
    text
}

fn format_number(shown: &PrintedNumber) -> String {
    let mark = match shown.mark() {
        "+" => "⁺",
        "-" => "⁻",
        _ => "",
    };
    let text = match (shown.best, shown.second) {
        (true, _) => format!("**{}**{mark}", shown.text),
        (_, true) => format!("<u>{}</u>{mark}", shown.text),
        _ => format!("{}{mark}", shown.text),
    };
    match &shown.comparison {
        Some(comparison) => format!("{text}<br><sub>{}</sub>", comparison.lines().join("; ")),
        None => text,
    }
}
