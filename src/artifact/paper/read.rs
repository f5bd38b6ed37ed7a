//! Tables of anybody's, as files: one number a line as in `data/paper/`, or a row for each method and a column for each task.

use std::path::Path;

use super::entry::{HEAD, PaperNumber};
use crate::error::{Error, Result};
use crate::files::regular;
use crate::recovery;
use crate::results::record::{Condition, Record};

impl PaperNumber {
    /// The numbers of a file. One with a row for each method needs `labels`, the columns that name the row; the first one
    /// does where none is named. All columns of `wanted` have to be there.
    ///
    /// # Errors
    /// A file that cannot be read; a column that it lacks; a cell that is no printed number, with file and line.
    pub fn read(path: &Path, labels: &[String], wanted: &[&str]) -> Result<Vec<Self>> {
        let file = path.display().to_string();
        let bytes = regular::read(path)?;
        let text = String::from_utf8(bytes).map_err(|_| {
            Error::bad_input("a table cannot be read")
                .at(file.clone())
                .expected("text in UTF-8")
                .found("something else")
        })?;
        let text = text.trim_start_matches('\u{feff}');
        let head = text.lines().next().unwrap_or_default();
        if head.trim_end().split(',').eq(HEAD) {
            return Self::tidy(&file, text);
        }
        Self::wide(&file, text, labels, wanted)
    }

    fn wide(file: &str, text: &str, labels: &[String], wanted: &[&str]) -> Result<Vec<Self>> {
        if wanted.is_empty() {
            return Err(Error::bad_input("nobody says what the columns of the table mean")
                .at(format!("{file}:1"))
                .expected(format!("{}, or the columns that are to be checked", HEAD.join(",")))
                .found(text.lines().next().unwrap_or_default())
                .hint("for example --tasks ARC-e=arc_easy,HellaSwag=hellaswag,PIQA=1838 --average Avg"));
        }
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
        let broken = |error: csv::Error| {
            let line = error.position().map_or(1, csv::Position::line);
            Error::bad_input("the table cannot be read").at(format!("{file}:{line}")).found(error.to_string())
        };
        let head = reader.headers().map_err(broken)?.clone();
        let first: Vec<String> = head.iter().take(1).map(str::to_owned).collect();
        let labels = if labels.is_empty() { &first } else { labels };
        let place = |name: &str| {
            head.iter().position(|column| column == name).ok_or_else(|| {
                Error::bad_input("the table has no such column")
                    .at(format!("{file}:1"))
                    .expected(format!("`{name}`"))
                    .found(head.iter().collect::<Vec<_>>().join(", "))
            })
        };
        let labels = labels.iter().map(|name| place(name)).collect::<Result<Vec<_>>>()?;
        let columns = wanted.iter().map(|name| Ok((*name, place(name)?))).collect::<Result<Vec<_>>>()?;
        let artifact = Path::new(file).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut all = Vec::new();
        for record in reader.records() {
            let record = record.map_err(broken)?;
            let line = record.position().map_or(0, |position| position.line() as usize);
            let label: Vec<&str> = labels.iter().map(|at| record.get(*at).unwrap_or_default()).collect();
            for (name, at) in &columns {
                let cell = record.get(*at).unwrap_or_default();
                let (printed, value, error) = number(cell).ok_or_else(|| {
                    Error::bad_input(format!("the column `{name}` is wrong"))
                        .at(format!("{file}:{line}"))
                        .expected("a decimal number as printed, also with `±` and a second one, or `-` for none")
                        .found(format!("`{cell}`"))
                })?;
                all.push(Self {
                    artifact: artifact.clone(),
                    file: file.to_owned(),
                    line,
                    printed,
                    record: Record { condition: row(&label.join(", ")), metric: (*name).to_owned(), value, error },
                });
            }
        }
        Ok(all)
    }
}

/// The row of a method, of which nothing is known but what it is called.
fn row(label: &str) -> Condition {
    Condition {
        backbone: label.to_owned(),
        layers: 0,
        depth: 0,
        criterion: String::new(),
        recovery: recovery::NONE.to_owned(),
        finetuned: false,
        calibration: String::new(),
    }
}

/// A cell: the number as printed, its value, and what stands behind `±`; no value for an empty cell or a dash. None for
/// anything else.
fn number(cell: &str) -> Option<(String, Option<f64>, Option<f64>)> {
    let cell = cell.trim().trim_matches('*').trim();
    if ["", "-", "–", "—", "n/a", "N/A", "OOM"].contains(&cell) {
        return Some((String::new(), None, None));
    }
    let (printed, error) = cell.split_once('±').map_or((cell, None), |(value, error)| (value, Some(error)));
    let plain = |text: &str| {
        let text = text.trim().trim_end_matches('%').trim();
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if digits { Some((text.to_owned(), text.parse::<f64>().ok()?)) } else { None }
    };
    let (printed, value) = plain(printed)?;
    let error = match error {
        Some(error) => Some(plain(error)?.1),
        None => None,
    };
    Some((printed, Some(value), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_a_number_as_papers_print_it() {
        assert_eq!(number("**45.00**"), Some(("45.00".into(), Some(45.0), None)));
        assert_eq!(number("95.9 ± 0.2"), Some(("95.9".into(), Some(95.9), Some(0.2))));
        assert_eq!(number("12.5%"), Some(("12.5".into(), Some(12.5), None)));
        assert_eq!(number("—"), Some((String::new(), None, None)));
        for wrong in ["x", "1e5", "1.2.3", "5 ± x", "-3"] {
            assert_eq!(number(wrong), None, "{wrong}");
        }
    }
}
