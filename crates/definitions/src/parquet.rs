//! Rows of a Parquet file, with values converted as by Python's `datasets`.

use std::fs::File;
use std::path::Path;

use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::limit::TextLimit;
use ghostlab_core::files::parquet::{parquet_error, read};
use polars::prelude::{AnyValue, ArrowDataType, ArrowField, ArrowSchema, DataFrame, PlSmallStr, Series};

use crate::python_object::{PythonObject, class_of};
use crate::row::{Row, missing_column_error};
use crate::value::Value;

/// Reads the rows with the given columns, or with all columns if `columns` is `None`. When all columns are read, values
/// that a template cannot render, such as bytes, become placeholders. A template that uses a placeholder is rejected.
///
/// # Errors
/// Fails if the file is damaged, a requested column is missing or cannot be rendered, or a value has no Python
/// equivalent.
pub(crate) fn rows(file: File, path: &Path, columns: Option<Vec<String>>) -> Result<Vec<Row>> {
    let reads_all = columns.is_none();
    let limit = TextLimit::current().for_json();
    read(
        file,
        path,
        limit,
        |schema| columns_to_read(columns, schema, path),
        |frame, schema| convert_rows(frame, schema, path, reads_all),
    )
}

/// Checks and returns the requested columns. If `columns` is `None`, returns all columns with a supported type.
fn columns_to_read(columns: Option<Vec<String>>, schema: &ArrowSchema, path: &Path) -> Result<Vec<String>> {
    let Some(columns) = columns else {
        return Ok(schema.iter_values().filter(|field| is_supported(&field.dtype)).map(field_name).collect());
    };
    let names: Vec<&str> = schema.iter_names().map(PlSmallStr::as_str).collect();
    for column in &columns {
        let field = schema.iter_values().find(|field| field.name == column.as_str());
        let field = field.ok_or_else(|| missing_column_error(column, names.iter().copied()).at(path.display()))?;
        if !is_supported(&field.dtype) {
            return Err(Error::bad_input(format!("the column `{column}` has an unsupported type"))
                .at(path.display())
                .expected("text, numbers, dates, times, and lists and structs of them")
                .found(class_of(&field.dtype)));
        }
    }
    Ok(columns)
}

fn field_name(field: &ArrowField) -> String {
    field.name.as_str().to_owned()
}

/// Returns whether [`convert_value`] supports a type.
fn is_supported(dtype: &ArrowDataType) -> bool {
    use ArrowDataType as Type;
    match dtype {
        Type::Null | Type::Boolean | Type::Utf8 | Type::LargeUtf8 | Type::Utf8View => true,
        Type::Int8 | Type::Int16 | Type::Int32 | Type::Int64 => true,
        Type::UInt8 | Type::UInt16 | Type::UInt32 | Type::UInt64 | Type::Float32 | Type::Float64 => true,
        Type::Dictionary(_, values, _) => is_supported(values),
        Type::List(field) | Type::LargeList(field) | Type::FixedSizeList(field, _) => is_supported(&field.dtype),
        Type::Struct(fields) => fields.iter().all(|field| is_supported(&field.dtype)),
        other => PythonObject::is_object_type(other),
    }
}

fn convert_rows(frame: &DataFrame, schema: &ArrowSchema, path: &Path, reads_all: bool) -> Result<Vec<Row>> {
    let mut rows: Vec<Vec<(Value, Value)>> = vec![Vec::with_capacity(schema.len()); frame.height()];
    for field in schema.iter_values() {
        let column = frame.columns().iter().find(|column| column.name() == &field.name);
        let Some(column) = column else {
            if reads_all {
                rows.iter_mut().for_each(|row| row.push((Value::Text(field_name(field)), placeholder(field))));
            }
            continue;
        };
        for (index, row) in rows.iter_mut().enumerate() {
            let value =
                match convert_value(column.get(index).map_err(|error| parquet_error(path, &error))?, &field.dtype) {
                    Some(value) => value,
                    // Defer the error until a template uses the value.
                    None if reads_all => placeholder(field),
                    None => {
                        return Err(Error::bad_input("a Parquet value has no Python equivalent")
                            .at(format!("{}, field `{}`", row_location(index, path), field.name))
                            .expected(format!(
                                "a value within Python's limits for the type {}",
                                class_of(&field.dtype)
                            )));
                    }
                };
            row.push((Value::Text(field_name(field)), value));
        }
    }
    Ok(rows
        .into_iter()
        .enumerate()
        .map(|(index, row)| Row { location: row_location(index, path), value: Value::Map(row) })
        .collect())
}

fn row_location(row: usize, path: &Path) -> String {
    format!("{}, row {}", path.display(), row + 1)
}

/// Creates the placeholder for a value that a template cannot render.
fn placeholder(field: &ArrowField) -> Value {
    Value::Object(PythonObject::placeholder(&class_of(&field.dtype)).into())
}

fn convert_value(stored: AnyValue<'_>, dtype: &ArrowDataType) -> Option<Value> {
    let dtype = if let ArrowDataType::Dictionary(_, values, _) = dtype { values.as_ref() } else { dtype };
    let stored = stored.into_static();
    if stored.is_null() {
        return Some(Value::None);
    }
    if PythonObject::is_object_type(dtype) {
        let object = match &stored {
            AnyValue::Binary(bytes) => PythonObject::decimal_from_bytes(bytes, dtype),
            AnyValue::BinaryOwned(bytes) => PythonObject::decimal_from_bytes(bytes, dtype),
            number => PythonObject::from_number(number.try_extract().ok()?, dtype),
        };
        return object.map(|object| Value::Object(object.into()));
    }
    match stored {
        AnyValue::Boolean(truth) => Some(Value::Bool(truth)),
        AnyValue::String(text) => Some(Value::from(text)),
        AnyValue::StringOwned(text) => Some(Value::from(text.as_str())),
        number if number.is_integer() => number.try_extract().ok().map(Value::Int),
        number if number.is_float() => number.try_extract().ok().map(Value::Float),
        AnyValue::List(items) => convert_list(&items, dtype),
        AnyValue::StructOwned(parts) => {
            let ArrowDataType::Struct(types) = dtype else { return None };
            let pairs = types.iter().zip(parts.0);
            pairs
                .map(|(field, stored)| Some((Value::Text(field_name(field)), convert_value(stored, &field.dtype)?)))
                .collect::<Option<_>>()
                .map(Value::Map)
        }
        _ => None,
    }
}

fn convert_list(items: &Series, dtype: &ArrowDataType) -> Option<Value> {
    use ArrowDataType as Type;
    let (Type::List(field) | Type::LargeList(field) | Type::FixedSizeList(field, _)) = dtype else { return None };
    (0..items.len())
        .map(|index| convert_value(items.get(index).ok()?, &field.dtype))
        .collect::<Option<_>>()
        .map(Value::List)
}

#[cfg(test)]
mod tests {
    use polars::prelude::{Column, IntoSeries, NamedFrom, ParquetWriter, StructChunked};
    use serde_json::json;

    use super::*;
    use crate::rows::table;

    fn parquet_bytes(columns: Vec<Column>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut frame = DataFrame::new_infer_height(columns).unwrap();
        ParquetWriter::new(&mut bytes).finish(&mut frame).unwrap();
        bytes
    }

    fn nested_table() -> Vec<u8> {
        let text = text_lists("text", [&["a", "é\n"], &[]]);
        let label = text_lists("label", [&["A", "B"], &["1"]]);
        let choices = StructChunked::from_series("choices".into(), 2, [text, label].iter()).unwrap().into_series();
        parquet_bytes(vec![
            Column::new("question".into(), ["one", " two"]),
            choices.into(),
            Column::new("label".into(), [Some(-1_i64), None]),
            Column::new("share".into(), [1.5, f64::NAN]),
            Column::new("picture".into(), [b"\x89PNG".as_slice(), b""]),
        ])
    }

    fn text_lists(name: &str, rows: [&[&str]; 2]) -> Series {
        Series::new(name.into(), rows.map(|row| Series::new("item".into(), row)).as_slice())
    }

    fn read(bytes: &[u8], columns: &[&str]) -> Result<Vec<Row>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        std::fs::write(&path, bytes).unwrap();
        table(&path, Some(columns.iter().map(|name| (*name).to_owned()).collect()))
    }

    #[test]
    fn parquet_lists_and_structs_become_lists_and_maps() {
        let rows = read(&nested_table(), &["question", "choices", "label"]).unwrap();
        let values: Vec<serde_json::Value> = rows.iter().map(|row| json!(row.value)).collect();
        assert_eq!(
            values[0],
            json!({"question": "one", "label": -1, "choices": {
            "text": ["a", "é\n"], "label": ["A", "B"]}})
        );
        assert_eq!(values[1], json!({"question": " two", "label": null, "choices": {"text": [], "label": ["1"]}}));
        assert!(rows[1].location.ends_with("a.parquet, row 2"));
    }

    #[test]
    fn missing_column_and_bytes_column_are_rejected_by_name() {
        let message = read(&nested_table(), &["question", "choice"]).unwrap_err().to_string();
        assert!(message.contains("did you mean `choices`?") && message.contains("a.parquet"), "{message}");
        let message = read(&nested_table(), &["picture"]).unwrap_err().to_string();
        assert!(message.contains("`picture`") && message.contains("bytes"), "{message}");
        assert_eq!(read(&nested_table(), &["share"]).unwrap()[1].value.repr(), "{'share': nan}");
    }

    #[test]
    fn damaged_parquet_file_is_an_error_without_a_panic() {
        let intact = nested_table();
        for size in [1, 7, intact.len() / 2, intact.len() - 1] {
            assert_eq!(read(&intact[..size], &["question"]).unwrap_err().exit_code(), 2);
        }
        assert_eq!(read(b"not parquet at all", &["question"]).unwrap_err().exit_code(), 2);
        // Corrupt the footer, whose length precedes the final magic bytes. Page headers stay intact, because an altered
        // one can make the reader request more memory than exists, which aborts the process.
        let tail = intact.len() - 8;
        let footer = u32::from_le_bytes(intact[tail..tail + 4].try_into().unwrap()) as usize;
        for position in tail - footer..intact.len() {
            let mut altered = intact.clone();
            altered[position] ^= 1 << (position % 8);
            if let Err(error) = read(&altered, &["question", "choices", "label"]) {
                assert_eq!(error.exit_code(), 2, "{error}");
            }
        }
    }
}
