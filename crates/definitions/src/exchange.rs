//! Values to the template engine and back, and how much it may print.

use std::cell::Cell;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ValueKind};
use minijinja::{Error, ErrorKind, Value as Jinja};

use crate::value::Value;

/// A map that keeps its order.
#[derive(Debug)]
struct Ordered(Vec<(Value, Jinja)>);

impl Object for Ordered {
    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        let key = python(key).ok()?;
        self.0.iter().find(|(own, _)| *own == key).map(|(_, value)| value.clone())
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Jinja> {
        self.0.iter().find(|(own, _)| own.as_text() == Some(key)).map(|(_, value)| value.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.iter().map(|(key, _)| jinja(key)).collect())
    }
}

/// Converts a value for templates.
pub(crate) fn jinja(value: &Value) -> Jinja {
    match value {
        Value::None => Jinja::from(()),
        Value::Bool(truth) => Jinja::from(*truth),
        Value::Int(number) => Jinja::from(*number),
        Value::Float(number) => Jinja::from(*number),
        Value::Text(text) => Jinja::from(text.as_str()),
        Value::List(items) => items.iter().map(jinja).collect::<Vec<_>>().into(),
        Value::Map(pairs) => {
            Jinja::from_object(Ordered(pairs.iter().map(|(key, value)| (key.clone(), jinja(value))).collect()))
        }
    }
}

/// Converts a template value to Python's.
pub(crate) fn python(value: &Jinja) -> Result<Value, Error> {
    Ok(match value.kind() {
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::None => Value::None,
        ValueKind::Bool => Value::Bool(value.is_true()),
        ValueKind::Number if value.is_integer() => {
            let number = value.as_i64();
            Value::Int(number.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "a number of more than 64 bits"))?)
        }
        ValueKind::Number => Value::Float(f64::try_from(value.clone())?),
        ValueKind::Seq | ValueKind::Iterable => {
            Value::List(value.try_iter()?.map(|item| python(&item)).collect::<Result<_, _>>()?)
        }
        ValueKind::Map => {
            let pairs = value.try_iter()?.map(|key| Ok((python(&key)?, python(&value.get_item(&key)?)?)));
            Value::Map(pairs.collect::<Result<_, Error>>()?)
        }
        ValueKind::Invalid => return Err(Error::new(ErrorKind::InvalidOperation, value.to_string())),
        _ => Value::Text(value.to_string()),
    })
}

/// Bytes that one rendering may make.
pub(crate) const MAX_BYTES: usize = 256 << 20;

thread_local! {
    /// Bytes that values have printed in the rendering of this thread.
    static PRINTED: Cell<usize> = const { Cell::new(0) };
}

/// Begins a rendering: nothing is printed yet.
pub(crate) fn begin() {
    PRINTED.set(0);
}

/// Counts rendered bytes against the limit.
///
/// # Errors
/// When there are too many.
pub(crate) fn printed(bytes: usize) -> Result<(), Error> {
    let all = PRINTED.get().saturating_add(bytes);
    PRINTED.set(all);
    let too_many =
        || Error::new(ErrorKind::InvalidOperation, format!("it makes more than {} MB of text", MAX_BYTES >> 20));
    if all > MAX_BYTES { Err(too_many()) } else { Ok(()) }
}
