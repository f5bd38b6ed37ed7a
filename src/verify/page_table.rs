//! Checks the table in `page.json` against the CSV table, and the Markdown and LaTeX tables against `page.json`.

use std::path::Path;

use serde::Deserialize;

use super::finding::CheckResult;
use super::printed_table::{PrintedTable, file_name, nearly_equal};
use crate::error::{Error, Result};
use crate::files::regular;
use crate::results::{NOISY, SavedCell, SavedRow, SavedTable};

/// Part of `page.json` that is compared with the printed tables.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PageTables {
    artifact: ArtifactTables,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ArtifactTables {
    tables: Vec<SavedTable>,
}

/// Parses a printed number. Returns the number and its maximum rounding error.
pub(super) fn parse_printed(text: &str) -> Option<(f64, f64)> {
    // Noisy latencies are printed as `~` and the number.
    let text = text.trim().trim_start_matches(NOISY).replace('−', "-").replace(',', "");
    let end = text.find(|c: char| !c.is_ascii_digit() && !".-+".contains(c)).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    let decimals = number.split_once('.').map_or(0, |(_, after)| after.len());
    // Large numbers are printed with an exponent, as in `2.09e7`.
    let digits = rest.strip_prefix('e').unwrap_or_default();
    let digits = digits.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    let exponent: i32 = digits.parse().unwrap_or(0);
    let half = 0.5 * 10f64.powi(exponent - i32::try_from(decimals).ok()?);
    let value: f64 = if exponent == 0 { number.parse() } else { format!("{number}e{exponent}").parse() }.ok()?;
    Some((value, half * 1.000_001))
}

/// Checks the first table in `page` against the CSV table, and the Markdown and LaTeX tables against `page`.
pub(super) fn check_page(
    page: &Path,
    table: &PrintedTable,
    markdown: &Path,
    latex: &Path,
    check: &mut CheckResult,
) -> Result<()> {
    let tables: PageTables = serde_json::from_slice(&regular::read(page)?).map_err(|error| {
        Error::damaged("the data of the results page is not valid JSON or has invalid tables")
            .at(page.display().to_string())
            .found(error.to_string())
    })?;
    let Some(SavedTable { rows, .. }) = tables.artifact.tables.first() else { return Ok(()) };
    check_page_cells(rows, table, check);
    let file = file_name(markdown);
    let body = read_markdown_rows(markdown)?;
    if body.len() != rows.len() {
        check.record_difference(
            &file,
            [format!("{} rows", body.len()), format!("{} rows in page.json", rows.len())],
            None,
        );
    }
    for (line, (texts, row)) in body.iter().zip(rows).enumerate().filter(|_| body.len() == rows.len()) {
        // Compare from the right, because labels may take fewer columns than in `page.json`. Skip the empty cells
        // between groups of columns.
        let filled = texts.iter().rev().filter(|text| !text.trim().is_empty());
        for (shown_text, cell) in filled.zip(row.cells.iter().rev()).filter(|(_, cell)| cell.key.is_some()) {
            let at = || format!("{file}, row {}", line + 1);
            check.compare(contains_numbers(shown_text, &cell.text), at, [shown_text.trim(), cell.text.as_str()]);
        }
    }
    if latex.is_file() {
        check_latex(latex, rows, check)?;
    }
    Ok(())
}

/// Checks the values and the printed numbers in the cells of `page.json` against the CSV table.
fn check_page_cells(rows: &[SavedRow], table: &PrintedTable, check: &mut CheckResult) {
    let columns = table.column("cell").zip(table.column("value"));
    for (row, cells) in rows.iter().map(|row| &row.cells).enumerate() {
        for SavedCell { key, value, text, .. } in cells {
            let (Some(key), &Some(value)) = (key, value) else { continue };
            let known = columns.is_none_or(|(key_column, value_column)| {
                let mut lines = (0..table.rows.len()).filter(|&line| {
                    table.rows[line].get(key_column).is_some_and(|keys| keys.split("; ").any(|part| part == key))
                });
                lines.any(|line| table.number(line, value_column).is_some_and(|found| nearly_equal(found, value)))
            });
            if !known {
                check.record_difference(
                    row_label(row, key),
                    [value.to_string(), format!("no such value in {}", table.name)],
                    None,
                );
                continue;
            }
            if let Some((number, half)) = parse_printed(text) {
                check.compare_printed(|| format!("{}, as printed", row_label(row, key)), number, value, half);
            }
        }
    }
}

fn row_label(row: usize, key: &str) -> String {
    format!("page.json, row {}: {key}", row + 1)
}

/// Checks the LaTeX table, which may be transposed. Each number in a row must appear in the corresponding rows or
/// columns of `page.json`.
fn check_latex(latex: &Path, rows: &[SavedRow], check: &mut CheckResult) -> Result<()> {
    let file = file_name(latex);
    let body = read_latex_rows(latex)?;
    let numbers = |row: &SavedRow| -> Vec<String> {
        row.cells.iter().filter(|cell| cell.key.is_some()).map(|cell| cell.text.clone()).collect()
    };
    let rows: Vec<Vec<String>> = rows.iter().map(numbers).collect();
    let columns = rows.first().map_or(0, Vec::len);
    let as_rows = body.len() == rows.len();
    if !as_rows && (body.is_empty() || !columns.is_multiple_of(body.len())) {
        let counts = [format!("{} rows", body.len()), format!("{} rows in page.json", rows.len())];
        check.record_difference(file, counts, None);
        return Ok(());
    }
    for (line, cells) in body.iter().enumerate() {
        // A transposed table has one row per timed prompt. Row `line` contains every `body.len()`-th column of
        // `page.json`, starting at `line`: one column per metric of that prompt.
        let texts = match as_rows {
            true => rows[line].clone(),
            false => rows.iter().flat_map(|row| row.iter().skip(line).step_by(body.len()).cloned()).collect(),
        };
        // In a transposed table, skip the leading columns, which contain the prompt length and batch size.
        let skipped = if as_rows { 0 } else { cells.len().saturating_sub(rows.len()) };
        for cell in find_unmatched_cells(&cells[skipped..], texts, check) {
            let position = format!("{file}, row {}", line + 1);
            check.record_difference(position, [cell, "no such number in that row of page.json".to_owned()], None);
        }
    }
    Ok(())
}

/// LaTeX command that shades a row.
const SHADE_COMMAND: &str = "\\rowcolor{gray!15}";

/// Returns the cells whose numbers appear in none of the `texts`, and records an agreement for each other cell that has
/// numbers. Each text can match only one cell.
fn find_unmatched_cells(cells: &[String], mut texts: Vec<String>, check: &mut CheckResult) -> Vec<String> {
    let mut unmatched = Vec::new();
    for cell in cells {
        let bare = cell.replace(SHADE_COMMAND, "");
        if extract_numbers(&bare).is_empty() {
            continue;
        }
        match texts.iter().position(|text| !extract_numbers(text).is_empty() && contains_numbers(&bare, text)) {
            Some(at) => {
                texts.swap_remove(at);
                check.record_agreement(0.0);
            }
            None => unmatched.push(cell.trim().to_owned()),
        }
    }
    unmatched
}

/// Extracts the printed numbers from a string, ignoring markup.
fn extract_numbers(text: &str) -> Vec<String> {
    let text = text.replace("$-$", "-").replace('−', "-").replace("{,}", "").replace(',', "");
    let words = text.split(|c: char| !c.is_ascii_digit() && !".-".contains(c));
    let words = words.map(|word| word.trim_end_matches(['.', '-']).to_owned());
    words.filter(|word| word.contains(|c: char| c.is_ascii_digit())).collect()
}

/// Returns whether `cell` contains all the numbers in `text` in the same order.
fn contains_numbers(cell: &str, text: &str) -> bool {
    let mut shown = extract_numbers(cell).into_iter();
    extract_numbers(text).iter().all(|number| shown.any(|known| known == *number))
}

/// Reads the cells of each row of a Markdown table.
pub(super) fn read_markdown_rows(path: &Path) -> Result<Vec<Vec<String>>> {
    let text = String::from_utf8_lossy(&regular::read(path)?).into_owned();
    let body = text.lines().skip_while(|line| !line.starts_with("| --")).skip(1);
    Ok(body
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split(" | ").map(str::to_owned).collect())
        .collect())
}

/// Reads the numeric cells in each row of a LaTeX table.
fn read_latex_rows(path: &Path) -> Result<Vec<Vec<String>>> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::finding::CheckKind;

    #[test]
    fn printed_cell_matches_only_its_exact_numbers() {
        for (cell, text) in [
            ("**97.33**⁺", "97.33"),
            ("\\rowcolor{gray!15} \\underline{97.33}$^{+}$", "97.33"),
            ("$-$1.20 $\\pm$ 0.30", "−1.20 ± 0.30"),
            ("\\shortstack[r]{12.5\\\\{\\tiny 13.1; $-$0.6}}", "12.5"),
            ("failed", "failed"),
            ("1,024.5", "1024.5"),
        ] {
            assert!(contains_numbers(cell, text), "{cell} {text}");
        }
        for (cell, text) in
            [("97.337", "97.33"), ("197.33", "97.33"), ("1.20", "−1.20"), ("0.30 ± 1.20", "1.20 ± 0.30")]
        {
            assert!(!contains_numbers(cell, text), "{cell} {text}");
        }
    }

    #[test]
    fn unexpected_numbers_in_a_printed_row_are_reported() {
        let row = ["\\rowcolor{gray!15} 16.7", "\\underline{84.1}", "$\\sim$29.3 $\\pm$ 1.9", "failed"];
        assert_eq!(unexpected_numbers(&row), Vec::<String>::new());
        assert_eq!(unexpected_numbers(&row[1..2]), Vec::<String>::new(), "the paper's columns alone");
        assert_eq!(unexpected_numbers(&["84.2", "16.7"]), ["84.2"]);
        assert_eq!(unexpected_numbers(&["16.7", "16.7"]), ["16.7"], "each number once");
        assert_eq!(unexpected_numbers(&["29.3 $\\pm$ 1.8"]), ["29.3 $\\pm$ 1.8"]);
    }

    fn unexpected_numbers(cells: &[&str]) -> Vec<String> {
        let texts = ["84.1", "16.7", "~29.3 ± 1.9", "failed"].map(str::to_owned).to_vec();
        let cells: Vec<String> = cells.iter().map(|&cell| cell.to_owned()).collect();
        find_unmatched_cells(&cells, texts, &mut CheckResult::new(CheckKind::Tables))
    }

    #[test]
    fn printed_number_is_parsed_with_its_rounding_error() {
        assert_eq!(
            parse_printed("98.10 ± 0.2").map(|(number, half)| (number, half > 0.005 && half < 0.00501)),
            Some((98.1, true))
        );
        assert_eq!(parse_printed("1.05×").map(|printed| printed.0), Some(1.05));
        assert_eq!(parse_printed("~12.3 ± 4.5").map(|printed| printed.0), Some(12.3));
        let large = parse_printed("2.09e7 ± 1.5e6").map(|(number, half)| (number, half > 5e4 && half < 5.001e4));
        assert_eq!(large, Some((2.09e7, true)));
        assert_eq!(parse_printed("failed"), None);
    }
}
