//! A single value or a list: what every axis takes.

use std::borrow::Cow;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

/// One value, written alone, or several in a list of at least `LEAST`; none where the key is not written. That nothing is
/// written after it is refused by `typed`, as a list that is not there.
#[derive(Debug, Clone)]
pub(super) struct Many<T, const LEAST: usize = 1>(Option<Vec<T>>);

impl<T, const LEAST: usize> Many<T, LEAST> {
    /// The values, where the key is written, even with an empty list after it.
    pub(super) fn written(&self) -> Option<&[T]> {
        self.0.as_deref()
    }
}

impl<T, const LEAST: usize> Default for Many<T, LEAST> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T, const LEAST: usize> Deref for Many<T, LEAST> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.written().unwrap_or_default()
    }
}

impl<'de, T: Deserialize<'de>, const LEAST: usize> Deserialize<'de> for Many<T, LEAST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The grid's deserializer takes a single value for a list of one.
        Vec::deserialize(deserializer).map(|values| Self(Some(values)))
    }
}

impl<T: JsonSchema, const LEAST: usize> JsonSchema for Many<T, LEAST> {
    fn schema_name() -> Cow<'static, str> {
        format!("{}OrList", T::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        one_or_list(&generator.subschema_for::<T>(), LEAST)
    }
}

/// A schema, or a list of it.
pub(super) fn one_or_list(one: &Schema, least: usize) -> Schema {
    json_schema!({"anyOf": [one, {"type": "array", "items": one, "minItems": least}]})
}
