//! Rows of a data set: a trait that others implement for the hub and parquet, and readers of local files.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::limit::TextLimit;
use ghostlab_core::files::rows::{RowFiles, RowForm};
use ghostlab_core::files::{gzip, regular};
use ghostlab_core::tasks::{format as form, split_files};
use serde::{Deserialize, Serialize};

use crate::definition::Data;
use crate::parquet;
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

/// Files by the names of their splits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FileRows {
    /// The files of each split, in their order.
    pub splits: BTreeMap<String, Vec<PathBuf>>,
}

impl FileRows {
    /// The files of some splits in a folder: as a repository of the hub has them, or in folders of the data set's names.
    ///
    /// # Errors
    /// A split that is not there, is there twice, or is not whole.
    pub fn below(root: &Path, data: &Data, splits: &[&str]) -> Result<Self> {
        let found = splits.iter().map(|split| Ok(((*split).to_owned(), split_below(root, data, split)?)));
        Ok(Self { splits: found.collect::<Result<_>>()? })
    }
}

/// `SPLIT.jsonl`, `SPLIT-00000-of-00002.parquet`, or all files of a folder `SPLIT`, in the folder of the configuration where
/// there is one, in `data` or right here.
fn split_below(root: &Path, data: &Data, split: &str) -> Result<Vec<PathBuf>> {
    let inner = |base: &Path, part: &str| {
        let inner = base.join(part);
        (!part.is_empty() && !part.contains("..") && inner.is_dir()).then_some(inner)
    };
    let set = inner(root, &data.path);
    let base = set.as_deref().unwrap_or(root);
    let name = data.name.as_deref().unwrap_or("default");
    let named = [inner(base, name), inner(&base.join("data"), name)];
    // Of a configuration nothing stands for another one.
    let others = [Some(base.to_owned()), inner(base, "data")];
    let places: Vec<PathBuf> = named.into_iter().chain(others).flatten().collect();
    for place in &places {
        if let Some(files) = split_files(place, split)? {
            return Ok(files);
        }
        let folder = place.join(split);
        if folder.is_dir() {
            let entries = fs::read_dir(&folder).map_err(|error| Error::io("read", &folder, &error))?;
            let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
            files.retain(|file| file.is_file() && form(file).is_ok());
            files.sort();
            if !files.is_empty() {
                return Ok(files);
            }
        }
    }
    let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    Err(Error::missing(format!("the data set has no split `{split}` here"))
        .at(looked.join(", "))
        .expected(format!("{split}.jsonl, {split}.parquet, or {split}-00000-of-00001.parquet"))
        .hint("`data: {SPLIT: FILE}` names the files of splits one by one"))
}

impl Rows for FileRows {
    fn rows(&self, _: &Data, split: &str) -> Result<Box<dyn Iterator<Item = Result<Value>> + '_>> {
        let files = self.splits.get(split).ok_or_else(|| {
            Error::missing(format!("nobody says which file the split `{split}` is"))
                .found(self.splits.keys().cloned().collect::<Vec<_>>().join(", "))
        })?;
        let mut rows = Vec::new();
        for file in files {
            rows.extend(table(file)?);
        }
        Ok(Box::new(rows.into_iter().map(Ok)))
    }
}

/// The rows of a file in any of the forms that tasks are read from.
///
/// # Errors
/// When the file cannot be read, or holds anything but rows.
pub fn table(path: &Path) -> Result<Vec<Value>> {
    const FILES: RowFiles = RowFiles {
        noun: "data",
        text: false,
        expected: "one JSON object per line, or one list of objects",
        hint: None,
    };
    let limit = TextLimit::current().of_json();
    let (file, form) = FILES.open(path, limit)?;
    match form {
        RowForm::Parquet => parquet::rows(file, path),
        RowForm::Json { zipped: true } => {
            let mut bytes = Vec::new();
            gzip::reader(file, limit).read_to_end(&mut bytes).map_err(|error| {
                gzip::damage(path, limit, &error).unwrap_or_else(|| Error::io("read", path, &error))
            })?;
            json_of(&bytes, path)
        }
        _ => json_rows(path),
    }
}

/// Rows of a JSON file: an object a line, or one list of objects. A column that a row lacks is `None` in it.
///
/// # Errors
/// When the file cannot be read, or holds anything but objects.
pub fn json_rows(path: &Path) -> Result<Vec<Value>> {
    json_of(&regular::read(path)?, path)
}

fn json_of(bytes: &[u8], path: &Path) -> Result<Vec<Value>> {
    let bad = |line: usize, what: &str, found: String| {
        Error::bad_input(what.to_owned()).at(format!("{}:{line}", path.display())).found(found)
    };
    let mut rows: Vec<Value> = Vec::new();
    if bytes.trim_ascii_start().starts_with(b"[") {
        rows =
            serde_json::from_slice(bytes).map_err(|error| bad(error.line(), "this is no JSON", error.to_string()))?;
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
