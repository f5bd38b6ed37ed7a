//! CSV and text files, and inference of column types as in `datasets`.

use std::fmt::Display;
use std::fs::File;
use std::path::Path;

use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::limit::MAX_ROWS;
use ghostlab_core::files::rows::{normalize_line_ends, read_text};

use crate::jinja::parse_float;
use crate::row::Row;
use crate::value::Value;

/// Strings that pandas reads as missing values.
const MISSING_VALUES: [&str; 19] = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null",
];

/// Number types that occur, over all rows, in a column, a list or a nested field.
#[derive(Debug, Default)]
struct Numbers {
    has_int: bool,
    has_float: bool,
    items: Option<Box<Numbers>>,
    fields: Vec<(Value, Numbers)>,
}

impl Numbers {
    fn add(&mut self, value: &Value) {
        match value {
            Value::Int(_) => self.has_int = true,
            Value::Float(_) => self.has_float = true,
            Value::List(items) => {
                let numbers = self.items.get_or_insert_default();
                items.iter().for_each(|item| numbers.add(item));
            }
            Value::Map(pairs) => {
                for (index, (name, value)) in pairs.iter().enumerate() {
                    self.field(index, name).add(value);
                }
            }
            _ => {}
        }
    }

    /// Returns the entry for a named field, creating it if necessary. Tries `index` first, because fields nearly always
    /// have the same order in all rows.
    fn field(&mut self, index: usize, name: &Value) -> &mut Self {
        let found = if self.fields.get(index).is_some_and(|(known, _)| known == name) {
            Some(index)
        } else {
            self.fields.iter().position(|(known, _)| known == name)
        };
        let found = found.unwrap_or_else(|| {
            self.fields.push((name.clone(), Self::default()));
            self.fields.len() - 1
        });
        &mut self.fields[found].1
    }

    fn is_mixed(&self) -> bool {
        self.has_int && self.has_float
            || self.items.as_ref().is_some_and(|items| items.is_mixed())
            || self.fields.iter().any(|(_, numbers)| numbers.is_mixed())
    }

    fn convert(&mut self, value: &mut Value) {
        match value {
            Value::Int(number) if self.has_float => *value = Value::Float(*number as f64),
            Value::List(items) => {
                if let Some(numbers) = &mut self.items {
                    items.iter_mut().for_each(|item| numbers.convert(item));
                }
            }
            Value::Map(pairs) => {
                for (index, (name, value)) in pairs.iter_mut().enumerate() {
                    self.field(index, name).convert(value);
                }
            }
            _ => {}
        }
    }
}

/// Converts the integers in a column, list or nested field to floats if any row has a float there, because `datasets`
/// gives each column a single type.
pub(crate) fn unify_numbers(rows: &mut [Row]) {
    let mut numbers = Numbers::default();
    rows.iter().for_each(|row| numbers.add(&row.value));
    if numbers.is_mixed() {
        rows.iter_mut().for_each(|row| numbers.convert(&mut row.value));
    }
}

/// Reads a CSV file with a header line.
///
/// # Errors
/// Fails if the file is not UTF-8, a row has the wrong number of values, or there are too many rows.
pub(crate) fn csv_rows(file: File, path: &Path) -> Result<Vec<Row>> {
    let text = read_text(file, path)?;
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let names: Vec<Value> =
        reader.headers().map_err(|error| table_error(error, path))?.iter().map(Value::from).collect();
    let mut columns: Vec<Vec<String>> = vec![Vec::new(); names.len()];
    let mut locations = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| table_error(error, path))?;
        let line = record.position().map_or(0, csv::Position::line);
        check_count(locations.len(), path.display())?;
        locations.push(format!("{}:{line}", path.display()));
        columns.iter_mut().zip(&record).for_each(|(column, value)| column.push(value.to_owned()));
    }
    let mut rows: Vec<Vec<(Value, Value)>> = vec![Vec::with_capacity(names.len()); locations.len()];
    for (name, column) in names.iter().zip(&columns) {
        let cells = infer_column(column);
        rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push((name.clone(), cell)));
    }
    let rows = rows.into_iter().zip(locations);
    Ok(rows.map(|(pairs, location)| Row { location, value: Value::Map(pairs) }).collect())
}

fn table_error(error: csv::Error, path: &Path) -> Error {
    Error::bad_input("invalid CSV file").at(path.display()).found(error)
}

/// Converts a column to the narrowest type that fits all values, as pandas does. Integers become floats if the column
/// has missing values.
fn infer_column(column: &[String]) -> Vec<Value> {
    let present: Vec<&str> = column.iter().map(String::as_str).filter(|text| !is_absent(text)).collect();
    let has_gaps = present.len() < column.len();
    let parsers: &[fn(&str) -> Option<Value>] =
        if has_gaps { &[parse_bool, parse_float_value] } else { &[parse_bool, parse_integer, parse_float_value] };
    let parser = parsers.iter().find(|parser| present.iter().all(|text| parser(text).is_some()));
    column
        .iter()
        .map(|text| match parser {
            _ if is_absent(text) => Value::None,
            Some(parse) => parse(text).unwrap_or_else(|| Value::from(text.as_str())),
            None => Value::from(text.as_str()),
        })
        .collect()
}

fn is_absent(text: &str) -> bool {
    MISSING_VALUES.contains(&text)
}

fn parse_bool(text: &str) -> Option<Value> {
    match text {
        "True" | "TRUE" | "true" => Some(Value::Bool(true)),
        "False" | "FALSE" | "false" => Some(Value::Bool(false)),
        _ => None,
    }
}

fn parse_integer(text: &str) -> Option<Value> {
    text.parse().ok().map(Value::Int)
}

fn parse_float_value(text: &str) -> Option<Value> {
    parse_float(text).filter(|_| !text.contains('_')).map(Value::Float)
}

/// Reads each line as a row with the column `text`.
///
/// # Errors
/// Fails if the file is not UTF-8 or has too many rows.
pub(crate) fn text_rows(file: File, path: &Path) -> Result<Vec<Row>> {
    let text = normalize_line_ends(read_text(file, path)?);
    let mut rows = Vec::new();
    for (line, number) in text.split_terminator('\n').zip(1..) {
        check_count(rows.len(), path.display())?;
        let value = Value::Map(vec![(Value::from("text"), Value::from(line))]);
        rows.push(Row { location: format!("{}:{number}", path.display()), value });
    }
    Ok(rows)
}

/// Checks that a file with `rows` rows may have another one. `location` is that of the new row.
pub(crate) fn check_count(rows: usize, location: impl Display) -> Result<()> {
    if rows < MAX_ROWS {
        return Ok(());
    }
    let error = Error::bad_input("the task file has too many rows").at(location);
    Err(error.expected(format!("at most {MAX_ROWS} rows")))
}
