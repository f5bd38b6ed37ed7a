//! Conversion of values to and from minijinja, and a limit on the size of rendered text.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value as Jinja};

use crate::jinja::names::DICT_METHODS;
use crate::jinja::objects::{DictView, Lazy, Range};
use crate::python_object::PythonObject;
pub(crate) use crate::refusal::unsupported_error;
use crate::value::Value;

/// Python dict. Its keys keep their insertion order.
#[derive(Debug)]
struct OrderedDict(Vec<(Value, Jinja)>);

impl Object for OrderedDict {
    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        let key = python(key).ok()?;
        self.0.iter().find(|(stored_key, _)| *stored_key == key).map(|(_, value)| value.clone())
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Jinja> {
        let value =
            self.0.iter().find(|(stored_key, _)| stored_key.as_text() == Some(key)).map(|(_, value)| value.clone());
        if value.is_some() && DICT_METHODS.contains(&key) {
            return Some(
                unsupported_error(format!("`.{key}` is a method of a dict in Jinja: write `['{key}']`")).into(),
            );
        }
        value
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.iter().map(|(key, _)| jinja(key)).collect())
    }
}

/// Python object, such as a date, that templates can only print.
#[derive(Debug)]
struct PrintableObject(PythonObject);

impl Object for PrintableObject {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Jinja> {
        Some(unsupported_error(format!("`.{key}` of a {} is not supported", self.0.class())).into())
    }

    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        self.get_value_by_str(&key.to_string())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.text().unwrap_or_default())
    }
}

/// Variables of a template: the columns of a document.
#[derive(Debug)]
struct Variables(Vec<(Value, Jinja)>);

impl Object for Variables {
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Jinja> {
        self.0.iter().find(|(stored_key, _)| stored_key.as_text() == Some(key)).map(|(_, value)| value.clone())
    }

    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        self.get_value_by_str(key.as_str()?)
    }
}

/// Converts a document to the variables of a template, one per column.
pub(crate) fn variables(document: &Value) -> Jinja {
    let Value::Map(pairs) = document else { return jinja(document) };
    Jinja::from_object(Variables(pairs.iter().map(jinja_variable).collect()))
}

fn jinja_variable((key, value): &(Value, Value)) -> (Value, Jinja) {
    let converted = match value {
        Value::Object(object) if object.text().is_none() => {
            let class = object.class();
            unsupported_error(format!("the column `{}` has the type {class}, which templates cannot print", key.text()))
                .into()
        }
        value => jinja(value),
    };
    (key.clone(), converted)
}

/// Converts a [`Value`] to a template value.
pub(crate) fn jinja(value: &Value) -> Jinja {
    match value {
        Value::None => Jinja::from(()),
        Value::Bool(truth) => Jinja::from(*truth),
        Value::Int(number) => Jinja::from(*number),
        Value::Float(number) => Jinja::from(*number),
        Value::Text(text) => Jinja::from(text.as_str()),
        Value::List(items) => items.iter().map(jinja).collect::<Vec<_>>().into(),
        Value::Map(pairs) => {
            Jinja::from_object(OrderedDict(pairs.iter().map(|(key, value)| (key.clone(), jinja(value))).collect()))
        }
        Value::Object(object) if object.text().is_some() => Jinja::from_object(PrintableObject((**object).clone())),
        Value::Object(object) => {
            unsupported_error(format!("the column has the unsupported type {}", object.class())).into()
        }
    }
}

/// Converts a template value to a [`Value`].
pub(crate) fn python(value: &Jinja) -> Result<Value, Error> {
    if let Some(PrintableObject(object)) = value.downcast_object_ref() {
        return Ok(Value::Object(object.clone().into()));
    }
    Ok(match value.kind() {
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::None => Value::None,
        ValueKind::Bool => Value::Bool(value.is_true()),
        ValueKind::Number if value.is_integer() => Value::Int(
            value.as_i64().ok_or_else(|| unsupported_error("integers of more than 64 bits are not supported"))?,
        ),
        ValueKind::Number => Value::Float(f64::try_from(value.clone())?),
        _ if value.as_object().is_some_and(|object| object.type_name().contains("Namespace")) => {
            return Err(unsupported_error("a namespace cannot be printed"));
        }
        ValueKind::Seq | ValueKind::Iterable if is_lazy(value) => {
            return Err(unsupported_error("an iterator cannot be printed: apply `list` to it"));
        }
        ValueKind::Seq | ValueKind::Iterable => {
            Value::List(value.try_iter()?.map(|item| python(&item)).collect::<Result<_, _>>()?)
        }
        ValueKind::Map => {
            let pairs = value.try_iter()?.map(|key| Ok((python(&key)?, python(&value.get_item(&key)?)?)));
            Value::Map(pairs.collect::<Result<_, Error>>()?)
        }
        ValueKind::Invalid => return Err(unsupported_error(value.to_string())),
        ValueKind::String => Value::Text(value.to_string()),
        kind => return Err(unsupported_error(format!("a value of type {kind} cannot be printed"))),
    })
}

/// Formats a value like Python's `str()`.
///
/// # Errors
/// Fails if the value is undefined or has no meaningful text, such as an iterator or a macro.
pub(crate) fn text(value: &Jinja) -> Result<String, Error> {
    if let Some(PrintableObject(object)) = value.downcast_object_ref() {
        return Ok(object.text().unwrap_or_default().to_owned());
    }
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => repr(value),
    }
}

/// Formats a value like Python's `repr()`. Also handles tuples, ranges and dict views, which [`Value`] cannot
/// represent.
///
/// # Errors
/// Fails in the same cases as [`text`].
pub(crate) fn repr(value: &Jinja) -> Result<String, Error> {
    if let Some(view) = value.downcast_object_ref::<DictView>() {
        return Ok(format!("{}([{}])", view.name, join_reprs(view.items.iter())?));
    }
    if let Some(range) = value.downcast_object_ref::<Range>() {
        return Ok(range.repr());
    }
    if let Some(PrintableObject(object)) = value.downcast_object_ref() {
        return object
            .repr()
            .map(str::to_owned)
            .ok_or_else(|| unsupported_error(format!("a {} in a list or dict is not supported", object.class())));
    }
    if let Some(tuple) = value.downcast_object_ref::<Tuple>() {
        let comma = if tuple.len() == 1 { "," } else { "" };
        return Ok(format!("({}{comma})", join_reprs(tuple.iter())?));
    }
    match value.kind() {
        ValueKind::Number if value.is_integer() => Ok(value.to_string()),
        ValueKind::Seq | ValueKind::Iterable if !is_lazy(value) => {
            Ok(format!("[{}]", join_reprs(value.try_iter()?.collect::<Vec<_>>().iter())?))
        }
        ValueKind::Map if value.as_object().is_none_or(|object| !object.type_name().contains("Namespace")) => {
            let keys = value.try_iter()?;
            let pairs = keys.map(|key| Ok(format!("{}: {}", repr(&key)?, repr(&value.get_item(&key)?)?)));
            Ok(format!("{{{}}}", pairs.collect::<Result<Vec<_>, Error>>()?.join(", ")))
        }
        _ => Ok(python(value)?.repr()),
    }
}

fn join_reprs<'a>(items: impl Iterator<Item = &'a Jinja>) -> Result<String, Error> {
    Ok(items.map(repr).collect::<Result<Vec<_>, Error>>()?.join(", "))
}

/// Returns whether a value is an iterator, a dict view or a range in Python.
pub(crate) fn is_lazy(value: &Jinja) -> bool {
    value.downcast_object_ref::<Lazy>().is_some()
        || value.downcast_object_ref::<DictView>().is_some()
        || value.downcast_object_ref::<Range>().is_some()
}

/// Maximum size in bytes of the text that one rendering produces.
pub(crate) const MAX_BYTES: usize = 256 << 20;

thread_local! {
    /// Number of bytes that the current rendering on this thread has produced so far, including intermediate strings.
    static OUTPUT_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Resets the byte count at the start of a rendering.
pub(crate) fn reset_byte_count() {
    OUTPUT_BYTES.set(0);
}

/// Adds `bytes` to the byte count of the current rendering.
///
/// # Errors
/// Fails if the count exceeds [`MAX_BYTES`].
pub(crate) fn printed(bytes: usize) -> Result<(), Error> {
    let total = OUTPUT_BYTES.get().saturating_add(bytes);
    OUTPUT_BYTES.set(total);
    if total > MAX_BYTES {
        return Err(unsupported_error(format!("the rendered text exceeds {} MB", MAX_BYTES >> 20)));
    }
    Ok(())
}
