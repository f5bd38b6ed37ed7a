//! Rows of a dataset with their locations, and declared column types.

use ghostlab_core::error::{Error, Result, nearest};
use ghostlab_core::files::rows::describe;
use ghostlab_core::tasks::python::strip;
use serde_json::json;

use crate::prompt::label_error;
use crate::value::Value;
use crate::yaml::{Node, value_error};

/// Common names of the column that contains the correct answer.
const LABEL_COLUMNS: [&str; 3] = ["answer", "answerKey", "label"];

#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// File and line (`a.jsonl:3`) or file and row (`a.parquet, row 3`), counted from 1.
    pub location: String,
    /// Columns as a map.
    pub value: Value,
}

/// Creates the error for a missing column. The message lists the existing columns.
pub(crate) fn missing_column_error<'a>(requested: &str, names: impl Iterator<Item = &'a str> + Clone) -> Error {
    let found: Vec<String> = names.clone().map(|name| format!("`{name}`")).collect();
    let error = Error::bad_input(format!("the field `{requested}` is missing")).found(if found.is_empty() {
        "no fields".to_owned()
    } else {
        format!("fields {}", found.join(", "))
    });
    match nearest(requested.rsplit('.').next().unwrap_or(requested), names) {
        Some(near) => error.hint(format!("did you mean `{near}`? Use the column names of the hub dataset")),
        None => error.hint("use the column names of the hub dataset, and check that the file belongs to this task"),
    }
}

/// Getters for the field at a `path`, i.e. a column name or dot-separated names such as `choices.text`.
impl Row {
    /// Returns the string in a field.
    ///
    /// # Errors
    /// Fails if the field is missing or not a string.
    pub fn text(&self, path: &str) -> Result<&str> {
        let value = self.get(path)?;
        value.as_text().ok_or_else(|| self.value_error(path, "a string", value))
    }

    /// Returns the list of strings in a field.
    ///
    /// # Errors
    /// Fails if the field is missing or not a list of strings.
    pub fn texts(&self, path: &str) -> Result<Vec<String>> {
        let value = self.get(path)?;
        let expected = "a list of strings";
        let items = value.as_list().ok_or_else(|| self.value_error(path, expected, value))?;
        items
            .iter()
            .map(|item| item.as_text().map(str::to_owned).ok_or_else(|| self.value_error(path, expected, item)))
            .collect()
    }

    /// Returns the integer in a field.
    ///
    /// # Errors
    /// Fails if the field is missing or not an integer.
    pub fn integer(&self, path: &str) -> Result<i64> {
        let value = self.get(path)?;
        if let Value::Int(number) = value { Ok(*number) } else { Err(self.value_error(path, "a whole number", value)) }
    }

    /// Returns the integer in a field. Text is parsed as in Python's `int()`.
    ///
    /// # Errors
    /// Fails if the field is missing or not an integer.
    pub fn parse_integer(&self, path: &str) -> Result<i64> {
        let value = self.get(path)?;
        let number = match value {
            Value::Text(text) => strip(text).parse().ok(),
            Value::Int(number) => Some(*number),
            _ => None,
        };
        number.ok_or_else(|| self.value_error(path, "a whole number, as a number or a string", value))
    }

    /// Returns the value of a field.
    ///
    /// # Errors
    /// Fails if the field is missing.
    pub fn get(&self, path: &str) -> Result<&Value> {
        let mut value = &self.value;
        let mut end = 0_usize;
        for name in path.split('.') {
            let Value::Map(pairs) = value else {
                return Err(self.value_error(&path[..end.saturating_sub(1)], "an object", value));
            };
            end += name.len();
            value = value.get(name).ok_or_else(|| {
                let names = pairs.iter().filter_map(|(name, _)| name.as_text());
                missing_column_error(&path[..end], names).at(&self.location)
            })?;
            // Skip the dot.
            end += 1;
        }
        Ok(value)
    }

    /// Creates the error for a field with an invalid value. For an empty label or a label of -1, the error says that
    /// the row has no label.
    pub(crate) fn value_error(&self, path: &str, expected: &str, found: &Value) -> Error {
        let is_unlabeled = matches!(found, Value::Int(-1)) || found.as_text() == Some("");
        if is_unlabeled && LABEL_COLUMNS.contains(&path) {
            return label_error(expected, describe(&json!(found))).at(format!("{}, field `{path}`", self.location));
        }
        Error::bad_input(format!("invalid field `{path}`"))
            .at(&self.location)
            .expected(expected)
            .found(describe(&json!(found)))
    }
}

/// Type of a column, as declared in the definition.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ColumnType {
    Any,
    Text,
    Texts,
    /// List of strings of the same length as the list in the named column.
    TextsAs(String),
    Integer,
}

/// Column required in every row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Column name, or dot-separated names of a nested field.
    path: String,
    column_type: ColumnType,
}

const EXPECTED: &str = "a mapping of columns to `text`, `texts`, `texts as COLUMN`, `integer` or `any`";

/// Parses the declared columns and their types.
///
/// # Errors
/// Fails if the node is empty or declares an unknown type.
pub(crate) fn read_columns(node: &Node) -> Result<Vec<Column>> {
    if node.pairs().is_empty() {
        return Err(value_error("columns", EXPECTED, node));
    }
    node.pairs().iter().map(read_column).collect()
}

fn read_column((name, node): &(Value, Node)) -> Result<Column> {
    let column_type = match node.text() {
        Some("any") => ColumnType::Any,
        Some("text") => ColumnType::Text,
        Some("texts") => ColumnType::Texts,
        Some("integer") => ColumnType::Integer,
        Some(other) if other.starts_with("texts as ") => ColumnType::TextsAs(other["texts as ".len()..].to_owned()),
        _ => return Err(value_error("columns", EXPECTED, node)),
    };
    Ok(Column { path: name.text(), column_type })
}

/// Returns the distinct names of the top-level columns to read. For a nested field, the entire column is read.
pub(crate) fn top_level_names(columns: &[Column]) -> Vec<String> {
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
    /// Checks that a row has this column with the declared type. For `TextsAs`, also checks that both lists have the
    /// same length.
    ///
    /// # Errors
    /// Fails if the column is missing or has another type, or if the lists differ in length.
    pub(crate) fn check(&self, row: &Row) -> Result<()> {
        let path = &self.path;
        match &self.column_type {
            ColumnType::Any => row.get(path).map(drop),
            ColumnType::Text => row.text(path).map(drop),
            ColumnType::Integer => row.integer(path).map(drop),
            ColumnType::Texts => row.texts(path).map(drop),
            ColumnType::TextsAs(other) => {
                let expected_length = row.texts(path)?.len();
                let others = row.texts(other)?.len();
                if expected_length == others {
                    return Ok(());
                }
                Err(Error::bad_input(format!("invalid field `{path}`"))
                    .at(&row.location)
                    .expected(format!("as many strings as in `{other}` ({others})"))
                    .found(format!("{expected_length} strings")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_error_names_the_expected_and_found_types() {
        let fields = json!({"label": "1 ", "n": 2, "x": 1.5, "c": {"text": ["a"], "mixed": ["a", 3]}});
        let row = Row { location: "x.jsonl:7".to_owned(), value: serde_json::from_value(fields).unwrap() };
        assert_eq!(row.parse_integer("label").unwrap(), 1);
        assert_eq!(row.parse_integer("n").unwrap(), 2);
        assert_eq!(row.texts("c.text").unwrap(), ["a"]);
        for (error, words) in [
            (row.text("lable").unwrap_err(), "did you mean `label`?"),
            (row.text("n").unwrap_err(), "a number: 2"),
            (row.integer("label").unwrap_err(), "a string: \"1 \""),
            (row.integer("x").unwrap_err(), "a number: 1.5"),
            (row.parse_integer("x").unwrap_err(), "a whole number"),
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
