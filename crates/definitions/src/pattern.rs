//! Python regular expressions, translated where `fancy_regex` differs from Python's `re`.

use fancy_regex::Regex;
use ghostlab_core::error::{Error, Result, shorten};

use crate::bounds::check_pattern;

/// Maximum number of pattern characters shown in an error message.
const MAX_SHOWN_CHARS: usize = 200;

/// Regular expression in the syntax of Python's `re`. Flags must be inline.
#[derive(Debug, Clone)]
pub struct Pattern {
    source: String,
    regex: Regex,
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// Fails for an invalid pattern or an unsupported feature.
    pub fn new(source: &str) -> Result<Self> {
        check_pattern(source)?;
        let regex = Regex::new(&translate_python_pattern(source)).map_err(|error| {
            Error::bad_input("unsupported regular expression").found(shorten(source, MAX_SHOWN_CHARS)).hint(error)
        })?;
        Ok(Self { source: source.to_owned(), regex })
    }

    /// Implements Python's `findall`. For each match, returns the text of the match if the pattern has no groups, and
    /// the texts of all groups otherwise. The text of an unmatched group is empty.
    ///
    /// # Errors
    /// Fails if the backtracking limit is exceeded.
    pub fn find_all(&self, text: &str) -> Result<Vec<Vec<String>>> {
        let mut found = Vec::new();
        self.for_each_match(text, |captures| {
            let groups = captures.len();
            found.push(if groups == 1 {
                vec![group_text(0, captures)]
            } else {
                (1..groups).map(|index| group_text(index, captures)).collect()
            });
        })?;
        Ok(found)
    }

    /// Implements Python's `re.sub(pattern, "", text)`.
    ///
    /// # Errors
    /// Fails if the backtracking limit is exceeded.
    pub fn remove_matches(&self, text: &str) -> Result<String> {
        self.replace_matches(text, "", usize::MAX)
    }

    /// Replaces up to `count` matches like Python's `re.sub`. Unlike in Python, a `count` of 0 replaces nothing; pass
    /// `usize::MAX` to replace all matches.
    ///
    /// # Errors
    /// Fails if the backtracking limit is exceeded or the replacement refers to an unknown group.
    pub fn replace_matches(&self, text: &str, replacement: &str, count: usize) -> Result<String> {
        let parts = parse_replacement(replacement)?;
        let mut out = String::new();
        let mut end = 0;
        let mut remaining = count;
        let mut unknown = None;
        self.for_each_match(text, |captures| {
            let Some(whole_match) = captures.get(0).filter(|_| remaining > 0) else { return };
            remaining -= 1;
            out.push_str(&text[end.min(whole_match.start())..whole_match.start()]);
            end = whole_match.end();
            for part in &parts {
                let group = match part {
                    Part::Text(text) => {
                        out.push_str(text);
                        continue;
                    }
                    Part::Group(number) if *number < captures.len() => captures.get(*number),
                    Part::Named(name) if self.regex.capture_names().flatten().any(|known| known == name) => {
                        captures.name(name)
                    }
                    Part::Group(number) => {
                        unknown = Some(number.to_string());
                        continue;
                    }
                    Part::Named(name) => {
                        unknown = Some(name.clone());
                        continue;
                    }
                };
                out.push_str(group.map_or("", |group| group.as_str()));
            }
        })?;
        if let Some(group) = unknown {
            return Err(
                Error::bad_input(format!("the replacement refers to the unknown group `{group}`")).found(&self.source)
            );
        }
        out.push_str(&text[end..]);
        Ok(out)
    }

    fn for_each_match<'t>(&self, text: &'t str, mut visit: impl FnMut(&fancy_regex::Captures<'t, str>)) -> Result<()> {
        let mut search_start = 0;
        while search_start <= text.len() {
            let found = self.regex.captures_from_pos(text, search_start).map_err(|error| {
                Error::job("a regular expression exceeds the backtracking limit").found(&self.source).hint(error)
            })?;
            let Some(captures) = found else { break };
            let Some((start, end)) = captures.get(0).map(|found_match| (found_match.start(), found_match.end())) else {
                break;
            };
            visit(&captures);
            // An empty match may follow another match, but not another empty match at the same position.
            search_start = if start == end { end + text[end..].chars().next().map_or(1, char::len_utf8) } else { end };
        }
        Ok(())
    }
}

fn group_text(index: usize, captures: &fancy_regex::Captures<'_, str>) -> String {
    captures.get(index).map_or(String::new(), |part| part.as_str().to_owned())
}

/// Literal text or group reference in a replacement string for `re.sub`.
enum Part {
    Text(String),
    /// Group number.
    Group(usize),
    /// Group name.
    Named(String),
}

fn parse_replacement(replacement: &str) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    let mut rest = replacement;
    while let Some(position) = rest.find('\\') {
        parts.push(Part::Text(rest[..position].to_owned()));
        let after = &rest[position + 1..];
        let c = after.chars().next().ok_or_else(|| escape_error(replacement))?;
        let mut length = c.len_utf8();
        parts.push(match c {
            'g' => {
                let (name, _) = after
                    .strip_prefix("g<")
                    .and_then(|name| name.split_once('>'))
                    .ok_or_else(|| escape_error(replacement))?;
                length = name.len() + 3;
                name.parse().map_or_else(|_| Part::Named(name.to_owned()), Part::Group)
            }
            '1'..='9' => {
                length = 1 + usize::from(after[1..].starts_with(|c: char| c.is_ascii_digit()));
                if after[length..].starts_with(|c: char| c.is_ascii_digit()) {
                    return Err(escape_error(replacement));
                }
                Part::Group(after[..length].parse().map_err(|_| escape_error(replacement))?)
            }
            'n' => Part::Text("\n".to_owned()),
            't' => Part::Text("\t".to_owned()),
            'r' => Part::Text("\r".to_owned()),
            'f' => Part::Text("\u{c}".to_owned()),
            'v' => Part::Text("\u{b}".to_owned()),
            'a' => Part::Text("\u{7}".to_owned()),
            'b' => Part::Text("\u{8}".to_owned()),
            '\\' => Part::Text("\\".to_owned()),
            c if c.is_ascii_alphanumeric() => return Err(escape_error(replacement)),
            c => Part::Text(format!("\\{c}")),
        });
        rest = &after[length..];
    }
    parts.push(Part::Text(rest.to_owned()));
    Ok(parts)
}

fn escape_error(replacement: &str) -> Error {
    Error::bad_input("unsupported escape in the replacement of a regular expression").found(replacement)
}

/// Implements Python's `re.escape` for `fancy_regex`.
pub fn escape_pattern(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if c.is_ascii_punctuation() && !"<>".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Characters that Python's `\w` matches: letters, digits and `_`. Rust's `\w` also matches combining marks.
const WORD_CLASS: &str = r"\p{L}\p{N}_";

fn translate_python_pattern(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::new();
    let mut index = 0;
    while index < chars.len() {
        let c = chars[index];
        match c {
            '\\' => index = rewrite_escape(&chars, index, &mut out, false),
            '[' => index = rewrite_class(&chars, index, &mut out),
            // Python's `$` also matches before a final newline.
            '$' => out.push_str(r"(?=\n?\z)"),
            '{' if !opens_quantifier(&chars[index..]) => out.push_str(r"\{"),
            '{' if chars.get(index + 1) == Some(&',') => out.push_str("{0"),
            '}' if !closes_quantifier(&chars[..index]) => out.push_str(r"\}"),
            _ => out.push(c),
        }
        index += 1;
    }
    // With `(?m)`, `$` matches at the end of each line.
    if source.starts_with("(?") && source[..source.find(')').unwrap_or(0)].contains('m') {
        return out.replace(r"(?=\n?\z)", "$");
    }
    out
}

/// Returns whether a character may occur inside the braces of a counted quantifier.
fn is_count_char(c: char) -> bool {
    c.is_ascii_digit() || c == ','
}

/// Returns whether the text inside braces forms a counted quantifier: `{2}`, `{2,}`, `{,3}` or `{2,3}`.
fn is_counted(inside: &[char]) -> bool {
    let commas = inside.iter().filter(|c| **c == ',').count();
    commas <= 1 && inside.len() > commas
}

/// Returns whether the opening brace `chars[0]` starts a counted quantifier.
fn opens_quantifier(chars: &[char]) -> bool {
    let inside = chars[1..].iter().take_while(|c| is_count_char(**c)).count();
    chars.get(1 + inside) == Some(&'}') && is_counted(&chars[1..=inside])
}

/// Returns whether a closing brace after `before` ends a counted quantifier.
fn closes_quantifier(before: &[char]) -> bool {
    let inside = before.iter().rev().take_while(|c| is_count_char(**c)).count();
    let Some(open) = (before.len() - inside).checked_sub(1).filter(|open| before[*open] == '{') else { return false };
    let escaped = before[..open].iter().rev().take_while(|c| **c == '\\').count() % 2 == 1;
    !escaped && is_counted(&before[open + 1..])
}

/// Rewrites the escape at `index` and returns the index of its last character.
fn rewrite_escape(chars: &[char], index: usize, out: &mut String, in_class: bool) -> usize {
    let Some(next) = chars.get(index + 1) else {
        out.push('\\');
        return index;
    };
    match next {
        'w' if in_class => out.push_str(WORD_CLASS),
        'w' => out.push_str(&format!("[{WORD_CLASS}]")),
        'W' => out.push_str(&format!("[^{WORD_CLASS}]")),
        's' if in_class => out.push_str(r"\s\x1c-\x1f"),
        's' => out.push_str(r"[\s\x1c-\x1f]"),
        'S' => out.push_str(r"[^\s\x1c-\x1f]"),
        'b' if in_class => out.push_str(r"\x08"),
        'b' => {
            out.push_str(&format!("(?:(?<=[{WORD_CLASS}])(?![{WORD_CLASS}])|(?<![{WORD_CLASS}])(?=[{WORD_CLASS}]))"));
        }
        'B' => {
            out.push_str(&format!("(?:(?<=[{WORD_CLASS}])(?=[{WORD_CLASS}])|(?<![{WORD_CLASS}])(?![{WORD_CLASS}]))"));
        }
        'Z' => out.push_str(r"\z"),
        // `\<` and `\>` are word boundaries in `fancy_regex` and literals in Python.
        '<' | '>' => out.push(*next),
        c if !c.is_ascii() => out.push(*c),
        c => out.extend(['\\', *c]),
    }
    index + 1
}

/// Rewrites the character class that starts at `open`. Returns the index of its closing bracket, or the number of
/// characters if the class is not closed. Inside a class, `[`, `&&`, `--` and `~~` have a special meaning in
/// `fancy_regex`.
fn rewrite_class(chars: &[char], open: usize, out: &mut String) -> usize {
    out.push('[');
    let mut index = open + 1;
    if chars.get(index) == Some(&'^') {
        out.push('^');
        index += 1;
    }
    let first = index;
    while let Some(c) = chars.get(index) {
        match c {
            ']' if index > first => {
                out.push(']');
                return index;
            }
            '\\' => index = rewrite_escape(chars, index, out, true),
            '[' | ']' | '&' | '~' | '^' | '#' | ' ' => out.extend(['\\', *c]),
            '-' if index == first || chars.get(index + 1) == Some(&']') => out.push_str(r"\-"),
            _ => out.push(*c),
        }
        index += 1;
    }
    chars.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected matches are those of `re.findall` in Python 3.11.
    #[test]
    fn patterns_match_as_in_python() {
        assert_eq!(joined_groups(r"#### (\-?[0-9\.\,]+)", "#### 1,5. x #### -2"), "1,5.;-2");
        assert_eq!(joined_groups(r"a*", "aab"), "aa;;");
        assert_eq!(joined_groups(r"end$", "end\n"), "end");
        assert_eq!(joined_groups(r"(?<=answer is )(.*)(?=.)", "the answer is B. yes."), "B. yes");
        assert_eq!(joined_groups(r"(a)|(b)", "ab"), "a|;|b");
        assert_eq!(joined_groups(r"\boxed{(.*)}", "x"), "");
        assert_eq!(joined_groups(r"\\boxed{(\d{1,2})}", r"\boxed{12}"), "12");
        assert_eq!(joined_groups(r"[[\]&&a-]", "[]&a-b"), "[;];&;a;-");
        assert_eq!(joined_groups(r"\w+", "कि a_1"), "क;a_1");
        assert_eq!(joined_groups(r"\s", "\u{1c}x"), "\u{1c}");
        assert_eq!(joined_groups(r"\<b\>", "<b>"), "<b>");
        assert_eq!(joined_groups(r"x{,2}y", "xxxy"), "xxy");
        assert_eq!(Pattern::new(r"(?s).*#### ").unwrap().remove_matches("a\nb #### 5").unwrap(), "5");
        assert_eq!(Pattern::new("b*").unwrap().remove_matches("abbc").unwrap(), "ac");
        assert!(Pattern::new("(").is_err());
    }

    fn joined_groups(pattern: &str, text: &str) -> String {
        let all = Pattern::new(pattern).unwrap().find_all(text).unwrap();
        all.iter().map(|groups| groups.join("|")).collect::<Vec<_>>().join(";")
    }

    #[test]
    fn long_pattern_is_translated_in_linear_time() {
        for pattern in ["{".repeat(50_000), format!("{{{}", "}".repeat(49_999)), "\\{1".repeat(16_000)] {
            assert!(!translate_python_pattern(&pattern).is_empty());
        }
        let error = Pattern::new(&"{".repeat(50_001)).unwrap_err().to_string();
        assert!(error.contains("at most 50000 characters"), "{error}");
    }

    #[test]
    fn pattern_with_endless_backtracking_terminates() {
        let pattern = Pattern::new(r"(?=(a+)+b)(a+)+\1$").unwrap();
        let _ = pattern.find_all(&"a".repeat(60));
    }
}
