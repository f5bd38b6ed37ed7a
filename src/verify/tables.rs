//! Checks of a folder's table: each format against the numbers and the other formats.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::finding::{Check, CheckKind};
use super::metrics::ROUNDING;
use super::record::ReferenceRun;
use crate::error::{Error, Result};
use crate::files::{self, regular};
use crate::metric::{Metric, Spread};
use crate::results::record::Record;
use crate::results::{NOISY, deviation, mean, read_frame, spread_head, write_csv};

/// Checks all tables of a folder.
///
/// # Errors
/// Fails if a file cannot be read.
pub(super) fn check(folder: &Path, recorded: &ReferenceRun) -> Result<Check> {
    let mut check = Check::new(CheckKind::Tables);
    let mut tables = files::entries(folder).map_err(|error| Error::io("read", folder, &error))?;
    tables.retain(|path| path.extension().is_some_and(|extension| extension == "csv"));
    for path in tables {
        let table = PrintedTable::read(&path)?;
        match table.place("metric").zip(table.place("cell")) {
            Some((metric, cell)) => tidy(&table, recorded, metric, cell, &mut check),
            None => wide(&table, recorded, &mut check),
        }
        parquet(&path, &mut check)?;
        let printed = path.with_extension("md");
        match (folder.join("page.json"), printed.is_file()) {
            (page, true) if page.is_file() => shown(&page, &table, &printed, &path.with_extension("tex"), &mut check)?,
            (_, true) => run_markdown(&table, recorded, &printed, &mut check)?,
            _ => {}
        }
    }
    let all = check.compared();
    Ok(check.of(all))
}

struct PrintedTable {
    name: String,
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl PrintedTable {
    fn read(path: &Path) -> Result<Self> {
        let name = name(path);
        let bytes = regular::read(path)?;
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(bytes.as_slice());
        let damaged = |error: csv::Error| {
            Error::damaged("the table is not a CSV file").at(path.display().to_string()).found(error.to_string())
        };
        let heads = reader.headers().map_err(damaged)?.iter().map(str::to_owned).collect();
        let rows = reader.records().map(|row| Ok(row.map_err(damaged)?.iter().map(str::to_owned).collect()));
        Ok(Self { name, heads, rows: rows.collect::<Result<_>>()? })
    }

    fn place(&self, head: &str) -> Option<usize> {
        self.heads.iter().position(|known| known == head)
    }

    fn number(&self, row: usize, column: usize) -> Option<f64> {
        self.rows[row].get(column)?.parse().ok()
    }

    /// Reports a field whose number differs from the recorded one.
    fn differs(&self, at: String, (row, column): (usize, usize), made: Option<f64>, check: &mut Check) {
        let by = made.zip(self.number(row, column)).map(|(made, found)| (made - found).abs());
        let text = made.map_or("nothing".to_owned(), |made| made.to_string());
        check.differ(at, [self.rows[row][column].clone(), text], by);
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn alike(one: f64, two: f64) -> bool {
    (one - two).abs() <= ROUNDING * one.abs().max(two.abs())
}

fn both_alike(one: Option<f64>, two: Option<f64>) -> bool {
    one.zip(two).map_or(one.is_none() && two.is_none(), |(one, two)| alike(one, two))
}

fn spread(record: &Record) -> Spread {
    Metric::find(&record.metric).ok().and_then(|metric| metric.spread).unwrap_or(Spread::StandardError)
}

struct ExpectedLine {
    value: Option<f64>,
    error: Option<(Spread, f64)>,
}

impl ExpectedLine {
    fn of(record: &Record) -> Self {
        Self { value: record.value, error: record.error.map(|error| (spread(record), error)) }
    }

    fn over_seeds(values: &[f64]) -> Self {
        Self { value: mean(values), error: deviation(values).map(|error| (Spread::OverSeeds, error)) }
    }

    fn error(&self, kind: Spread) -> Option<f64> {
        self.error.and_then(|(known, error)| (known == kind).then_some(error))
    }
}

/// Checks a table with one row per number, or per mean and deviation over seeds.
fn tidy(table: &PrintedTable, recorded: &ReferenceRun, metric: usize, cell: usize, check: &mut Check) {
    let Some(value) = table.place("value") else { return };
    let kinds: Vec<(usize, Spread)> =
        Spread::ALL.into_iter().filter_map(|kind| Some((table.place(kind.column())?, kind))).collect();
    let seeds = table.place("n");
    for row in 0..table.rows.len() {
        let (Some(cells), Some(metric)) = (table.rows[row].get(cell), table.rows[row].get(metric)) else { continue };
        let cells: Vec<&str> = cells.split("; ").collect();
        let numbers = |cell: &str| -> Vec<&Record> {
            let numbers =
                recorded.numbers.numbers.iter().filter(|number| number.cell == cell && number.record.metric == *metric);
            numbers.map(|number| &number.record).collect()
        };
        let is_over_seeds = seeds.is_some_and(|at| table.number(row, at).is_some());
        let expected: Vec<ExpectedLine> = match cells.as_slice() {
            [one] if !is_over_seeds => numbers(one).into_iter().map(ExpectedLine::of).collect(),
            several => {
                let each: Vec<f64> = several.iter().filter_map(|cell| numbers(cell).first()?.value).collect();
                vec![ExpectedLine::over_seeds(&each)]
            }
        };
        let mut compare = |position: usize, all: Vec<Option<f64>>, may_be_empty: bool| {
            let found = table.number(row, position);
            let is_empty = found.is_none() && table.rows[row].get(position).is_none_or(String::is_empty);
            match (is_empty && may_be_empty) || all.iter().any(|value| both_alike(*value, found)) {
                true => check.agree(0.0),
                false => {
                    let at = format!("{}, line {}: {} of {}", table.name, row + 2, metric, cells.join("; "));
                    table.differs(at, (row, position), all.first().copied().flatten(), check);
                }
            }
        };
        let mut of_cells = recorded.numbers.numbers.iter().filter(|number| cells.contains(&number.cell.as_str()));
        let has_failure = of_cells.any(|number| number.failure.is_some());
        compare(value, expected.iter().map(|record| record.value).collect(), has_failure);
        for &(column, kind) in &kinds {
            compare(column, expected.iter().map(|record| record.error(kind)).collect(), false);
        }
    }
}

/// Checks a table with one row per cell.
fn wide(table: &PrintedTable, recorded: &ReferenceRun, check: &mut Check) {
    let mut cells: BTreeMap<&str, BTreeMap<String, Option<f64>>> = BTreeMap::new();
    for number in &recorded.numbers.numbers {
        let columns = cells.entry(&number.cell).or_default();
        columns.insert(number.column.clone(), number.record.value);
        columns.insert(spread_head(&number.column, spread(&number.record)), number.record.error);
    }
    let heads = table.heads.iter().enumerate();
    let heads = heads.filter(|(_, head)| cells.values().any(|cell| cell.contains_key(*head)));
    let text_cells: Vec<(usize, &str)> = heads.map(|(at, head)| (at, head.as_str())).collect();
    // Rows over seeds are means of several cells.
    if table.heads.iter().any(|head| head.ends_with(" n")) {
        return;
    }
    let mut free: Vec<&BTreeMap<String, Option<f64>>> = cells.values().collect();
    for row in 0..table.rows.len() {
        let Some(nearest) = (0..free.len()).min_by_key(|&at| missing_columns(table, &text_cells, row, free[at]).len())
        else {
            let at = format!("{}, line {}", table.name, row + 2);
            check.differ(at, ["a row", "no such cell in numbers.json"], None);
            continue;
        };
        let wrong = missing_columns(table, &text_cells, row, free.remove(nearest));
        (wrong.len()..text_cells.len()).for_each(|_| check.agree(0.0));
        for (at, made) in wrong {
            table.differs(format!("{}, line {}, {}", table.name, row + 2, table.heads[at]), (row, at), made, check);
        }
    }
}

fn missing_columns(
    table: &PrintedTable,
    text_cells: &[(usize, &str)],
    row: usize,
    cell: &BTreeMap<String, Option<f64>>,
) -> Vec<(usize, Option<f64>)> {
    text_cells
        .iter()
        .filter_map(|(at, head)| {
            let value = cell.get(*head).copied().flatten();
            (!both_alike(value, table.number(row, *at))).then_some((*at, value))
        })
        .collect()
}

/// Checks that the Parquet table equals the CSV table.
fn parquet(csv: &Path, check: &mut Check) -> Result<()> {
    let path = csv.with_extension("parquet");
    if !path.is_file() {
        return Ok(());
    }
    let frame = read_frame(&path)?;
    let folder = tempfile::tempdir().map_err(|error| Error::io("create a folder in", &std::env::temp_dir(), &error))?;
    let again = folder.path().join("again.csv");
    write_csv(&again, &frame)?;
    let one = regular::read(csv)?;
    let two = regular::read(&again)?;
    let one = String::from_utf8_lossy(&one);
    let two = String::from_utf8_lossy(&two);
    match one.lines().zip(two.lines()).position(|(a, b)| a != b) {
        None if one.lines().count() == two.lines().count() => check.agree(0.0),
        difference => {
            let line = difference.unwrap_or(one.lines().count().min(two.lines().count()));
            check.differ(
                format!("{} and {}, line {}", name(csv), name(&path), line + 1),
                [line_of(line, &one), line_of(line, &two)],
                None,
            );
        }
    }
    Ok(())
}

fn line_of(line: usize, text: &str) -> String {
    text.lines().nth(line).unwrap_or_default().to_owned()
}

/// Parses a printed number and its maximum rounding error.
fn printed(text: &str) -> Option<(f64, f64)> {
    // Noisy latencies have a mark before the number.
    let text = text.trim().trim_start_matches(NOISY).replace('−', "-").replace(',', "");
    let end = text.find(|c: char| !c.is_ascii_digit() && !".-+".contains(c)).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    let decimals = number.split_once('.').map_or(0, |(_, after)| after.len());
    // Large numbers have an exponent: `2.09e7`.
    let digits = rest.strip_prefix('e').unwrap_or_default();
    let digits = digits.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    let exponent: i32 = digits.parse().unwrap_or(0);
    let half = 0.5 * 10f64.powi(exponent - i32::try_from(decimals).ok()?);
    let value: f64 = if exponent == 0 { number.parse() } else { format!("{number}e{exponent}").parse() }.ok()?;
    Some((value, half * 1.000_001))
}

/// Checks the page's table against the CSV table, and the Markdown and LaTeX tables against the page.
fn shown(page: &Path, table: &PrintedTable, markdown: &Path, latex: &Path, check: &mut Check) -> Result<()> {
    let value: Value = serde_json::from_slice(&regular::read(page)?).map_err(|error| {
        Error::damaged("cannot read an artifact of the page").at(page.display().to_string()).found(error.to_string())
    })?;
    let Some(view) = value["artifact"]["tables"].get(0) else { return Ok(()) };
    let lines = view["rows"].as_array().into_iter().flatten();
    let rows: Vec<Vec<&Value>> = lines.map(|row| row["cells"].as_array().into_iter().flatten().collect()).collect();
    let places = table.place("cell").zip(table.place("value"));
    for (row, cells) in rows.iter().enumerate() {
        for cell in cells {
            let (Some(key), Some(value)) = (cell["key"].as_str(), cell["value"].as_f64()) else { continue };
            let text = cell["text"].as_str().unwrap_or_default();
            let known = places.is_none_or(|(at, place_column)| {
                let mut lines = (0..table.rows.len()).filter(|&line| {
                    table.rows[line].get(at).is_some_and(|keys| keys.split("; ").any(|part| part == key))
                });
                lines.any(|line| table.number(line, place_column).is_some_and(|found| alike(found, value)))
            });
            if !known {
                check.differ(
                    row_label(row, key),
                    [value.to_string(), format!("no such value in {}", table.name)],
                    None,
                );
                continue;
            }
            if let Some((number, half)) = printed(text) {
                check.rounded(|| format!("{}, as printed", row_label(row, key)), number, value, half);
            }
        }
    }
    let file = name(markdown);
    let body = markdown_rows(markdown)?;
    if body.len() != rows.len() {
        check.differ(&file, [format!("{} rows", body.len()), format!("{} rows in page.json", rows.len())], None);
    }
    for (line, (texts, cells)) in body.iter().zip(&rows).enumerate().filter(|_| body.len() == rows.len()) {
        // Compare from the right, because labels may occupy fewer columns. Empty cells separate groups.
        let filled = texts.iter().rev().filter(|text| !text.trim().is_empty());
        for (shown_text, cell) in filled.zip(cells.iter().rev()).filter(|(_, cell)| !cell["key"].is_null()) {
            let text = cell["text"].as_str().unwrap_or_default();
            match shows(shown_text, text) {
                true => check.agree(0.0),
                false => check.differ(format!("{file}, row {}", line + 1), [shown_text.trim(), text], None),
            }
        }
    }
    if latex.is_file() {
        printed_as_the_paper_does(latex, &rows, check)?;
    }
    Ok(())
}

fn row_label(row: usize, key: &str) -> String {
    format!("page.json, row {}: {key}", row + 1)
}

/// Checks the LaTeX table, which may be transposed. Each number of a row must appear in the corresponding row or column
/// of the page.
fn printed_as_the_paper_does(latex: &Path, rows: &[Vec<&Value>], check: &mut Check) -> Result<()> {
    let file = name(latex);
    let body = latex_rows(latex)?;
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row: &Vec<&Value>| -> Vec<String> {
            let cells = row.iter().filter(|cell| !cell["key"].is_null());
            cells.map(|cell| cell["text"].as_str().unwrap_or_default().to_owned()).collect()
        })
        .collect();
    let columns = rows.first().map_or(0, Vec::len);
    let as_rows = body.len() == rows.len();
    if !as_rows && (body.is_empty() || !columns.is_multiple_of(body.len())) {
        let counts = [format!("{} rows", body.len()), format!("{} rows in page.json", rows.len())];
        check.differ(file, counts, None);
        return Ok(());
    }
    for (line, cells) in body.iter().enumerate() {
        // A transposed row has the numbers of a column of the page, and other metrics of the same prompt.
        let texts = match as_rows {
            true => rows[line].clone(),
            false => rows.iter().flat_map(|row| row.iter().skip(line).step_by(body.len()).cloned()).collect(),
        };
        // Prompt length and batch size come first.
        let before = if as_rows { 0 } else { cells.len().saturating_sub(rows.len()) };
        for cell in strangers(&cells[before..], texts, check) {
            let position = format!("{file}, row {}", line + 1);
            check.differ(position, [cell, "no such number in that row of page.json".to_owned()], None);
        }
    }
    Ok(())
}

/// Shading of LaTeX rows.
const SHADE: &str = "\\rowcolor{gray!15}";

/// Returns the cells whose numbers appear in none of `texts`. Each text matches at most one cell.
fn strangers(cells: &[String], mut texts: Vec<String>, check: &mut Check) -> Vec<String> {
    let mut strange = Vec::new();
    for cell in cells {
        let bare = cell.replace(SHADE, "");
        if numbers(&bare).is_empty() {
            continue;
        }
        match texts.iter().position(|text| !numbers(text).is_empty() && shows(&bare, text)) {
            Some(at) => {
                texts.swap_remove(at);
                check.agree(0.0);
            }
            None => strange.push(cell.trim().to_owned()),
        }
    }
    strange
}

/// Extracts the printed numbers of a text, ignoring markup.
fn numbers(text: &str) -> Vec<String> {
    let text = text.replace("$-$", "-").replace('−', "-").replace("{,}", "").replace(',', "");
    let words = text.split(|c: char| !c.is_ascii_digit() && !".-".contains(c));
    let words = words.map(|word| word.trim_end_matches(['.', '-']).to_owned());
    words.filter(|word| word.contains(|c: char| c.is_ascii_digit())).collect()
}

/// Returns whether a cell contains the numbers of a text in the same order.
fn shows(cell: &str, text: &str) -> bool {
    let mut shown = numbers(cell).into_iter();
    numbers(text).iter().all(|number| shown.any(|known| known == *number))
}

fn markdown_rows(path: &Path) -> Result<Vec<Vec<String>>> {
    let text = String::from_utf8_lossy(&regular::read(path)?).into_owned();
    let body = text.lines().skip_while(|line| !line.starts_with("| --")).skip(1);
    Ok(body
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split(" | ").map(str::to_owned).collect())
        .collect())
}

/// Reads the numeric cells of a LaTeX table by row.
fn latex_rows(path: &Path) -> Result<Vec<Vec<String>>> {
    let text = String::from_utf8_lossy(&regular::read(path)?).into_owned();
    let columns = text.split_once("\\begin{tabular}{").and_then(|(_, after)| after.split_once('}'));
    let columns: Vec<char> = columns.map_or(Vec::new(), |(columns, _)| columns.chars().collect());
    let body = text.lines().skip_while(|line| !line.starts_with("\\midrule"));
    let rows = body.take_while(|line| !line.starts_with("\\bottomrule")).filter(|line| line.contains(" & "));
    Ok(rows
        .map(|line| {
            let cells = line.trim_end_matches("\\\\").split(" & ").zip(&columns);
            cells.filter(|(_, column)| **column == 'r').map(|(cell, _)| cell.to_owned()).collect()
        })
        .collect())
}

/// Checks the Markdown table against the CSV table.
fn run_markdown(table: &PrintedTable, recorded: &ReferenceRun, path: &Path, check: &mut Check) -> Result<()> {
    let text = String::from_utf8_lossy(&regular::read(path)?).into_owned();
    let Some(heads) = text.lines().find(|line| line.starts_with("| ")) else { return Ok(()) };
    let heads: Vec<&str> = heads.trim_matches('|').split(" | ").map(str::trim).collect();
    let rows = markdown_rows(path)?;
    if rows.len() != table.rows.len() {
        let counts = [rows.len(), table.rows.len()].map(|count| format!("{count} rows"));
        check.differ(format!("{} and {}", name(path), table.name), counts, None);
        return Ok(());
    }
    for (at, head) in heads.iter().enumerate() {
        let is_recorded = recorded.numbers.numbers.iter().any(|number| number.column == *head);
        let Some(column) = table.place(head).filter(|_| is_recorded) else { continue };
        for (row, cells) in rows.iter().enumerate() {
            let (Some(value), Some(text)) = (table.number(row, column), cells.get(at)) else { continue };
            let bare = text.replace("**", "").replace("<u>", "").replace("*", "");
            match printed(&bare) {
                Some((number, half)) => check.rounded(|| cell_position(path, head, row), number, value, half),
                None => check.differ(cell_position(path, head, row), [text.trim().to_owned(), value.to_string()], None),
            }
        }
    }
    Ok(())
}

fn cell_position(path: &Path, head: &&str, row: usize) -> String {
    format!("{}, row {}, {head}", name(path), row + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_cell_shows_the_numbers_of_its_text_and_no_others() {
        for (cell, text) in [
            ("**97.33**⁺", "97.33"),
            ("\\rowcolor{gray!15} \\underline{97.33}$^{+}$", "97.33"),
            ("$-$1.20 $\\pm$ 0.30", "−1.20 ± 0.30"),
            ("\\shortstack[r]{12.5\\\\{\\tiny 13.1; $-$0.6}}", "12.5"),
            ("failed", "failed"),
            ("1,024.5", "1024.5"),
        ] {
            assert!(shows(cell, text), "{cell} {text}");
        }
        for (cell, text) in
            [("97.337", "97.33"), ("197.33", "97.33"), ("1.20", "−1.20"), ("0.30 ± 1.20", "1.20 ± 0.30")]
        {
            assert!(!shows(cell, text), "{cell} {text}");
        }
    }

    #[test]
    fn printed_row_has_exactly_its_own_numbers() {
        let row = ["\\rowcolor{gray!15} 16.7", "\\underline{84.1}", "$\\sim$29.3 $\\pm$ 1.9", "failed"];
        assert_eq!(strange(&row), Vec::<String>::new());
        assert_eq!(strange(&row[1..2]), Vec::<String>::new(), "the paper's columns alone");
        assert_eq!(strange(&["84.2", "16.7"]), ["84.2"]);
        assert_eq!(strange(&["16.7", "16.7"]), ["16.7"], "each number once");
        assert_eq!(strange(&["29.3 $\\pm$ 1.8"]), ["29.3 $\\pm$ 1.8"]);
    }

    fn strange(cells: &[&str]) -> Vec<String> {
        let texts = ["84.1", "16.7", "~29.3 ± 1.9", "failed"].map(str::to_owned).to_vec();
        let cells: Vec<String> = cells.iter().map(|&cell| cell.to_owned()).collect();
        strangers(&cells, texts, &mut Check::new(CheckKind::Tables))
    }

    #[test]
    fn a_printed_number_says_how_far_it_may_be_rounded() {
        assert_eq!(
            printed("98.10 ± 0.2").map(|(number, half)| (number, half > 0.005 && half < 0.00501)),
            Some((98.1, true))
        );
        assert_eq!(printed("1.05×").map(|printed| printed.0), Some(1.05));
        assert_eq!(printed("~12.3 ± 4.5").map(|printed| printed.0), Some(12.3));
        let large = printed("2.09e7 ± 1.5e6").map(|(number, half)| (number, half > 5e4 && half < 5.001e4));
        assert_eq!(large, Some((2.09e7, true)));
        assert_eq!(printed("failed"), None);
    }
}
