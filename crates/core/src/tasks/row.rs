//! Rows of task data: JSON objects with the place that they came from.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use serde_json::{Map, Value};

use super::parquet::read_parquet;
use crate::error::{Error, Result, nearest};
use crate::files::gzip;
use crate::files::limit::{MOST_ROWS, TextLimit};
use crate::files::rows::{RowFiles, RowForm, bad, describe};

const FILES: RowFiles =
    RowFiles { noun: "task", text: false, expected: "one JSON object per line, or one list of objects", hint: None };

/// One row of task data.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRow {
    /// File and line (`a.jsonl:3`) or file and row (`a.parquet, row 3`), both counted from 1.
    pub place: String,
    /// The row's fields, nested as in the file.
    pub fields: Map<String, Value>,
}

/// The rows of one file, in its order.
///
/// - `.jsonl`, `.json`, `.jsonl.gz`, `.json.gz`: one JSON object per line (blank lines are skipped), or one list of
///   objects.
/// - `.parquet`: one row per row of the table, only the named `columns`; lists and structs become JSON lists and objects.
///
/// # Errors
/// An absent or unreadable file is [`Kind::Missing`](crate::error::Kind::Missing). Anything wrong inside it is
/// [`Kind::BadInput`](crate::error::Kind::BadInput), with the line or row: no rows, bytes that are not UTF-8, a file cut
/// short, a line that is not a JSON object, a column of a parquet file that is absent or of a type without a JSON form.
/// (In JSON each row is asked for its fields when its prompt is made.)
pub fn read_rows(path: impl AsRef<Path>, columns: &[&str]) -> Result<Vec<TaskRow>> {
    let path = path.as_ref();
    let (file, form) = FILES.open(path, TextLimit::current().of_json())?;
    let rows = match form {
        RowForm::Json { zipped } => read_json(file, path, zipped)?,
        RowForm::Parquet => {
            let rows = read_parquet(file, path, columns, |name, names| absent(name, names.iter().copied()))?;
            rows.into_iter().map(|(place, fields)| TaskRow { place, fields }).collect()
        }
        RowForm::Text => Vec::new(),
    };
    if rows.is_empty() { Err(FILES.empty(path)) } else { Ok(rows) }
}

/// The name of the format that a task file is read as: its bytes alone do not say it.
///
/// # Errors
/// A name whose ending is none of those that [`read_rows`] knows.
pub fn format(path: &Path) -> Result<&'static str> {
    Ok(match FILES.form(path)? {
        RowForm::Json { zipped: false } => "json",
        RowForm::Json { zipped: true } => "json.gz",
        RowForm::Parquet => "parquet",
        RowForm::Text => "text",
    })
}

fn read_json(file: File, path: &Path, zipped: bool) -> Result<Vec<TaskRow>> {
    let mut bytes = Vec::new();
    let limit = TextLimit::current().of_json();
    let read = match zipped {
        true => gzip::reader(file, limit).read_to_end(&mut bytes),
        false => BufReader::new(file).read_to_end(&mut bytes),
    };
    read.map_err(|error| {
        let damage = if zipped { gzip::damage(path, limit, &error) } else { None };
        damage.unwrap_or_else(|| Error::io("read", path, &error))
    })?;
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return read_list(&bytes, path);
    }
    let mut rows = Vec::new();
    FILES.json_lines(&bytes[..], (path, false), |fields, place| {
        if rows.len() == MOST_ROWS {
            return Err(Error::bad_input("the task file has too many rows").expected(format!("at most {MOST_ROWS}")));
        }
        rows.push(TaskRow { place: place(), fields });
        Ok(())
    })?;
    Ok(rows)
}

/// One list of objects, as some tools write it.
fn read_list(bytes: &[u8], path: &Path) -> Result<Vec<TaskRow>> {
    let value = FILES
        .json(bytes, "text", |error| format!("line {}, column {}", error.line(), error.column()))
        .map_err(|error| error.at(path.display().to_string()))?;
    let Value::Array(values) = value else { return Err(bad("the file is not a list of rows", path)) };
    let row = |(value, number): (Value, usize)| {
        let place = format!("{}, row {number}", path.display());
        let fields = FILES.object(value).map_err(|error| error.at(&place))?;
        Ok(TaskRow { place, fields })
    };
    values.into_iter().zip(1..).map(row).collect()
}

/// A field that is not there: its path, and the fields found in its place, one of which was perhaps meant.
fn absent<'a>(wanted: &str, names: impl Iterator<Item = &'a str> + Clone) -> Error {
    let found: Vec<String> = names.clone().map(|name| format!("`{name}`")).collect();
    let error = Error::bad_input(format!("the field `{wanted}` is missing"))
        .expected(format!("a field `{wanted}`"))
        .found(if found.is_empty() { "no fields".to_owned() } else { format!("fields {}", found.join(", ")) });
    match nearest(wanted.rsplit('.').next().unwrap_or(wanted), names) {
        Some(near) => error.hint(format!("is `{near}` meant? The names are those of the hub's data set")),
        None => error.hint("the names are those of the hub's data set: is this another task's file?"),
    }
}

/// The fields that a prompt is made of. `path` is a name, or names with dots between them for a nested field.
impl TaskRow {
    pub(super) fn text(&self, path: &str) -> Result<&str> {
        let value = self.get(path)?;
        value.as_str().ok_or_else(|| self.wrong(path, "a string", value))
    }

    pub(super) fn texts(&self, path: &str) -> Result<Vec<String>> {
        let value = self.get(path)?;
        let expected = "a list of strings";
        let items = value.as_array().ok_or_else(|| self.wrong(path, expected, value))?;
        let text = |item: &Value| item.as_str().map(str::to_owned).ok_or_else(|| self.wrong(path, expected, item));
        items.iter().map(text).collect()
    }

    pub(super) fn integer(&self, path: &str) -> Result<i64> {
        let value = self.get(path)?;
        value.as_i64().ok_or_else(|| self.wrong(path, "a whole number", value))
    }

    /// A whole number, perhaps written as text: `int(label)`.
    pub(super) fn integer_or_text(&self, path: &str) -> Result<i64> {
        let value = self.get(path)?;
        let number = match value {
            Value::String(text) => super::python::strip(text).parse().ok(),
            other => other.as_i64(),
        };
        number.ok_or_else(|| self.wrong(path, "a whole number, or one written as text", value))
    }

    fn get(&self, path: &str) -> Result<&Value> {
        let mut fields = &self.fields;
        let mut end = 0;
        loop {
            let rest = &path[end..];
            let name = rest.split('.').next().unwrap_or(rest);
            end += name.len();
            let so_far = &path[..end];
            let value = fields.get(name);
            let value = value.ok_or_else(|| absent(so_far, fields.keys().map(String::as_str)).at(&self.place))?;
            if end == path.len() {
                return Ok(value);
            }
            fields = value.as_object().ok_or_else(|| self.wrong(so_far, "an object", value))?;
            // Past the dot.
            end += 1;
        }
    }

    /// The error of a field that is there but does not hold what it should.
    pub(super) fn wrong(&self, path: &str, expected: &str, found: &Value) -> Error {
        Error::bad_input(format!("the field `{path}` is not as expected"))
            .at(&self.place)
            .expected(expected)
            .found(describe(found))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use serde_json::json;

    use super::*;

    fn read(name: &str, bytes: impl AsRef<[u8]>) -> Result<Vec<TaskRow>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        read_rows(path, &["a"])
    }

    fn refused(name: &str, bytes: impl AsRef<[u8]>) -> String {
        let error = read(name, bytes).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        let message = error.to_string();
        assert!(message.contains(name), "the file is named: {message}");
        message
    }

    fn zip(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    const LINES: &str = "{\"a\": \"\u{2028}é\\n\", \"b\": {\"c\": [1]}}\n\n  \r\n{\"a\": null}";

    #[test]
    fn lines_and_lists_are_read_zipped_or_not() {
        let list = "\n [{\"a\": \"\u{2028}é\\n\", \"b\": {\"c\": [1]}},\n {\"a\": null}]\n";
        for (name, bytes, second) in [
            ("x.jsonl", LINES.as_bytes().to_vec(), "x.jsonl:4"),
            ("X.JSON", LINES.as_bytes().to_vec(), "X.JSON:4"),
            ("x.jsonl.gz", zip(LINES), "x.jsonl.gz:4"),
            ("x.json", list.as_bytes().to_vec(), "x.json, row 2"),
            ("x.json.gz", zip(list), "x.json.gz, row 2"),
        ] {
            let rows = read(name, bytes).unwrap();
            assert_eq!(rows.len(), 2, "{name}");
            assert_eq!(Value::Object(rows[0].fields.clone()), json!({"a": "\u{2028}é\n", "b": {"c": [1]}}));
            assert!(rows[1].place.ends_with(second), "{}", rows[1].place);
        }
    }

    #[test]
    fn what_is_no_row_is_refused_with_its_line() {
        for (line, words) in [
            ("{\"a\": 1", "not JSON"),
            ("1", "a JSON object"),
            ("\"a\"", "a string: \"a\""),
            ("{\"a\": NaN}", "not JSON"),
            ("{\"a\": \"\\ud800\"}", "not JSON"),
        ] {
            let message = refused("x.jsonl", format!("{{}}\n{line}\n"));
            assert!(message.contains("x.jsonl:2") && message.contains(words), "{message}");
        }
        assert!(refused("x.jsonl", b"{}\n{\"a\": \"\xff\"}").contains("offset 7"));
        assert!(refused("x.json", "[{}, 3]").contains("row 2"));
        assert!(refused("x.json", "[{},\n3").contains("line 2"));
        assert!(refused("x.jsonl", "[".repeat(100_000)).contains("recursion"));
    }

    #[test]
    fn empty_damaged_and_unknown_files_are_refused() {
        for (name, bytes) in [
            ("x.jsonl", Vec::new()),
            ("x.jsonl", b" \n\n".to_vec()),
            ("x.json", b"[]".to_vec()),
            ("x.parquet", Vec::new()),
            ("x.json.gz", Vec::new()),
            ("x.json.gz", zip("")),
        ] {
            assert!(refused(name, bytes).contains("empty"), "{name}");
        }
        let whole = zip(LINES);
        for size in [3, 12, whole.len() - 1] {
            refused("x.jsonl.gz", &whole[..size]);
        }
        assert!(refused("x.jsonl.gz", "no gzip, but long enough").contains("damaged"));
        assert!(refused("x.csv", "a\n1\n").contains(".parquet"));
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_rows(folder.path().join("x.jsonl"), &[]).unwrap_err().exit_code(), 3);
        assert!(read_rows(folder.path(), &[]).unwrap_err().to_string().contains("folder"));
    }

    #[test]
    fn a_field_names_what_was_expected_and_what_was_found() {
        let fields = json!({"label": "1 ", "n": 2, "x": 1.5, "c": {"text": ["a"], "mixed": ["a", 3]}});
        let row = TaskRow { place: "x.jsonl:7".to_owned(), fields: fields.as_object().unwrap().clone() };
        assert_eq!(row.integer_or_text("label").unwrap(), 1);
        assert_eq!(row.integer_or_text("n").unwrap(), 2);
        assert_eq!(row.texts("c.text").unwrap(), ["a"]);
        for (error, words) in [
            (row.text("lable").unwrap_err(), "is `label` meant?"),
            (row.text("n").unwrap_err(), "a number: 2"),
            (row.integer("label").unwrap_err(), "a string: \"1 \""),
            (row.integer("x").unwrap_err(), "a number: 1.5"),
            (row.integer_or_text("x").unwrap_err(), "a whole number"),
            (row.texts("c.mixed").unwrap_err(), "a number: 3"),
            (row.texts("c.label").unwrap_err(), "`c.label` is missing"),
            (row.texts("c.label").unwrap_err(), "`mixed`, `text`"),
            (row.texts("n.text").unwrap_err(), "an object"),
        ] {
            let message = error.to_string();
            assert!(message.contains("x.jsonl:7") && message.contains(words), "{message}");
        }
    }
}
