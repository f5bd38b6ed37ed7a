//! A data frame as text. polars' own table is set up by environment variables of the process, which a library may not
//! touch, and shortens what it finds too wide; a result is shown whole.

use polars::prelude::{AnyValue, Column, DataFrame};

use crate::error::{Result, printable};

/// Stands for a value that is not there.
pub(super) const NONE: &str = "—";

/// The texts of a column, and whether they are numbers.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    pub(crate) name: String,
    pub(crate) cells: Vec<String>,
    pub(crate) is_number: bool,
}

/// The frame's columns as texts.
pub(crate) fn show(frame: &DataFrame) -> Result<Vec<Shown>> {
    frame.columns().iter().map(show_column).collect()
}

fn show_column(column: &Column) -> Result<Shown> {
    let values: Vec<AnyValue<'_>> = (0..column.len())
        .map(|row| column.get(row))
        .collect::<Result<_, _>>()
        .map_err(|error| super::table::failed(&error))?;
    let decimals = decimals(column.name(), &values);
    let cells = values
        .iter()
        .map(|value| match value {
            AnyValue::Null => NONE.to_owned(),
            AnyValue::String(text) => one_line(text),
            AnyValue::StringOwned(text) => one_line(text),
            AnyValue::Float64(number) => float(*number, decimals),
            other => other.to_string(),
        })
        .collect();
    Ok(Shown { name: one_line(column.name()), cells, is_number: column.dtype().is_primitive_numeric() })
}

/// A reason for a failure may have several lines; a row has one.
fn one_line(text: &str) -> String {
    printable(&text.split_whitespace().collect::<Vec<_>>().join(" ")).into_owned()
}

fn decimals(name: &str, values: &[AnyValue<'_>]) -> usize {
    if name == "seconds" {
        return 1;
    }
    let numbers = values.iter().filter_map(|value| match value {
        AnyValue::Float64(number) => Some(*number),
        _ => None,
    });
    decimals_of(name, numbers)
}

/// So many decimals for all numbers of a metric that the smallest still shows four figures or more, and points line up.
pub(super) fn decimals_of(name: &str, numbers: impl Iterator<Item = f64>) -> usize {
    // A perplexity has as many figures as it needs; a percentage always two decimals, as in the paper.
    if !name.starts_with("ppl ") {
        return 2;
    }
    match numbers.filter(|number| number.is_finite()).map(f64::abs).fold(f64::INFINITY, f64::min) {
        least if least < 10.0 => 4,
        least if least < 100.0 => 3,
        _ => 2,
    }
}

pub(super) fn float(number: f64, decimals: usize) -> String {
    // A variant that collapsed may have a perplexity of twenty digits, which nobody counts.
    if number.is_finite() && number.abs() >= 1e7 { format!("{number:.3e}") } else { format!("{number:.decimals$}") }
}

/// Columns in line, numbers to the right, names above a rule.
pub(crate) fn aligned(columns: &[Shown]) -> String {
    let widths: Vec<usize> = columns
        .iter()
        .map(|column| column.cells.iter().chain([&column.name]).map(|text| text.chars().count()).max().unwrap_or(0))
        .collect();
    let line = |cell: &dyn Fn(&Shown) -> String| {
        let cells: Vec<String> = columns
            .iter()
            .zip(&widths)
            .map(|(column, &width)| {
                let text = cell(column);
                if column.is_number { format!("{text:>width$}") } else { format!("{text:<width$}") }
            })
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    let mut text = line(&|column| column.name.clone());
    let rules: Vec<String> = widths.iter().map(|&width| "─".repeat(width)).collect();
    text.push_str(&rules.join("  "));
    text.push('\n');
    for row in 0..columns.first().map_or(0, |column| column.cells.len()) {
        text.push_str(&line(&|column| column.cells[row].clone()));
    }
    text
}

/// The same for a terminal of so many columns. What does not fit is folded: what is the same in all rows is said once
/// above, and the columns behind the first `lead` stand in several tables one below the other, each with its lead.
pub(crate) fn fitted(columns: &[Shown], lead: usize, width: Option<usize>) -> String {
    let Some(width) = width.filter(|&width| wide(columns) > width) else { return aligned(columns) };
    let same = |column: &Shown| column.cells.len() > 1 && column.cells.iter().all(|cell| *cell == column.cells[0]);
    let (constant, lead): (Vec<&Shown>, Vec<&Shown>) = columns[..lead].iter().partition(|column| same(column));
    let mut text = String::new();
    if !constant.is_empty() {
        let said: Vec<String> = constant.iter().map(|column| format!("{} {}", column.name, column.cells[0])).collect();
        text.push_str(&format!("all rows: {}\n\n", said.join(", ")));
    }
    let values = &columns[constant.len() + lead.len()..];
    let own = |parts: &[&Shown]| -> Vec<Shown> { parts.iter().map(|column| (*column).clone()).collect() };
    let fits = |part: &[&Shown]| wide(&own(&[&lead, part].concat())) <= width;
    let mut parts: Vec<Vec<&Shown>> = Vec::new();
    for column in values {
        match parts.last_mut() {
            Some(part) if fits(&[part.as_slice(), &[column]].concat()) => part.push(column),
            _ => parts.push(vec![column]),
        }
    }
    let (count, mut shown) = (values.len(), 0);
    for part in &parts {
        if parts.len() > 1 {
            let line = if shown == 0 { "" } else { "\n" };
            text.push_str(&format!("{line}columns {}–{} of {count}\n", shown + 1, shown + part.len()));
        }
        shown += part.len();
        text.push_str(&aligned(&own(&[&lead, part.as_slice()].concat())));
    }
    text
}

/// How many columns of a terminal a table takes.
fn wide(columns: &[Shown]) -> usize {
    let widest = |column: &Shown| column.cells.iter().chain([&column.name]).map(|text| text.chars().count()).max();
    columns.iter().map(|column| widest(column).unwrap_or(0) + 2).sum::<usize>().saturating_sub(2)
}

/// The same as a Markdown table; `is_bold` picks cells by row and column.
pub(crate) fn markdown(columns: &[Shown], is_bold: impl Fn(usize, usize) -> bool) -> String {
    let join = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = join(columns.iter().map(|column| escaped(&column.name)).collect());
    text.push_str(&join(columns.iter().map(|c| if c.is_number { "---:" } else { "---" }.to_owned()).collect()));
    for row in 0..columns.first().map_or(0, |column| column.cells.len()) {
        let cell = |(index, column): (usize, &Shown)| {
            let cell = escaped(&column.cells[row]);
            if is_bold(row, index) { format!("**{cell}**") } else { cell }
        };
        text.push_str(&join(columns.iter().enumerate().map(cell).collect()));
    }
    text
}

/// A text as a cell of a Markdown table: nothing in it is a mark, a link, HTML, or the end of the cell.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in one_line(text).chars() {
        if matches!(c, '\\' | '|' | '*' | '_' | '`' | '[' | ']' | '<' | '>') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_too_wide_is_folded_and_says_so() {
        let column = |name: &str, cells: [&str; 2]| Shown {
            name: name.to_owned(),
            cells: cells.map(str::to_owned).to_vec(),
            is_number: true,
        };
        let columns = [
            column("backbone", ["mine", "mine"]),
            column("depth", ["1", "2"]),
            column("ppl a", ["10.00", "20.00"]),
            column("ppl b", ["30.00", "40.00"]),
            column("status", ["ok", "ok"]),
        ];
        assert_eq!(fitted(&columns, 2, None), aligned(&columns));
        assert_eq!(fitted(&columns, 2, Some(37)), aligned(&columns), "it fits: {}", wide(&columns));
        let text = fitted(&columns, 2, Some(23));
        let expected = "\
all rows: backbone mine

columns 1–2 of 3
depth  ppl a  ppl b
─────  ─────  ─────
    1  10.00  30.00
    2  20.00  40.00

columns 3–3 of 3
depth  status
─────  ──────
    1      ok
    2      ok
";
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.chars().count() <= 23));
    }
}
