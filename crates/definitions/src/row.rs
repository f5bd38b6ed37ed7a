//! A row of a data set: its columns, with the place that they came from, and what a definition says of them.

use ghostlab_core::error::{Error, Result, nearest};
use ghostlab_core::files::rows::describe;
use ghostlab_core::tasks::python::strip;
use serde_json::json;

use crate::prompt::without_label;
use crate::value::Value;
use crate::yaml::{Node, wrong};

/// Columns that hold the right answer.
const LABELS: [&str; 3] = ["answer", "answerKey", "label"];

/// A row of a data set.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// File and line (`a.jsonl:3`) or file and row (`a.parquet, row 3`), both counted from 1.
    pub place: String,
    /// Its columns: a map.
    pub value: Value,
}

/// Creates the error for a missing column, with the existing ones.
pub(crate) fn absent<'a>(wanted: &str, names: impl Iterator<Item = &'a str> + Clone) -> Error {
    let found: Vec<String> = names.clone().map(|name| format!("`{name}`")).collect();
    let error = Error::bad_input(format!("the field `{wanted}` is missing"))
        .expected(format!("a field `{wanted}`"))
        .found(if found.is_empty() { "no fields".to_owned() } else { format!("fields {}", found.join(", ")) });
    match nearest(wanted.rsplit('.').next().unwrap_or(wanted), names) {
        Some(near) => error.hint(format!("is `{near}` meant? The names are those of the hub's data set")),
        None => error.hint("the names are those of the hub's data set: is this another task's file?"),
    }
}

/// Values of a row. `path` is a name, or several names separated by dots for a nested field.
impl Row {
    /// # Errors
    /// A field that is absent or no text.
    pub fn text(&self, path: &str) -> Result<&str> {
        let value = self.get(path)?;
        value.as_text().ok_or_else(|| self.wrong(path, "a string", value))
    }

    /// # Errors
    /// A field that is absent or no list of texts.
    pub fn texts(&self, path: &str) -> Result<Vec<String>> {
        let value = self.get(path)?;
        let expected = "a list of strings";
        let items = value.as_list().ok_or_else(|| self.wrong(path, expected, value))?;
        items
            .iter()
            .map(|item| item.as_text().map(str::to_owned).ok_or_else(|| self.wrong(path, expected, item)))
            .collect()
    }

    /// # Errors
    /// A field that is absent or no whole number.
    pub fn integer(&self, path: &str) -> Result<i64> {
        let value = self.get(path)?;
        if let Value::Int(number) = value { Ok(*number) } else { Err(self.wrong(path, "a whole number", value)) }
    }

    /// Parses an integer that may be text, as Python's `int(label)`.
    ///
    /// # Errors
    /// A field that is absent or no such number.
    pub fn integer_or_text(&self, path: &str) -> Result<i64> {
        let value = self.get(path)?;
        let number = match value {
            Value::Text(text) => strip(text).parse().ok(),
            Value::Int(number) => Some(*number),
            _ => None,
        };
        number.ok_or_else(|| self.wrong(path, "a whole number, or one written as text", value))
    }

    /// # Errors
    /// A field that is absent.
    pub fn get(&self, path: &str) -> Result<&Value> {
        let mut value = &self.value;
        let mut end = 0_usize;
        for name in path.split('.') {
            let Value::Map(pairs) = value else {
                return Err(self.wrong(&path[..end.saturating_sub(1)], "an object", value));
            };
            end += name.len();
            value = value.get(name).ok_or_else(|| {
                let names = pairs.iter().filter_map(|(name, _)| name.as_text());
                absent(&path[..end], names).at(&self.place)
            })?;
            // Past the dot.
            end += 1;
        }
        Ok(value)
    }

    /// Creates the error for a field with an invalid value.
    pub(crate) fn wrong(&self, path: &str, expected: &str, found: &Value) -> Error {
        let is_unlabelled = matches!(found, Value::Int(-1)) || found.as_text() == Some("");
        if is_unlabelled && LABELS.contains(&path) {
            return without_label(expected, describe(&json!(found))).at(format!("{}, field `{path}`", self.place));
        }
        Error::bad_input(format!("the field `{path}` is not as expected"))
            .at(&self.place)
            .expected(expected)
            .found(describe(&json!(found)))
    }
}

/// Type of a column's values.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Holds {
    /// Anything.
    Any,
    /// A text.
    Text,
    /// A list of texts.
    Texts,
    /// One text for each item of the named list.
    TextsAs(String),
    /// A whole number.
    Integer,
}

/// A column that every row has to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// A name, or names with dots between them for a field in a field.
    path: String,
    holds: Holds,
}

const EXPECTED: &str = "a mapping of columns to text, texts, texts as OTHER, integer or any";

/// Reads the key.
///
/// # Errors
/// Checks that a node declares columns with their types.
pub(crate) fn columns(node: &Node) -> Result<Vec<Column>> {
    if node.pairs().is_empty() {
        return Err(wrong("columns", EXPECTED, node));
    }
    node.pairs().iter().map(read_column).collect()
}

fn read_column((name, node): &(Value, Node)) -> Result<Column> {
    let holds = match node.text() {
        Some("any") => Holds::Any,
        Some("text") => Holds::Text,
        Some("texts") => Holds::Texts,
        Some("integer") => Holds::Integer,
        Some(other) if other.starts_with("texts as ") => Holds::TextsAs(other["texts as ".len()..].to_owned()),
        _ => return Err(wrong("columns", EXPECTED, node)),
    };
    Ok(Column { path: name.text(), holds })
}

/// Returns the columns to read; nested ones are read completely.
pub(crate) fn names(columns: &[Column]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for column in columns {
        let name = column.path.split('.').next().unwrap_or_default();
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

impl Column {
    /// # Errors
    /// A row without it, or with something else in it.
    pub(crate) fn check(&self, row: &Row) -> Result<()> {
        let path = &self.path;
        match &self.holds {
            Holds::Any => row.get(path).map(drop),
            Holds::Text => row.text(path).map(drop),
            Holds::Integer => row.integer(path).map(drop),
            Holds::Texts => row.texts(path).map(drop),
            Holds::TextsAs(other) => {
                let expected_length = row.texts(path)?.len();
                let others = row.texts(other)?.len();
                if expected_length == others {
                    return Ok(());
                }
                Err(Error::bad_input(format!("the field `{path}` is not as expected"))
                    .at(&row.place)
                    .expected(format!("as many texts as `{other}` has"))
                    .found(format!("{expected_length} and {others}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_names_what_was_expected_and_what_was_found() {
        let fields = json!({"label": "1 ", "n": 2, "x": 1.5, "c": {"text": ["a"], "mixed": ["a", 3]}});
        let row = Row { place: "x.jsonl:7".to_owned(), value: serde_json::from_value(fields).unwrap() };
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
