//! Streaming reader for JSON rows, given one per line or as the items of a list.

use std::io::{BufRead, Read};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::de::DeserializeSeed;
use serde_json::{Map, Value};

use super::limit::TextLimit;
use super::rows::{BYTE_ORDER_MARK, describe, utf8_error};
use super::{gzip, not_finite};
use crate::error::{Error, Result};

/// Description of the expected JSON, for messages.
const EXPECTED: &str = "one JSON object per line, or one list of objects";

/// Layout of the rows in a JSON file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonLayout {
    Unknown,
    Lines,
    List,
    /// List whose end has been read.
    EndedList,
}

/// Rows in a JSON file, given one per line or as the items of a list. Blank lines and a leading byte order mark are
/// skipped. Only `\n` ends a line, because JSON strings may contain other Unicode line separators.
pub struct JsonRows<R> {
    reader: R,
    path: PathBuf,
    zipped: bool,
    layout: JsonLayout,
    /// JSON text of the last row.
    row: Vec<u8>,
    /// Number of the last line read, starting at 1.
    line: usize,
    /// Number of list items read.
    item_count: usize,
}

impl<R: BufRead> JsonRows<R> {
    /// Creates a reader. `zipped` states whether `reader` decompresses a gzip file, whose read errors may mean that the
    /// file is damaged.
    pub fn new(reader: R, path: &Path, zipped: bool) -> Self {
        Self {
            reader,
            path: path.to_owned(),
            zipped,
            layout: JsonLayout::Unknown,
            row: Vec::new(),
            line: 0,
            item_count: 0,
        }
    }

    /// Reads the next row. Returns whether there is one.
    ///
    /// # Errors
    /// Fails if a row is too long or cannot be read. The error names its location.
    pub fn advance(&mut self) -> Result<bool> {
        if self.layout == JsonLayout::Unknown {
            self.find_layout()?;
        }
        if self.layout == JsonLayout::Lines { self.next_line() } else { self.next_item() }
    }

    /// Returns the JSON text of the last row.
    pub fn row(&self) -> &[u8] {
        &self.row
    }

    /// Parses the last row as an object.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::parse`], or if the row is not an object.
    pub fn last_row(&self) -> Result<Map<String, Value>> {
        match self.parse(PhantomData::<Value>)? {
            Value::Object(fields) => Ok(fields),
            other => {
                let error = Error::bad_input("invalid row").at(self.location());
                Err(error.expected("a JSON object").found(describe(&other)))
            }
        }
    }

    /// Parses the last row. `seed` selects the fields to keep. Python's `NaN` and `Infinity` are parsed as an object
    /// with the key [`not_finite::NOT_FINITE`].
    ///
    /// # Errors
    /// Fails if the row is not UTF-8 or JSON, or has another type. The error names its location.
    pub fn parse<T, S: for<'de> DeserializeSeed<'de, Value = T> + Copy>(&self, seed: S) -> Result<T> {
        let noun = if self.layout == JsonLayout::Lines { "line" } else { "row" };
        let text = std::str::from_utf8(self.row.strip_suffix(b"\n").unwrap_or(&self.row))
            .map_err(|error| utf8_error(error.valid_up_to(), noun).at(self.location()))?;
        let value = from_str(seed, text).or_else(|error| match not_finite::with_finite_numbers(text) {
            Some(finite) => from_str(seed, &finite).map_err(|_| error),
            None => Err(error),
        });
        value.map_err(|error| {
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or_default();
            // The parser's line number is relative to the row and would be misleading.
            Error::bad_input(format!("the {noun} is not JSON"))
                .at(self.location())
                .expected(EXPECTED)
                .found(format!("{message}, at column {}", error.column()))
        })
    }

    /// Returns the location of the last row: file and line, or file and list index.
    pub fn location(&self) -> String {
        match self.layout {
            JsonLayout::List | JsonLayout::EndedList => format!("{}, row {}", self.path.display(), self.item_count),
            _ => format!("{}:{}", self.path.display(), self.line),
        }
    }

    /// Skips blank lines and detects whether a list begins.
    fn find_layout(&mut self) -> Result<()> {
        self.layout = JsonLayout::Lines;
        let mut is_first = true;
        loop {
            let available = self.reader.fill_buf().map_err(|error| read_error(&self.path, self.zipped, 1, &error))?;
            if is_first && available.starts_with(BYTE_ORDER_MARK) {
                self.reader.consume(BYTE_ORDER_MARK.len());
                is_first = false;
                continue;
            }
            is_first = false;
            match available.first() {
                Some(b'[') => {
                    self.reader.consume(1);
                    self.layout = JsonLayout::List;
                    self.line += 1;
                    return Ok(());
                }
                Some(blank) if blank.is_ascii_whitespace() => {
                    self.line += usize::from(*blank == b'\n');
                    self.reader.consume(1);
                }
                _ => return Ok(()),
            }
        }
    }

    /// Reads the next nonblank line. Returns whether there is one.
    fn next_line(&mut self) -> Result<bool> {
        let limit = TextLimit::current().for_json();
        loop {
            self.line += 1;
            self.row.clear();
            // Read one byte beyond the limit to detect rows that are too long.
            let mut bounded = self.reader.by_ref().take(limit.bytes() + 1);
            let size = bounded
                .read_until(b'\n', &mut self.row)
                .map_err(|error| read_error(&self.path, self.zipped, self.line, &error))?;
            limit.check(&self.path, self.row.len() as u64).map_err(|error| error.at(format!("line {}", self.line)))?;
            if size == 0 {
                return Ok(false);
            }
            if !self.row.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    /// Reads the next item of a list. Returns whether there is one.
    fn next_item(&mut self) -> Result<bool> {
        let limit = TextLimit::current().for_json();
        self.row.clear();
        let mut scanner = ItemScanner::default();
        loop {
            let available =
                self.reader.fill_buf().map_err(|error| read_error(&self.path, self.zipped, self.line, &error))?;
            if available.is_empty() {
                if self.layout == JsonLayout::EndedList {
                    return Ok(false);
                }
                return Err(Error::bad_input("the list of rows is truncated")
                    .at(format!("{}, line {}", self.path.display(), self.line))
                    .expected(EXPECTED)
                    .found("the end of the file"));
            }
            if self.layout == JsonLayout::EndedList && !available.trim_ascii().is_empty() {
                return Err(Error::bad_input("unexpected text after the list of rows")
                    .at(format!("{}, line {}", self.path.display(), self.line))
                    .expected(EXPECTED));
            }
            let mut used = 0;
            let mut end = None;
            for &byte in available {
                used += 1;
                self.line += usize::from(byte == b'\n');
                if self.layout == JsonLayout::EndedList || self.row.is_empty() && byte.is_ascii_whitespace() {
                    continue;
                }
                if scanner.is_end(byte) {
                    end = Some(byte);
                    break;
                }
                self.row.push(byte);
            }
            self.reader.consume(used);
            limit.check(&self.path, self.row.len() as u64).map_err(|error| error.at(format!("line {}", self.line)))?;
            if let Some(end) = end {
                if end == b']' {
                    self.layout = JsonLayout::EndedList;
                    if self.row.is_empty() {
                        continue;
                    }
                }
                self.item_count += 1;
                return Ok(true);
            }
        }
    }
}

/// Deserializes a string and rejects trailing characters.
fn from_str<'de, S: DeserializeSeed<'de>>(seed: S, text: &'de str) -> serde_json::Result<S::Value> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = seed.deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

/// Scanner that finds the end of a list item: a comma or bracket outside strings and nested values.
#[derive(Default)]
struct ItemScanner {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl ItemScanner {
    /// Scans a byte and returns whether it ends the item.
    fn is_end(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => self.is_escaped = self.in_string,
            b'"' => self.in_string = !self.in_string,
            _ if self.in_string => {}
            b',' | b']' | b'}' if self.depth == 0 => return byte != b'}',
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth -= 1,
            _ => {}
        }
        false
    }
}

fn read_error(path: &Path, zipped: bool, line: usize, error: &std::io::Error) -> Error {
    let damage = if zipped { gzip::content_error(path, TextLimit::current(), error) } else { None };
    let found = format!("{error}, at line {line} of the text");
    damage.map_or_else(|| Error::io("read", path, error), |damage| damage.found(found))
}
