//! Content keys: canonical JSON of everything that determines an object, and its SHA-256.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use ghostlab_core::files::sha256;

/// Kind of object, and the version of the stage (pipeline step) that computes it. The version is bumped when the output
/// of the stage changes so that objects from older versions are no longer found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKind {
    name: &'static str,
    version: u32,
}

impl ObjectKind {
    pub const fn new(name: &'static str, version: u32) -> Self {
        Self { name, version }
    }

    pub fn name(self) -> &'static str {
        self.name
    }

    pub fn version(self) -> u32 {
        self.version
    }

    /// Returns the name of the folder for objects of this kind.
    pub fn folder(self) -> String {
        format!("{}-v{}", self.name, self.version)
    }
}

/// Object kinds of a store, and how to store and retry them, supplied by the program that uses the store.
#[derive(Debug, Clone, Copy)]
pub struct StoreSchema {
    pub kinds: &'static [ObjectKind],
    /// Kind of small objects that are stored together in pack files.
    pub packed: ObjectKind,
    /// Function that decides whether the death of a process that held `lease` counts as a failed attempt at the job.
    pub counts_death: fn(lease: &str) -> bool,
}

impl StoreSchema {
    pub(super) fn kind(self, name: &str) -> Option<ObjectKind> {
        self.kinds.iter().copied().find(|kind| kind.name == name)
    }

    /// Splits a folder name into kind and version. The version need not be the current one.
    pub(super) fn kind_of_folder(self, name: &str) -> Option<(ObjectKind, u32)> {
        let (kind, version) = name.rsplit_once("-v")?;
        Some((self.kind(kind)?, version.parse().ok()?))
    }
}

/// Identity of an object: its kind, its settings, and its input objects.
#[derive(Debug, Clone)]
pub struct Key {
    kind: ObjectKind,
    fields: Map<String, Value>,
    parents: BTreeMap<&'static str, Arc<Key>>,
    hash: String,
    /// Name of the input in the grid (experiment file). Not part of the identity, so a model may have several names. If
    /// an older object has the same name but a different hash, the input has changed.
    input: Option<String>,
    /// Description of the object, provided by the stage that computes it. Not part of the identity, and not included in
    /// the records of derived objects.
    description: Option<Arc<dyn KeyDescription>>,
}

/// Description of an object for its record, provided by the stage that computes the object.
pub trait KeyDescription: fmt::Debug + Send + Sync {
    fn json(&self) -> Value;
}

/// Name of the field in `meta.json` that contains the description.
pub(super) const DESCRIPTION_FIELD: &str = "identity";

/// Keys are equal if their hashes are equal.
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Key {
    /// Creates a key from everything that determines the object, such as input hashes, parameters, float type and
    /// device class. `parents` are hashed too, so a change of any ancestor changes the key.
    pub fn new(kind: ObjectKind, fields: Value, parents: impl IntoIterator<Item = (&'static str, Arc<Key>)>) -> Self {
        let fields = match fields {
            Value::Object(map) => map,
            other => Map::from_iter([("value".to_string(), other)]),
        };
        let parents: BTreeMap<_, _> = parents.into_iter().collect();
        let mut hashed = fields.clone();
        hashed.extend(parents.iter().map(|(name, parent)| ((*name).to_string(), json!(parent.hash))));
        let text = canonical(&json!({"kind": kind.name(), "version": kind.version(), "of": hashed}));
        Self { kind, fields, parents, hash: sha256::of_bytes(text), input: None, description: None }
    }

    /// Attaches the name of the input in the grid.
    #[must_use]
    pub fn with_input_name(self, input: &str) -> Self {
        Self { input: Some(input.to_owned()), ..self }
    }

    #[must_use]
    pub fn with_description<A: KeyDescription + 'static>(self, description: &Arc<A>) -> Self {
        let description: Arc<dyn KeyDescription> = Arc::<A>::clone(description);
        Self { description: Some(description), ..self }
    }

    pub fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// Returns the key for `meta.json`: [`Self::readable`] and the description.
    pub(super) fn record(&self) -> Value {
        let mut record = self.readable();
        if let Some(description) = &self.description {
            record[DESCRIPTION_FIELD] = description.json();
        }
        record
    }

    /// Returns the key as JSON, with its parents expanded.
    pub fn readable(&self) -> Value {
        let mut fields = self.fields.clone();
        fields.extend(self.parents.iter().map(|(name, parent)| ((*name).to_string(), parent.readable())));
        let mut readable = json!({"kind": self.kind.name(), "version": self.kind.version(), "of": fields});
        if let Some(input) = &self.input {
            readable["input"] = json!(input);
        }
        readable
    }

    /// Iterates over the input objects.
    pub fn parents(&self) -> impl Iterator<Item = (&'static str, &Arc<Key>)> {
        self.parents.iter().map(|(name, parent)| (*name, parent))
    }

    /// Returns the SHA-256 of the canonical JSON in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Computes the hash of a key that was written by [`Self::readable`].
    pub(super) fn hash_of(readable: &Value) -> String {
        let Value::Object(fields) = &readable["of"] else { return String::new() };
        let hashed_fields: Map<String, Value> = fields
            .iter()
            .map(|(name, value)| {
                (name.clone(), {
                    if value.get("kind").is_some() && value.get("of").is_some() {
                        json!(Self::hash_of(value))
                    } else {
                        value.clone()
                    }
                })
            })
            .collect();
        let text = canonical(&json!({"kind": readable["kind"], "version": readable["version"], "of": hashed_fields}));
        sha256::of_bytes(text)
    }

    /// Returns the first 12 digits of the hash, for display.
    pub fn short(&self) -> &str {
        &self.hash[..12]
    }
}

/// Returns whether a text consists of the given number of hexadecimal digits.
pub(super) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

pub(super) fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Serializes a value as canonical JSON: no whitespace, sorted keys, shortest round-trip floats.
pub fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            format!(
                "{{{}}}",
                entries
                    .into_iter()
                    .map(|(key, value)| format!("{}:{}", json!(key), canonical(value)))
                    .collect::<Vec<_>>()
                    .join(",")
            )
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{ACTIVATIONS, SCORES, SELECTION, TOKENS};

    #[test]
    fn key_hash_ignores_only_json_formatting_and_key_order() {
        let one = parsed_key(r#"{"a": {"x": 1.50, "y": [1, 2]}, "b": "é"}"#);
        assert_eq!(one.hash(), parsed_key(r#"{"b": "é", "a": {"y": [1, 2], "x": 1.5}}"#).hash());
        for other in [
            r#"{"a": {"x": 1.5, "y": [2, 1]}, "b": "é"}"#,
            r#"{"a": {"x": 1.5000000000000002, "y": [1, 2]}, "b": "é"}"#,
            r#"{"a": {"x": 1.5, "y": [1, 2]}, "b": "e"}"#,
        ] {
            assert_ne!(one.hash(), parsed_key(other).hash(), "{other}");
        }
        let fields = one.readable()["of"].clone();
        assert_ne!(one.hash(), Key::new(ACTIVATIONS, fields, []).hash());
    }

    fn parsed_key(text: &str) -> Key {
        Key::new(SELECTION, serde_json::from_str(text).unwrap(), [])
    }

    #[test]
    fn key_hash_is_the_sha256_of_canonical_json() {
        let key = Key::new(SELECTION, json!({"depth": 7}), []);
        assert_eq!(key.hash(), sha256::of_bytes(r#"{"kind":"selection","of":{"depth":7},"version":5}"#));
        assert_eq!(key.kind().folder(), "selection-v5");
    }

    #[test]
    fn changing_an_ancestor_changes_the_key_hash() {
        assert_eq!(scores_key(1), scores_key(1));
        assert_eq!(Key::hash_of(&scores_key(1).readable()), scores_key(1).hash());
        assert_ne!(scores_key(1), scores_key(2));
        assert_eq!(scores_key(2).readable()["of"]["selection"]["of"]["tokens"]["of"]["seed"], 2);
    }

    fn scores_key(seed: u64) -> Key {
        let tokens = Arc::new(Key::new(TOKENS, json!({"seed": seed}), []));
        let selection = Arc::new(Key::new(SELECTION, json!({"depth": 2}), [("tokens", tokens)]));
        Key::new(SCORES, json!({}), [("selection", selection)])
    }
}
