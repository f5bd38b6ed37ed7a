//! The files that a grid is made of: each one map, read to a tree or refused as what it is.

use std::path::Path;

use super::node::{Value, YamlNode};
use super::yaml;
use crate::error::{Error, Result};
use crate::files::regular;

/// What a file is to hold, in the words of messages.
pub(super) struct FileShape<'a> {
    /// `the grid`, or `the corpus `c4``.
    pub(super) what: &'a str,
    pub(super) expected: &'a str,
    pub(super) hint: &'a str,
}

/// Reads a YAML file that holds one map.
pub(super) fn read(path: &Path, shape: &FileShape<'_>) -> Result<YamlNode> {
    let bytes = regular::read(path)?;
    let text = String::from_utf8(bytes).map_err(|error| not_utf8(shape.what, path, &error))?;
    parse(&text, path, shape)
}

/// Reads YAML text that holds one map; `path` is how messages name it.
pub(super) fn parse(text: &str, path: &Path, shape: &FileShape<'_>) -> Result<YamlNode> {
    let FileShape { what, expected, hint } = shape;
    let root = if is_blank(text) { None } else { Some(yaml::parse_file(text, path)?) };
    let Some(root) = root.filter(|root| !matches!(root.value, Value::Null)) else {
        let error = Error::bad_input(format!("{what} is empty")).at(path.display().to_string());
        return Err(error.expected(*expected).hint(*hint));
    };
    if matches!(root.value, Value::Map(_)) {
        return Ok(root);
    }
    Err(Error::bad_input(format!("{what} is not a map"))
        .at(root.place.to_string())
        .expected(*expected)
        .found(root.describe())
        .hint("each line at the left margin is `key: value`"))
}

/// Whether there is nothing but blank lines, comments and document marks.
fn is_blank(text: &str) -> bool {
    text.trim_start_matches('\u{feff}').lines().all(|line| {
        let line = line.trim();
        line.is_empty() || line.starts_with('#') || line == "---"
    })
}

fn not_utf8(what: &str, path: &Path, error: &std::string::FromUtf8Error) -> Error {
    let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
    let line = 1 + good.iter().filter(|&&byte| byte == b'\n').count();
    Error::bad_input(format!("{what} is not UTF-8 text"))
        .at(format!("{}:{line}", path.display()))
        .expected("UTF-8")
        .found(format!("the byte 0x{:02x}", error.as_bytes().get(good.len()).copied().unwrap_or_default()))
        .hint("save the file as UTF-8")
}
