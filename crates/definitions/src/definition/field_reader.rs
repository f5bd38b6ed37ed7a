//! Parser for fields of a document, such as `doc_to_text`.

use ghostlab_core::error::Result;

use super::Field;
use crate::activity;
use crate::template::Template;
use crate::value::Value;
use crate::yaml::{Node, Tree, hook_error, value_error};

/// Reads a field of a document: a column, a template or a fixed value.
pub(super) fn read_field(key: &str, node: &Node) -> Result<Field> {
    match &node.tree {
        Tree::Scalar(Value::Text(text)) => {
            activity::record_start(format_args!("`{key}`, {}", node.location));
            let template = Template::new(text, &node.location).map_err(|error| error.at(format!("`{key}`")))?;
            Ok(Field::Text(Box::new(template), text.clone()))
        }
        Tree::Scalar(value @ (Value::Int(_) | Value::Bool(_))) => Ok(Field::Fixed(value.clone())),
        Tree::List(_) if key.ends_with("target") => Ok(Field::Fixed(node.plain()?)),
        Tree::Hook(function) => Err(hook_error(key, function, &node.location)),
        _ => Err(value_error(key, "a column, a template or a number", node)),
    }
}

/// Reads the choices of a document: a list, the values of a mapping, a column or a template.
pub(super) fn read_choices(key: &str, node: &Node) -> Result<Field> {
    match &node.tree {
        Tree::List(_) => Ok(Field::Fixed(node.plain()?)),
        Tree::Map(pairs) => {
            Ok(Field::Fixed(Value::List(pairs.iter().map(|(_, node)| node.plain()).collect::<Result<_>>()?)))
        }
        Tree::Scalar(Value::Text(_)) | Tree::Hook(_) => read_field(key, node),
        Tree::Scalar(_) => Err(value_error(key, "a list, a mapping, a column or a template", node)),
    }
}
