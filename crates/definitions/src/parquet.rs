//! Rows of a parquet table as Python's `datasets` gives them.

use std::fs::File;
use std::path::Path;

use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::limit::TextLimit;
use ghostlab_core::files::parquet::{broken, read};
use polars::prelude::{AnyValue, Column, DataFrame, Series};

use crate::value::Value;

/// All rows. A column of a type that no template can print (pictures, times) is left out: whoever reads it is told that it
/// is not there.
pub(crate) fn rows(file: File, path: &Path) -> Result<Vec<Value>> {
    let all = |names: &[&str]| Ok(names.iter().map(|name| (*name).to_owned()).collect());
    read(file, path, TextLimit::current().of_json(), all, |frame| of_frame(frame, path))
}

fn of_frame(frame: &DataFrame, path: &Path) -> Result<Vec<Value>> {
    let columns: Vec<&Column> = frame.columns().iter().collect();
    let mut kept: Vec<(&Column, Vec<Value>)> = Vec::new();
    for column in columns {
        let cells = (0..frame.height()).map(|row| column.get(row).map_err(|error| broken(path, &error)).map(value));
        let cells: Option<Vec<Value>> = cells.collect::<Result<_>>()?;
        kept.extend(cells.map(|cells| (column, cells)));
    }
    let mut rows: Vec<Vec<(Value, Value)>> = vec![Vec::with_capacity(kept.len()); frame.height()];
    for (column, cells) in kept {
        let name = column.name().as_str();
        for (at, (row, cell)) in rows.iter_mut().zip(cells).enumerate() {
            if matches!(cell, Value::Float(number) if !number.is_finite()) {
                return Err(Error::bad_input("a number has no JSON form")
                    .at(format!("{}, row {}, column `{name}`", path.display(), at + 1))
                    .found(cell.repr()));
            }
            row.push((Value::from(name), cell));
        }
    }
    Ok(rows.into_iter().map(Value::Map).collect())
}

fn value(of: AnyValue<'_>) -> Option<Value> {
    let whole = |number: i128| i64::try_from(number).ok().map(Value::Int);
    match of.into_static() {
        AnyValue::Null => Some(Value::None),
        AnyValue::Boolean(truth) => Some(Value::Bool(truth)),
        AnyValue::String(text) => Some(Value::from(text)),
        AnyValue::StringOwned(text) => Some(Value::from(text.as_str())),
        AnyValue::UInt8(number) => whole(number.into()),
        AnyValue::UInt16(number) => whole(number.into()),
        AnyValue::UInt32(number) => whole(number.into()),
        AnyValue::UInt64(number) => whole(number.into()),
        AnyValue::Int8(number) => whole(number.into()),
        AnyValue::Int16(number) => whole(number.into()),
        AnyValue::Int32(number) => whole(number.into()),
        AnyValue::Int64(number) => whole(number.into()),
        AnyValue::Float32(number) => Some(Value::Float(number.into())),
        AnyValue::Float64(number) => Some(Value::Float(number)),
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
