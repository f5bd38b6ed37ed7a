//! Fields of a document (question, answer and choices), evaluated as in lm-evaluation-harness.

use ghostlab_core::error::{Error, Result};

use crate::activity;
use crate::definition::Field;
use crate::literal::literal;
use crate::method::is_digit;
use crate::value::Value;

/// Properties that all documents in the evaluated split share.
#[derive(Debug, Clone)]
pub struct Columns {
    /// Column names. A field whose source is a column name has the value in that column, unrendered.
    pub names: Vec<String>,
    /// Whether the task has choices. If it has, rendered text that consists of digits is converted to a number.
    pub choices: bool,
}

impl Columns {
    /// Returns the value of a field: its constant, the value in the column that it names, or the result of `read` for
    /// its rendered template.
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
        activity::record_start(format_args!("`{key}`, {}", template.location()));
        read(template.render(document)?)
    }

    /// Evaluates `doc_to_text` to a string, or to a number if each choice has its own context.
    ///
    /// # Errors
    /// Fails if the field cannot be evaluated.
    pub fn text(&self, field: &Field, document: &Value) -> Result<Value> {
        self.value(("doc_to_text", field), document, |text| {
            if self.choices && is_digit(&text) { parse_digits(&text) } else { Ok(Value::Text(text)) }
        })
    }

    /// Evaluates `doc_to_target` to a string, a choice index, or a list of correct answers.
    ///
    /// # Errors
    /// Fails if the field cannot be evaluated.
    pub fn target(&self, field: &Field, document: &Value) -> Result<Value> {
        self.value(("doc_to_target", field), document, |text| {
            if self.choices && is_digit(&text) {
                return parse_digits(&text);
            }
            let is_list = text.len() >= 2 && text.starts_with('[') && text.ends_with(']');
            Ok(if is_list { literal(&text).unwrap_or(Value::Text(text)) } else { Value::Text(text) })
        })
    }

    /// Evaluates `doc_to_choice` to the list of choices.
    ///
    /// # Errors
    /// Fails if the field cannot be evaluated or is not a nonempty list.
    pub fn choices(&self, field: &Field, document: &Value) -> Result<Vec<Value>> {
        let value = self.value(("doc_to_choice", field), document, |text| {
            literal(&text).ok_or_else(|| {
                Error::bad_input("`doc_to_choice` does not render to a list")
                    .expected("a Python list literal such as ['a', 'b']")
                    .found(text)
            })
        })?;
        match value {
            Value::List(items) if !items.is_empty() => Ok(items),
            other => Err(Error::bad_input("`doc_to_choice` is not a list of choices")
                .expected("a nonempty list")
                .found(other.repr())),
        }
    }

    /// Evaluates `description` or `gen_prefix` to a string.
    ///
    /// # Errors
    /// Fails if the field cannot be evaluated or is not a string.
    pub fn plain(field: &Field, document: &Value) -> Result<String> {
        let (template, name) = match field {
            Field::Fixed(value) => return Ok(value.text()),
            Field::Text(template, name) => (template, name),
        };
        match document.get(name) {
            Some(Value::Text(text)) => Ok(text.clone()),
            Some(other) => Err(Error::bad_input(format!("the column `{name}` is not text")).found(other.repr())),
            None => {
                activity::record_start(format_args!("`description` or `gen_prefix`, {}", template.location()));
                template.render(document)
            }
        }
    }
}

fn parse_digits(text: &str) -> Result<Value> {
    literal(text).ok_or_else(|| {
        Error::bad_input("the rendered number is not a valid Python literal")
            .expected("ASCII digits without leading zeros")
            .found(text)
    })
}
