//! Files of rows, texts of a corpus or documents of a task: what a file is read as.

use std::fs::File;
use std::marker::PhantomData;
use std::path::Path;

use serde::de::{DeserializeOwned, DeserializeSeed};
use serde_json::{Map, Value};

use super::limit::TextLimit;
use super::{not_finite, regular};
use crate::error::{Error, Result};

/// Format of a file of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowForm {
    /// All of it is one row of a corpus; each line is one of a task.
    Text,
    /// Values between commas, under a line of names.
    Csv,
    Json {
        zipped: bool,
    },
    Parquet,
}

/// Ending of a file name, and what such a file is read as.
pub type Ending = (&'static str, RowForm);

/// The endings of files that have columns.
pub const TABLES: [Ending; 5] = [
    (".jsonl", RowForm::Json { zipped: false }),
    (".json", RowForm::Json { zipped: false }),
    (".jsonl.gz", RowForm::Json { zipped: true }),
    (".json.gz", RowForm::Json { zipped: true }),
    (".parquet", RowForm::Parquet),
];

/// One kind of file of rows, in the words of its messages.
#[derive(Debug)]
pub struct RowFiles {
    /// `corpus`, `task`.
    pub noun: &'static str,
    /// Endings next to those of [`TABLES`].
    pub endings: &'static [Ending],
    /// Description of the expected JSON.
    pub expected: &'static str,
}

impl RowFiles {
    /// Returns the format of a file, which its bytes alone do not determine.
    ///
    /// # Errors
    /// A name whose ending says nothing.
    pub fn form(&self, path: &Path) -> Result<RowForm> {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let endings = self.endings.iter().chain(&TABLES);
        endings.clone().find(|(ending, _)| name.ends_with(ending)).map(|(_, form)| *form).ok_or_else(|| {
            let is_text = [".raw", ".tokens", ".text"].iter().any(|ending| name.ends_with(ending));
            let endings: Vec<&str> = endings.map(|(ending, _)| *ending).collect();
            let unknown = bad(format!("the {} file is of an unknown kind", self.noun), path)
                .expected(format!("a name ending in {}", endings.join(", ")))
                .found(&name);
            if is_text && endings.contains(&".txt") { unknown.hint("name it .txt") } else { unknown }
        })
    }

    /// Opens a nonempty file and determines its format.
    ///
    /// # Errors
    /// An absent file, or none at all; an unknown ending; an empty file, or one of more bytes than `limit`.
    pub fn open(&self, path: &Path, limit: TextLimit) -> Result<(File, RowForm)> {
        let file = regular::open(path)?;
        let metadata = file.metadata().map_err(|error| Error::io("read", path, &error))?;
        let form = self.form(path)?;
        if metadata.len() == 0 {
            return Err(self.empty(path));
        }
        limit.check(path, metadata.len())?;
        Ok((file, form))
    }

    /// Creates the error for a file without rows.
    pub fn empty(&self, path: &Path) -> Error {
        bad(format!("the {} file is empty", self.noun), path).expected("at least one row")
    }

    /// Parses the JSON of a `part` of a file. `locate` names the position of an error. `NaN` and `Infinity`, which Python writes, are read
    /// as an object with the key [`not_finite::NOT_FINITE`].
    ///
    /// # Errors
    /// Bytes that are not UTF-8, text that is not JSON.
    pub fn json<T: DeserializeOwned>(
        &self,
        bytes: &[u8],
        part: &str,
        locate: impl Fn(&serde_json::Error) -> String,
    ) -> Result<T> {
        self.json_with(PhantomData::<T>, bytes, part, locate)
    }

    /// Extends [`Self::json`] with a seed, which says what is read.
    ///
    /// # Errors
    /// As [`Self::json`].
    pub fn json_with<T, S: for<'de> DeserializeSeed<'de, Value = T> + Copy>(
        &self,
        seed: S,
        bytes: &[u8],
        part: &str,
        locate: impl Fn(&serde_json::Error) -> String,
    ) -> Result<T> {
        let text = std::str::from_utf8(bytes.strip_suffix(b"\n").unwrap_or(bytes))
            .map_err(|error| not_utf8(error.valid_up_to(), part))?;
        let read = from_str(seed, text);
        let read = read.or_else(|error| match not_finite::with_finite_numbers(text) {
            Some(finite) => from_str(seed, &finite).map_err(|_| error),
            None => Err(error),
        });
        read.map_err(|error| {
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or_default();
            Error::bad_input(format!("the {part} is not JSON"))
                .expected(self.expected)
                .found(format!("{message}, at {}", locate(&error)))
        })
    }

    /// Returns a row's fields.
    ///
    /// # Errors
    /// Any other value than an object.
    pub fn object(&self, value: Value) -> Result<Map<String, Value>> {
        match value {
            Value::Object(fields) => Ok(fields),
            other => Err(Error::bad_input("this is not a row").expected("a JSON object").found(describe(&other))),
        }
    }
}

/// Reads all of a text.
fn from_str<'de, S: DeserializeSeed<'de>>(seed: S, text: &'de str) -> serde_json::Result<S::Value> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = seed.deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

/// Byte order mark that some editors write at the start of a UTF-8 file.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Creates an error about a file.
pub fn bad(what: impl std::fmt::Display, path: &Path) -> Error {
    Error::bad_input(what).at(path.display())
}

/// Creates the error for invalid UTF-8 at an offset in `part` of a file.
pub fn not_utf8(offset: usize, part: &str) -> Error {
    Error::bad_input("the text is not UTF-8")
        .expected("UTF-8")
        .found(format!("another byte at offset {offset} of the {part}"))
        .hint("convert the file, for example with `iconv -f ISO-8859-1 -t UTF-8`")
}

/// Describes the type of a value, with its beginning.
pub fn describe(value: &Value) -> String {
    let kind = match value {
        Value::Null => return "null".to_owned(),
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(fields) => match fields.get(not_finite::NOT_FINITE).and_then(Value::as_str) {
            Some(number) => return format!("the number {number}"),
            None => "an object",
        },
    };
    let written = value.to_string();
    let excerpt: String = written.chars().take(40).collect();
    let dots = if excerpt.len() < written.len() { "…" } else { "" };
    format!("{kind}: {excerpt}{dots}")
}
