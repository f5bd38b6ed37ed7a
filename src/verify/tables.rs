//! Checks the tables in a results folder against the numbers, and each format of a table against the others.

use std::collections::BTreeMap;
use std::path::Path;

use super::finding::{CheckKind, CheckResult};
use super::page_table::{check_page, parse_printed, read_markdown_rows};
use super::printed_table::{PrintedTable, file_name, nearly_equal};
use super::recorded_results::ReferenceRun;
use crate::error::{Error, Result};
use crate::files::{self, regular};
use crate::metric::Spread;
use crate::results::{REPLACED, ResultRow, deviation, mean, read_frame, spread_header, write_csv};

/// Checks all tables in a results folder.
///
/// # Errors
/// Fails if a file cannot be read.
pub(super) fn check(folder: &Path, recorded: &ReferenceRun) -> Result<CheckResult> {
    let mut check = CheckResult::new(CheckKind::Tables);
    let mut tables = files::entries(folder).map_err(|error| Error::folder_io("read", folder, &error))?;
    tables.retain(|path| path.extension().is_some_and(|extension| extension == "csv"));
    for path in tables {
        let table = PrintedTable::read(&path)?;
        let tidy = table.column("metric").zip(table.column("cell"));
        match tidy {
            Some((metric, cell)) => check_tidy(&table, recorded, metric, cell, &mut check),
            // A table that lists removed layers has no numbers to check.
            None if table.column(REPLACED).is_some() => {}
            None => check_wide(&table, recorded, &mut check),
        }
        check_parquet(&path, &mut check)?;
        let printed = path.with_extension("md");
        match (folder.join("page.json"), printed.is_file()) {
            (page, true) if page.is_file() => {
                check_page(&page, &table, &printed, &path.with_extension("tex"), &mut check)?;
            }
            // An artifact with overridden settings has a tidy table but no `page.json`.
            (_, true) if tidy.is_some() => check_tidy_markdown(&table, &printed, &mut check)?,
            (_, true) => check_markdown(&table, recorded, &printed, &mut check)?,
            _ => {}
        }
    }
    let all = check.compared_count();
    Ok(check.with_total(all))
}

fn is_nearly_equal(one: Option<f64>, two: Option<f64>) -> bool {
    one.zip(two).map_or(one.is_none() && two.is_none(), |(one, two)| nearly_equal(one, two))
}

/// Value and error that a row of a tidy table (one number per row) must contain.
struct ExpectedNumber {
    value: Option<f64>,
    error: Option<(Spread, f64)>,
}

impl ExpectedNumber {
    fn from_row(row: &ResultRow) -> Self {
        Self { value: row.record.value, error: row.record.error.map(|error| (row.spread(), error)) }
    }

    fn over_seeds(values: &[f64]) -> Self {
        Self { value: mean(values), error: deviation(values).map(|error| (Spread::OverSeeds, error)) }
    }

    fn error(&self, kind: Spread) -> Option<f64> {
        self.error.and_then(|(known, error)| (known == kind).then_some(error))
    }
}

/// Checks a tidy table, which has one row for each number or for each mean over seeds.
fn check_tidy(table: &PrintedTable, recorded: &ReferenceRun, metric: usize, cell: usize, check: &mut CheckResult) {
    let Some(value) = table.column("value") else { return };
    let kinds: Vec<(usize, Spread)> =
        Spread::ALL.into_iter().filter_map(|kind| Some((table.column(kind.column())?, kind))).collect();
    let seeds = table.column("n");
    for row in 0..table.rows.len() {
        let (Some(cells), Some(metric)) = (table.rows[row].get(cell), table.rows[row].get(metric)) else { continue };
        let cells: Vec<&str> = cells.split("; ").collect();
        let numbers = |cell: &str| -> Vec<&ResultRow> {
            let numbers = recorded.numbers.numbers.iter();
            numbers.filter(|number| number.cell == cell && number.record.metric == *metric).collect()
        };
        let is_over_seeds = seeds.is_some_and(|at| table.number(row, at).is_some());
        let expected: Vec<ExpectedNumber> = match cells.as_slice() {
            [one] if !is_over_seeds => numbers(one).into_iter().map(ExpectedNumber::from_row).collect(),
            several => {
                let each: Vec<f64> = several.iter().filter_map(|cell| numbers(cell).first()?.record.value).collect();
                vec![ExpectedNumber::over_seeds(&each)]
            }
        };
        let mut compare = |position: usize, all: Vec<Option<f64>>, may_be_empty: bool| {
            let found = table.number(row, position);
            let is_empty = found.is_none() && table.rows[row].get(position).is_none_or(String::is_empty);
            match (is_empty && may_be_empty) || all.iter().any(|value| is_nearly_equal(*value, found)) {
                true => check.record_agreement(0.0),
                false => {
                    let at = format!("{}, line {}: {} of {}", table.name, row + 2, metric, cells.join("; "));
                    table.record_difference(at, (row, position), all.first().copied().flatten(), check);
                }
            }
        };
        let mut cell_numbers = recorded.numbers.numbers.iter().filter(|number| cells.contains(&number.cell.as_str()));
        let has_failure = cell_numbers.any(|number| number.failure.is_some());
        compare(value, expected.iter().map(|record| record.value).collect(), has_failure);
        for &(column, kind) in &kinds {
            compare(column, expected.iter().map(|record| record.error(kind)).collect(), false);
        }
    }
}

/// Checks a table with one row per cell and one column per number. Rows do not name their cells, so each row is
/// compared with the remaining cell that differs from it in the fewest columns. Skips tables of means over seeds.
fn check_wide(table: &PrintedTable, recorded: &ReferenceRun, check: &mut CheckResult) {
    let mut cells: BTreeMap<&str, BTreeMap<String, Option<f64>>> = BTreeMap::new();
    for number in &recorded.numbers.numbers {
        let columns = cells.entry(&number.cell).or_default();
        columns.insert(number.column.clone(), number.record.value);
        columns.insert(spread_header(&number.column, number.spread()), number.record.error);
    }
    let heads = table.heads.iter().enumerate();
    let heads = heads.filter(|(_, head)| cells.values().any(|cell| cell.contains_key(*head)));
    let number_columns: Vec<(usize, &str)> = heads.map(|(at, head)| (at, head.as_str())).collect();
    // Skip a table that is averaged over seeds, because each of its rows covers several cells.
    if table.heads.iter().any(|head| head.ends_with(" n")) {
        return;
    }
    let mut unmatched_cells: Vec<&BTreeMap<String, Option<f64>>> = cells.values().collect();
    for row in 0..table.rows.len() {
        let Some(nearest) = (0..unmatched_cells.len())
            .min_by_key(|&at| differing_columns(table, &number_columns, row, unmatched_cells[at]).len())
        else {
            let at = format!("{}, line {}", table.name, row + 2);
            check.record_difference(at, ["a row", "no such cell in numbers.json"], None);
            continue;
        };
        let wrong = differing_columns(table, &number_columns, row, unmatched_cells.remove(nearest));
        (wrong.len()..number_columns.len()).for_each(|_| check.record_agreement(0.0));
        for (at, computed) in wrong {
            table.record_difference(
                format!("{}, line {}, {}", table.name, row + 2, table.heads[at]),
                (row, at),
                computed,
                check,
            );
        }
    }
}

/// Returns the columns in which a row differs from a cell, each with the cell's value.
fn differing_columns(
    table: &PrintedTable,
    number_columns: &[(usize, &str)],
    row: usize,
    values_by_column: &BTreeMap<String, Option<f64>>,
) -> Vec<(usize, Option<f64>)> {
    number_columns
        .iter()
        .filter_map(|(at, head)| {
            let value = values_by_column.get(*head).copied().flatten();
            (!is_nearly_equal(value, table.number(row, *at))).then_some((*at, value))
        })
        .collect()
}

/// Checks that the Parquet table equals the CSV table.
fn check_parquet(csv: &Path, check: &mut CheckResult) -> Result<()> {
    let path = csv.with_extension("parquet");
    if !path.is_file() {
        return Ok(());
    }
    let frame = read_frame(&path)?;
    let folder = tempfile::tempdir().map_err(|error| Error::folder_io("write to", &std::env::temp_dir(), &error))?;
    let rewritten = folder.path().join("again.csv");
    write_csv(&rewritten, &frame)?;
    let one = regular::read(csv)?;
    let two = regular::read(&rewritten)?;
    let one = String::from_utf8_lossy(&one);
    let two = String::from_utf8_lossy(&two);
    let line = one.lines().zip(two.lines()).take_while(|(a, b)| a == b).count();
    check.compare(
        one.lines().eq(two.lines()),
        || format!("{} and {}, line {}", file_name(csv), file_name(&path), line + 1),
        [&one, &two].map(|text| text.lines().nth(line).unwrap_or_default()),
    );
    Ok(())
}

/// Checks that each number in a Markdown table occurs in the tidy table, in a row for the same backbone and depth.
fn check_tidy_markdown(table: &PrintedTable, path: &Path, check: &mut CheckResult) -> Result<()> {
    let text = String::from_utf8_lossy(&regular::read(path)?).into_owned();
    let (Some(value), Some(alignment)) = (table.column("value"), text.lines().find(|line| line.starts_with("| --")))
    else {
        return Ok(());
    };
    let is_number: Vec<bool> =
        alignment.trim_matches('|').split(" | ").map(|cell| cell.trim().ends_with(':')).collect();
    let labels: Vec<[String; 2]> = (0..table.rows.len()).map(|line| row_labels(table, line)).collect();
    for (row, cells) in read_markdown_rows(path)?.iter().enumerate() {
        let shows = |label: &String| cells.iter().any(|cell| cell.trim() == label);
        let is_shown = [0, 1].map(|kind| labels.iter().any(|line| shows(&line[kind])));
        let lines =
            (0..table.rows.len()).filter(|&line| (0..2).all(|kind| !is_shown[kind] || shows(&labels[line][kind])));
        let values: Vec<f64> = lines.filter_map(|line| table.number(line, value)).collect();
        for (text, _) in cells.iter().zip(&is_number).filter(|(_, is_number)| **is_number) {
            let Some((number, half)) = parse_printed(&without_markup(text)) else { continue };
            check.compare(
                values.iter().any(|value| (value - number).abs() <= half),
                || format!("{}, row {}", file_name(path), row + 1),
                [text.trim().to_owned(), format!("no such value in {}", table.name)],
            );
        }
    }
    Ok(())
}

/// Returns the backbone and depth labels for a line, as shown in printed tables.
fn row_labels(table: &PrintedTable, line: usize) -> [String; 2] {
    let [backbone, removed, total] = ["backbone", "pruned_layers", "total_layers"]
        .map(|head| table.column(head).and_then(|column| table.rows[line].get(column)).cloned().unwrap_or_default());
    [backbone, format!("{removed}/{total}")]
}

fn without_markup(text: &str) -> String {
    text.replace("**", "").replace("<u>", "").replace('*', "")
}

/// Checks the Markdown table against the CSV table.
fn check_markdown(table: &PrintedTable, recorded: &ReferenceRun, path: &Path, check: &mut CheckResult) -> Result<()> {
    let text = String::from_utf8_lossy(&regular::read(path)?).into_owned();
    let Some(heads) = text.lines().find(|line| line.starts_with("| ")) else { return Ok(()) };
    let heads: Vec<&str> = heads.trim_matches('|').split(" | ").map(str::trim).collect();
    let rows = read_markdown_rows(path)?;
    if rows.len() != table.rows.len() {
        let counts = [rows.len(), table.rows.len()].map(|count| format!("{count} rows"));
        check.record_difference(format!("{} and {}", file_name(path), table.name), counts, None);
        return Ok(());
    }
    for (at, head) in heads.iter().enumerate() {
        let is_recorded = recorded.numbers.numbers.iter().any(|number| number.column == *head);
        let Some(column) = table.column(head).filter(|_| is_recorded) else { continue };
        for (row, cells) in rows.iter().enumerate() {
            let (Some(value), Some(text)) = (table.number(row, column), cells.get(at)) else { continue };
            match parse_printed(&without_markup(text)) {
                Some((number, half)) => check.compare_printed(|| cell_position(path, head, row), number, value, half),
                None => check.record_difference(
                    cell_position(path, head, row),
                    [text.trim().to_owned(), value.to_string()],
                    None,
                ),
            }
        }
    }
    Ok(())
}

fn cell_position(path: &Path, head: &&str, row: usize) -> String {
    format!("{}, row {}, {head}", file_name(path), row + 1)
}
