//! Small CSV tables with typed rows.

use csv::{DeserializeErrorKind, ErrorKind, Reader, StringRecord};
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// Parses the rows of an embedded table and returns them with line numbers starting at 1. `file` names the table in
/// messages. The header must match `head`.
///
/// # Errors
/// Fails if the header differs, or a line has the wrong number of fields or an invalid field. The error names the file,
/// the line and the column.
pub fn rows<T: DeserializeOwned>(file: &str, head: &[&str], text: &str) -> Result<Vec<(usize, T)>> {
    let mut reader = Reader::from_reader(text.as_bytes());
    let found = reader.headers().map_err(|error| csv_error(file, &error))?.clone();
    if !found.iter().eq(head.iter().copied()) {
        return Err(Error::damaged("unexpected columns in the table")
            .at(format!("{file}:1"))
            .expected(head.join(","))
            .found(found.iter().collect::<Vec<_>>().join(",")));
    }
    reader.records().map(|record| parse_record(file, head, &found, record)).collect()
}

/// Parses one record. Also returns its line number.
fn parse_record<T: DeserializeOwned>(
    file: &str,
    head: &[&str],
    found: &StringRecord,
    record: csv::Result<StringRecord>,
) -> Result<(usize, T)> {
    let record = record.map_err(|error| csv_error(file, &error))?;
    let line = record.position().map_or(0, |position| position.line() as usize);
    let row = record.deserialize(Some(found)).map_err(|error| {
        let ErrorKind::Deserialize { err, .. } = error.kind() else { return csv_error(file, &error) };
        // Errors from a custom deserializer have no column.
        let Some(field) = err.field().map(|field| field as usize) else {
            let found = record.iter().collect::<Vec<_>>().join(",");
            let error = Error::damaged("invalid line").expected(expected_value(err.kind())).found(found);
            return error.at(format!("{file}:{line}"));
        };
        value_error(head.get(field).unwrap_or(&""), &expected_value(err.kind()), record.get(field).unwrap_or_default())
            .at(format!("{file}:{line}"))
    })?;
    Ok((line, row))
}

fn expected_value(kind: &DeserializeErrorKind) -> String {
    match kind {
        DeserializeErrorKind::ParseInt(_) => "a whole number".to_owned(),
        DeserializeErrorKind::ParseBool(_) => "`true` or `false`".to_owned(),
        DeserializeErrorKind::Message(text) => text.clone(),
        other => other.to_string(),
    }
}

fn csv_error(file: &str, error: &csv::Error) -> Error {
    let line = error.position().map_or(1, csv::Position::line);
    match error.kind() {
        ErrorKind::UnequalLengths { expected_len, len, .. } => Error::damaged("wrong number of columns in the line")
            .expected(format!("{expected_len} columns"))
            .found(format!("{len} columns")),
        _ => Error::damaged("cannot read the table").found(error),
    }
    .at(format!("{file}:{line}"))
}

/// Creates the error for an invalid field. `expected` describes the valid values.
pub fn value_error(column: &str, expected: &str, found: &str) -> Error {
    Error::damaged(format!("invalid value in the column `{column}`")).expected(expected).found(format!("`{found}`"))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Row {
        name: String,
        count: usize,
    }

    #[test]
    fn rows_have_line_numbers_and_may_quote_commas() {
        let read = rows::<Row>("a.csv", &["name", "count"], "name,count\n\"a,b\",1\nc,2\n").unwrap();
        assert_eq!(read, [(2, named_row("a,b", 1)), (3, named_row("c", 2))]);
    }

    fn named_row(name: &str, count: usize) -> Row {
        Row { name: name.into(), count }
    }

    #[test]
    fn invalid_csv_field_error_has_file_line_and_column() {
        for (text, found) in [
            ("name,count\na,1\nb,x\n", "a.csv:3"),
            ("name,count\na,1\nb,x\n", "invalid value in the column `count`"),
            ("name,count\na,1\nb\n", "a.csv:3"),
            ("name,count\na,1,2\n", "wrong number of columns"),
            ("name\na\n", "unexpected columns"),
            ("", "a.csv:1"),
        ] {
            let error = rows::<Row>("a.csv", &["name", "count"], text).unwrap_err();
            assert!(error.to_string().contains(found) && error.exit_code() == 5, "{text:?}: {error}");
        }
    }
}
