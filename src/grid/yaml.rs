//! Tree of a grid file, in which every value and key has a source position, and the parser that creates it. Syntax
//! errors show the line with a caret. A grid file must contain exactly one map.
//!
//! Typed structs are deserialized from this tree rather than from the text. Overrides can therefore change values
//! first, and later errors can still name the line of a value.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Error as YamlError, MessageFormatter, Spanned, UserMessageFormatter};

use crate::error::{Error, Result};
use crate::files::regular;

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

    /// Removes a key from a map and returns its value.
    pub(super) fn take(&mut self, key: &str) -> Option<YamlNode> {
        let Value::Map(entries) = &mut self.value else { return None };
        let index = entries.iter().position(|entry| entry.key == key)?;
        Some(entries.remove(index).node)
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

/// Returns whether a path has a YAML file extension.
pub fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// Description of a YAML file and its expected contents, for use in messages.
pub(super) struct FileShape<'a> {
    /// Subject used in messages, such as `the grid` or ``the corpus `c4` ``.
    pub(super) subject: &'a str,
    pub(super) expected: &'a str,
    pub(super) hint: &'a str,
}

/// Reads a YAML file that contains one map.
pub(super) fn read(path: &Path, shape: &FileShape<'_>) -> Result<YamlNode> {
    let bytes = regular::read(path)?;
    let text = String::from_utf8(bytes).map_err(|error| encoding_error(shape.subject, path, &error))?;
    parse_map(&text, path, shape)
}

/// Parses YAML text that contains one map. Messages refer to the text as `path`.
pub(super) fn parse_map(text: &str, path: &Path, shape: &FileShape<'_>) -> Result<YamlNode> {
    let FileShape { subject, expected, hint } = shape;
    let root = if is_blank(text) { None } else { Some(parse_file(text, path)?) };
    let Some(root) = root.filter(|root| !matches!(root.value, Value::Null)) else {
        let error = Error::bad_input(format!("{subject} is empty")).at(path.display().to_string());
        return Err(error.expected(*expected).hint(*hint));
    };
    if matches!(root.value, Value::Map(_)) {
        return Ok(root);
    }
    Err(Error::bad_input(format!("{subject} is not a map"))
        .at(root.position.to_string())
        .expected(*expected)
        .found(root.describe())
        .hint("write each top-level line as `key: value`"))
}

/// Returns whether a string consists only of blank lines, comments and document markers.
fn is_blank(text: &str) -> bool {
    text.trim_start_matches('\u{feff}').lines().all(|line| {
        let line = line.trim();
        line.is_empty() || line.starts_with('#') || line == "---"
    })
}

fn encoding_error(subject: &str, path: &Path, error: &std::string::FromUtf8Error) -> Error {
    let valid_bytes = &error.as_bytes()[..error.utf8_error().valid_up_to()];
    let line = 1 + valid_bytes.iter().filter(|&&byte| byte == b'\n').count();
    Error::bad_input(format!("{subject} is not UTF-8 text"))
        .at(format!("{}:{line}", path.display()))
        .expected("UTF-8")
        .found(format!("the byte 0x{:02x}", error.as_bytes().get(valid_bytes.len()).copied().unwrap_or_default()))
        .hint("save the file as UTF-8")
}

/// Parses the YAML text of a file.
pub(super) fn parse_file(text: &str, path: &Path) -> Result<YamlNode> {
    let mut root = parse(text, &path.display().to_string())?;
    let file: Arc<Path> = path.into();
    root.relocate(&|position| match position {
        &YamlPosition::File { line, column, .. } => YamlPosition::File { file: Arc::clone(&file), line, column },
        set @ YamlPosition::Set(_) => set.clone(),
    });
    Ok(root)
}

/// Parses YAML text. Messages refer to the text as `file`. Positions have an empty file name, because serde cannot
/// provide one.
pub(super) fn parse(text: &str, file: &str) -> Result<YamlNode> {
    let options = serde_saphyr::options! {
        // Parse `no`, `on` and `off` as strings, because they may be names of recoveries or corpora.
        strict_booleans: true,
        // `parser_error` adds the line to the message.
        with_snippet: false,
    };
    let tree: Spanned<Value> =
        serde_saphyr::from_str_with_options(text, options).map_err(|e| parser_error(&e, text, file))?;
    Ok(to_node(tree))
}

/// Converts an error from the YAML parser into an error that shows the line with a caret below the column.
fn parser_error(error: &YamlError, text: &str, file: &str) -> Error {
    let error = error.without_snippet();
    let message = match error {
        YamlError::DuplicateMappingKey { key: Some(key), .. } => {
            format!("duplicate key `{key}` in a map")
        }
        YamlError::NonFiniteFloat { value, .. } => format!("`{value}` is not a finite number"),
        other => format!("invalid YAML: {}", UserMessageFormatter.format_message(other)),
    };
    let hint = match error {
        YamlError::DuplicateMappingKey { .. } => "keep one of the two, or make the values a list",
        YamlError::NonFiniteFloat { .. } => {
            "write a number between -1.8e308 and 1.8e308, or quote the value to make it a string"
        }
        // The parser reports the position before the tab, where nothing looks wrong.
        _ if message.contains("found a tab") => {
            "indent with spaces: there is a tab here or at the start of the next line"
        }
        _ => "check the indentation, brackets and quotes before this position",
    };
    let bad = Error::bad_input(message).hint(hint);
    let Some(location) = error.location() else {
        return bad.at(file);
    };
    let line = location.line();
    let column = location.column();
    let bad = bad.at(format!("{file}:{line}:{column}"));
    match usize::try_from(line - 1).ok().and_then(|skip| text.lines().nth(skip)) {
        Some(shown) if !shown.trim().is_empty() => bad.found(with_caret(shown, column)),
        _ => bad,
    }
}

/// Formats a line with a caret below `column`, which is counted from 1. Long lines are truncated around the column.
fn with_caret(line: &str, column: u64) -> String {
    const CONTEXT_CHARS: usize = 50;
    let caret = usize::try_from(column.saturating_sub(1)).unwrap_or(usize::MAX).min(line.chars().count());
    let skipped = caret.saturating_sub(CONTEXT_CHARS);
    // Replace control characters, because tabs would misplace the caret.
    let shown: String =
        line.chars().skip(skipped).take(2 * CONTEXT_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("{shown}\n{}^", " ".repeat(caret - skipped))
}

fn to_node(spanned: Spanned<Value>) -> YamlNode {
    YamlNode { position: yaml_position(&spanned), value: spanned.value }
}

fn yaml_position<T>(spanned: &Spanned<T>) -> YamlPosition {
    // For a value that comes from an alias, report the line of the alias, because the user has to fix it there.
    YamlPosition::File {
        file: Path::new("").into(),
        line: spanned.referenced.line(),
        column: spanned.referenced.column(),
    }
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
            nodes.push(to_node(item));
        }
        Ok(Value::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let node = to_node(map.next_value()?);
            let key_position = yaml_position(&key);
            entries.push(MapEntry { key: key.value, key_position, node });
        }
        Ok(Value::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_and_key_has_a_line_and_column() {
        let root = parse_file("a: 1\nb:\n  - {c: x, d: no}\n", Path::new("g.yaml")).unwrap();
        for (steps, position) in [
            (&[PathStep::Key("a")][..], "g.yaml:1:4"),
            (&[PathStep::Key("b"), PathStep::Item(0), PathStep::Key("c")], "g.yaml:3:9"),
        ] {
            assert_eq!(root.deepest(steps).position.to_string(), position);
        }
        let Value::Map(entries) = &root.deepest(&[PathStep::Key("b"), PathStep::Item(0)]).value else {
            panic!("expected a map")
        };
        assert_eq!(entries[1].key_position.to_string(), "g.yaml:3:12");
        assert!(matches!(&entries[1].node.value, Value::Text(text) if text == "no"));
    }

    #[test]
    fn missing_key_is_located_at_its_map() {
        let root = parse_file("a: {b: 1}\n", Path::new("g.yaml")).unwrap();
        assert_eq!(root.deepest(&[PathStep::Key("a"), PathStep::Key("z")]).position.to_string(), "g.yaml:1:4");
    }

    #[test]
    fn non_finite_number_is_rejected_with_a_hint() {
        for value in [".inf", "-.inf", ".nan", "1e400", "-9e999"] {
            let error = parse(&format!("a: 1\nb: {value}\n"), "g.yaml").unwrap_err().to_string();
            assert!(error.contains("g.yaml:2:4") && error.contains("write a number between"), "{value}: {error}");
            assert!(!error.contains("indentation"), "{value}: {error}");
        }
        assert!(parse("b: \"1e400\"\n", "g.yaml").is_ok(), "a quoted number is a string");
    }

    #[test]
    fn caret_is_below_its_column_even_in_a_long_line() {
        assert_eq!(with_caret("a: [", 4), "a: [\n   ^");
        let long = format!("{}!{}", "x".repeat(300), "y".repeat(300));
        let shown = with_caret(&long, 301);
        let (line, caret) = shown.split_once('\n').unwrap();
        assert_eq!(line.chars().nth(caret.len() - 1), Some('!'));
        assert!(line.len() <= 100);
    }

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
