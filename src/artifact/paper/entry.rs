//! Numbers printed in the paper, with their locations.
//!
//! A user file has either one number per line, like the files in `data/paper/`, or one row per method and one column
//! per task.

use std::path::Path;

use serde::Deserialize;

use crate::criterion::DepthUnit;
use crate::error::{Error, ErrorKind, Result};
use crate::files::csv::{self, value_error};
use crate::files::regular;
use crate::results::number_record::{Condition, DENSE, Record};
use crate::{metric, recovery};

/// Header of files with one number per line.
const HEADER: &str =
    "artifact,backbone,total_layers,pruned_layers,criterion,recovery,finetuned,calibration,metric,value,std";

#[derive(Deserialize)]
struct PaperLine {
    artifact: String,
    backbone: String,
    total_layers: usize,
    pruned_layers: usize,
    criterion: String,
    recovery: String,
    finetuned: bool,
    calibration: String,
    metric: String,
    /// Value as printed.
    value: String,
    std: String,
}

/// A printed number and its location.
#[derive(Debug, Clone, PartialEq)]
pub struct PaperNumber {
    /// Name of the table, such as `table2`.
    pub artifact: String,
    pub file: String,
    /// Line number in the file, starting at 1.
    pub line: usize,
    /// Value as printed, including trailing zeros. Empty if there is no value.
    pub printed: String,
    pub record: Record,
}

impl PaperNumber {
    /// Parses the file for a table of the paper.
    ///
    /// # Errors
    /// Fails with the file name and line number if the header is wrong. Also fails if a line has the wrong number of
    /// columns, belongs to another table or contains an invalid field.
    pub fn parse(artifact: &str, text: &str) -> Result<Vec<Self>> {
        Self::parse_lines(&format!("{artifact}.csv"), Some(artifact), text)
    }

    /// Parses a file with one number per line. All lines must belong to the table `artifact`, if it is given.
    fn parse_lines(file: &str, artifact: Option<&str>, text: &str) -> Result<Vec<Self>> {
        let rows: Vec<(usize, PaperLine)> = csv::rows(file, &HEADER.split(',').collect::<Vec<_>>(), text)?;
        let numbers = rows.into_iter().map(|(line, row)| {
            Self::from_line(file, line, artifact, row).map_err(|error| error.at(format!("{file}:{line}")))
        });
        numbers.collect()
    }

    fn from_line(file: &str, line: usize, artifact: Option<&str>, row: PaperLine) -> Result<Self> {
        if let Some(artifact) = artifact.filter(|artifact| row.artifact != **artifact) {
            return Err(value_error("artifact", &format!("`{artifact}`"), &row.artifact));
        }
        for (name, field) in [
            ("artifact", &row.artifact),
            ("backbone", &row.backbone),
            ("criterion", &row.criterion),
            ("recovery", &row.recovery),
            ("calibration", &row.calibration),
            ("metric", &row.metric),
        ] {
            if field.is_empty() || field.contains('"') || field.trim() != field {
                return Err(value_error(name, "text without quotes or surrounding spaces", field));
            }
        }
        let condition = Condition {
            backbone: row.backbone,
            layers: row.total_layers,
            depth: row.pruned_layers,
            unit: DepthUnit::Layers,
            criterion: row.criterion,
            recovery: row.recovery,
            finetuned: row.finetuned,
            calibration: row.calibration,
        };
        let depth = condition.depth;
        let layers = condition.layers;
        if depth >= layers {
            return Err(value_error("pruned_layers", &format!("fewer than {layers} layers"), &depth.to_string()));
        }
        let dense = condition.criterion == DENSE;
        if (depth == 0) != dense || dense && condition.recovery != recovery::NONE {
            return Err(value_error(
                "criterion",
                "`dense` without a recovery if no layers are removed",
                &condition.criterion,
            ));
        }
        let metric = if row.metric == "average" { metric::ACCURACY.id.to_owned() } else { row.metric };
        let value = parse_decimal("value", &row.value)?;
        let error = parse_decimal("std", &row.std)?;
        let record = Record { condition, metric, value, error };
        Ok(Self { artifact: row.artifact, file: file.to_owned(), line, printed: row.value, record })
    }

    pub fn decimals(&self) -> usize {
        self.printed.split_once('.').map_or(0, |(_, digits)| digits.len())
    }

    /// Returns the value of one unit in the last printed digit, such as 0.01 for two decimals.
    pub fn unit(&self) -> f64 {
        0.1_f64.powi(i32::try_from(self.decimals()).unwrap_or(i32::MAX))
    }

    /// Formats the location as file and line, such as `table2.csv:7`.
    pub fn location(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }
}

/// Parses digits with an optional decimal point. Returns `None` for an empty field.
fn parse_decimal(column: &str, field: &str) -> Result<Option<f64>> {
    if field.is_empty() {
        return Ok(None);
    }
    // `parse` would also accept `inf`, signs and exponents.
    let is_decimal = field.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    match field.parse() {
        Ok(number) if is_decimal => Ok(Some(number)),
        _ => Err(value_error(column, "a decimal number or an empty field", field)),
    }
}

impl PaperNumber {
    /// Reads a file that contains the `wanted` columns. If the file has one row per method, the columns in `labels`
    /// name the method. By default, the first column does.
    ///
    /// # Errors
    /// Fails with file name and line number if the file cannot be read, a column is missing, or a cell is not a printed
    /// number.
    pub fn read(path: &Path, labels: &[String], wanted: &[&str]) -> Result<Vec<Self>> {
        let file = path.display().to_string();
        let bytes = regular::read(path)?;
        let text = String::from_utf8(bytes).map_err(|error| {
            Error::bad_input("the table is not valid UTF-8")
                .at(file.clone())
                .expected("UTF-8 text")
                .found(format!("an invalid byte at offset {}", error.utf8_error().valid_up_to()))
        })?;
        let text = text.trim_start_matches('\u{feff}');
        let head = text.lines().next().unwrap_or_default();
        if head.trim_end() == HEADER {
            // Bad lines of a user's file are bad input, unlike those of the embedded tables.
            return Self::parse_lines(&file, None, text).map_err(|error| error.with_kind(ErrorKind::BadInput));
        }
        Self::parse_wide(&file, text, labels, wanted)
    }

    fn parse_wide(file: &str, text: &str, labels: &[String], wanted: &[&str]) -> Result<Vec<Self>> {
        if wanted.is_empty() {
            return Err(Error::bad_input("unknown table columns")
                .at(format!("{file}:1"))
                .expected(format!("{HEADER}, or the columns to check"))
                .found(text.lines().next().unwrap_or_default())
                .hint(
                    "name the columns, for example --tasks ARC-e=arc_easy,PIQA=1838 --average Avg \
                     (for a task that ghostlab does not know, give its number of documents)",
                ));
        }
        let mut reader = ::csv::ReaderBuilder::new().trim(::csv::Trim::All).from_reader(text.as_bytes());
        let head = reader.headers().map_err(|error| csv_error(file, &error))?.clone();
        let first: Vec<String> = head.iter().take(1).map(str::to_owned).collect();
        let labels = if labels.is_empty() { &first } else { labels };
        let labels = labels.iter().map(|name| column_index(file, &head, name)).collect::<Result<Vec<_>>>()?;
        let columns =
            wanted.iter().map(|name| Ok((*name, column_index(file, &head, name)?))).collect::<Result<Vec<_>>>()?;
        let artifact = Path::new(file).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut all = Vec::new();
        for record in reader.records() {
            let record = record.map_err(|error| csv_error(file, &error))?;
            let line = record.position().map_or(0, |position| position.line() as usize);
            let label: Vec<&str> = labels.iter().map(|at| record.get(*at).unwrap_or_default()).collect();
            for (name, at) in &columns {
                let cell = record.get(*at).unwrap_or_default();
                let (printed, value, error) = parse_number(cell).ok_or_else(|| {
                    Error::bad_input(format!("invalid value in the column `{name}`"))
                        .at(format!("{file}:{line}"))
                        .expected("a decimal number such as `62.17`, optionally followed by `±` and its standard deviation, or `-`")
                        .found(format!("`{cell}`"))
                })?;
                let condition = label_condition(&label.join(", "));
                all.push(Self {
                    artifact: artifact.clone(),
                    file: file.to_owned(),
                    line,
                    printed,
                    record: Record { condition, metric: (*name).to_owned(), value, error },
                });
            }
        }
        Ok(all)
    }
}

fn csv_error(file: &str, error: &::csv::Error) -> Error {
    let line = error.position().map_or(1, ::csv::Position::line);
    Error::bad_input("cannot read the table").at(format!("{file}:{line}")).found(error.to_string())
}

fn column_index(file: &str, head: &::csv::StringRecord, name: &str) -> Result<usize> {
    head.iter().position(|column| column == name).ok_or_else(|| {
        Error::bad_input("the table lacks a column")
            .at(format!("{file}:1"))
            .expected(format!("a column `{name}`"))
            .found(head.iter().collect::<Vec<_>>().join(", "))
    })
}

fn label_condition(label: &str) -> Condition {
    Condition { backbone: label.to_owned(), recovery: recovery::NONE.to_owned(), ..Condition::default() }
}

/// Parses a cell. Returns the number as printed, its value, and the error after `±`. Returns `None` if the text is
/// neither a number nor a placeholder.
fn parse_number(cell: &str) -> Option<(String, Option<f64>, Option<f64>)> {
    let cell = cell.trim().trim_matches('*').trim();
    if ["", "-", "–", "—", "n/a", "N/A", "OOM"].contains(&cell) {
        return Some((String::new(), None, None));
    }
    let (printed, error) = cell.split_once('±').map_or((cell, None), |(value, error)| (value, Some(error)));
    let (printed, value) = parse_decimal_or_percentage(printed)?;
    let error = match error {
        Some(error) => Some(parse_decimal_or_percentage(error)?.1),
        None => None,
    };
    Some((printed, Some(value), error))
}

fn parse_decimal_or_percentage(text: &str) -> Option<(String, f64)> {
    let text = text.trim().trim_end_matches('%').trim();
    let is_decimal = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_decimal { Some((text.to_owned(), text.parse::<f64>().ok()?)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(lines: &str) -> Result<Vec<PaperNumber>> {
        PaperNumber::parse("t", &format!("{HEADER}\n{lines}"))
    }

    #[test]
    fn empty_value_is_none() {
        let entries = parse("t,b,32,7,shortgpt,none,true,c4:32,boolq,,\n").unwrap();
        assert_eq!(entries[0].record.value, None);
        assert_eq!(entries[0].record.error, None);
        assert!(entries[0].record.condition.finetuned);
        assert_eq!((entries[0].decimals(), entries[0].printed.as_str()), (0, ""));
    }

    #[test]
    fn unit_follows_the_printed_decimals() {
        for (printed, decimals, unit) in [("45.00", 2, 0.01), ("362.6", 1, 0.1), ("7", 0, 1.0)] {
            let entry = &parse(&format!("t,b,32,7,shortgpt,none,false,c4,boolq,{printed},")).unwrap()[0];
            assert_eq!(entry.decimals(), decimals);
            assert!((entry.unit() - unit).abs() < 1e-15, "{printed}");
        }
    }

    #[test]
    fn invalid_line_is_rejected_with_its_line_number() {
        let good = "t,b,32,7,shortgpt,none,false,c4,boolq,50.00,";
        assert!(parse(good).is_ok());
        for (line, found) in [
            ("t,b,32,7,shortgpt,none,false,c4,boolq,50.00", "10"),
            ("t,b,32,7,shortgpt,none,false,c4,boolq,50.00,,", "12"),
            ("t", "1"),
            ("u,b,32,7,shortgpt,none,false,c4,boolq,50.00,", "`u`"),
            ("t,,32,7,shortgpt,none,false,c4,boolq,50.00,", "``"),
            ("t,b,32,7, shortgpt,none,false,c4,boolq,50.00,", "` shortgpt`"),
            ("t,b,32,x,shortgpt,none,false,c4,boolq,50.00,", "`x`"),
            ("t,b,32,32,shortgpt,none,false,c4,boolq,50.00,", "`32`"),
            ("t,b,32,0,shortgpt,none,false,c4,boolq,50.00,", "`shortgpt`"),
            ("t,b,32,7,dense,none,false,c4,boolq,50.00,", "`dense`"),
            ("t,b,32,0,dense,ghosted,false,c4,boolq,50.00,", "`dense`"),
            ("t,b,32,7,shortgpt,none,no,c4,boolq,50.00,", "`no`"),
            ("t,b,32,7,shortgpt,none,false,c4,boolq,NaN,", "`NaN`"),
            ("t,b,32,7,shortgpt,none,false,c4,boolq,5e1,", "`5e1`"),
            ("t,b,32,7,shortgpt,none,false,c4,boolq,50.00,1.2.3", "`1.2.3`"),
        ] {
            let text = parse(&format!("{good}\n{line}\n{good}")).unwrap_err().one_line();
            assert!(text.contains("at t.csv:3") && text.contains(&format!("found {found}")), "{line}: {text}");
        }
    }

    #[test]
    fn unexpected_header_is_rejected() {
        for text in ["", "artifact,backbone\n"] {
            assert!(PaperNumber::parse("t", text).unwrap_err().to_string().contains("t.csv:1"));
        }
    }

    #[test]
    fn printed_cell_is_parsed_as_a_number() {
        assert_eq!(parse_number("**45.00**"), Some(("45.00".into(), Some(45.0), None)));
        assert_eq!(parse_number("95.9 ± 0.2"), Some(("95.9".into(), Some(95.9), Some(0.2))));
        assert_eq!(parse_number("12.5%"), Some(("12.5".into(), Some(12.5), None)));
        assert_eq!(parse_number("—"), Some((String::new(), None, None)));
        for wrong in ["x", "1e5", "1.2.3", "5 ± x", "-3"] {
            assert_eq!(parse_number(wrong), None, "{wrong}");
        }
    }
}
