//! Rows of a data set: a trait that others implement for the hub and parquet, and readers of local JSON.

use std::path::{Path, PathBuf};

use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::regular;

use crate::definition::Data;
use crate::value::Value;

/// Where rows come from.
pub trait Rows {
    /// The rows of a split in their order, each a map of columns.
    ///
    /// # Errors
    /// When the data set, its configuration or the split is not there, or cannot be read.
    fn rows(&self, data: &Data, split: &str) -> Result<Box<dyn Iterator<Item = Result<Value>> + '_>>;
}

/// Files of a folder, one for each split: `test.jsonl` or `test.json`, in a folder of the data set's name where there is one.
#[derive(Debug, Clone)]
pub struct LocalRows {
    /// The folder.
    pub folder: PathBuf,
}

impl Rows for LocalRows {
    fn rows(&self, data: &Data, split: &str) -> Result<Box<dyn Iterator<Item = Result<Value>> + '_>> {
        let own =
            [data.path.as_str(), data.name.as_deref().unwrap_or("")].iter().fold(self.folder.clone(), |path, part| {
                let inner = path.join(part);
                if !part.is_empty() && !part.contains("..") && inner.is_dir() { inner } else { path }
            });
        let path =
            ["jsonl", "json"].map(|end| own.join(format!("{split}.{end}"))).into_iter().find(|path| path.is_file());
        let path = path.ok_or_else(|| {
            Error::missing(format!("the data set has no split `{split}` here"))
                .at(own.display().to_string())
                .expected(format!("{split}.jsonl or {split}.json"))
        })?;
        Ok(Box::new(json_rows(&path)?.into_iter().map(Ok)))
    }
}

/// Rows of a JSON file: an object a line, or one list of objects. A column that a row lacks is `None` in it.
///
/// # Errors
/// When the file cannot be read, or holds anything but objects.
pub fn json_rows(path: &Path) -> Result<Vec<Value>> {
    let bytes = regular::read(path)?;
    let bad = |line: usize, what: &str, found: String| {
        Error::bad_input(what.to_owned()).at(format!("{}:{line}", path.display())).found(found)
    };
    let mut rows: Vec<Value> = Vec::new();
    if bytes.trim_ascii_start().starts_with(b"[") {
        rows =
            serde_json::from_slice(&bytes).map_err(|error| bad(error.line(), "this is no JSON", error.to_string()))?;
    } else {
        for (at, line) in bytes.split(|b| *b == b'\n').enumerate().filter(|(_, line)| !line.trim_ascii().is_empty()) {
            let row =
                serde_json::from_slice(line).map_err(|error| bad(at + 1, "this is no JSON", error.to_string()))?;
            rows.push(row);
        }
    }
    let mut columns: Vec<Value> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let Value::Map(pairs) = row else { return Err(bad(at + 1, "a row is an object of columns", row.repr())) };
        for (name, _) in pairs {
            if !columns.contains(name) {
                columns.push(name.clone());
            }
        }
    }
    for row in &mut rows {
        let cells = columns.iter().map(|name| {
            let cell = name.as_text().and_then(|name| row.get(name)).cloned().unwrap_or(Value::None);
            (name.clone(), cell)
        });
        *row = Value::Map(cells.collect());
    }
    Ok(rows)
}
