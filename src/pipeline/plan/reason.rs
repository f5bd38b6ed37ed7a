//! Explains why an object must be computed.
//!
//! The missing object is compared with stored objects whose inputs have the same names. A stored object that differs in
//! more than one setting is treated as unrelated.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{ObjectState, Plan, StoreView};
use crate::pipeline::identity::{Canonical, FlatSettings, SettingPath, setting_differences};
use crate::pipeline::stage;
use ghostlab_store::{InventoryItem, Key, Store};

/// Reason why an object is missing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(tag = "why", content = "what", rename_all = "snake_case")]
pub enum Reason {
    /// No similar object is stored.
    First,
    /// The closest stored object differs in these fields.
    Changed(Vec<Change>),
    /// The stored object is damaged. Contains the error.
    Damaged(String),
}

/// Change to one field of a key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct Change {
    /// Path of the field, such as `selection.tokens.windows.seed`.
    pub field: SettingPath,
    /// Stored value as JSON; absent if the field is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<Canonical>,
    /// Requested value as JSON; absent if the field was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Canonical>,
}

impl Change {
    /// Returns whether the field is a setting, rather than a content hash or a version.
    fn is_setting(&self) -> bool {
        let content = [&self.old, &self.new].into_iter().flatten().any(Canonical::is_hash);
        !content && !self.field.name().ends_with("version")
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} → {}", self.field, format_value(&self.old), format_value(&self.new))
    }
}

fn format_value(value: &Option<Canonical>) -> String {
    match value {
        Some(hash) if hash.is_hash() => format!("{}…", &hash.as_str()[1..13]),
        Some(other) => other.to_string(),
        None => "absent".to_string(),
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("first time"),
            Self::Damaged(what) => write!(f, "damaged ({what})"),
            Self::Changed(changes) => {
                let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
                write!(f, "changed: {}", changes.join(", "))
            }
        }
    }
}

/// Fields and input names of a key, by which keys are compared.
struct KeyParts {
    flat: FlatSettings,
    /// Kind and name of each input, such as `tokens c4`.
    inputs: BTreeSet<String>,
}

/// Index for finding stored objects that are similar to a missing one.
pub struct StoredKeyIndex {
    stored: HashMap<&'static str, Vec<KeyParts>>,
    /// Index of an object in `stored`, by a hash of its input names and of all fields except one.
    by_partial_hash: HashMap<(&'static str, u64), usize>,
}

/// Maximum number of stored objects to compare one by one if none of them differs in exactly one field.
const MAX_COMPARED: usize = 400;

impl StoredKeyIndex {
    /// Creates the index for a plan. Objects of the plan itself are excluded.
    pub fn new(store: &Store, plan: &Plan<'_>) -> Self {
        Self::from_store(store, &plan.keys().map(|key| key.hash()).collect())
    }

    fn from_store(store: &Store, used: &HashSet<&str>) -> Self {
        let mut stored = HashMap::<_, Vec<KeyParts>>::new();
        let mut by_partial_hash = HashMap::new();
        for InventoryItem { object, hash, .. } in store.entries() {
            let Ok(artifact) = object else { continue };
            if used.contains(hash.as_str()) {
                continue;
            }
            let key = &artifact.meta().key;
            let Some(kind) = stage::KINDS.into_iter().find(|kind| key["kind"] == kind.name()) else { continue };
            let parts = KeyParts { flat: flatten_key(key), inputs: collect_inputs(key) };
            let same_kind = stored.entry(kind.name()).or_default();
            for field in parts.flat.keys() {
                by_partial_hash.insert((kind.name(), hash_without(&parts, field)), same_kind.len());
            }
            same_kind.push(parts);
        }
        Self { stored, by_partial_hash }
    }

    pub fn explain(&self, key: &Key, state: &StoreView) -> Reason {
        if let ObjectState::Damaged(error) = state.object(key) {
            return Reason::Damaged(error.one_line());
        }
        self.missing_reason(key)
    }

    fn missing_reason(&self, key: &Key) -> Reason {
        let kind = key.kind().name();
        let Some(stored) = self.stored.get(kind) else { return Reason::First };
        let readable = key.readable();
        let requested = KeyParts { flat: flatten_key(&readable), inputs: collect_inputs(&readable) };
        let single =
            requested.flat.keys().find_map(|field| self.by_partial_hash.get(&(kind, hash_without(&requested, field))));
        let nearest = match single {
            Some(&index) => Some(changes_between(&stored[index].flat, &requested.flat)),
            None => {
                let comparable =
                    stored.iter().rev().filter(|object| object.inputs == requested.inputs).take(MAX_COMPARED);
                comparable.map(|comparable| changes_between(&comparable.flat, &requested.flat)).min_by_key(Vec::len)
            }
        };
        match nearest {
            Some(changes)
                if !changes.is_empty() && changes.iter().filter(|change| change.is_setting()).count() <= 1 =>
            {
                Reason::Changed(changes)
            }
            _ => Reason::First,
        }
    }
}

fn collect_inputs(key: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut stack = vec![key];
    while let Some(Value::Object(map)) = stack.pop() {
        let kind = map.get("kind").and_then(Value::as_str).unwrap_or_default();
        found.extend(map.get("input").and_then(Value::as_str).map(|input| format!("{kind} {input}")));
        stack.extend(map.get("of").into_iter().flat_map(|value| value.as_object()).flat_map(|fields| fields.values()));
    }
    found
}

/// Returns the fields of a key and of the keys that it depends on, by path. Paths omit the level `of` and the kinds. A
/// key or input hash that occurs several times is listed only at its shortest path.
fn flatten_key(key: &Value) -> FlatSettings {
    let mut found = FlatSettings::new();
    let mut seen = HashSet::new();
    let mut queue = VecDeque::from([(SettingPath::new(""), "", key)]);
    while let Some((path, name, value)) = queue.pop_front() {
        match value {
            Value::Object(map) if map.contains_key("kind") && map.contains_key("of") => {
                if seen.insert(value.to_string()) {
                    found.insert(path.child("version"), Canonical::from_value(&map["version"]));
                    queue.push_back((path, name, &map["of"]));
                }
            }
            Value::Object(map) => {
                queue.extend(map.iter().map(|(name, value)| (path.child(name), name.as_str(), value)));
            }
            other => {
                let value = Canonical::from_value(other);
                if !value.is_hash() || seen.insert(format!("{name} {value}")) {
                    found.insert(path, value);
                }
            }
        }
    }
    found
}

fn hash_without(parts: &KeyParts, field: &SettingPath) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hash = DefaultHasher::new();
    field.hash(&mut hash);
    parts.inputs.hash(&mut hash);
    parts.flat.iter().filter(|(name, _)| *name != field).for_each(|entry| entry.hash(&mut hash));
    hash.finish()
}

fn changes_between(stored: &FlatSettings, wanted: &FlatSettings) -> Vec<Change> {
    let changes = setting_differences(stored, wanted).into_iter();
    let changes = changes.map(|change| Change { field: change.path, old: change.first, new: change.second });
    // An input that occurs at several paths counts as one change.
    let mut merged: Vec<Change> = Vec::new();
    for change in changes {
        match merged.iter_mut().find(|known| (&known.old, &known.new) == (&change.old, &change.new)) {
            Some(known) if known.field.as_str().len() > change.field.as_str().len() => *known = change,
            Some(_) => {}
            None => merged.push(change),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    fn key(seed: u64, alpha: f64, content: &str) -> Key {
        let tokens = Arc::new(Key::new(stage::tokens::KIND, json!({"seed": seed}), []).with_input_name("c4"));
        let identity = json!({"backbone": content.repeat(64)});
        let selection = Key::new(stage::selection::KIND, identity, [("tokens", tokens)]).with_input_name("llama");
        Key::new(stage::operator::KIND, json!({"options": {"alpha": alpha}}), [("selection", Arc::new(selection))])
    }

    fn parts(key: &Key) -> KeyParts {
        KeyParts { flat: flatten_key(&key.readable()), inputs: collect_inputs(&key.readable()) }
    }

    fn reason(stored: &[Key], wanted: &Key) -> String {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::open(temp.path(), stage::STORE_WORDS).unwrap();
        for key in stored {
            store.put(key, 1.0, &[("x", b"x")]).unwrap();
        }
        StoredKeyIndex::from_store(&store, &HashSet::new()).missing_reason(wanted).to_string()
    }

    #[test]
    fn reason_names_the_changed_field_with_both_values() {
        assert_eq!(reason(&[key(0, 0.0, "a")], &key(0, 0.5, "a")), "changed: options.alpha: 0.0 → 0.5");
        let changed = "changed: selection.backbone: aaaaaaaaaaaa… → bbbbbbbbbbbb…";
        assert_eq!(reason(&[key(0, 0.0, "a")], &key(0, 0.0, "b")), changed, "other weights under the same name");
        let both = format!("{changed}, selection.tokens.seed: 0 → 3");
        assert_eq!(reason(&[key(0, 0.0, "a")], &key(3, 0.0, "b")), both);
    }

    #[test]
    fn unrelated_keys_are_reported_as_first_time() {
        assert_eq!(reason(&[key(0, 0.0, "a")], &key(3, 0.5, "a")), "first time", "two settings changed");
        let stored = [dense("llama", "a", "ptb")];
        assert_eq!(reason(&stored, &dense("qwen", "b", "ptb")), "first time", "another backbone");
        assert_eq!(reason(&stored, &dense("llama", "b", "c4")), "first time", "another text");
        assert!(reason(&stored, &dense("llama", "b", "ptb")).starts_with("changed: backbone"));
    }

    fn dense(name: &str, content: &str, tokens: &str) -> Key {
        let tokens = Arc::new(Key::new(stage::tokens::KIND, json!({"length": 64}), []).with_input_name(tokens));
        let identity = json!({"backbone": content.repeat(64)});
        Key::new(stage::scores::KIND, identity, [("tokens", tokens)]).with_input_name(name)
    }

    #[test]
    fn ancestor_on_two_paths_is_reported_once() {
        let stored = parts(&operator_key(0));
        let requested = parts(&operator_key(1));
        let changes = changes_between(&stored.flat, &requested.flat);
        assert_eq!(Reason::Changed(changes).to_string(), "changed: activations.tokens.seed: 0 → 1");
        let field = SettingPath::new("activations.tokens.seed");
        assert_eq!(hash_without(&stored, &field), hash_without(&requested, &field), "found by that field alone");
    }

    #[test]
    fn hash_without_a_field_ignores_its_value() {
        let stored = parts(&key(0, 0.0, "a"));
        let requested = parts(&key(9, 0.0, "a"));
        let [seed, alpha] = ["selection.tokens.seed", "options.alpha"].map(SettingPath::new);
        assert_eq!(hash_without(&stored, &seed), hash_without(&requested, &seed));
        assert_ne!(hash_without(&stored, &alpha), hash_without(&requested, &alpha));
    }

    fn operator_key(seed: u64) -> Key {
        let tokens = Arc::new(Key::new(stage::tokens::KIND, json!({"seed": seed}), []));
        let pass = Arc::new(Key::new(stage::activations::KIND, json!({"dtype": "f32"}), [("tokens", tokens)]));
        let selection = Key::new(stage::selection::KIND, json!({}), [("activations", Arc::clone(&pass))]);
        Key::new(stage::operator::KIND, json!({}), [("selection", Arc::new(selection)), ("activations", pass)])
    }
}
