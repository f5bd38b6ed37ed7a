//! Rows of task data out of a parquet table.

use std::fs::File;
use std::path::Path;

use polars::prelude::{AnyValue, Column, DataFrame, PolarsError, Series};
use serde_json::{Map, Number, Value};

use crate::error::{Error, Result};
use crate::files::limit::TextLimit;
use crate::files::parquet::{self, broken};

/// Where a row stands, and its fields.
type PlacedRow = (String, Map<String, Value>);

/// The named columns of a parquet file, row by row; `absent` says that one is not among those that there are.
///
/// # Errors
/// When the file is damaged, a column is absent, or a type has no JSON form.
pub(super) fn read_parquet(
    file: File,
    path: &Path,
    columns: &[&str],
    absent: impl Fn(&str, &[&str]) -> Error,
) -> Result<Vec<PlacedRow>> {
    let choose = |names: &[&str]| match columns.iter().find(|name| !names.contains(name)) {
        Some(name) => Err(absent(name, names).at(path.display().to_string())),
        None => Ok(columns.iter().map(|name| (*name).to_owned()).collect()),
    };
    parquet::read(file, path, TextLimit::current().of_json(), choose, |frame| rows(frame, path, columns))
}

fn rows(frame: &DataFrame, path: &Path, columns: &[&str]) -> Result<Vec<PlacedRow>> {
    let broken = |error| broken(path, &error);
    let columns: Vec<&Column> =
        columns.iter().map(|name| frame.column(name)).collect::<Result<_, PolarsError>>().map_err(broken)?;
    let mut rows = Vec::with_capacity(frame.height());
    for index in 0..frame.height() {
        let place = format!("{}, row {}", path.display(), index + 1);
        let mut fields = Map::new();
        for column in &columns {
            let name = column.name().as_str();
            let value = column.get(index).map_err(broken)?;
            let value = json(value).map_err(|error| error.at(format!("field `{name}`")).at(&place))?;
            fields.insert(name.to_owned(), value);
        }
        rows.push((place, fields));
    }
    Ok(rows)
}

fn json(value: AnyValue) -> Result<Value> {
    // Only the owned form of a struct can be taken apart.
    Ok(match value.into_static() {
        AnyValue::Null => Value::Null,
        AnyValue::Boolean(value) => Value::Bool(value),
        AnyValue::String(text) => Value::String(text.to_owned()),
        AnyValue::StringOwned(text) => Value::String(text.to_string()),
        AnyValue::UInt8(value) => Value::from(value),
        AnyValue::UInt16(value) => Value::from(value),
        AnyValue::UInt32(value) => Value::from(value),
        AnyValue::UInt64(value) => Value::from(value),
        AnyValue::Int8(value) => Value::from(value),
        AnyValue::Int16(value) => Value::from(value),
        AnyValue::Int32(value) => Value::from(value),
        AnyValue::Int64(value) => Value::from(value),
        AnyValue::Float32(value) => decimal(f64::from(value))?,
        AnyValue::Float64(value) => decimal(value)?,
        AnyValue::List(items) => Value::Array(list(&items)?),
        AnyValue::StructOwned(parts) => {
            let (values, fields) = *parts;
            let pairs = fields.into_iter().zip(values);
            let pair =
                |(field, value): (polars::prelude::Field, AnyValue)| Ok((field.name().to_string(), json(value)?));
            Value::Object(pairs.map(pair).collect::<Result<_>>()?)
        }
        other => return Err(odd(&other.dtype().to_string())),
    })
}

fn decimal(value: f64) -> Result<Value> {
    Number::from_f64(value).map(Value::Number).ok_or_else(|| odd(&format!("the number {value}")))
}

fn list(items: &Series) -> Result<Vec<Value>> {
    let item = |index| json(items.get(index).map_err(|error| odd(&error.to_string()))?);
    (0..items.len()).map(item).collect()
}

fn odd(found: &str) -> Error {
    Error::bad_input("the value has no JSON form").expected("text, numbers, lists and structs of them").found(found)
}

#[cfg(test)]
mod tests {
    use polars::prelude::{DataFrame, IntoSeries, NamedFrom, ParquetWriter, StructChunked};
    use serde_json::json;

    use super::super::{TaskRow, read_rows};
    use super::*;

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
        let (text, label) = (list("text", [&["a", "é\n"], &[]]), list("label", [&["A", "B"], &["1"]]));
        let choices = StructChunked::from_series("choices".into(), 2, [text, label].iter()).unwrap().into_series();
        bytes(vec![
            Column::new("question".into(), ["one", " two"]),
            choices.into(),
            Column::new("label".into(), [Some(-1_i64), None]),
            Column::new("unused".into(), [1.5, f64::NAN]),
        ])
    }

    fn read(bytes: &[u8], columns: &[&str]) -> Result<Vec<TaskRow>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        std::fs::write(&path, bytes).unwrap();
        read_rows(path, columns)
    }

    #[test]
    fn lists_and_structs_become_json() {
        let rows = read(&nested(), &["question", "choices", "label"]).unwrap();
        let values: Vec<Value> = rows.iter().map(|row| Value::Object(row.fields.clone())).collect();
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
