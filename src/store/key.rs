//! Keys: what made an artifact, in canonical JSON, and its SHA-256.

use serde_json::{Value, json};

use crate::files::sha256;

/// What an artifact is. Each kind has the version of the stage that makes it: a stage that gives other bytes than
/// before gets the next number, and what older versions stored is not found any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The residual stream at one site, for all calibration tokens.
    Activations,
    /// The layers that a criterion picked, with its scores.
    Selection,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Activations => "activations",
            Self::Selection => "selection",
        }
    }

    fn version(self) -> u32 {
        match self {
            Self::Activations | Self::Selection => 1,
        }
    }
}

/// The identity of an artifact.
#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    kind: Kind,
    readable: Value,
    hash: String,
}

impl Key {
    /// A key of what made the artifact: input hashes, parameters, float type, device class.
    pub fn new(kind: Kind, made_of: &Value) -> Self {
        let readable = json!({"kind": kind.name(), "version": kind.version(), "of": made_of});
        let hash = sha256::of_bytes(canonical(&readable));
        Self { kind, readable, hash }
    }

    /// The key in words, as `meta.json` keeps it.
    pub fn readable(&self) -> &Value {
        &self.readable
    }

    /// SHA-256 of the canonical JSON, in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    pub(super) fn folder(&self) -> String {
        format!("{}-v{}", self.kind.name(), self.kind.version())
    }
}

/// JSON without spaces, keys sorted, floats in their shortest form that reads back the same.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            let entries: Vec<String> =
                entries.into_iter().map(|(key, value)| format!("{}:{}", json!(key), canonical(value))).collect();
            format!("{{{}}}", entries.join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_entries_does_not_matter_and_everything_else_does() {
        let key = |text: &str| Key::new(Kind::Selection, &serde_json::from_str(text).unwrap());
        let one = key(r#"{"a": {"x": 1.50, "y": [1, 2]}, "b": "é"}"#);
        assert_eq!(one.hash(), key(r#"{"b": "é", "a": {"y": [1, 2], "x": 1.5}}"#).hash());
        for other in [
            r#"{"a": {"x": 1.5, "y": [2, 1]}, "b": "é"}"#,
            r#"{"a": {"x": 1.5000000000000002, "y": [1, 2]}, "b": "é"}"#,
            r#"{"a": {"x": 1.5, "y": [1, 2]}, "b": "e"}"#,
        ] {
            assert_ne!(one.hash(), key(other).hash(), "{other}");
        }
        let of = one.readable()["of"].clone();
        assert_ne!(one.hash(), Key::new(Kind::Activations, &of).hash());
    }

    #[test]
    fn a_key_is_the_sha_256_of_its_canonical_form() {
        // printf '{"kind":"selection","of":{"depth":7},"version":1}' | sha256sum
        let key = Key::new(Kind::Selection, &json!({"depth": 7}));
        assert_eq!(canonical(key.readable()), r#"{"kind":"selection","of":{"depth":7},"version":1}"#);
        assert_eq!(key.hash(), "cb38cd0f8bc3e359c56ca268388217accf595f293fe3e24b59996e26cb39fa39");
        assert_eq!(key.folder(), "selection-v1");
    }
}
