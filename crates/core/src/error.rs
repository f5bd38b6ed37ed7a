//! Error type used across the workspace. An error contains a message and, optionally, its location, the expected and
//! found values, and a hint.
//!
//! All crates build errors with the same methods, so that messages have a consistent format:
//!
//! ```
//! use ghostlab_core::error::Error;
//! let error = Error::bad_input("depth is too large")
//!     .at("grid.yaml:7")
//!     .expected("a count below 16, the layers of `english`")
//!     .found("16")
//!     .hint("remove at most 15 of its 16 layers");
//! assert_eq!(error.exit_code(), 2);
//! ```

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error kind. Each kind has its own exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// Invalid user input, such as a grid, config or weight file.
    BadInput,
    /// Missing resource, such as a model, corpus, disk space or write permission.
    Missing,
    /// Failure of a running job.
    Job,
    /// Stored data that differs from what was written.
    Damaged,
    /// Run interrupted by the user.
    Interrupted,
}

/// Error with its location, the expected and found values, and a hint.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Error(Box<ErrorParts>);

/// Parts of an error.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ErrorParts {
    pub kind: ErrorKind,
    /// Description of the failure.
    pub what: String,
    /// Location, such as a file, a line of YAML, a tensor or a cell.
    #[serde(rename = "where")]
    pub location: Option<String>,
    /// Expected value.
    pub expected: Option<String>,
    /// Found value.
    pub found: Option<String>,
    /// Suggested remedy.
    pub hint: Option<String>,
}

impl Error {
    fn new(kind: ErrorKind, what: impl fmt::Display) -> Self {
        Self(Box::new(ErrorParts {
            kind,
            what: what.to_string(),
            location: None,
            expected: None,
            found: None,
            hint: None,
        }))
    }

    /// Creates an error for invalid user input (exit code 2).
    pub fn bad_input(what: impl fmt::Display) -> Self {
        Self::new(ErrorKind::BadInput, what)
    }

    /// Creates an error for a missing resource (exit code 3).
    pub fn missing(what: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Missing, what)
    }

    /// Creates an error for a failed job (exit code 4).
    pub fn job(what: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Job, what)
    }

    /// Creates an error for damaged stored data (exit code 5).
    pub fn damaged(what: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Damaged, what)
    }

    /// Creates an error for a run that the user interrupted (exit code 130).
    pub fn interrupted(what: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Interrupted, what)
    }

    /// Creates an error for a failed operation on a file. The message is "cannot {verb} the file".
    pub fn io(verb: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::failed_io(verb, "file", path, error)
    }

    /// Creates an error for a failed operation on a folder. The message is "cannot {verb} the folder".
    pub fn folder_io(verb: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::failed_io(verb, "folder", path, error)
    }

    /// Creates an error for a failed operation on either a file or a folder. The message is "cannot {verb} the path".
    pub fn path_io(verb: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::failed_io(verb, "path", path, error)
    }

    fn failed_io(verb: &str, object: &str, path: &Path, error: &std::io::Error) -> Self {
        let new = Self::missing(format!("cannot {verb} the {object}")).at(path.display()).found(error);
        match error.kind() {
            std::io::ErrorKind::NotFound => new.hint("check the path for typos"),
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                new.hint(format!("check the owner of the {object} and its parent folder"))
            }
            std::io::ErrorKind::StorageFull => new.hint("free some disk space"),
            _ => new,
        }
    }

    /// Adds the location, such as a file, a line of YAML, a tensor or a cell. A repeated call prepends its location to
    /// the existing one.
    #[must_use]
    pub fn at(mut self, location: impl fmt::Display) -> Self {
        self.0.location = Some(match self.0.location.take() {
            Some(inner) => format!("{location}, {inner}"),
            None => location.to_string(),
        });
        self
    }

    #[must_use]
    pub fn expected(mut self, expected: impl fmt::Display) -> Self {
        self.0.expected = Some(expected.to_string());
        self
    }

    #[must_use]
    pub fn found(mut self, found: impl fmt::Display) -> Self {
        self.0.found = Some(found.to_string());
        self
    }

    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.0.hint = Some(hint.to_string());
        self
    }

    /// Adds the known names to an error about an unknown name, and suggests the closest one.
    #[must_use]
    pub fn none_of<'a>(self, name: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        let known: Vec<&str> = known.into_iter().collect();
        self.expected(format!("one of {}", known.join(", "))).found(format!("`{name}`")).suggest(name, known)
    }

    /// Sets a hint that suggests the most similar of the known names. Keeps the current hint if no name is similar.
    #[must_use]
    pub fn suggest<'a>(self, name: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        match nearest(name, known) {
            Some(near) => self.hint(format!("did you mean `{near}`?")),
            None => self,
        }
    }

    pub fn advice(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    #[must_use]
    pub fn replace_location(mut self, location: impl fmt::Display) -> Self {
        self.0.location = Some(location.to_string());
        self
    }

    pub fn parts(&self) -> &ErrorParts {
        &self.0
    }

    /// Changes the kind, for example to treat damage in a user's file as bad input.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    pub fn exit_code(&self) -> u8 {
        match self.0.kind {
            ErrorKind::BadInput => 2,
            ErrorKind::Missing => 3,
            ErrorKind::Job => 4,
            ErrorKind::Damaged => 5,
            ErrorKind::Interrupted => 130,
        }
    }

    /// Returns the message on one line, without the hint, for a table cell.
    pub fn one_line(&self) -> String {
        let parts = &self.0;
        let mut line = parts.what.clone();
        for (word, text) in [("at", &parts.location), ("expected", &parts.expected), ("found", &parts.found)] {
            if let Some(text) = text {
                line.push_str(&format!("; {word} {text}"));
            }
        }
        printable(&line.replace('\n', " ")).into_owned()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = &self.0;
        f.write_str(&printable(&parts.what))?;
        for (label, text) in
            [("where", &parts.location), ("expected", &parts.expected), ("found", &parts.found), ("hint", &parts.hint)]
        {
            if let Some(text) = text {
                let text = printable(text);
                let mut lines = text.lines();
                write!(f, "\n  {:<10}{}", format!("{label}:"), lines.next().unwrap_or(""))?;
                for line in lines {
                    write!(f, "\n            {line}")?;
                }
            }
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// Returns whether a character is a terminal control character or changes the text direction.
pub fn is_hidden(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Escapes control characters and text direction marks, so that untrusted strings cannot move the cursor or hide other
/// text. Keeps line breaks.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(
        text.chars().map(|c| if is_hidden(c) { c.escape_unicode().to_string() } else { c.to_string() }).collect(),
    )
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        // If `RUST_BACKTRACE` is set, candle appends a backtrace to its errors. Drop the backtrace.
        let message = error.to_string();
        let message: Vec<&str> = message.lines().take_while(|line| !line.trim_start().starts_with("0: ")).collect();
        Self::job("a tensor operation failed").found(message.join("\n"))
    }
}

/// Truncates a string to at most `max_chars` characters, for a message.
pub fn shorten(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Joins words into a command line, quoting them for the shell.
pub fn command_line(words: impl IntoIterator<Item = String>) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,%@+".contains(c);
    let quoted = words.into_iter().map(|word| match !word.is_empty() && word.chars().all(is_plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', r"'\''")),
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// Returns the candidate closest to a misspelled `word`, if any is close enough.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (edit_distance(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 2.max(candidate.chars().count() / 3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Builds the message for an unknown value. Lists the known values and suggests the closest one.
pub fn unknown_value_message(value: &str, known: &[&str]) -> String {
    let hint = nearest(value, known.iter().copied()).map(|near| format!("; did you mean `{near}`?"));
    format!("`{value}` is not one of {}{}", known.join(", "), hint.unwrap_or_default())
}

/// Computes the Levenshtein distance in characters.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_message_lists_all_fields_in_order() {
        let error = Error::bad_input("unknown key").at("a.yaml:3").expected("x").found("y").hint("z");
        let text = error.to_string();
        assert_eq!(text, "unknown key\n  where:    a.yaml:3\n  expected: x\n  found:    y\n  hint:     z");
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn io_error_message_names_the_file_folder_or_path() {
        let error = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let path = Path::new("a/b");
        for (new, what, object) in [
            (Error::io("read", path, &error), "cannot read the file", "file"),
            (Error::folder_io("write to", path, &error), "cannot write to the folder", "folder"),
            (Error::path_io("resolve", path, &error), "cannot resolve the path", "path"),
        ] {
            let hint = format!("check the owner of the {object} and its parent folder");
            let expected = format!("{what}\n  where:    a/b\n  found:    permission denied\n  hint:     {hint}");
            assert_eq!(new.to_string(), expected);
            assert_eq!(new.exit_code(), 3);
        }
    }

    #[test]
    fn command_line_quotes_words_for_the_shell() {
        let words = ["a b", "it's", "$HOME", "--set=depth=7,9", ""].map(str::to_owned);
        assert_eq!(command_line(words), r"'a b' 'it'\''s' '$HOME' --set=depth=7,9 ''");
    }

    #[test]
    fn control_characters_in_errors_are_escaped() {
        let error = Error::bad_input("a\u{1b}[2Jb\r").at("x\u{202e}y").found("é\n\tline");
        let text = error.to_string();
        assert!(text.starts_with("a\\u{1b}[2Jb\\u{d}\n") && text.contains("x\\u{202e}y"), "{text}");
        assert!(text.ends_with("é\n            \tline"), "{text:?}");
        assert!(!error.one_line().contains(char::is_control) || error.one_line().contains('\t'));
    }

    #[test]
    fn outer_location_is_shown_first() {
        let error = Error::job("failed").at("tensor w").at("model.safetensors");
        assert_eq!(error.one_line(), "failed; at model.safetensors, tensor w");
    }

    #[test]
    fn only_similar_words_are_suggested() {
        assert_eq!(
            unknown_value_message("fp16", &["f32", "bf16", "f16"]),
            "`fp16` is not one of f32, bf16, f16; did you mean `f16`?"
        );
        assert_eq!(unknown_value_message("half", &["f32", "bf16"]), "`half` is not one of f32, bf16");
        let words = ["ghosted", "linearpatch-diag", "none"];
        assert_eq!(nearest("ghostd", words), Some("ghosted"));
        assert_eq!(nearest("linearpatch_diag", words), Some("linearpatch-diag"));
        assert_eq!(nearest("perplexity", words), None);
    }
}
