//! Where a value stands in a grid, for the complaints about it.

use super::node::PathStep::{Item, Key};
use super::node::{PathStep, YamlNode, YamlPosition};
use crate::error::Error;

/// A value and the place that a complaint about it names.
#[derive(Debug, Clone)]
pub(super) struct Positioned<T> {
    pub(super) value: T,
    pub(super) place: YamlPosition,
}

/// The way from the root of a grid's tree to a value, which need not be written.
#[derive(Debug, Clone)]
pub(super) struct At<'a> {
    root: &'a YamlNode,
    steps: Vec<PathStep<'a>>,
}

impl<'a> At<'a> {
    pub(super) fn root(root: &'a YamlNode) -> Self {
        Self { root, steps: Vec::new() }
    }

    /// The value of a key of the map that stands here.
    pub(super) fn key(&self, key: &'a str) -> Self {
        self.then(Key(key))
    }

    /// An item of the list that stands here.
    pub(super) fn item(&self, item: usize) -> Self {
        self.then(Item(item))
    }

    fn then(&self, step: PathStep<'a>) -> Self {
        Self { root: self.root, steps: [&self.steps[..], &[step]].concat() }
    }

    /// Of a value that is not written, the place of the map that could have held it.
    pub(super) fn place(&self) -> YamlPosition {
        self.root.deepest(&self.steps).place.clone()
    }

    pub(super) fn placed<T>(&self, value: T) -> Positioned<T> {
        Positioned { value, place: self.place() }
    }

    /// A complaint about the value.
    pub(super) fn bad(&self, what: impl std::fmt::Display) -> Error {
        Error::bad_input(what).at(self.place().to_string())
    }

    /// `evaluate.perplexity`, `include[0].depth`
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
