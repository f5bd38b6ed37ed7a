//! Values of an axis, written as a single value or a list, and schemas that refer to the contents of the registries.

use std::borrow::Cow;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use crate::error::Result;

/// List of at least `MIN` values, or a single value written without a list. `None` if the key is missing. A key without
/// a value is rejected by `deserialize`.
#[derive(Debug, Clone)]
pub(super) struct OneOrMany<T, const MIN: usize = 1>(Option<Vec<T>>);

impl<T, const MIN: usize> OneOrMany<T, MIN> {
    /// Returns the values if the key is present, even if its list is empty.
    pub(super) fn explicit_values(&self) -> Option<&[T]> {
        self.0.as_deref()
    }
}

impl<T> OneOrMany<T> {
    /// Reads the values if the key is present.
    pub(super) fn read_with<R>(&self, read: impl FnOnce(&[T]) -> Result<R>) -> Result<Option<R>> {
        self.explicit_values().map(read).transpose()
    }
}

impl<T, const MIN: usize> Default for OneOrMany<T, MIN> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T, const MIN: usize> Deref for OneOrMany<T, MIN> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.explicit_values().unwrap_or_default()
    }
}

impl<'de, T: Deserialize<'de>, const MIN: usize> Deserialize<'de> for OneOrMany<T, MIN> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The deserializer for grids accepts a single value as a list with one item.
        Vec::deserialize(deserializer).map(|values| Self(Some(values)))
    }
}

impl<T: JsonSchema, const MIN: usize> JsonSchema for OneOrMany<T, MIN> {
    fn schema_name() -> Cow<'static, str> {
        format!("{}OrList", T::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        one_or_list(&generator.subschema_for::<T>(), MIN)
    }
}

/// Builds the schema for a value or a list of such values.
pub(super) fn one_or_list(one: &Schema, min_items: usize) -> Schema {
    json_schema!({"anyOf": [one, {"type": "array", "items": one, "minItems": min_items}]})
}

/// Returns a reference to a schema definition that `schema_json` adds.
fn definition_reference(name: &str) -> Schema {
    json_schema!({"$ref": format!("#/definitions/{name}")})
}

pub(super) fn rule_schema(_: &mut SchemaGenerator) -> Schema {
    definition_reference("WindowRule")
}

pub(super) fn task_schema(_: &mut SchemaGenerator) -> Schema {
    definition_reference("Task")
}

/// Builds the schema for the name of a task in the grid, which may differ from the name of the built-in task.
pub(super) fn task_name_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "description": "Name in `tasks`, or of a file `tasks/NAME.yaml`."})
}

pub(super) fn metrics_schema(_: &mut SchemaGenerator) -> Schema {
    one_or_list(&definition_reference("Metric"), 1)
}

pub(super) fn criteria_schema(_: &mut SchemaGenerator) -> Schema {
    one_or_list(&definition_reference("Criterion"), 1)
}

pub(super) fn recoveries_schema(_: &mut SchemaGenerator) -> Schema {
    one_or_list(&definition_reference("Recovery"), 1)
}

pub(super) fn profiles_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "additionalProperties": {"$ref": "#/definitions/Profile"}, "minProperties": 1})
}

/// Builds the schema for counts, which must be at least 1.
pub(super) fn counts_schema(_: &mut SchemaGenerator) -> Schema {
    one_or_list(&json_schema!({"type": "integer", "minimum": 1}), 1)
}

/// Builds the schema for window lengths, which must be at least 2, because the first token has no context.
pub(super) fn lengths_schema(_: &mut SchemaGenerator) -> Schema {
    one_or_list(&json_schema!({"type": "integer", "minimum": 2}), 1)
}

pub(super) fn names_schema(_: &mut SchemaGenerator) -> Schema {
    one_or_list(&json_schema!({"type": "string"}), 1)
}
