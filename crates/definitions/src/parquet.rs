//! Rows of a parquet table as Python's `datasets` gives them.

use std::fs::File;
use std::path::Path;

use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::limit::TextLimit;
use ghostlab_core::files::parquet::{broken, read};
use polars::prelude::{AnyValue, Column, DataFrame, Series};

use crate::row::{Row, absent};
use crate::value::Value;

/// Reads rows with the named columns, or all. Columns of types that no template can print (images, times) are left out and
/// reported if a template reads them.
///
/// # Errors
/// When the file is damaged, a named column is absent, or a value has no JSON form.
pub(crate) fn rows(file: File, path: &Path, columns: Option<Vec<String>>) -> Result<Vec<Row>> {
    let whole = columns.is_none();
    let choose = |names: &[&str]| match columns {
        None => Ok(names.iter().map(|name| (*name).to_owned()).collect()),
        Some(columns) => match columns.iter().find(|name| !names.contains(&name.as_str())) {
            Some(name) => Err(absent(name, names.iter().copied()).at(path.display())),
            None => Ok(columns),
        },
    };
    read(file, path, TextLimit::current().of_json(), choose, |frame| of_frame(frame, path, whole))
}

fn of_frame(frame: &DataFrame, path: &Path, whole: bool) -> Result<Vec<Row>> {
    let place = |row: usize| format!("{}, row {}", path.display(), row + 1);
    let odd = |found: String, (row, name): (usize, &str)| {
        Error::bad_input("the value has no JSON form")
            .at(format!("{}, field `{name}`", place(row)))
            .expected("text, numbers, lists and structs of them")
            .found(found)
    };
    let columns: Vec<&Column> = frame.columns().iter().collect();
    let mut kept: Vec<(&Column, Vec<Value>)> = Vec::new();
    for column in columns {
        let name = column.name().as_str();
        let mut cells = Vec::with_capacity(frame.height());
        for row in 0..frame.height() {
            match value(column.get(row).map_err(|error| broken(path, &error))?) {
                Some(Value::Float(number)) if !number.is_finite() => {
                    return Err(odd(format!("the number {number}"), (row, name)));
                }
                Some(cell) => cells.push(cell),
                None if whole => break,
                None => return Err(odd(column.dtype().to_string(), (row, name))),
            }
        }
        if cells.len() == frame.height() {
            kept.push((column, cells));
        }
    }
    let mut rows: Vec<Vec<(Value, Value)>> = vec![Vec::with_capacity(kept.len()); frame.height()];
    for (column, cells) in kept {
        let name = column.name().as_str();
        rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push((Value::from(name), cell)));
    }
    Ok(rows.into_iter().enumerate().map(|(at, row)| Row { place: place(at), value: Value::Map(row) }).collect())
}

fn value(of: AnyValue<'_>) -> Option<Value> {
    match of.into_static() {
        AnyValue::Null => Some(Value::None),
        AnyValue::Boolean(truth) => Some(Value::Bool(truth)),
        AnyValue::String(text) => Some(Value::from(text)),
        AnyValue::StringOwned(text) => Some(Value::from(text.as_str())),
        number if number.is_integer() => number.try_extract().ok().map(Value::Int),
        number if number.is_float() => number.try_extract().ok().map(Value::Float),
        AnyValue::List(items) => list(&items),
        AnyValue::StructOwned(parts) => {
            let (values, fields) = *parts;
            let pairs = fields.into_iter().zip(values);
            let pair = |(field, of): (polars::prelude::Field, AnyValue<'_>)| {
                Some((Value::from(field.name().as_str()), value(of)?))
            };
            pairs.map(pair).collect::<Option<_>>().map(Value::Map)
        }
        _ => None,
    }
}

fn list(items: &Series) -> Option<Value> {
    let item = |at: usize| value(items.get(at).ok()?);
    (0..items.len()).map(item).collect::<Option<_>>().map(Value::List)
}

#[cfg(test)]
mod tests {
    use polars::prelude::{DataFrame, IntoSeries, NamedFrom, ParquetWriter, StructChunked};
    use serde_json::json;

    use super::*;
    use crate::rows::table;

    fn bytes(columns: Vec<Column>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut frame = DataFrame::new_infer_height(columns).unwrap();
        ParquetWriter::new(&mut bytes).finish(&mut frame).unwrap();
        bytes
    }

    fn nested() -> Vec<u8> {
        let list = |name: &str, rows: [&[&str]; 2]| {
            Series::new(name.into(), rows.map(|row| Series::new("item".into(), row)).as_slice())
        };
        let text = list("text", [&["a", "é\n"], &[]]);
        let label = list("label", [&["A", "B"], &["1"]]);
        let choices = StructChunked::from_series("choices".into(), 2, [text, label].iter()).unwrap().into_series();
        bytes(vec![
            Column::new("question".into(), ["one", " two"]),
            choices.into(),
            Column::new("label".into(), [Some(-1_i64), None]),
            Column::new("unused".into(), [1.5, f64::NAN]),
        ])
    }

    fn read(bytes: &[u8], columns: &[&str]) -> Result<Vec<Row>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        std::fs::write(&path, bytes).unwrap();
        table(&path, Some(columns.iter().map(|name| (*name).to_owned()).collect()))
    }

    #[test]
    fn lists_and_structs_become_json() {
        let rows = read(&nested(), &["question", "choices", "label"]).unwrap();
        let values: Vec<serde_json::Value> = rows.iter().map(|row| json!(row.value)).collect();
        assert_eq!(
            values[0],
            json!({"question": "one", "label": -1, "choices": {
            "text": ["a", "é\n"], "label": ["A", "B"]}})
        );
        assert_eq!(values[1], json!({"question": " two", "label": null, "choices": {"text": [], "label": ["1"]}}));
        assert!(rows[1].place.ends_with("a.parquet, row 2"));
    }

    #[test]
    fn an_absent_column_and_a_value_without_json_form_are_refused() {
        let message = read(&nested(), &["question", "choice"]).unwrap_err().to_string();
        assert!(message.contains("`choices` meant") && message.contains("a.parquet"), "{message}");
        let message = read(&nested(), &["unused"]).unwrap_err().to_string();
        assert!(message.contains("row 2") && message.contains("`unused`") && message.contains("NaN"), "{message}");
    }

    #[test]
    fn a_damaged_file_is_an_error_and_not_a_panic() {
        let whole = nested();
        for size in [1, 7, whole.len() / 2, whole.len() - 1] {
            assert_eq!(read(&whole[..size], &["question"]).unwrap_err().exit_code(), 2);
        }
        assert_eq!(read(b"not parquet at all", &["question"]).unwrap_err().exit_code(), 2);
        // The footer, whose length stands before the closing magic word. (An altered page header can make the reader ask
        // for more memory than there is, which ends the process: that cannot be caught.)
        let tail = whole.len() - 8;
        let footer = u32::from_le_bytes(whole[tail..tail + 4].try_into().unwrap()) as usize;
        for position in tail - footer..whole.len() {
            let mut altered = whole.clone();
            altered[position] ^= 1 << (position % 8);
            if let Err(error) = read(&altered, &["question", "choices", "label"]) {
                assert_eq!(error.exit_code(), 2, "{error}");
            }
        }
    }
}
