//! YAML parser that behaves like PyYAML: plain scalars are resolved by YAML 1.1 rules, and the last duplicate key wins.
//! Each value has a line number.

mod scalar;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::regular;
use granit_parser::{Event, Parser, ScalarStyle, Span};

use crate::activity;
use crate::keys::KeyIndex;
use crate::value::Value;
use scalar::resolve_scalar;

/// Maximum number of values in a file, with aliases expanded.
const MAX_VALUES: usize = 2_000_000;
/// Maximum nesting depth of a file.
const MAX_DEPTH: usize = 100;
/// Maximum total length in bytes of the strings in a file, with aliases expanded.
const MAX_TEXT_BYTES: usize = 64_000_000;
/// Maximum number of unindented lines inside quoted strings per file.
const MAX_UNINDENTED_LINES: usize = 200;

/// File and line of a YAML value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLocation {
    /// File name for error messages.
    pub file: Arc<str>,
    /// Line number, starting at 1.
    pub line: usize,
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// YAML value with its location.
#[derive(Debug, Clone)]
pub struct Node {
    pub tree: Tree,
    /// Location of the start of the value.
    pub location: SourceLocation,
}

/// YAML value without its location.
#[derive(Debug, Clone)]
pub enum Tree {
    /// String, number, boolean or null.
    Scalar(Value),
    List(Vec<Node>),
    /// Mapping in which the last duplicate key wins.
    Map(Vec<(Value, Node)>),
    /// Hook: `!function module.name`, a Python function that is never run.
    Hook(String),
}

impl Node {
    pub fn get(&self, name: &str) -> Option<&Node> {
        self.pairs().iter().find(|(key, _)| key.as_text() == Some(name)).map(|(_, node)| node)
    }

    /// Returns the keys and nodes of a mapping, or an empty slice for other nodes.
    pub fn pairs(&self) -> &[(Value, Node)] {
        if let Tree::Map(pairs) = &self.tree { pairs } else { &[] }
    }

    /// Returns the items of a list, or the node itself as the only item.
    pub(crate) fn items(&self) -> &[Node] {
        if let Tree::List(items) = &self.tree { items } else { std::slice::from_ref(self) }
    }

    /// Sets the node for a key. Does nothing if this is not a mapping.
    pub fn set(&mut self, name: &Value, node: Node) {
        let Tree::Map(pairs) = &mut self.tree else { return };
        KeyIndex::new(pairs).set(pairs, name.clone(), node);
    }

    pub(crate) fn empty(location: SourceLocation) -> Self {
        Self { tree: Tree::Map(Vec::new()), location }
    }

    /// Copies all entries of another mapping, replacing existing keys.
    pub(crate) fn set_all(&mut self, other: &Node) {
        let Tree::Map(pairs) = &mut self.tree else { return };
        let mut index = KeyIndex::new(pairs);
        for (key, node) in other.pairs() {
            index.set(pairs, key.clone(), node.clone());
        }
    }

    /// Removes the node for a key and returns it.
    pub fn take(&mut self, name: &str) -> Option<Node> {
        let Tree::Map(pairs) = &mut self.tree else { return None };
        let index = pairs.iter().position(|(key, _)| key.as_text() == Some(name))?;
        Some(pairs.remove(index).1)
    }

    /// Returns the text, or `None` if this is not a string.
    pub fn text(&self) -> Option<&str> {
        if let Tree::Scalar(value) = &self.tree { value.as_text() } else { None }
    }

    pub fn is_null(&self) -> bool {
        matches!(self.tree, Tree::Scalar(Value::None))
    }

    /// Returns the first hook in this node, with its key path such as `filter.function`.
    pub fn hook(&self) -> Option<(String, &Node)> {
        match &self.tree {
            Tree::Hook(_) => Some((String::new(), self)),
            Tree::Scalar(_) => None,
            Tree::List(items) => items.iter().find_map(Self::hook),
            Tree::Map(pairs) => pairs.iter().find_map(|(key, node)| {
                let (path, found) = node.hook()?;
                let dot = if path.is_empty() { "" } else { "." };
                Some((format!("{}{dot}{path}", key.text()), found))
            }),
        }
    }

    /// Converts the node to a plain value without locations.
    ///
    /// # Errors
    /// Fails if the node contains a hook.
    pub fn plain(&self) -> Result<Value> {
        Ok(match &self.tree {
            Tree::Scalar(value) => value.clone(),
            Tree::List(items) => Value::List(items.iter().map(Self::plain).collect::<Result<_>>()?),
            Tree::Map(pairs) => {
                Value::Map(pairs.iter().map(|(key, node)| Ok((key.clone(), node.plain()?))).collect::<Result<_>>()?)
            }
            Tree::Hook(name) => return Err(hook_error("", name, &self.location)),
        })
    }

    /// Rejects non-finite numbers, which JSON cannot represent. Settings and definitions are stored as JSON. `key` is
    /// the path of this node.
    ///
    /// # Errors
    /// Fails if a number is not finite. The error names the path and line of the first one.
    pub(crate) fn check_finite(&self, key: &str) -> Result<()> {
        match &self.tree {
            Tree::Scalar(Value::Float(number)) if !number.is_finite() => {
                Err(value_error(key, "a finite number", self).hint("quote `.nan` and `.inf` to use them as strings"))
            }
            Tree::Scalar(_) | Tree::Hook(_) => Ok(()),
            Tree::List(items) => {
                items.iter().enumerate().try_for_each(|(at, item)| item.check_finite(&format!("{key}[{at}]")))
            }
            Tree::Map(pairs) => pairs.iter().try_for_each(|(name, node)| match name {
                Value::Float(number) if !number.is_finite() => Err(value_error(key, "finite keys", node)),
                name if key.is_empty() => node.check_finite(&name.text()),
                name => node.check_finite(&format!("{key}.{}", name.text())),
            }),
        }
    }

    /// Describes the value for error messages.
    pub fn kind(&self) -> String {
        match &self.tree {
            Tree::Scalar(value) => value.repr(),
            Tree::List(items) => format!("a list of length {}", items.len()),
            Tree::Map(_) => "a mapping".to_owned(),
            Tree::Hook(name) => format!("!function {name}"),
        }
    }
}

/// Creates the error for a Python function in a definition.
pub(crate) fn hook_error(key: &str, function: &str, location: &SourceLocation) -> Error {
    let what = if key.is_empty() { "a Python hook".to_owned() } else { format!("`{key}` is a Python hook") };
    Error::bad_input(format!("{what}, which is not supported"))
        .at(location)
        .expected("a value or a template")
        .found(format!("!function {function}"))
        .hint("use `keep_rows` to filter rows, or `aggregation: weighted_f1` for a weighted F1 score")
}

/// Creates the error for a key with an invalid value.
pub(crate) fn value_error(key: &str, expected: &str, node: &Node) -> Error {
    let error = Error::bad_input(format!("invalid value of `{key}`"));
    error.at(&node.location).expected(expected).found(node.kind())
}

/// Returns the strings in a list, or a single string as a list of one. Skips other values.
pub(crate) fn texts(node: &Node) -> Vec<String> {
    node.items().iter().filter_map(Node::text).map(str::to_owned).collect()
}

/// Reads a definition file.
///
/// # Errors
/// Fails if the file cannot be read, is not valid YAML, or is not a mapping.
pub fn read_file(path: &Path) -> Result<Node> {
    activity::record_start(format_args!("{}", path.display()));
    let text = String::from_utf8(regular::read(path)?)
        .map_err(|_| Error::bad_input("a definition is not UTF-8").at(path.display()))?;
    let root = parse(text.trim_start_matches('\u{feff}'), &path.display().to_string())?;
    activity::record_finish();
    match root.tree {
        Tree::Map(_) => Ok(root),
        _ => Err(Error::bad_input("a definition must be a mapping")
            .at(&root.location)
            .expected("`task: name` or `group: name`")
            .found(root.kind())),
    }
}

/// Parses YAML text. `file` is the name used in error messages.
///
/// # Errors
/// Fails if the text is not valid YAML or exceeds the size limits.
pub fn parse(text: &str, file: &str) -> Result<Node> {
    let mut text = text.to_owned();
    // PyYAML accepts unindented continuation lines in quoted strings, but `granit_parser` does not. Indent each of them
    // by a space, which does not become part of the string.
    for _ in 0..MAX_UNINDENTED_LINES {
        let error = match parse_document(&text, file) {
            Err(error) => error,
            root => return root,
        };
        let Some(line) = unindented_line(&error) else { return Err(error) };
        let end = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
        text.insert(end, ' ');
    }
    parse_document(&text, file)
}

/// Returns the line number of an error that an unindented line in a quoted string caused, or `None` for other errors.
fn unindented_line(error: &Error) -> Option<usize> {
    let parts = error.parts();
    let line = parts.location.as_deref()?.rsplit(':').next()?.parse::<usize>().ok();
    line.filter(|_| parts.what.contains("multiline quoted scalar"))
}

fn parse_document(text: &str, file: &str) -> Result<Node> {
    let mut parser = Parser::new_from_str(text);
    let mut reader = EventReader { file: file.into(), anchors: HashMap::new(), value_count: 0, text_bytes: 0 };
    let mut root = None;
    while let Some((event, span)) = reader.next(&mut parser)? {
        match event {
            Event::StreamStart | Event::StreamEnd | Event::DocumentStart(..) | Event::DocumentEnd => {}
            _ if root.is_some() => {
                return Err(reader.yaml_error(&span, "a definition must be a single YAML document"));
            }
            event => root = Some(reader.read_node(event, &span, &mut parser, 0)?),
        }
    }
    Ok(root.unwrap_or_else(|| Node {
        tree: Tree::Scalar(Value::None),
        location: SourceLocation { file: file.into(), line: 1 },
    }))
}

struct EventReader {
    file: Arc<str>,
    anchors: HashMap<usize, Node>,
    /// Number of values so far, with aliases expanded.
    value_count: usize,
    /// Total length in bytes of the strings so far, with aliases expanded.
    text_bytes: usize,
}

type Events<'a> = Parser<'a, granit_parser::StrInput<'a>>;

impl EventReader {
    fn yaml_error(&self, span: &Span, message: &str) -> Error {
        Error::bad_input(message).at(format!("{}:{}", self.file, span.start.line()))
    }

    fn check_size(&self, depth: usize, span: &Span) -> Result<()> {
        let limit = if depth > MAX_DEPTH {
            format!("at most {MAX_DEPTH} levels")
        } else if self.value_count > MAX_VALUES {
            format!("at most {MAX_VALUES} values, with aliases expanded")
        } else if self.text_bytes > MAX_TEXT_BYTES {
            format!("at most {} MB of text, with aliases expanded", MAX_TEXT_BYTES / 1_000_000)
        } else {
            return Ok(());
        };
        Err(self.yaml_error(span, "the YAML exceeds the limits of a definition").expected(limit))
    }

    fn next<'a>(&self, parser: &mut Events<'a>) -> Result<Option<(Event<'a>, Span)>> {
        parser.next_event().transpose().map_err(|error| {
            Error::bad_input(format!("invalid YAML: {}", error.info()))
                .at(format!("{}:{}", self.file, error.marker().line()))
                .hint("check the indentation, brackets and quotes before this position")
        })
    }

    fn next_required<'a>(&self, parser: &mut Events<'a>, span: &Span) -> Result<(Event<'a>, Span)> {
        self.next(parser)?.ok_or_else(|| self.yaml_error(span, "invalid YAML: unexpected end of file"))
    }

    fn read_node<'a>(&mut self, event: Event<'a>, span: &Span, parser: &mut Events<'a>, depth: usize) -> Result<Node> {
        self.value_count += 1;
        if let Event::Scalar(text, ..) = &event {
            self.text_bytes += text.len();
        }
        self.check_size(depth, span)?;
        let location = SourceLocation { file: Arc::clone(&self.file), line: span.start.line() };
        let (tree, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => (resolve_scalar(&text, style, tag.as_deref()), anchor),
            Event::SequenceStart(_, anchor, _) => {
                let mut items = Vec::new();
                loop {
                    let (event, span_of_item) = self.next_required(parser, span)?;
                    if matches!(event, Event::SequenceEnd) {
                        break;
                    }
                    items.push(self.read_node(event, &span_of_item, parser, depth + 1)?);
                }
                (Tree::List(items), anchor)
            }
            Event::MappingStart(_, anchor, _) => (self.read_mapping(span, parser, depth)?, anchor),
            Event::Alias(anchor) => {
                let found = self.anchors.get(&anchor);
                let found = found.ok_or_else(|| self.yaml_error(span, "an alias is used inside its own anchor"))?;
                let (values, bytes) = compute_size(found);
                self.value_count += values;
                self.text_bytes += bytes;
                self.check_size(depth, span)?;
                return Ok(found.clone());
            }
            _ => return Err(self.yaml_error(span, "invalid YAML")),
        };
        let node = Node { tree, location };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn read_mapping(&mut self, span: &Span, parser: &mut Events<'_>, depth: usize) -> Result<Tree> {
        let mut pairs: Vec<(Value, Node)> = Vec::new();
        let mut index = KeyIndex::default();
        let mut merged: Vec<(Value, Node)> = Vec::new();
        let mut merged_index = KeyIndex::default();
        loop {
            let (event, span_of_key) = self.next_required(parser, span)?;
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let key = self.read_node(event, &span_of_key, parser, depth + 1)?;
            let (event, span_of_key) = self.next_required(parser, span)?;
            let value = self.read_node(event, &span_of_key, parser, depth + 1)?;
            if merge {
                for (key, node) in value.items().iter().flat_map(Node::pairs) {
                    if merged_index.position(&merged, key).is_none() {
                        merged_index.push(&mut merged, key.clone(), node.clone());
                    }
                }
                continue;
            }
            let Tree::Scalar(name) = key.tree else {
                return Err(self.yaml_error(&span_of_key, "a key of a mapping must be a scalar"));
            };
            // The last duplicate key wins and keeps the position of the first, as in PyYAML.
            index.set(&mut pairs, name, value);
        }
        merged.retain(|(key, _)| index.position(&pairs, key).is_none());
        merged.extend(pairs);
        Ok(Tree::Map(merged))
    }
}

/// Returns the number of values in a node and the total length of its strings in bytes. Keys are not counted.
fn compute_size(node: &Node) -> (usize, usize) {
    match &node.tree {
        Tree::List(items) => items.iter().fold((1, 0), add_size),
        Tree::Map(pairs) => pairs.iter().map(|(_, node)| node).fold((1, 0), add_size),
        Tree::Scalar(Value::Text(text)) => (1, text.len()),
        _ => (1, 0),
    }
}

fn add_size((values, bytes): (usize, usize), node: &Node) -> (usize, usize) {
    let (node_values, node_bytes) = compute_size(node);
    (values + node_values, bytes + node_bytes)
}

#[cfg(test)]
mod tests;
