//! Tree of a grid file, in which every value and key has a source position.
//!
//! Typed structs are deserialized from this tree rather than from the text. Overrides can therefore change values
//! first, and later errors can still name the line of a value.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use self::PathStep::{Item, Key};
use crate::error::Error;

/// Source position of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum YamlPosition {
    /// Position in the grid file or in the file of a named entry. Line and column are counted from 1.
    File { file: Arc<Path>, line: u64, column: u64 },
    /// `--set` argument as it was typed.
    Set(Arc<str>),
}

/// Formats the position for messages, as `grid.yaml:7:3` or as the `--set` argument.
impl fmt::Display for YamlPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            YamlPosition::File { file, line, column } => write!(f, "{}:{line}:{column}", file.display()),
            YamlPosition::Set(text) => f.write_str(text),
        }
    }
}

pub(super) type YamlNode = Positioned<Value>;

#[derive(Debug, Clone)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(String),
    List(Vec<YamlNode>),
    Map(Vec<MapEntry>),
}

/// Entry of a map. Maps keep the order of their entries so that messages list keys in the order in which they were
/// written.
#[derive(Debug, Clone)]
pub(super) struct MapEntry {
    pub(super) key: String,
    pub(super) key_position: YamlPosition,
    pub(super) node: YamlNode,
}

/// Step on the path from the root to a value.
#[derive(Debug, Clone, Copy)]
pub(super) enum PathStep<'a> {
    Key(&'a str),
    Item(usize),
}

impl YamlNode {
    /// Returns the node at the end of `steps`. If it is missing, returns the deepest node on the way so that the error
    /// is reported at the map that could contain the value.
    pub(super) fn deepest(&self, steps: &[PathStep<'_>]) -> &YamlNode {
        let Some((step, rest)) = steps.split_first() else {
            return self;
        };
        let next = match (step, &self.value) {
            (PathStep::Key(key), Value::Map(entries)) => entries.iter().find(|e| e.key == *key).map(|e| &e.node),
            (PathStep::Item(item), Value::List(nodes)) => nodes.get(*item),
            // A single value acts as a list with one item.
            (PathStep::Item(0), _) => Some(self),
            _ => None,
        };
        next.map_or(self, |node| node.deepest(rest))
    }

    pub(super) fn describe(&self) -> String {
        match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => format!("the boolean `{value}`"),
            Value::Number(number) => format!("the number {number}"),
            Value::Text(text) => format!("the string `{text}`"),
            Value::List(nodes) if nodes.is_empty() => "an empty list".to_owned(),
            Value::List(_) => "a list".to_owned(),
            Value::Map(entries) if entries.is_empty() => "an empty map".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }

    /// Returns the value of a key, or `None` if the node is not a map or lacks the key.
    pub(super) fn get(&self, key: &str) -> Option<&YamlNode> {
        self.entries().iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    /// Returns the entries of a map, or an empty slice if the node is not a map.
    pub(super) fn entries(&self) -> &[MapEntry] {
        if let Value::Map(entries) = &self.value { entries } else { &[] }
    }

    /// Returns the items of a list. Returns no items for null, and a single item for any other value.
    pub(super) fn items(&self) -> &[YamlNode] {
        match &self.value {
            Value::List(nodes) => nodes,
            Value::Null => &[],
            _ => std::slice::from_ref(self),
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Value::Text(text) = &self.value { Some(text) } else { None }
    }

    /// Merges `over` into this node. Maps are merged key by key, and everything else is replaced. A map with a
    /// different `name` is also replaced, because the options of one method do not apply to another.
    pub(super) fn merge(&mut self, over: YamlNode) {
        let renamed = match (self.get("name"), over.get("name")) {
            (Some(a), Some(b)) => a.text() != b.text(),
            _ => false,
        };
        match (&mut self.value, over.value) {
            (Value::Map(existing), Value::Map(entries)) if !renamed => {
                for entry in entries {
                    match existing.iter_mut().find(|known| known.key == entry.key) {
                        Some(known) => known.node.merge(entry.node),
                        None => existing.push(entry),
                    }
                }
            }
            (_, value) => *self = YamlNode { position: over.position, value },
        }
    }

    /// Applies `map_position` to the positions of this value and of all values and keys below it.
    pub(super) fn relocate(&mut self, map_position: &impl Fn(&YamlPosition) -> YamlPosition) {
        self.position = map_position(&self.position);
        match &mut self.value {
            Value::List(nodes) => nodes.iter_mut().for_each(|node| node.relocate(map_position)),
            Value::Map(entries) => {
                for entry in entries {
                    entry.key_position = map_position(&entry.key_position);
                    entry.node.relocate(map_position);
                }
            }
            _ => {}
        }
    }

    /// Returns the node with the positions of all its values and keys set to `position`.
    pub(super) fn with_positions(mut self, position: &YamlPosition) -> YamlNode {
        self.relocate(&|_| position.clone());
        self
    }
}

/// Value with its position, for error messages.
#[derive(Debug, Clone)]
pub(super) struct Positioned<T> {
    pub(super) value: T,
    pub(super) position: YamlPosition,
}

/// Path from the root of a grid's tree to a value that need not exist.
#[derive(Debug, Clone)]
pub(super) struct EntryPosition<'a> {
    root: &'a YamlNode,
    steps: Vec<PathStep<'a>>,
}

impl<'a> EntryPosition<'a> {
    pub(super) fn root(root: &'a YamlNode) -> Self {
        Self { root, steps: Vec::new() }
    }

    pub(super) fn key(&self, key: &'a str) -> Self {
        self.then(Key(key))
    }

    pub(super) fn item(&self, item: usize) -> Self {
        self.then(Item(item))
    }

    fn then(&self, step: PathStep<'a>) -> Self {
        Self { root: self.root, steps: [&self.steps[..], &[step]].concat() }
    }

    /// Returns the position of the value, or of the map that could contain it.
    pub(super) fn position(&self) -> YamlPosition {
        self.root.deepest(&self.steps).position.clone()
    }

    pub(super) fn with_position<T>(&self, value: T) -> Positioned<T> {
        Positioned { value, position: self.position() }
    }

    /// Creates an error that is reported at the value.
    pub(super) fn error(&self, message: impl std::fmt::Display) -> Error {
        Error::bad_input(message).at(self.position().to_string())
    }

    /// Formats the path, such as `evaluate.perplexity` or `include[0].depth`.
    pub(super) fn name(&self) -> String {
        let mut name = String::new();
        for step in &self.steps {
            match step {
                Key(key) if name.is_empty() => name.push_str(key),
                Key(key) => name.push_str(&format!(".{key}")),
                Item(item) => name.push_str(&format!("[{item}]")),
            }
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::yaml::parse_file;

    #[test]
    fn maps_are_merged_by_key_and_other_values_are_replaced() {
        let mut root =
            parse_file("a: {b: 1, c: [1, 2]}\nm: {name: x, o: 1}\nn: {name: x, o: 1}\n", Path::new("g.yaml")).unwrap();
        root.merge(parse_file("a: {c: 3, d: 4}\nm: {name: y}\nn: {o: 2}\n", Path::new("p.yaml")).unwrap());
        for (keys, expected) in [
            (["a", "b"], "the number 1 at g.yaml:1:8"),
            (["a", "c"], "the number 3 at p.yaml:1:8"),
            (["a", "d"], "the number 4 at p.yaml:1:14"),
            (["n", "name"], "the string `x` at g.yaml:3:11"),
            (["n", "o"], "the number 2 at p.yaml:3:8"),
        ] {
            let node = root.deepest(&keys.map(PathStep::Key));
            assert_eq!(format!("{} at {}", node.describe(), node.position), expected);
        }
        assert!(root.get("m").unwrap().get("o").is_none(), "options of the other method were kept");
    }
}
