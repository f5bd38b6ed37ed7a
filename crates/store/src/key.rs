//! Keys: what made an object, in canonical JSON, and its SHA-256.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use ghostlab_core::files::sha256;

/// A kind of object with the version of the stage that makes it. A stage whose output changes gets the next version,
/// and objects of older versions are no longer found.
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

    /// Returns the version of the stage.
    pub fn version(self) -> u32 {
        self.version
    }

    /// Returns the folder name of this kind.
    pub fn folder(self) -> String {
        format!("{}-v{}", self.name, self.version)
    }
}

/// Settings that the program passes when it opens a store: the store itself knows no stages.
#[derive(Debug, Clone, Copy)]
pub struct StoreWords {
    /// Every kind of object that is stored.
    pub kinds: &'static [ObjectKind],
    /// The kind that is made by the hundred: many share a file.
    pub packed: ObjectKind,
    /// Whether a process that dies with this claim was at work that may have killed it: then its death is an attempt.
    pub counts_death: fn(claim: &str) -> bool,
}

impl StoreWords {
    pub(super) fn kind(self, name: &str) -> Option<ObjectKind> {
        self.kinds.iter().copied().find(|kind| kind.name == name)
    }

    /// Parses the kind and version of a folder name, for any version.
    pub(super) fn of_folder(self, name: &str) -> Option<(ObjectKind, u32)> {
        let (kind, version) = name.rsplit_once("-v")?;
        Some((self.kind(kind)?, version.parse().ok()?))
    }
}

/// The identity of an object: its kind, its settings, and the objects that it derives from.
#[derive(Debug, Clone)]
pub struct Key {
    kind: ObjectKind,
    of: Map<String, Value>,
    parents: BTreeMap<&'static str, Arc<Key>>,
    hash: String,
    /// Name of the input in the grid. Not part of the identity: a backbone under another name is the same backbone. Two
    /// contents under one name mean that the input changed.
    input: Option<String>,
    /// Description of the object by its maker. Not part of the identity, nor of any parent's record.
    about: Option<Arc<dyn About>>,
}

/// Description of an object by its maker, for the object's record.
pub trait About: fmt::Debug + Send + Sync {
    fn json(&self) -> Value;
}

/// The entry of a record that holds it.
pub(super) const ABOUT: &str = "identity";

/// Equal keys, equal objects.
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Key {
    /// Creates a key from everything that determines the object: input hashes, parameters, float type, device class.
    /// `parents` appear by hash, so that a change of any ancestor changes the key.
    pub fn new(kind: ObjectKind, fields: Value, parents: impl IntoIterator<Item = (&'static str, Arc<Key>)>) -> Self {
        let fields = match fields {
            Value::Object(map) => map,
            other => Map::from_iter([("value".to_string(), other)]),
        };
        let parents: BTreeMap<_, _> = parents.into_iter().collect();
        let mut hashed = fields.clone();
        hashed.extend(parents.iter().map(|(name, parent)| ((*name).to_string(), json!(parent.hash))));
        let text = canonical(&json!({"kind": kind.name(), "version": kind.version(), "of": hashed}));
        Self { kind, of: fields, parents, hash: sha256::of_bytes(text), input: None, about: None }
    }

    /// Attaches the grid's name of the input.
    #[must_use]
    pub fn named(self, input: &str) -> Self {
        Self { input: Some(input.to_owned()), ..self }
    }

    /// Attaches a description of the object.
    #[must_use]
    pub fn about<A: About + 'static>(self, what: &Arc<A>) -> Self {
        let description: Arc<dyn About> = Arc::<A>::clone(what);
        Self { about: Some(description), ..self }
    }

    pub fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// Returns the JSON for `meta.json`: the readable key, and the description of the object.
    pub(super) fn record(&self) -> Value {
        let mut record = self.readable();
        if let Some(description) = &self.about {
            record[ABOUT] = description.json();
        }
        record
    }

    /// Returns the readable key with its parents written out.
    pub fn readable(&self) -> Value {
        let mut fields = self.of.clone();
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

    /// Hashes a readable key.
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

    /// Returns the first digits of the hash, for display.
    pub fn short(&self) -> &str {
        &self.hash[..12]
    }
}

/// Serializes canonical JSON: no spaces, sorted keys, shortest round-trip floats.
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
    fn order_of_entries_is_irrelevant_and_all_else_matters() {
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
    fn a_key_is_the_sha_256_of_its_canonical_form() {
        // printf '{"kind":"selection","of":{"depth":7},"version":5}' | sha256sum
        let key = Key::new(SELECTION, json!({"depth": 7}), []);
        assert_eq!(key.hash(), sha256::of_bytes(r#"{"kind":"selection","of":{"depth":7},"version":5}"#));
        assert_eq!(key.kind().folder(), "selection-v5");
    }

    #[test]
    fn a_change_of_an_ancestor_changes_the_key_and_shows_in_words() {
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
