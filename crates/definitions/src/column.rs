//! What a definition says of its rows' columns, which is checked row by row: our key `columns`.

use ghostlab_core::error::{Error, Result};

use crate::row::Row;
use crate::value::Value;
use crate::yaml::{Node, wrong};

/// What a column holds.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Holds {
    /// Anything.
    Any,
    /// A text.
    Text,
    /// A list of texts.
    Texts,
    /// As many texts as another list has.
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
/// Anything but columns with what they hold.
pub(crate) fn columns(node: &Node) -> Result<Vec<Column>> {
    if node.pairs().is_empty() {
        return Err(wrong("columns", EXPECTED, node));
    }
    let column = |(name, node): &(Value, Node)| {
        let holds = match node.text() {
            Some("any") => Holds::Any,
            Some("text") => Holds::Text,
            Some("texts") => Holds::Texts,
            Some("integer") => Holds::Integer,
            Some(other) if other.starts_with("texts as ") => Holds::TextsAs(other["texts as ".len()..].to_owned()),
            _ => return Err(wrong("columns", EXPECTED, node)),
        };
        Ok(Column { path: name.text(), holds })
    };
    node.pairs().iter().map(column).collect()
}

/// The columns of a table that are read: a nested one whole.
pub(crate) fn names(columns: &[Column]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for column in columns {
        let name = column.path.split('.').next().unwrap_or_default();
        if !names.iter().any(|own| own == name) {
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
                let (own, others) = (row.texts(path)?.len(), row.texts(other)?.len());
                if own == others {
                    return Ok(());
                }
                Err(Error::bad_input(format!("the field `{path}` is not as expected"))
                    .at(&row.place)
                    .expected(format!("as many texts as `{other}` has"))
                    .found(format!("{own} and {others}")))
            }
        }
    }
}
