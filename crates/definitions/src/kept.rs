//! The rows of a split that a definition keeps, and what it adds to them.

use ghostlab_core::error::{Error, Result};

use crate::definition::Definition;
use crate::row::Row;
use crate::rows::Rows;

/// Rows with the columns that the definition names, and those that it adds.
///
/// # Errors
/// A row that has not what is to be in its columns.
pub(crate) fn prepared(definition: &Definition, mut rows: Vec<Row>) -> Result<Vec<Row>> {
    let place = |error: Error| error.at(format!("task {}", definition.name));
    for row in &mut rows {
        definition.data.fields.iter().try_for_each(|column| column.check(row)).map_err(place)?;
        if let Some(prepare) = definition.prepare {
            prepare.apply(row).map_err(place)?;
        }
    }
    Ok(rows)
}

/// The rows of a split that the definition keeps.
///
/// # Errors
/// When they cannot be read, or one lacks a column that they are kept by.
pub(crate) fn kept(definition: &Definition, rows: &dyn Rows, split: &str) -> Result<Vec<Row>> {
    let place = |error: Error| error.at(format!("task {}", definition.name));
    let mut documents = rows.rows(&definition.data, split).map_err(place)?;
    for (column, wanted) in &definition.keep_rows {
        if let Some(odd) = documents.iter().find(|row| row.value.get(column).is_none()) {
            let bad = Error::bad_input(format!("`keep_rows` names the column `{column}`, which a row does not have"));
            return Err(place(bad.at(&odd.place).found(odd.value.repr())));
        }
        documents.retain(|row| row.value.get(column).is_some_and(|value| wanted.contains(value)));
    }
    Ok(documents)
}
