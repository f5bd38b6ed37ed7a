//! Reader for the rows of a corpus file.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::marker::PhantomData;
use std::path::Path;

use serde::de::IgnoredAny;
use serde_json::Value;

use super::parquet_text::read_parquet;
use super::text_row::{Column, TextRowSeed};
use crate::error::{self, Error, Result};
use crate::files::gzip;
use crate::files::json_rows::JsonRows;
use crate::files::limit::{RowMemory, TextLimit};
use crate::files::rows::{BYTE_ORDER_MARK, RowFiles, RowForm, describe, input_error, normalize_line_ends, read_text};

/// Default names of the text column in order of preference. C4 and WikiText use the first, PTB the second.
const COLUMNS: [&str; 2] = ["text", "sentence"];

const CORPUS_FILES: RowFiles = RowFiles { noun: "corpus", endings: &[(".txt", RowForm::Text)] };

/// Returns the format name of a corpus file for cache keys. Text files whose line endings are normalized have a
/// separate name, because older versions cached results for the text with its original line endings.
///
/// # Errors
/// Fails if [`read_rows`] does not support the extension.
pub fn file_format(path: &Path) -> Result<&'static str> {
    Ok(match CORPUS_FILES.form(path)? {
        RowForm::Text if needs_normalization(path) => "text, line ends as \\n",
        RowForm::Text | RowForm::Csv => "text",
        RowForm::Json { zipped: false } => "jsonl",
        RowForm::Json { zipped: true } => "jsonl.gz",
        RowForm::Parquet => "parquet",
    })
}

/// Returns whether [`read_plain`] changes the text of the file. Returns `false` for unreadable files, which cause an
/// error when they are read.
fn needs_normalization(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let mut reader = BufReader::new(file);
    let mut is_start = true;
    loop {
        let Ok(available) = reader.fill_buf() else { return false };
        if available.is_empty() {
            return false;
        }
        if available.contains(&b'\r') || is_start && available.starts_with(BYTE_ORDER_MARK) {
            return true;
        }
        is_start = false;
        let read = available.len();
        reader.consume(read);
    }
}

/// Reads the rows of a corpus file without trimming. Empty rows are kept.
///
/// - `.txt`: the whole file is one row. Line endings are normalized to `\n`, as in Python.
/// - `.jsonl`, `.json`, `.jsonl.gz`, `.json.gz`: one JSON object per line, or one list of objects. Blank lines are
///   skipped.
/// - `.parquet`: one row per row of the table.
///
/// `column` names the text column and defaults to `text`, then `sentence`.
///
/// # Errors
/// Fails with [`ErrorKind::Missing`](crate::error::ErrorKind::Missing) if the file is absent or unreadable. Fails with
/// [`ErrorKind::BadInput`](crate::error::ErrorKind::BadInput), naming the line or row, if the content is invalid: an
/// empty file, invalid UTF-8, a truncated gzip file, a line that is not a JSON object, a missing column, or a value
/// that is not text. Also fails if the rows exceed [`TextLimit::current`] in memory.
pub fn read_rows(path: impl AsRef<Path>, column: Option<&str>) -> Result<Vec<String>> {
    read_rows_within(path, column, TextLimit::current())
}

/// Reads the rows with an explicit size limit.
///
/// # Errors
/// See [`read_rows`].
pub fn read_rows_within(path: impl AsRef<Path>, column: Option<&str>, limit: TextLimit) -> Result<Vec<String>> {
    let path = path.as_ref();
    let mut rows = Vec::new();
    let mut memory = RowMemory::new(limit, path);
    for row in open_rows_within(path, column, limit)? {
        let row = row?;
        memory.add(row.len())?;
        rows.push(row);
    }
    if rows.is_empty() { Err(CORPUS_FILES.empty_error(path)) } else { Ok(rows) }
}

/// Iterator over rows of text. Callers must stop at the first error.
pub type Rows<'a> = Box<dyn Iterator<Item = Result<String>> + 'a>;

/// Iterates over the rows of a corpus file. JSON rows are read lazily.
///
/// # Errors
/// Fails in the same cases as [`read_rows`]. An invalid line yields an error when the iterator reaches it.
pub fn open_rows(path: &Path, column: Option<&str>) -> Result<Rows<'static>> {
    open_rows_within(path, column, TextLimit::current())
}

fn open_rows_within(path: &Path, column: Option<&str>, limit: TextLimit) -> Result<Rows<'static>> {
    let (file, form) = CORPUS_FILES.open(path, limit)?;
    Ok(match form {
        RowForm::Text | RowForm::Csv => boxed_rows(read_plain(file, path, column)?),
        RowForm::Json { zipped: false } => read_json(JsonRows::new(BufReader::new(file), path, false), column),
        RowForm::Json { zipped: true } => read_json(JsonRows::new(gzip::reader(file, limit), path, true), column),
        RowForm::Parquet => {
            boxed_rows(read_parquet(file, path, limit, |names| select_column(column, names.iter().copied()))?)
        }
    })
}

fn boxed_rows(rows: Vec<String>) -> Rows<'static> {
    Box::new(rows.into_iter().map(Ok))
}

fn read_plain(file: File, path: &Path, column: Option<&str>) -> Result<Vec<String>> {
    if let Some(column) = column {
        return Err(input_error("a plain text file has no columns", path)
            .found(format!("the column `{column}`"))
            .hint("remove `column`, because a text file is read as one row"));
    }
    Ok(vec![normalize_line_ends(read_text(file, path)?)])
}

fn read_json(mut lines: JsonRows<impl BufRead + 'static>, column: Option<&str>) -> Rows<'static> {
    let mut column = column.map(str::to_owned);
    Box::new(std::iter::from_fn(move || {
        let columns: Vec<&str> = column.as_deref().map_or(COLUMNS.to_vec(), |name| vec![name]);
        match lines.advance() {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => return Some(Err(error)),
        }
        let mut row = match lines.parse(TextRowSeed(&columns)) {
            Err(error) if lines.row().trim_ascii_start().starts_with(b"{") => return Some(Err(error)),
            // A row that is not an object has no columns. `explain_missing_text` describes its content.
            parsed => parsed.unwrap_or_default(),
        };
        Some(match columns.iter().find_map(|name| row.remove_entry(*name)) {
            Some((name, Column::Text(text))) => {
                column = Some(name);
                Ok(text)
            }
            _ if lines.row().len() > MAX_DESCRIBED_BYTES => lines.parse(PhantomData::<IgnoredAny>).and_then(|_| {
                Err(Error::bad_input("the row has no text")
                    .at(lines.location())
                    .expected(format!("text in column `{}`", columns.join("` or `")))
                    .found(format!("a row of {} bytes without text in that column", lines.row().len())))
            }),
            _ => explain_missing_text(&lines, column.as_deref()),
        })
    }))
}

/// Maximum size in bytes of a row without text that is parsed a second time, to describe its content in the error.
const MAX_DESCRIBED_BYTES: usize = 1 << 20;

/// Parses a row that is not an object or has no text a second time, and returns an error that describes its content.
fn explain_missing_text<R: BufRead>(lines: &JsonRows<R>, column: Option<&str>) -> Result<String> {
    let mut row = lines.last_row()?;
    let name = select_column(column, row.keys().map(String::as_str));
    let text = name.and_then(|name| match row.remove(&name) {
        Some(Value::String(text)) => Ok(text),
        other => Err(Error::bad_input(format!("column `{name}` is not text"))
            .expected("a string in every row")
            .found(describe(&other.unwrap_or_default()))),
    });
    text.map_err(|error| error.at(lines.location()))
}

/// Returns the requested column, or the first of [`COLUMNS`] that exists.
fn select_column<'a>(requested: Option<&str>, names: impl Iterator<Item = &'a str> + Clone) -> Result<String> {
    if let Some(requested) = requested {
        return match names.clone().any(|name| name == requested) {
            true => Ok(requested.to_owned()),
            false => Err(missing_column_error(&format!("`{requested}`"), requested, names)),
        };
    }
    match COLUMNS.into_iter().find(|wanted| names.clone().any(|name| name == *wanted)) {
        Some(name) => Ok(name.to_owned()),
        None => Err(missing_column_error("`text` or `sentence`", COLUMNS[0], names)),
    }
}

fn missing_column_error<'a>(expected: &str, requested: &str, names: impl Iterator<Item = &'a str> + Clone) -> Error {
    let found: Vec<String> = names.clone().map(|name| format!("`{name}`")).collect();
    let new = Error::bad_input("the text column is missing")
        .expected(format!("column {expected}"))
        .found(if found.is_empty() { "no columns".to_owned() } else { format!("columns {}", found.join(", ")) });
    match error::nearest(requested, names) {
        Some(near) => new.hint(format!("did you mean column `{near}`?")),
        None => new.hint("set `column` to the name of the text column"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use polars::prelude::Column;
    use tempfile::TempDir;

    use super::super::parquet_text::sample::parquet;
    use super::*;

    fn write(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    fn read(name: &str, bytes: impl AsRef<[u8]>, column: Option<&str>) -> Result<Vec<String>> {
        let (_folder, path) = write(name, bytes.as_ref());
        read_rows(path, column)
    }

    /// Reads a file that must be rejected, and returns the error message.
    fn rejection_message(name: &str, bytes: impl AsRef<[u8]>, column: Option<&str>) -> String {
        let error = read(name, bytes, column).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        let message = error.to_string();
        assert!(message.contains(name), "the message does not name the file: {message}");
        message
    }

    fn compress_gzip(text: impl AsRef<[u8]>) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_ref()).unwrap();
        encoder.finish().unwrap()
    }

    const ROWS: [&str; 4] = [" = Title = \n", "", " \u{2581}é \r\n", "end"];

    fn json_lines(column: &str) -> String {
        ROWS.iter().map(|row| serde_json::json!({"url": 1, column: row}).to_string() + "\n").collect()
    }

    #[test]
    fn rows_are_kept_byte_for_byte_in_every_format() {
        let text = "a\n\n b \n";
        assert_eq!(read("a.txt", text, None).unwrap(), [text]);
        for name in ["a.jsonl", "a.json", "A.JSONL"] {
            assert_eq!(read(name, json_lines("text"), None).unwrap(), ROWS);
            assert_eq!(read(name, json_lines("sentence"), None).unwrap(), ROWS);
            assert_eq!(read(name, json_lines("body"), Some("body")).unwrap(), ROWS);
        }
        for name in ["a.jsonl.gz", "a.json.gz"] {
            assert_eq!(read(name, compress_gzip(json_lines("text")), None).unwrap(), ROWS);
        }
        for (column, requested) in [("text", None), ("sentence", None), ("body", Some("body"))] {
            let bytes = parquet(vec![Column::new("id".into(), [1, 2, 3, 4]), Column::new(column.into(), ROWS)]);
            assert_eq!(read("a.parquet", bytes, requested).unwrap(), ROWS);
        }
    }

    /// Covers a byte order mark, a list, non-JSON numbers and CRLF line endings.
    #[test]
    fn bom_json_array_and_crlf_files_are_read() {
        let list = "\u{feff}\n [{\"text\": \"a, ]\\\"\", \"n\": [1, {}]} ,\n{\"text\": \"b\"}]\n";
        for (name, bytes) in [("a.json", list.as_bytes().to_vec()), ("a.json.gz", compress_gzip(list))] {
            assert_eq!(read(name, bytes, None).unwrap(), ["a, ]\"", "b"], "{name}");
        }
        let lines = "\u{feff}{\"text\": \"NaN -Infinity\", \"n\": NaN}\r\n{\"n\": [-Infinity, -1], \"text\": \"b\"}";
        assert_eq!(read("a.jsonl", lines, None).unwrap(), ["NaN -Infinity", "b"]);
        assert_eq!(read("a.txt", "\u{feff}a\r\n\r\nb\rc\n", None).unwrap(), ["a\n\nb\nc\n"]);
        assert_eq!(read("a.json", "[]", None).unwrap_err().exit_code(), 2);
        let (_folder, path) = write("a.txt", b"a\r\n");
        assert_ne!(file_format(&path).unwrap(), "text");
        let (_folder, path) = write("b.txt", b"a\n");
        assert_eq!(file_format(&path).unwrap(), "text");
        assert!(rejection_message("wiki.test.raw", "a", None).contains("end in .txt"));
    }

    #[test]
    fn text_column_takes_precedence_over_sentence() {
        let line = r#"{"sentence": "no", "text": "yes"}"#;
        assert_eq!(read("a.jsonl", line, None).unwrap(), ["yes"]);
    }

    #[test]
    fn blank_lines_are_skipped_and_final_newline_is_optional() {
        let text = "{\"text\": \"a\"}\n\n  \r\n{\"text\": \"b\"}";
        assert_eq!(read("a.jsonl", text, None).unwrap(), ["a", "b"]);
    }

    #[test]
    fn empty_rows_count_toward_the_memory_limit() {
        let limit = TextLimit::current().at_most(2400);
        let empty: Vec<String> = vec![String::new(); 3];
        assert!(parquet(vec![Column::new("text".into(), empty)]).len() < 2400);
        for (name, bytes) in [
            ("a.jsonl", empty_rows(160).into_bytes()),
            ("a.jsonl.gz", compress_gzip(empty_rows(160))),
            ("a.parquet", parquet(vec![Column::new("text".into(), vec![String::new(); 160])])),
        ] {
            let (_folder, path) = write(name, &bytes);
            // The text is at most 2,240 bytes and fits the limit, but the 160 parsed rows take 24 bytes each in memory
            // and exceed it.
            let message = read_rows_within(&path, None, limit).unwrap_err().to_string();
            assert!(message.contains("exceeds the size limit for text") && message.contains(name), "{message}");
            assert_eq!(read_rows(&path, None).unwrap().len(), 160);
        }
        let (_folder, path) = write("b.jsonl", empty_rows(100).as_bytes());
        assert_eq!(read_rows_within(&path, None, limit).unwrap().len(), 100);
    }

    fn empty_rows(count: usize) -> String {
        "{\"text\": \"\"}\n".repeat(count)
    }

    #[test]
    fn gzip_members_are_concatenated() {
        let both = [compress_gzip("{\"text\": \"a\"}\n"), compress_gzip("{\"text\": \"b\"}\n")].concat();
        assert_eq!(read("a.json.gz", both, None).unwrap(), ["a", "b"]);
    }

    #[test]
    fn invalid_utf8_is_rejected_with_its_position() {
        let message = rejection_message("a.txt", b"ab\ncd\xff", None);
        assert!(message.contains("a.txt:2") && message.contains("offset 5 of the file"), "{message}");
        let message = rejection_message("a.jsonl", b"{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n", None);
        assert!(message.contains("a.jsonl:2") && message.contains("offset 10 of the line"), "{message}");
    }

    #[test]
    fn damaged_gzip_file_is_rejected() {
        let intact = compress_gzip(json_lines("text"));
        for size in [5, 12, intact.len() / 2, intact.len() - 1] {
            let message = rejection_message("a.jsonl.gz", &intact[..size], None);
            assert!(message.contains("truncated"), "{size} bytes: {message}");
        }
        assert!(rejection_message("a.json.gz", "not gzip at all, but long enough", None).contains("damaged"));
        let mut altered = intact.clone();
        let checksum = altered.len() - 6;
        altered[checksum] ^= 1;
        assert!(rejection_message("a.json.gz", altered, None).contains("damaged"));
    }

    #[test]
    fn malformed_line_is_rejected_with_its_line_number() {
        let good = "{\"text\": \"a\"}\n";
        for (line, words) in [
            ("{\"text\": \"b\"", "not JSON"),
            (" {\"text\": \"b\\x\"}", "not JSON"),
            ("[1, 2", "not JSON"),
            ("[1, 2]", "a list"),
            ("{\"text\": null}", "null"),
            ("{\"text\": 3}", "a number"),
            ("{\"Text\": \"b\", \"url\": 1}", "did you mean column `Text`?"),
            ("{}", "no columns"),
        ] {
            let message = rejection_message("a.jsonl", format!("{good}\n{line}\n"), None);
            assert!(message.contains("a.jsonl:3") && message.contains(words), "{message}");
        }
        let message = rejection_message("a.json", "[\n{\"text\": \"a\"},\n3]\n", None);
        assert!(message.contains("a.json, row 2") && message.contains("a number: 3"), "{message}");
        assert!(rejection_message("a.json", "[{\"text\": \"a\"}, {\"te", None).contains("truncated"));
        assert!(rejection_message("a.json", "[{\"text\": \"a\"}]\n{}", None).contains("after the list"));
        assert!(rejection_message("a.jsonl", "{\"text\": NaN}", None).contains("the number NaN"));
    }

    #[test]
    fn missing_column_error_lists_available_columns() {
        let columns = vec![Column::new("title".into(), ["a"]), Column::new("body".into(), ["b"])];
        let message = rejection_message("a.parquet", parquet(columns.clone()), None);
        assert!(message.contains("`text` or `sentence`") && message.contains("`title`, `body`"), "{message}");
        assert!(rejection_message("a.parquet", parquet(columns), Some("bodi")).contains("did you mean column `body`?"));
        assert!(rejection_message("a.jsonl", "{\"body\": \"b\"}", Some("text")).contains("`body`"));
        assert!(rejection_message("a.txt", "words", Some("text")).contains("no columns"));
    }

    #[test]
    fn files_without_rows_are_rejected() {
        let no_rows = parquet(vec![Column::new("text".into(), Vec::<String>::new())]);
        for (name, bytes) in [
            ("a.txt", Vec::new()),
            ("a.jsonl", Vec::new()),
            ("a.jsonl", b"\n\n".to_vec()),
            ("a.json.gz", Vec::new()),
            ("a.json.gz", compress_gzip("")),
            ("a.parquet", Vec::new()),
            ("a.parquet", no_rows),
        ] {
            assert!(rejection_message(name, bytes, None).contains("empty"));
        }
    }

    #[test]
    fn missing_files_directories_and_unknown_formats_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_rows(folder.path().join("absent.txt"), None).unwrap_err().exit_code(), 3);
        assert!(read_rows(folder.path(), None).unwrap_err().to_string().contains("folder"));
        assert!(rejection_message("a.csv", "text\na\n", None).contains(".parquet"));
        rejection_message("txt", "a", None);
    }
}
