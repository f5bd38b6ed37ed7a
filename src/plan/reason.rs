//! Why something has to be made: nothing like it was made before, or a field of its key has changed.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;

use serde_json::Value;

use super::{KeyState, Plan, StoreState};
use crate::store::{ArtifactKind, Found, InventoryItem, Key, Store};

/// Why an artifact is not there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Nothing like it is stored.
    First,
    /// The most similar stored artifact differs in these fields.
    Changed(Vec<Change>),
    /// It is stored and damaged.
    Damaged(String),
}

/// A field of a key that differs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// The path of the field: `selection.tokens.windows.seed`.
    pub field: String,
    /// What is stored; none where the field is new.
    pub old: Option<String>,
    /// What is asked for; none where the field is gone.
    pub new: Option<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<String>| match value {
            Some(text) if is_hash(text) => format!("{}…", &text[1..13]),
            Some(text) => text.clone(),
            None => "absent".to_string(),
        };
        write!(f, "{}: {} → {}", self.field, shown(&self.old), shown(&self.new))
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

type Leaves = BTreeMap<String, String>;

/// Finds reasons by comparing with what is stored.
pub struct Reasons {
    stored: HashMap<&'static str, Vec<Leaves>>,
    /// Of each stored artifact and each of its fields: everything but that field → the artifact.
    nearly: HashMap<(&'static str, u64), usize>,
}

/// More differences than this are no longer a change of something but another thing.
const FEW: usize = 4;
/// With so many stored artifacts a missing one is compared where no single field explains it.
const COMPARED: usize = 400;

impl Reasons {
    /// Reasons for a plan. What the plan uses itself stays what it is: nothing that is missing beside it has replaced it.
    pub fn new(store: &Store, plan: &Plan<'_>) -> Self {
        let of_variants = plan.variants().flat_map(|(_, variant)| variant.keys());
        let tokens = plan.backbones.iter().flat_map(super::BackbonePlan::tokens);
        let used: HashSet<&str> = of_variants.chain(tokens).map(|key| key.hash()).collect();
        let (mut stored, mut nearly) = (HashMap::<_, Vec<Leaves>>::new(), HashMap::new());
        for InventoryItem { found, hash, .. } in store.entries() {
            let Found::Whole(artifact) = found else { continue };
            if used.contains(hash.as_str()) {
                continue;
            }
            let key = &artifact.meta().key;
            let Some(kind) = ArtifactKind::ALL.into_iter().find(|kind| key["kind"] == kind.name()) else { continue };
            let leaves = leaves(key);
            let of_kind = stored.entry(kind.name()).or_default();
            for field in leaves.keys() {
                nearly.insert((kind.name(), all_but(&leaves, field)), of_kind.len());
            }
            of_kind.push(leaves);
        }
        Self { stored, nearly }
    }

    /// Why a key that is not stored whole has to be made.
    pub fn of(&self, key: &Key, state: &StoreState) -> Reason {
        if let KeyState::Damaged(error) = state.of(key) {
            return Reason::Damaged(error.one_line());
        }
        let kind = key.kind().name();
        let Some(stored) = self.stored.get(kind) else { return Reason::First };
        let wanted = leaves(&key.readable());
        let single = wanted.keys().find_map(|field| self.nearly.get(&(kind, all_but(&wanted, field))));
        let nearest = match single {
            Some(&index) => Some(differences(&stored[index], &wanted)),
            None => stored.iter().rev().take(COMPARED).map(|of| differences(of, &wanted)).min_by_key(Vec::len),
        };
        match nearest {
            Some(changes) if !changes.is_empty() && changes.len() <= FEW => Reason::Changed(changes),
            _ => Reason::First,
        }
    }
}

/// The fields of a key by their paths. The steps `of` and the kinds of parents are left out: they are always there. What
/// stands on several paths, an ancestor or an input's hash, is told once, by the shortest.
fn leaves(key: &Value) -> Leaves {
    let (mut found, mut told) = (Leaves::new(), HashSet::new());
    let mut left = VecDeque::from([(String::new(), "", key)]);
    while let Some((path, name, value)) = left.pop_front() {
        let below = |name: &str| if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
        match value {
            Value::Object(map) if map.contains_key("kind") && map.contains_key("of") => {
                if told.insert(value.to_string()) {
                    found.insert(below("version"), map["version"].to_string());
                    left.push_back((path, name, &map["of"]));
                }
            }
            Value::Object(map) => left.extend(map.iter().map(|(name, value)| (below(name), name.as_str(), value))),
            other => {
                let text = other.to_string();
                if !is_hash(&text) || told.insert(format!("{name} {text}")) {
                    found.insert(path, text);
                }
            }
        }
    }
    found
}

/// Whether a value in JSON is a hash: they are long, and say nothing.
fn is_hash(text: &str) -> bool {
    text.len() == 66
}

fn all_but(leaves: &Leaves, field: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hash = DefaultHasher::new();
    field.hash(&mut hash);
    leaves.iter().filter(|(name, _)| *name != field).for_each(|entry| entry.hash(&mut hash));
    hash.finish()
}

fn differences(stored: &Leaves, wanted: &Leaves) -> Vec<Change> {
    let fields: std::collections::BTreeSet<&String> = stored.keys().chain(wanted.keys()).collect();
    let change = |field: &String| {
        let (old, new) = (stored.get(field).cloned(), wanted.get(field).cloned());
        (old != new).then(|| Change { field: field.clone(), old, new })
    };
    let changes: Vec<Change> = fields.into_iter().filter_map(change).collect();
    // The same input on several paths is one change: the shortest path tells it.
    let mut told: Vec<Change> = Vec::new();
    for change in changes {
        match told.iter_mut().find(|known| (&known.old, &known.new) == (&change.old, &change.new)) {
            Some(known) if known.field.len() > change.field.len() => *known = change,
            Some(_) => {}
            None => told.push(change),
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    fn key(seed: u64, alpha: f64, backbone: &str) -> Key {
        let tokens = Arc::new(Key::new(ArtifactKind::Tokens, json!({"seed": seed}), []));
        let selection = Key::new(ArtifactKind::Selection, json!({"backbone": backbone}), [("tokens", tokens)]);
        Key::new(ArtifactKind::Operator, json!({"options": {"alpha": alpha}}), [("selection", Arc::new(selection))])
    }

    #[test]
    fn a_changed_field_is_named_with_its_old_and_new_value() {
        let (stored, wanted) = (leaves(&key(0, 0.0, "a").readable()), leaves(&key(0, 0.5, "a").readable()));
        let changes = differences(&stored, &wanted);
        assert_eq!(Reason::Changed(changes).to_string(), "changed: options.alpha: 0.0 → 0.5");
        let wanted = leaves(&key(3, 0.0, "b").readable());
        let changes = differences(&stored, &wanted);
        assert_eq!(
            Reason::Changed(changes).to_string(),
            "changed: selection.backbone: \"a\" → \"b\", selection.tokens.seed: 0 → 3"
        );
    }

    #[test]
    fn an_ancestor_on_two_paths_is_told_once() {
        let key = |seed: u64| {
            let tokens = Arc::new(Key::new(ArtifactKind::Tokens, json!({"seed": seed}), []));
            let pass = Arc::new(Key::new(ArtifactKind::Activations, json!({"dtype": "f32"}), [("tokens", tokens)]));
            let selection = Key::new(ArtifactKind::Selection, json!({}), [("activations", Arc::clone(&pass))]);
            Key::new(ArtifactKind::Operator, json!({}), [("selection", Arc::new(selection)), ("activations", pass)])
        };
        let (stored, wanted) = (leaves(&key(0).readable()), leaves(&key(1).readable()));
        let changes = differences(&stored, &wanted);
        assert_eq!(Reason::Changed(changes).to_string(), "changed: activations.tokens.seed: 0 → 1");
        let field = "activations.tokens.seed";
        assert_eq!(all_but(&stored, field), all_but(&wanted, field), "found by that field alone");
    }

    #[test]
    fn leaving_one_field_out_finds_its_like() {
        let (stored, wanted) = (leaves(&key(0, 0.0, "a").readable()), leaves(&key(9, 0.0, "a").readable()));
        assert_eq!(all_but(&stored, "selection.tokens.seed"), all_but(&wanted, "selection.tokens.seed"));
        assert_ne!(all_but(&stored, "options.alpha"), all_but(&wanted, "options.alpha"));
    }
}
