//! A JSON value that can be compared, sorted and hashed: as its canonical text.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use ghostlab_store::canonical;

/// A JSON value by its canonical text: without spaces, keys sorted, floats in their shortest form.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Canonical(String);

impl Canonical {
    pub fn of(value: &Value) -> Self {
        Self(canonical(value))
    }

    pub fn value(&self) -> Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is a hash: they are long, and say nothing to people.
    pub fn is_hash(&self) -> bool {
        self.0.len() == 66 && self.0[1..65].bytes().all(|digit| digit.is_ascii_hexdigit())
    }
}

impl fmt::Display for Canonical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Canonical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Canonical {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Canonical {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(|value| Self::of(&value))
    }
}

impl JsonSchema for Canonical {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "AnyValue".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Value::json_schema(generator)
    }
}
