//! The grid as a tree in which every value and key knows where it was written.
//!
//! The typed schema is read from this tree instead of from the text, because overrides have to be applied in between, and
//! because every later complaint about a value must be able to name the line that holds it.

use std::fmt;
use std::path::Path;
use std::rc::Rc;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Error as YamlError, MessageFormatter, Spanned, UserMessageFormatter};

use crate::error::{Error, Result};

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// In the grid's file, or in the file of a named entry; line and column count from 1.
    File { file: Rc<Path>, line: u64, column: u64 },
    /// In a `--set` argument, kept as it was typed.
    Set(Rc<str>),
}

/// As messages name it: `grid.yaml:7:3`, or the argument.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { file, line, column } => write!(f, "{}:{line}:{column}", file.display()),
            Place::Set(text) => f.write_str(text),
        }
    }
}

/// A value and its place.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) value: Value,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(String),
    List(Vec<Node>),
    Map(Vec<MapEntry>),
}

/// One key of a map with its value. Order is kept, so that messages list keys as the user wrote them.
#[derive(Debug, Clone)]
pub(super) struct MapEntry {
    pub(super) key: String,
    pub(super) key_place: Place,
    pub(super) node: Node,
}

/// One step on the way from the root to a value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step<'a> {
    Key(&'a str),
    Item(usize),
}

impl Node {
    /// The node at the end of `steps`, or the deepest one on the way that exists: a value left to its default is
    /// complained about where the map that could have held it stands.
    pub(super) fn deepest(&self, steps: &[Step<'_>]) -> &Node {
        let Some((step, rest)) = steps.split_first() else {
            return self;
        };
        let next = match (step, &self.value) {
            (Step::Key(key), Value::Map(entries)) => entries.iter().find(|e| e.key == *key).map(|e| &e.node),
            (Step::Item(item), Value::List(nodes)) => nodes.get(*item),
            // A single value stands for a list of one.
            (Step::Item(0), _) => Some(self),
            _ => None,
        };
        next.map_or(self, |node| node.deepest(rest))
    }

    /// What this value is, in words.
    pub(super) fn describe(&self) -> String {
        match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => format!("the truth value `{value}`"),
            Value::Number(number) => format!("the number {number}"),
            Value::Text(text) => format!("the text `{text}`"),
            Value::List(nodes) if nodes.is_empty() => "an empty list".to_owned(),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }

    /// The value of a key, where this is a map that has it.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    /// The entries of a map; of anything else, none.
    pub(super) fn entries(&self) -> &[MapEntry] {
        if let Value::Map(entries) = &self.value { entries } else { &[] }
    }

    /// The items of a list, or the one value that stands for a list of one. Nothing is no item.
    pub(super) fn items(&self) -> &[Node] {
        match &self.value {
            Value::List(nodes) => nodes,
            Value::Null => &[],
            _ => std::slice::from_ref(self),
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Value::Text(text) = &self.value { Some(text) } else { None }
    }

    /// Lays `over` upon this: maps are merged key by key, everything else is replaced. So is a map whose `name` is
    /// another one: a method's options mean nothing to another method.
    pub(super) fn merge(&mut self, over: Node) {
        let differs = |a: Option<&Node>, b: Option<&Node>| match (a, b) {
            (Some(a), Some(b)) => a.text() != b.text(),
            _ => false,
        };
        let renamed = differs(self.get("name"), over.get("name"));
        match (&mut self.value, over.value) {
            (Value::Map(own), Value::Map(entries)) if !renamed => {
                for entry in entries {
                    match own.iter_mut().find(|known| known.key == entry.key) {
                        Some(known) => known.node.merge(entry.node),
                        None => own.push(entry),
                    }
                }
            }
            (_, value) => *self = Node { place: over.place, value },
        }
    }

    /// Changes the place of this value and of all keys and values in it.
    fn relocate(&mut self, place: &impl Fn(&Place) -> Place) {
        self.place = place(&self.place);
        match &mut self.value {
            Value::List(nodes) => nodes.iter_mut().for_each(|node| node.relocate(place)),
            Value::Map(entries) => {
                for entry in entries {
                    entry.key_place = place(&entry.key_place);
                    entry.node.relocate(place);
                }
            }
            _ => {}
        }
    }

    /// The same value as if all of it had been written at `place`.
    pub(super) fn moved_to(mut self, place: &Place) -> Node {
        self.relocate(&|_| place.clone());
        self
    }
}

/// Reads the YAML text of a file.
pub(super) fn parse_file(text: &str, path: &Path) -> Result<Node> {
    let mut root = parse(text, &path.display().to_string())?;
    let file: Rc<Path> = path.into();
    root.relocate(&|place| match place {
        &Place::File { line, column, .. } => Place::File { file: Rc::clone(&file), line, column },
        set @ Place::Set(_) => set.clone(),
    });
    Ok(root)
}

/// Reads YAML text; `file` is how messages name it. The places in it name no file yet: serde has no way to tell them.
pub(super) fn parse(text: &str, file: &str) -> Result<Node> {
    let options = serde_saphyr::options! {
        // `no`, `on` and `off` are words here: a recovery or a corpus may be called so.
        strict_booleans: true,
        // The message shows the line itself, in the shape of all other messages.
        with_snippet: false,
    };
    let tree: Spanned<Value> =
        serde_saphyr::from_str_with_options(text, options).map_err(|e| explain(&e, text, file))?;
    Ok(node_of(tree))
}

/// A message of the YAML parser in the house's form, with the offending line and a caret below the column.
fn explain(error: &YamlError, text: &str, file: &str) -> Error {
    let error = error.without_snippet();
    let message = match error {
        YamlError::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key `{key}` stands twice in the same map")
        }
        other => format!("this is not valid YAML: {}", UserMessageFormatter.format_message(other)),
    };
    let hint = match error {
        YamlError::DuplicateMappingKey { .. } => "keep one of the two, or make the values a list",
        // The parser points at the value before the tab, where nothing wrong is to be seen.
        _ if message.contains("found a tab") => {
            "indent with spaces: there is a tab here or at the start of the next line"
        }
        _ => "check the indentation, the brackets and the quotes up to this place",
    };
    let bad = Error::bad_input(message).hint(hint);
    let Some(location) = error.location() else {
        return bad.at(file);
    };
    let (line, column) = (location.line(), location.column());
    let bad = bad.at(format!("{file}:{line}:{column}"));
    match usize::try_from(line - 1).ok().and_then(|skip| text.lines().nth(skip)) {
        Some(shown) if !shown.trim().is_empty() => bad.found(with_caret(shown, column)),
        _ => bad,
    }
}

/// The line and, below it, a caret under its `column` (from 1). Only the part around the column of a long line.
fn with_caret(line: &str, column: u64) -> String {
    const AROUND: usize = 50;
    let caret = usize::try_from(column.saturating_sub(1)).unwrap_or(usize::MAX).min(line.chars().count());
    let skipped = caret.saturating_sub(AROUND);
    // A tab would put the caret under another character than the one meant.
    let shown: String =
        line.chars().skip(skipped).take(2 * AROUND).map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("{shown}\n{}^", " ".repeat(caret - skipped))
}

fn node_of(spanned: Spanned<Value>) -> Node {
    Node { place: place_of(&spanned), value: spanned.value }
}

fn place_of<T>(spanned: &Spanned<T>) -> Place {
    // For an alias this is the line that uses the value, which is the one the user has to think about.
    Place::File { file: Path::new("").into(), line: spanned.referenced.line(), column: spanned.referenced.column() }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list or a map")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        serde_json::Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number must be finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut nodes = Vec::new();
        while let Some(item) = items.next_element::<Spanned<Value>>()? {
            nodes.push(node_of(item));
        }
        Ok(Value::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let node = node_of(map.next_value()?);
            let key_place = place_of(&key);
            entries.push(MapEntry { key: key.value, key_place, node });
        }
        Ok(Value::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_and_key_knows_its_line_and_column() {
        let root = parse_file("a: 1\nb:\n  - {c: x, d: no}\n", Path::new("g.yaml")).unwrap();
        let place = |steps: &[Step<'_>]| root.deepest(steps).place.to_string();
        assert_eq!(place(&[Step::Key("a")]), "g.yaml:1:4");
        assert_eq!(place(&[Step::Key("b"), Step::Item(0), Step::Key("c")]), "g.yaml:3:9");
        let Value::Map(entries) = &root.deepest(&[Step::Key("b"), Step::Item(0)]).value else { panic!("no map") };
        assert_eq!(entries[1].key_place.to_string(), "g.yaml:3:12");
        assert!(matches!(&entries[1].node.value, Value::Text(text) if text == "no"));
    }

    #[test]
    fn the_place_of_an_absent_key_is_that_of_its_map() {
        let root = parse_file("a: {b: 1}\n", Path::new("g.yaml")).unwrap();
        assert_eq!(root.deepest(&[Step::Key("a"), Step::Key("z")]).place.to_string(), "g.yaml:1:4");
    }

    #[test]
    fn maps_are_merged_key_by_key_and_everything_else_is_replaced() {
        let mut root =
            parse_file("a: {b: 1, c: [1, 2]}\nm: {name: x, o: 1}\nn: {name: x, o: 1}\n", Path::new("g.yaml")).unwrap();
        root.merge(parse_file("a: {c: 3, d: 4}\nm: {name: y}\nn: {o: 2}\n", Path::new("p.yaml")).unwrap());
        let shown = |keys: [&str; 2]| {
            let node = root.deepest(&keys.map(Step::Key));
            format!("{} at {}", node.describe(), node.place)
        };
        assert_eq!(shown(["a", "b"]), "the number 1 at g.yaml:1:8");
        assert_eq!(shown(["a", "c"]), "the number 3 at p.yaml:1:8");
        assert_eq!(shown(["a", "d"]), "the number 4 at p.yaml:1:14");
        assert_eq!(shown(["n", "name"]), "the text `x` at g.yaml:3:11");
        assert_eq!(shown(["n", "o"]), "the number 2 at p.yaml:3:8");
        assert!(root.get("m").unwrap().get("o").is_none(), "another method's options stayed");
    }

    #[test]
    fn the_caret_stands_below_its_column_even_in_a_long_line() {
        assert_eq!(with_caret("a: [", 4), "a: [\n   ^");
        let long = format!("{}!{}", "x".repeat(300), "y".repeat(300));
        let shown = with_caret(&long, 301);
        let (line, caret) = shown.split_once('\n').unwrap();
        assert_eq!(line.chars().nth(caret.len() - 1), Some('!'));
        assert!(line.len() <= 100);
    }
}
