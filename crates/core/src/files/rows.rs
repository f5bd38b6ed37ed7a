//! Formats of files whose rows are corpus texts or task documents.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use super::limit::TextLimit;
use super::{not_finite, regular};
use crate::error::{Error, Result};

/// Format of a row file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowForm {
    /// Plain text. A corpus reads the file as one row, and a task reads each line as a row.
    Text,
    Csv,
    Json {
        zipped: bool,
    },
    Parquet,
}

/// File name extension and its format.
pub type Ending = (&'static str, RowForm);

/// Extensions of formats with columns.
pub const TABLES: [Ending; 5] = [
    (".jsonl", RowForm::Json { zipped: false }),
    (".json", RowForm::Json { zipped: false }),
    (".jsonl.gz", RowForm::Json { zipped: true }),
    (".json.gz", RowForm::Json { zipped: true }),
    (".parquet", RowForm::Parquet),
];

/// File formats for one purpose, and the noun that messages use for such files.
#[derive(Debug)]
pub struct RowFiles {
    /// `corpus` or `task`.
    pub noun: &'static str,
    /// Extensions in addition to [`TABLES`].
    pub endings: &'static [Ending],
}

impl RowFiles {
    /// Returns the format of a file by its extension.
    ///
    /// # Errors
    /// Fails if the extension is unknown.
    pub fn form(&self, path: &Path) -> Result<RowForm> {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let endings = self.endings.iter().chain(&TABLES);
        endings.clone().find(|(ending, _)| name.ends_with(ending)).map(|(_, form)| *form).ok_or_else(|| {
            let is_text = [".raw", ".tokens", ".text"].iter().any(|ending| name.ends_with(ending));
            let endings: Vec<&str> = endings.map(|(ending, _)| *ending).collect();
            let error = input_error(format!("unknown file type of the {}", self.noun), path)
                .expected(format!("a name ending in {}", endings.join(", ")))
                .found(&name);
            if is_text && endings.contains(&".txt") { error.hint("rename the file to end in .txt") } else { error }
        })
    }

    /// Opens a nonempty file and determines its format.
    ///
    /// # Errors
    /// Fails if the file is absent, not a regular file, empty or larger than `limit`, or its extension is unknown.
    pub fn open(&self, path: &Path, limit: TextLimit) -> Result<(File, RowForm)> {
        let file = regular::open(path)?;
        let metadata = file.metadata().map_err(|error| Error::io("read", path, &error))?;
        let form = self.form(path)?;
        if metadata.len() == 0 {
            return Err(self.empty_error(path));
        }
        limit.check(path, metadata.len())?;
        Ok((file, form))
    }

    pub fn empty_error(&self, path: &Path) -> Error {
        input_error(format!("the {} file is empty", self.noun), path).expected("at least one row")
    }
}

/// Byte order mark that some editors write at the start of a UTF-8 file.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads a text file, without its byte order mark.
///
/// # Errors
/// Fails if the file cannot be read or is not UTF-8. The error names the line of the first invalid byte.
pub fn read_text(mut file: File, path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|error| Error::io("read", path, &error))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count();
        utf8_error(offset, "file").at(format!("{}:{line}", path.display()))
    })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// Converts all line ends to `\n`, like Python's text mode.
pub fn normalize_line_ends(text: String) -> String {
    if text.contains('\r') { text.replace("\r\n", "\n").replace('\r', "\n") } else { text }
}

pub fn input_error(what: impl std::fmt::Display, path: &Path) -> Error {
    Error::bad_input(what).at(path.display())
}

/// Creates the error for invalid UTF-8. The byte `offset` is counted from the start of `container`, `line`, `row` or
/// `file`.
pub(super) fn utf8_error(offset: usize, container: &str) -> Error {
    Error::bad_input("the text is not UTF-8")
        .found(format!("an invalid byte at offset {offset} of the {container}"))
        .hint("convert the file, for example with `iconv -f ISO-8859-1 -t UTF-8 OLD > NEW`")
}

/// Describes a value by its type and the beginning of its text.
pub fn describe(value: &Value) -> String {
    let kind = match value {
        Value::Null => return "null".to_owned(),
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(fields) => match fields.get(not_finite::NOT_FINITE).and_then(Value::as_str) {
            Some(number) => return format!("the number {number}"),
            None => "an object",
        },
    };
    let json = value.to_string();
    let excerpt: String = json.chars().take(40).collect();
    let dots = if excerpt.len() < json.len() { "…" } else { "" };
    format!("{kind}: {excerpt}{dots}")
}
