//! Serde deserializer from the YAML tree to typed structs. Its errors give the path, the position, the expected value
//! and the value found.

use std::fmt::{self, Display};

use serde::de::value::StrDeserializer;
use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, Expected, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;

use super::yaml::{MapEntry, Value, YamlNode, YamlPosition};
use crate::error::{Error, Result};

/// Deserialization error that stores the key, the expected value and the value found in fields, so that they need not
/// be parsed from serde's message.
#[derive(Debug)]
struct Fault {
    kind: FaultKind,
    /// Path and position of the value. The innermost deserializer sets them.
    location: Option<(String, YamlPosition)>,
}

#[derive(Debug)]
enum FaultKind {
    Type {
        expected: String,
        found: String,
    },
    UnknownKey {
        key: String,
        known: &'static [&'static str],
    },
    /// Missing key. `space_hint` is a hint for users who left out the space after the colon.
    MissingKey {
        key: String,
        space_hint: Option<String>,
    },
    Other(String),
}

impl Fault {
    fn new(kind: FaultKind) -> Self {
        Self { kind, location: None }
    }

    fn with_location(mut self, path: &str, position: &YamlPosition) -> Self {
        self.location.get_or_insert_with(|| (path.to_owned(), position.clone()));
        self
    }

    /// Adds a hint to an error about a missing key if one of the map's keys lacks the space after its colon.
    fn with_missing_space_hint(mut self, entries: &[MapEntry]) -> Self {
        if let (None, FaultKind::MissingKey { key, space_hint: reported_hint }) = (&self.location, &mut self.kind) {
            *reported_hint = entries.iter().find_map(|entry| missing_space_hint(&entry.key, &[key]));
        }
        self
    }

    fn into_error(self) -> Error {
        let (path, position) = match &self.location {
            Some((path, position)) => (path.as_str(), Some(position.to_string())),
            None => ("", None),
        };
        let subject = if path.is_empty() { "the grid".to_owned() } else { format!("`{path}`") };
        let error = match self.kind {
            FaultKind::Type { expected, found } => {
                Error::bad_input(format!("{subject} has the wrong type")).expected(expected).found(found)
            }
            FaultKind::UnknownKey { key, known } => unknown_key_error(&key, &subject, known),
            FaultKind::MissingKey { key, space_hint } => Error::bad_input(format!("missing key `{key}` in {subject}"))
                .expected(format!("`{key}: …`"))
                .hint(space_hint.unwrap_or_else(|| "see the complete example at the top of docs/grid.md".to_owned())),
            FaultKind::Other(message) => Error::bad_input(format!("{subject}: {message}")),
        };
        match position {
            Some(position) => error.at(position),
            None => error,
        }
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: Display>(message: T) -> Self {
        Self::new(FaultKind::Other(message.to_string()))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(FaultKind::Type { expected: describe_expected(expected), found: describe_found(found) })
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_field(key: &str, known: &'static [&'static str]) -> Self {
        Self::new(FaultKind::UnknownKey { key: key.to_owned(), known })
    }

    fn missing_field(key: &'static str) -> Self {
        Self::new(FaultKind::MissingKey { key: key.to_owned(), space_hint: None })
    }
}

/// Returns the error for an unknown key. `subject` describes the map that contains the key.
pub(super) fn unknown_key_error(key: &str, subject: &str, known: &[&str]) -> Error {
    let error = Error::bad_input(format!("unknown key `{key}` in {subject}"))
        .hint("remove the key, or comment it out")
        .none_of(key, known.iter().copied());
    match missing_space_hint(key, known) {
        Some(how) => error.hint(how),
        None => error,
    }
}

/// Returns a hint if the key is a known key without a space after the colon, such as `name:copa`, which YAML reads as
/// one key.
fn missing_space_hint(key: &str, known: &[&str]) -> Option<String> {
    let (name, value) = key.split_once(':').filter(|(name, _)| known.contains(&name.trim()))?;
    Some(format!("write `{}: {}`, with a space after the colon", name.trim(), value.trim()))
}

/// Describes, in YAML terms, the type that serde expects.
fn describe_expected(expected: &dyn Expected) -> String {
    let expected = expected.to_string();
    match expected.as_str() {
        "usize" | "u64" => "a non-negative integer".to_owned(),
        "path string" => "a path".to_owned(),
        "a sequence" => "a list".to_owned(),
        other if other.starts_with("struct ") => "a map".to_owned(),
        _ => expected,
    }
}

fn describe_found(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => format!("the boolean `{value}`"),
        Unexpected::Unsigned(value) => format!("the number {value}"),
        Unexpected::Signed(value) => format!("the number {value}"),
        Unexpected::Float(value) => format!("the number {value}"),
        Unexpected::Str(text) => format!("the string `{text}`"),
        Unexpected::Unit | Unexpected::Option => "nothing".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a map".to_owned(),
        other => other.to_string(),
    }
}

/// Deserializes a typed struct from the root of a tree.
///
/// # Errors
/// Fails if a key is unknown or missing, or a value has the wrong type. The error gives the path and the position.
pub(super) fn from_root<'de, T: Deserialize<'de>>(root: &YamlNode) -> Result<T> {
    T::deserialize(FromNode { node: root, path: String::new() }).map_err(Fault::into_error)
}

/// Deserializer for one node of the tree.
struct FromNode<'a> {
    node: &'a YamlNode,
    path: String,
}

impl FromNode<'_> {
    fn read<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(value), _) => visitor.visit_u64(value),
                (None, Some(value)) => visitor.visit_i64(value),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::Text(text) => visitor.visit_str(text),
            Value::List(items) => visitor.visit_seq(ListItems { items: items.iter(), path: &self.path, next: Some(0) }),
            Value::Map(entries) => visitor
                .visit_map(MapEntries { entries: entries.iter(), path: &self.path, pending: None })
                .map_err(|fault| fault.with_missing_space_hint(entries)),
        }
    }
}

impl<'de> Deserializer<'de> for FromNode<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let path = self.path.clone();
        let position = &self.node.position;
        self.read(visitor).map_err(|fault| fault.with_location(&path, position))
    }

    /// Accepts a single value as a list of one item, because every list in the schema is an axis.
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if matches!(self.node.value, Value::List(_) | Value::Null) {
            return self.deserialize_any(visitor);
        }
        let items = std::slice::from_ref(self.node).iter();
        visitor.visit_seq(ListItems { items, path: &self.path, next: None })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    /// Deserializes an enum variant from its name.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let Value::Text(variant) = &self.node.value else { return self.deserialize_any(visitor) };
        let variant = StrDeserializer::<Fault>::new(variant);
        let path = self.path.clone();
        let position = &self.node.position;
        variant.deserialize_enum(name, variants, visitor).map_err(|fault| fault.with_location(&path, position))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct tuple tuple_struct map struct identifier ignored_any
    }
}

struct ListItems<'a> {
    items: std::slice::Iter<'a, YamlNode>,
    path: &'a str,
    /// Index of the next item, or `None` for a single value, whose path has no index.
    next: Option<usize>,
}

impl<'de> SeqAccess<'de> for ListItems<'_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        let Some(node) = self.items.next() else {
            return Ok(None);
        };
        let path = match &mut self.next {
            Some(next) => {
                let path = format!("{}[{next}]", self.path);
                *next += 1;
                path
            }
            None => self.path.to_owned(),
        };
        seed.deserialize(FromNode { node, path }).map(Some)
    }
}

struct MapEntries<'a> {
    entries: std::slice::Iter<'a, MapEntry>,
    path: &'a str,
    /// Entry whose key was returned last. Its value is returned next.
    pending: Option<&'a MapEntry>,
}

impl<'de> MapAccess<'de> for MapEntries<'_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        self.pending = self.entries.next();
        let Some(entry) = self.pending else {
            return Ok(None);
        };
        let key = StrDeserializer::new(&entry.key);
        seed.deserialize(key).map(Some).map_err(|fault: Fault| fault.with_location(self.path, &entry.key_position))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let entry =
            self.pending.take().ok_or_else(|| <Fault as de::Error>::custom("a value was read before its key"))?;
        let dot = if self.path.is_empty() { "" } else { "." };
        let path = format!("{}{dot}{}", self.path, entry.key);
        seed.deserialize(FromNode { node: &entry.node, path })
    }
}
