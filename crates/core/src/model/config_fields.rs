//! Typed, bounds-checked access to an untrusted JSON object.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::{Error, Result, shorten};

/// Entries of a JSON object. Errors contain the path of the entry, which starts with `prefix`.
pub(super) struct Entries<'a> {
    pub(super) map: &'a Map<String, Value>,
    pub(super) prefix: &'static str,
}

impl<'a> Entries<'a> {
    pub(super) fn path(&self, key: &str) -> String {
        if self.prefix.is_empty() { key.to_string() } else { format!("{}.{key}", self.prefix) }
    }

    /// Returns the value of `key`, or `None` if it is absent or null.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn value_error(&self, key: &str, expected: &str) -> Error {
        let found = self.get(key).map_or("nothing".to_string(), excerpt);
        Error::bad_input("missing or mistyped entry").at(self.path(key)).expected(expected).found(found)
    }

    /// Creates the error for a setting that requires an unsupported forward pass.
    pub(super) fn unsupported_error(&self, key: &str, found: &Value, expected: &str) -> Error {
        Error::bad_input("unsupported value in the config").at(self.path(key)).expected(expected).found(excerpt(found))
    }

    /// Converts a value with `convert`. Returns `None` if it is absent or null.
    fn read_typed<T>(
        &self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        self.get(key).map(|value| convert(value).ok_or_else(|| self.value_error(key, expected))).transpose()
    }

    /// Reads an integer from 1 to `max`. The bound prevents overflow in later arithmetic.
    pub(super) fn optional_count(&self, key: &str, max: usize) -> Result<Option<usize>> {
        self.read_typed(key, &format_limit(max), |value| {
            usize::try_from(value.as_u64()?).ok().filter(|count| (1..=max).contains(count))
        })
    }

    pub(super) fn count(&self, key: &str, max: usize) -> Result<usize> {
        self.optional_count(key, max)?.ok_or_else(|| self.value_error(key, &format_limit(max)))
    }

    pub(super) fn optional_number(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        self.read_typed(key, &format_range(&range), |value| value.as_f64().filter(|x| range.contains(x)))
    }

    pub(super) fn number(&self, key: &str, range: RangeInclusive<f64>) -> Result<f64> {
        let found = self.optional_number(key, range.clone())?;
        found.ok_or_else(|| self.value_error(key, &format_range(&range)))
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.read_typed(key, "a string", Value::as_str)
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.read_typed(key, "true or false", Value::as_bool)
    }

    pub(super) fn map_at(&self, key: &'static str) -> Result<Option<Entries<'a>>> {
        Ok(self.read_typed(key, "a map", Value::as_object)?.map(|map| Entries { map, prefix: key }))
    }
}

fn format_limit(max: usize) -> String {
    format!("a whole number from 1 to {max}")
}

fn format_range(range: &RangeInclusive<f64>) -> String {
    format!("a number from {:e} to {:e}", range.start(), range.end())
}

/// Shortens a value for an error message.
pub(super) fn excerpt(value: &Value) -> String {
    shorten(&value.to_string(), 80)
}
