//! Fields of a document: its question, answer and choices, as the harness makes them.

use ghostlab_core::error::{Error, Result};

use crate::activity;
use crate::definition::Field;
use crate::literal::literal;
use crate::method::is_digit;
use crate::value::Value;

/// Properties that hold for all documents of the evaluated split.
#[derive(Debug, Clone)]
pub struct Columns {
    /// Names of its columns: a field that is one of them is that column, as it is.
    pub names: Vec<String>,
    /// Whether the task has choices: then a text of digits is a number.
    pub choices: bool,
}

impl Columns {
    /// Returns a field's constant, its column's value, or `read` of its rendered template.
    fn value(
        &self,
        (key, field): (&str, &Field),
        document: &Value,
        read: impl FnOnce(String) -> Result<Value>,
    ) -> Result<Value> {
        let (template, name) = match field {
            Field::Fixed(value) => return Ok(value.clone()),
            Field::Text(template, name) => (template, name),
        };
        if self.names.contains(name) {
            return document
                .get(name)
                .cloned()
                .ok_or_else(|| Error::bad_input(format!("a document has no column `{name}`")).found(document.repr()));
        }
        activity::started(format_args!("`{key}`, {}", template.place()));
        read(template.render(document)?)
    }

    /// Evaluates `doc_to_text`: a text, or a number if there is a context per choice.
    ///
    /// # Errors
    /// When it cannot be made of the document.
    pub fn text(&self, field: &Field, document: &Value) -> Result<Value> {
        self.value(("doc_to_text", field), document, |text| {
            if self.choices && is_digit(&text) { digits(&text) } else { Ok(Value::Text(text)) }
        })
    }

    /// Evaluates `doc_to_target`: a text, a choice number, or a list of correct answers.
    ///
    /// # Errors
    /// When it cannot be made of the document.
    pub fn target(&self, field: &Field, document: &Value) -> Result<Value> {
        self.value(("doc_to_target", field), document, |text| {
            if self.choices && is_digit(&text) {
                return digits(&text);
            }
            let list = text.len() >= 2 && text.starts_with('[') && text.ends_with(']');
            Ok(if list { literal(&text).unwrap_or(Value::Text(text)) } else { Value::Text(text) })
        })
    }

    /// Evaluates `doc_to_choice`.
    ///
    /// # Errors
    /// When it cannot be made of the document, or is no list.
    pub fn choices(&self, field: &Field, document: &Value) -> Result<Vec<Value>> {
        let value = self.value(("doc_to_choice", field), document, |text| {
            literal(&text).ok_or_else(|| {
                Error::bad_input("`doc_to_choice` does not print a list")
                    .expected("Python's literal of a list, as ['a', 'b']")
                    .found(text)
            })
        })?;
        match value {
            Value::List(items) if !items.is_empty() => Ok(items),
            other => {
                Err(Error::bad_input("`doc_to_choice` gives no list of choices").expected("a list").found(other.repr()))
            }
        }
    }

    /// Evaluates `description` or `gen_prefix`: a column, or a rendered text.
    ///
    /// # Errors
    /// Fails when the document has no such value, or when the value is no text.
    pub fn plain(field: &Field, document: &Value) -> Result<String> {
        let (template, name) = match field {
            Field::Fixed(value) => return Ok(value.text()),
            Field::Text(template, name) => (template, name),
        };
        match document.get(name) {
            Some(Value::Text(text)) => Ok(text.clone()),
            Some(other) => Err(Error::bad_input(format!("the column `{name}` is no text")).found(other.repr())),
            None => {
                activity::started(format_args!("`description` or `gen_prefix`, {}", template.place()));
                template.render(document)
            }
        }
    }
}

fn digits(text: &str) -> Result<Value> {
    literal(text).ok_or_else(|| {
        Error::bad_input("a text of digits is no number of Python")
            .expected("digits of ASCII without leading zeros")
            .found(text)
    })
}
