//! A data frame as text. polars' own table is set up by environment variables of the process, which a library may not
//! touch, and shortens what it finds too wide; a result is shown whole.

use polars::prelude::{AnyValue, Column, DataFrame};

use crate::error::{Result, printable};

/// Stands for a value that is not there.
pub(super) const NONE: &str = "—";

/// The texts of a column, and whether they are numbers.
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

/// So many decimals for a whole column that its smallest number still shows four figures or more, and points line up.
fn decimals(name: &str, values: &[AnyValue<'_>]) -> usize {
    if name == "seconds" {
        return 1;
    }
    // A perplexity has as many figures as it needs; a percentage always two decimals, as in the paper.
    if !name.starts_with("ppl ") {
        return 2;
    }
    let numbers = values.iter().filter_map(|value| match value {
        AnyValue::Float64(number) if number.is_finite() => Some(number.abs()),
        _ => None,
    });
    match numbers.fold(f64::INFINITY, f64::min) {
        least if least < 10.0 => 4,
        least if least < 100.0 => 3,
        _ => 2,
    }
}

fn float(number: f64, decimals: usize) -> String {
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
