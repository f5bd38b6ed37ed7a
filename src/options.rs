//! Options of a method, as a grid wrote them: read by the method itself, strictly. Floor 0.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{Error, Result, nearest};

/// A method's options by name.
pub type Options = Map<String, Value>;

/// Reads options into the method's own struct (which has `#[serde(default, deny_unknown_fields)]`).
///
/// # Errors
/// An unknown option or a wrong value, in serde's words with the method's name.
pub fn read<T: DeserializeOwned>(method: &str, options: &Options) -> Result<T> {
    serde_json::from_value(Value::Object(options.clone()))
        .map_err(|error| Error::bad_input(format!("wrong options for `{method}`")).found(error.to_string()))
}

/// The entry of a registry by its name.
///
/// # Errors
/// An unknown name, with the known ones and the nearest.
pub fn lookup<'a, T>(what: &str, name: &str, entries: &'a [(&'static str, T)]) -> Result<&'a T> {
    entries.iter().find(|(known, _)| *known == name).map(|(_, entry)| entry).ok_or_else(|| {
        let names: Vec<&str> = entries.iter().map(|(name, _)| *name).collect();
        let error = Error::bad_input(format!("unknown {what} `{name}`"))
            .expected(format!("one of {}", names.join(", ")))
            .found(format!("`{name}`"));
        match nearest(name, names) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        }
    })
}
