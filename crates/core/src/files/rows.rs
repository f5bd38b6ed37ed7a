//! Files of rows that other people wrote, texts of a corpus or documents of a task: what a file is read as, and JSON line
//! by line.

use std::fs::File;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::limit::TextLimit;
use super::{gzip, regular};
use crate::error::{Error, Result};

/// Format of a file of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowForm {
    /// All of it is one row.
    Text,
    Json {
        zipped: bool,
    },
    Parquet,
}

/// The endings of files that have columns.
pub const TABLES: [(&str, RowForm); 5] = [
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
    /// Whether a `.txt` is one of them.
    pub text: bool,
    /// Expected JSON type, and the hint if it differs.
    pub expected: &'static str,
    pub hint: Option<&'static str>,
}

impl RowFiles {
    /// Returns the format of a file, which its bytes alone do not determine.
    ///
    /// # Errors
    /// A name whose ending says nothing.
    pub fn form(&self, path: &Path) -> Result<RowForm> {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let endings = self.text.then_some((".txt", RowForm::Text)).into_iter().chain(TABLES);
        endings.clone().find(|(ending, _)| name.ends_with(ending)).map(|(_, form)| form).ok_or_else(|| {
            let endings: Vec<&str> = endings.map(|(ending, _)| ending).collect();
            bad(format!("the {} file is of an unknown kind", self.noun), path)
                .expected(format!("a name ending in {}", endings.join(", ")))
                .found(name)
        })
    }

    /// Opens a nonempty file and determines its format.
    ///
    /// # Errors
    /// An absent file, or none at all; an unknown ending; an empty file, or one of more bytes than `limit`.
    pub fn open(&self, path: &Path, limit: TextLimit) -> Result<(File, RowForm)> {
        let file = regular::open(path)?;
        let about = file.metadata().map_err(|error| Error::io("read", path, &error))?;
        let form = self.form(path)?;
        if about.len() == 0 {
            return Err(self.empty(path));
        }
        limit.check(path, about.len())?;
        Ok((file, form))
    }

    /// Creates the error for a file without rows.
    pub fn empty(&self, path: &Path) -> Error {
        bad(format!("the {} file is empty", self.noun), path).expected("at least one row")
    }

    /// Parses the JSON in `part` of a file; `at` is its location for messages.
    ///
    /// # Errors
    /// Bytes that are not UTF-8, text that is not JSON.
    pub fn json<T: DeserializeOwned>(
        &self,
        bytes: &[u8],
        part: &str,
        at: impl Fn(&serde_json::Error) -> String,
    ) -> Result<T> {
        let text = std::str::from_utf8(bytes.strip_suffix(b"\n").unwrap_or(bytes))
            .map_err(|error| not_utf8(error.valid_up_to(), part))?;
        serde_json::from_str(text).map_err(|error| {
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or_default();
            let new = Error::bad_input(format!("the {part} is not JSON"))
                .expected(self.expected)
                .found(format!("{message}, at {}", at(&error)));
            match self.hint {
                Some(hint) => new.hint(hint),
                None => new,
            }
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

/// The rows of a file of JSON, a line each. Blank lines are skipped. Only `\n` ends a line: a string of JSON may hold any
/// other of Unicode's line ends.
pub struct JsonLines<'a, R> {
    files: &'a RowFiles,
    lines: R,
    path: PathBuf,
    zipped: bool,
    line: Vec<u8>,
    /// Line number of the last line read, from one.
    number: usize,
}

impl<'a, R: BufRead> JsonLines<'a, R> {
    /// Creates a reader. `zipped` says whether `lines` decompresses.
    pub fn new(files: &'a RowFiles, lines: R, (path, zipped): (&Path, bool)) -> Self {
        Self { files, lines, path: path.to_owned(), zipped, line: Vec::new(), number: 0 }
    }

    /// Reads the next object. `None` at the end.
    ///
    /// # Errors
    /// As of [`JsonLines::next_value`]; any other value.
    pub fn next_row(&mut self) -> Result<Option<Map<String, Value>>> {
        let value = self.next_value()?.map(|value| self.files.object(value));
        value.transpose().map_err(|error| error.at(self.place()))
    }

    /// Reads the next value. `None` at the end.
    ///
    /// # Errors
    /// A line that is too long, cannot be read, is not UTF-8 or no JSON: with its number.
    pub fn next_value<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let path = &self.path;
        let most = TextLimit::current().of_json();
        loop {
            self.number += 1;
            self.line.clear();
            // One byte more than a row may have tells that it is too long.
            let mut bounded = self.lines.by_ref().take(most.bytes() + 1);
            let size = bounded.read_until(b'\n', &mut self.line).map_err(|error| {
                let damage = if self.zipped { gzip::damage(path, TextLimit::current(), &error) } else { None };
                let found = format!("{error}, at line {} of the text", self.number);
                damage.map_or_else(|| Error::io("read", path, &error), |damage| damage.found(found))
            })?;
            most.check(path, self.line.len() as u64).map_err(|error| error.at(format!("line {}", self.number)))?;
            if size == 0 {
                return Ok(None);
            }
            if self.line.trim_ascii().is_empty() {
                continue;
            }
            // The parser's own line number counts within this one line, which would mislead.
            let value = self.files.json(&self.line, "line", |error| format!("column {}", error.column()));
            return value.map(Some).map_err(|error| error.at(self.place()));
        }
    }

    /// Returns file and line of the last value.
    pub fn place(&self) -> String {
        format!("{}:{}", self.path.display(), self.number)
    }
}

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
        Value::Object(_) => "an object",
    };
    let written = value.to_string();
    let excerpt: String = written.chars().take(40).collect();
    let dots = if excerpt.len() < written.len() { "…" } else { "" };
    format!("{kind}: {excerpt}{dots}")
}
