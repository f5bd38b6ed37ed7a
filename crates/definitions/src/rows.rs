//! Dataset rows: the `Rows` trait, local files, and row filtering.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::json_rows::JsonRows;
use ghostlab_core::files::limit::TextLimit;
use ghostlab_core::files::rows::{RowFiles, RowForm, describe};
use ghostlab_core::files::{self, gzip};
use ghostlab_core::tasks::split_files;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::activity;
use crate::bounds::{check_row, check_row_bytes};
use crate::definition::{Data, Definition};
use crate::parquet;
use crate::row::Row;
use crate::tabular;
use crate::value::Value;

/// Formats of row files: those that [`RowFiles`] always accepts, CSV and text.
const FILES: RowFiles = RowFiles { noun: "task", endings: &[(".csv", RowForm::Csv), (".txt", RowForm::Text)] };

/// Source of dataset rows.
pub trait Rows {
    /// Reads the rows of a split in order.
    ///
    /// # Errors
    /// Fails if the dataset, configuration or split is missing or cannot be read.
    fn rows(&self, data: &Data, split: &str) -> Result<Vec<Row>>;
}

/// Local files of a dataset, by split name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FileRows {
    /// Files of each split, in row order.
    pub splits: BTreeMap<String, Vec<PathBuf>>,
}

impl FileRows {
    /// Finds the files of each split in a folder. The folder has the layout of a Hub repository, or contains one folder
    /// per dataset.
    ///
    /// # Errors
    /// Fails if a split is missing, ambiguous or incomplete.
    pub fn find_in(root: &Path, data: &Data, splits: &[&str]) -> Result<Self> {
        let found = splits.iter().map(|split| Ok(((*split).to_owned(), find_split(root, data, split)?)));
        Ok(Self { splits: found.collect::<Result<_>>()? })
    }

    /// Returns the files of the split that a definition evaluates.
    pub fn evaluated(&self, definition: &Definition) -> &[PathBuf] {
        self.splits.get(definition.evaluated_split()).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the files with few-shot examples. The slice is empty if no examples are used or the definition lists
    /// them inline.
    pub fn examples(&self, definition: &Definition, shots: Option<usize>) -> &[PathBuf] {
        let split = definition.example_split().filter(|_| definition.shots(shots) > 0);
        split.and_then(|split| self.splits.get(split)).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Finds `SPLIT.jsonl`, `SPLIT-00000-of-00002.parquet`, or all files in a folder `SPLIT`. Searches the dataset's folder
/// below `root` (or `root` itself), its folder `data`, and the configuration's folders in both.
fn find_split(root: &Path, data: &Data, split: &str) -> Result<Vec<PathBuf>> {
    let set = inner_folder(root, &data.path);
    let base = set.as_deref().unwrap_or(root);
    let name = data.name.as_deref().unwrap_or("default");
    let named = [inner_folder(base, name), inner_folder(&base.join("data"), name)];
    // Search the folders of the given configuration, then those of no configuration, but never those of another one.
    let others = [Some(base.to_owned()), inner_folder(base, "data")];
    let places: Vec<PathBuf> = named.into_iter().chain(others).flatten().collect();
    for place in &places {
        if let Some(files) = split_files(place, split)? {
            return Ok(files);
        }
        let folder = place.join(split);
        if folder.is_dir() {
            let mut files = files::entries(&folder).map_err(|error| Error::folder_io("read", &folder, &error))?;
            files.retain(|file| file.is_file() && format(file).is_ok());
            if !files.is_empty() {
                return Ok(files);
            }
        }
    }
    let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    Err(Error::missing(format!("the dataset has no split `{split}`"))
        .at(looked.join(", "))
        .expected(format!("{split}.jsonl, {split}.parquet, or {split}-00000-of-00001.parquet"))
        .hint("name the files of the split with `data: {SPLIT: FILE}`"))
}

/// Returns the folder `name` inside `base` if it exists. Rejects empty names and those that contain `..`.
fn inner_folder(base: &Path, name: &str) -> Option<PathBuf> {
    let inner = base.join(name);
    (!name.is_empty() && !name.contains("..") && inner.is_dir()).then_some(inner)
}

impl Rows for FileRows {
    fn rows(&self, data: &Data, split: &str) -> Result<Vec<Row>> {
        let files = self.splits.get(split).ok_or_else(|| {
            Error::missing(format!("no file for the split `{split}`"))
                .found(self.splits.keys().cloned().collect::<Vec<_>>().join(", "))
        })?;
        let mut rows = Vec::new();
        for file in files {
            rows.extend(table(file, data.columns())?);
        }
        if files.len() > 1 && files.iter().all(|file| is_json(file)) {
            tabular::unify_numbers(&mut rows);
        }
        Ok(rows)
    }
}

/// Reads the rows of one file in order.
///
/// - `.jsonl`, `.json`, `.jsonl.gz`, `.json.gz`: one JSON object per line (blank lines are skipped), or one list of
///   objects. Without `columns`, a missing column is `None`. Integers become floats if their column also has floats.
/// - `.csv`: comma-separated values below a header line. Each column has one type, and an empty value is `None`.
/// - `.txt`: each line is a row with the column `text`.
/// - `.parquet`: all columns, or only the given ones. Lists and structs become lists and maps.
///
/// # Errors
/// Fails with [`ErrorKind::Missing`](ghostlab_core::error::ErrorKind::Missing) if the file is missing or unreadable.
/// Fails with a bad-input error that names the line or row if the content is invalid: no rows, invalid UTF-8, a
/// truncated file, a line that is not a JSON object, or a Parquet column that is missing or has an unsupported type.
/// Missing columns of JSON rows are reported when the row is used.
pub fn table(path: &Path, columns: Option<Vec<String>>) -> Result<Vec<Row>> {
    activity::record_start(format_args!("{}", path.display()));
    let limit = TextLimit::current().for_json();
    let (file, form) = FILES.open(path, limit)?;
    let rows = match form {
        RowForm::Parquet => {
            let rows = parquet::rows(file, path, columns)?;
            rows.iter().try_for_each(|row| check_row(&row.value, &row.location))?;
            rows
        }
        RowForm::Json { zipped } => {
            let mut rows = match zipped {
                true => read_json_rows(gzip::reader(file, limit), path, true)?,
                false => read_json_rows(BufReader::new(file), path, false)?,
            };
            if columns.is_none() {
                fill_missing_fields(&mut rows);
            }
            tabular::unify_numbers(&mut rows);
            rows
        }
        RowForm::Csv => tabular::csv_rows(file, path)?,
        RowForm::Text => tabular::text_rows(file, path)?,
    };
    if rows.is_empty() { Err(FILES.empty_error(path)) } else { Ok(rows) }
}

/// Returns the format of a row file according to its extension.
///
/// # Errors
/// Fails if [`table`] does not support the extension.
pub fn format(path: &Path) -> Result<&'static str> {
    Ok(match FILES.form(path)? {
        RowForm::Json { zipped: false } => "json",
        RowForm::Json { zipped: true } => "json.gz",
        RowForm::Parquet => "parquet",
        RowForm::Csv => "csv",
        RowForm::Text => "text",
    })
}

fn build_row(value: Value, location: String) -> Result<Row> {
    match value {
        Value::Map(_) => {
            check_row(&value, &location)?;
            Ok(Row { location, value })
        }
        other => {
            Err(Error::bad_input("invalid row").at(location).expected("a JSON object").found(describe(&json!(other))))
        }
    }
}

fn read_json_rows(reader: impl BufRead, path: &Path, zipped: bool) -> Result<Vec<Row>> {
    let mut values = JsonRows::new(reader, path, zipped);
    let mut rows = Vec::new();
    while values.advance()? {
        let location = values.location();
        check_row_bytes(values.row()).map_err(|error| error.at(&location))?;
        let value = values.parse(PhantomData::<Value>)?;
        tabular::check_count(rows.len(), &location)?;
        rows.push(build_row(value, location)?);
    }
    Ok(rows)
}

fn is_json(path: &Path) -> bool {
    matches!(FILES.form(path), Ok(RowForm::Json { .. }))
}

/// Adds missing columns with the value `None`, so that all rows have the same columns in the same order.
fn fill_missing_fields(rows: &mut [Row]) {
    let mut columns: Vec<Value> = Vec::new();
    for row in &*rows {
        let Value::Map(pairs) = &row.value else { continue };
        for (index, (name, _)) in pairs.iter().enumerate() {
            // Fast path: rows nearly always have the same columns in the same order.
            if columns.get(index) != Some(name) && !columns.contains(name) {
                columns.push(name.clone());
            }
        }
    }
    for row in rows {
        let Value::Map(pairs) = &mut row.value else { continue };
        if pairs.len() == columns.len() && pairs.iter().zip(&columns).all(|((name, _), column)| name == column) {
            continue;
        }
        let cells = columns.iter().map(|name| {
            let cell = pairs.iter().find(|(key, _)| key == name).map_or(Value::None, |(_, cell)| cell.clone());
            (name.clone(), cell)
        });
        *pairs = cells.collect();
    }
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;

/// Checks declared columns and adds the columns that the `prepare` hook derives.
///
/// # Errors
/// Fails if a declared column is missing or has the wrong type, or a column cannot be derived.
pub(crate) fn prepare_rows(definition: &Definition, mut rows: Vec<Row>) -> Result<Vec<Row>> {
    for row in &mut rows {
        definition
            .data
            .fields
            .iter()
            .try_for_each(|column| column.check(row))
            .map_err(|error| add_task_name(error, definition))?;
        if let Some(prepare) = definition.prepare {
            prepare.apply(row).map_err(|error| add_task_name(error, definition))?;
        }
    }
    Ok(rows)
}

fn add_task_name(error: Error, definition: &Definition) -> Error {
    error.at(format!("task {}", definition.name))
}

/// Reads the rows of a split that match `keep_rows`.
///
/// # Errors
/// Fails if the rows cannot be read or a filtered column is missing.
pub(crate) fn filtered_rows(definition: &Definition, rows: &dyn Rows, split: &str) -> Result<Vec<Row>> {
    let mut documents = rows.rows(&definition.data, split).map_err(|error| add_task_name(error, definition))?;
    for (column, allowed) in &definition.keep_rows {
        if let Some(row_without_column) = documents.iter().find(|row| row.value.get(column).is_none()) {
            let error = Error::bad_input(format!("a row has no column `{column}`, by which `keep_rows` filters"));
            return Err(add_task_name(
                error.at(&row_without_column.location).found(row_without_column.value.repr()),
                definition,
            ));
        }
        documents.retain(|row| row.value.get(column).is_some_and(|value| allowed.contains(value)));
    }
    Ok(documents)
}
