//! Python literals, parsed like `ast.literal_eval`. Templates render lists of choices as literals, and the RACE dataset
//! stores its problems as literals.
//!
//! The crate `py_literal` 0.4 is not used, because it rejects adjacent strings, the `u` prefix and triple quotes, and
//! does not terminate on a hundred nested brackets.

use ghostlab_core::error::{Error, Result};

use crate::keys::KeyIndex;
use crate::value::Value;

/// Maximum nesting depth, which bounds recursion.
const MAX_NESTING_DEPTH: usize = 64;
const EXPECTED_VALUE: &str = "a list, a dict, a string or a number";

/// Parses one literal. Returns `None` if [`read`] fails.
pub fn literal(text: &str) -> Option<Value> {
    read(text).ok()
}

/// Parses one literal: a list, tuple or set (all as a list), a dict, a string, a number, `True`, `False` or `None`.
/// Strings may use any quote style, and any escape except named characters.
///
/// # Errors
/// Fails in the same cases as `ast.literal_eval`, and for bytes, complex numbers and lone surrogates. The error gives
/// the position.
pub fn read(text: &str) -> Result<Value> {
    let mut reader = LiteralReader { text, position: 0 };
    reader.skip_space();
    let first = reader.parse_value(0)?;
    reader.skip_space();
    if reader.peek().is_none() {
        return Ok(first);
    }
    // Tuples do not need parentheses.
    let mut items = vec![first];
    while reader.take(",") {
        reader.skip_space();
        if reader.peek().is_none() {
            break;
        }
        items.push(reader.parse_value(0)?);
        reader.skip_space();
    }
    if reader.peek().is_none() { Ok(Value::List(items)) } else { Err(reader.syntax_error("the end")) }
}

struct LiteralReader<'a> {
    text: &'a str,
    /// Byte offset of the next character.
    position: usize,
}

impl LiteralReader<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.position..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.position += character.len_utf8();
        Some(character)
    }

    /// Skips `word` if it comes next. Returns whether it was skipped.
    fn take(&mut self, word: &str) -> bool {
        let found = self.rest().starts_with(word);
        if found {
            self.position += word.len();
        }
        found
    }

    /// Skips the whitespace that Python allows between tokens.
    fn skip_space(&mut self) {
        while self.peek().is_some_and(|character| matches!(character, ' ' | '\t' | '\n' | '\r' | '\u{c}')) {
            self.position += 1;
        }
    }

    fn syntax_error(&self, expected: &str) -> Error {
        let read = self.text.get(..self.position).unwrap_or_default();
        let excerpt: String = self.rest().chars().take(20).collect();
        let found = if excerpt.is_empty() { "the end".to_owned() } else { format!("{excerpt:?}") };
        Error::bad_input("invalid Python literal")
            .at(format!("character {}", read.chars().count() + 1))
            .expected(expected)
            .found(found)
    }

    fn parse_value(&mut self, depth: usize) -> Result<Value> {
        if depth > MAX_NESTING_DEPTH {
            return Err(self.syntax_error(&format!("at most {MAX_NESTING_DEPTH} levels of brackets")));
        }
        match self.peek() {
            Some('[') => self.parse_list(']', depth),
            Some('(') => self.parse_list(')', depth),
            Some('{') => self.parse_braces(depth),
            Some(sign) if sign.is_ascii_digit() || matches!(sign, '-' | '+' | '.') => self.parse_number(),
            _ if self.begins_text() => self.parse_texts().map(Value::Text),
            Some(letter) if letter.is_ascii_alphabetic() => self.parse_word(),
            _ => Err(self.syntax_error(EXPECTED_VALUE)),
        }
    }

    fn parse_word(&mut self) -> Result<Value> {
        let length = self.rest().find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.rest().len());
        let value = match &self.rest()[..length] {
            "True" => Value::Bool(true),
            "False" => Value::Bool(false),
            "None" => Value::None,
            _ => return Err(self.syntax_error(EXPECTED_VALUE)),
        };
        self.position += length;
        Ok(value)
    }

    /// Parses a list or tuple with an optional trailing comma. A single value in parentheses without a comma is not a
    /// tuple, so the value itself is returned.
    fn parse_list(&mut self, close: char, depth: usize) -> Result<Value> {
        self.next();
        let mut values = Vec::new();
        let mut comma = false;
        loop {
            self.skip_space();
            if self.peek() == Some(close) {
                self.next();
                break;
            }
            if !values.is_empty() && !comma {
                return Err(self.syntax_error(&format!("`,` or `{close}`")));
            }
            values.push(self.parse_value(depth + 1)?);
            self.skip_space();
            comma = self.take(",");
        }
        match values.pop() {
            Some(only) if close == ')' && values.is_empty() && !comma => Ok(only),
            last => {
                values.extend(last);
                Ok(Value::List(values))
            }
        }
    }

    /// Parses a set or a dict. If a key occurs twice in a dict, the last one wins.
    fn parse_braces(&mut self, depth: usize) -> Result<Value> {
        self.next();
        let (mut items, mut pairs): (Vec<Value>, Vec<(Value, Value)>) = (Vec::new(), Vec::new());
        let mut keys = KeyIndex::default();
        let mut comma = true;
        loop {
            self.skip_space();
            if self.take("}") {
                break;
            }
            if !comma {
                return Err(self.syntax_error("`,` or `}`"));
            }
            let item = self.parse_value(depth + 1)?;
            self.skip_space();
            if items.is_empty() && self.take(":") {
                self.skip_space();
                let value = self.parse_value(depth + 1)?;
                keys.set(&mut pairs, item, value);
                self.skip_space();
            } else if pairs.is_empty() {
                items.push(item);
            } else {
                return Err(self.syntax_error("`:`"));
            }
            comma = self.take(",");
        }
        Ok(if items.is_empty() { Value::Map(pairs) } else { Value::List(items) })
    }

    fn parse_number(&mut self) -> Result<Value> {
        let start = self.position;
        let negative = self.take("-");
        if !negative {
            self.take("+");
        }
        self.skip_space();
        let rest = self.rest();
        let length = rest
            .char_indices()
            .find(|(position, c)| {
                !(c.is_ascii_alphanumeric()
                    || matches!(c, '.' | '_')
                    || matches!(c, '+' | '-') && ((*position) > 0 && rest[..(*position)].ends_with(['e', 'E'])))
            })
            .map_or(rest.len(), |(position, _)| position);
        match parse_unsigned(&rest[..length]) {
            Some(number) => {
                self.position += length;
                Ok(if negative { number.negated() } else { number })
            }
            None => {
                self.position = start;
                Err(self.syntax_error("an integer or a float"))
            }
        }
    }

    /// Returns whether a string comes next. The string may have a prefix letter.
    fn begins_text(&self) -> bool {
        is_quoted(self.rest()) || self.rest().strip_prefix(['u', 'U', 'r', 'R']).is_some_and(is_quoted)
    }

    /// Parses one or more adjacent strings and concatenates them.
    fn parse_texts(&mut self) -> Result<String> {
        let mut text = String::new();
        loop {
            self.parse_quoted(&mut text)?;
            let end = self.position;
            self.skip_space();
            if !self.begins_text() {
                self.position = end;
                return Ok(text);
            }
        }
    }

    fn parse_quoted(&mut self, text: &mut String) -> Result<()> {
        let is_raw = self.take("r") || self.take("R");
        if !is_raw {
            let _ = self.take("u") || self.take("U");
        }
        let quote = match self.next() {
            Some('\'') => "'",
            _ => "\"",
        };
        // Three quotes open a triple-quoted string, whereas two are an empty string.
        let is_triple = self.take(&quote.repeat(2));
        let close = if is_triple { quote.repeat(3) } else { quote.to_owned() };
        loop {
            if self.take(&close) {
                return Ok(());
            }
            match self.peek() {
                None => return Err(self.syntax_error("a closing quote")),
                Some('\n' | '\r') if !is_triple => return Err(self.syntax_error("a closing quote on the same line")),
                Some('\0') => return Err(self.syntax_error("a string without NUL characters")),
                Some('\\') if is_raw => {
                    self.next();
                    text.push('\\');
                    text.extend(self.next());
                }
                Some('\\') => self.parse_escape(text)?,
                // In source code, Python normalizes every line ending to a newline.
                Some('\r') => {
                    self.next();
                    self.take("\n");
                    text.push('\n');
                }
                Some(character) => {
                    self.next();
                    text.push(character);
                }
            }
        }
    }

    fn parse_escape(&mut self, text: &mut String) -> Result<()> {
        let start = self.position;
        self.next();
        let plain = match self.peek() {
            Some(same @ ('\\' | '\'' | '"')) => same,
            Some('a') => '\u{7}',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\u{b}',
            // An escaped line ending continues the line.
            Some('\n') => {
                self.next();
                return Ok(());
            }
            Some('\r') => {
                self.next();
                self.take("\n");
                return Ok(());
            }
            Some('x') => return self.parse_code(2, start, text),
            Some('u') => return self.parse_code(4, start, text),
            Some('U') => return self.parse_code(8, start, text),
            Some('0'..='7') => {
                let length = self.rest().bytes().take(3).take_while(|byte| matches!(byte, b'0'..=b'7')).count();
                return self.parse_digits(length, 8, start, text);
            }
            Some('N') => {
                self.position = start;
                return Err(self.syntax_error("an escape other than `\\N`"));
            }
            // Python keeps the backslash if the escape is unknown.
            _ => {
                text.push('\\');
                return Ok(());
            }
        };
        self.next();
        text.push(plain);
        Ok(())
    }

    fn parse_code(&mut self, length: usize, start: usize, text: &mut String) -> Result<()> {
        self.next();
        self.parse_digits(length, 16, start, text)
    }

    fn parse_digits(&mut self, length: usize, radix: u32, start: usize, text: &mut String) -> Result<()> {
        let digits = self.rest().get(..length).filter(|digits| digits.chars().all(|digit| digit.is_digit(radix)));
        let character = digits.and_then(|digits| u32::from_str_radix(digits, radix).ok()).and_then(char::from_u32);
        if let Some(character) = character {
            self.position += length;
            text.push(character);
            return Ok(());
        }
        self.position = start;
        Err(self.syntax_error(&format!("a valid character code of {length} digits")))
    }
}

fn is_quoted(text: &str) -> bool {
    text.starts_with(['\'', '"'])
}

fn parse_unsigned(written: &str) -> Option<Value> {
    if !written.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        || written.ends_with('_')
        || written.contains("__")
    {
        return None;
    }
    let digits = written.replace('_', "").to_ascii_lowercase();
    for (mark, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        if let Some(digits) = digits.strip_prefix(mark) {
            return i64::from_str_radix(digits, radix).ok().map(Value::Int);
        }
    }
    if digits.bytes().all(|b| b.is_ascii_digit()) {
        // Python rejects leading zeros, except in the number zero.
        let zeros = digits.starts_with('0') && digits.bytes().any(|b| b != b'0');
        return if zeros { None } else { digits.parse().ok().map(Value::Int) };
    }
    let plain = digits.bytes().all(|b| b.is_ascii_digit() || b".e+-".contains(&b));
    if plain { digits.parse().ok().map(Value::Float) } else { None }
}

#[cfg(test)]
#[path = "literal_tests.rs"]
mod tests;
