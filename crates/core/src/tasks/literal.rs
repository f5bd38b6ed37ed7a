//! Values written as a Python literal, as RACE's hub data have them: a list of dicts in one string.
//!
//! By hand, because py_literal 0.4 refuses strings side by side, the prefix `u` and triple quotes, which Python writes or
//! reads, and does not come to an end on a text of a hundred nested brackets.

use serde_json::{Map, Number, Value};

use crate::error::{Error, Result};

/// Deeper nesting is refused: each level is a call on the stack.
const DEPTH: usize = 64;

/// The value of a Python literal: lists and tuples (both a list), dicts with text keys, strings of every quote style
/// with all escapes but named characters, whole and decimal numbers, `True`, `False`, `None`.
///
/// # Errors
/// What Python's `ast.literal_eval` refuses, and what JSON cannot hold (sets, bytes, complex numbers, half a surrogate
/// pair), with the character at which reading stopped.
pub(super) fn parse(text: &str) -> Result<Value> {
    let mut reader = Reader { text, at: 0 };
    reader.skip_space();
    let value = reader.value(0)?;
    reader.skip_space();
    match reader.peek() {
        None => Ok(value),
        Some(_) => Err(reader.refuse("the end")),
    }
}

struct Reader<'a> {
    text: &'a str,
    /// Bytes read so far, always at a character's start.
    at: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.at += character.len_utf8();
        Some(character)
    }

    /// Steps over `word` if it comes next.
    fn take(&mut self, word: &str) -> bool {
        let found = self.rest().starts_with(word);
        if found {
            self.at += word.len();
        }
        found
    }

    /// Between tokens Python allows only these.
    fn skip_space(&mut self) {
        while self.peek().is_some_and(|character| matches!(character, ' ' | '\t' | '\n' | '\r' | '\u{c}')) {
            self.at += 1;
        }
    }

    fn refuse(&self, expected: &str) -> Error {
        let read = self.text.get(..self.at).unwrap_or_default();
        let excerpt: String = self.rest().chars().take(20).collect();
        let found = if excerpt.is_empty() { "the end".to_owned() } else { format!("{excerpt:?}") };
        Error::bad_input("the text is not a Python literal")
            .at(format!("character {}", read.chars().count() + 1))
            .expected(expected)
            .found(found)
    }

    fn value(&mut self, depth: usize) -> Result<Value> {
        if depth > DEPTH {
            return Err(self.refuse(&format!("at most {DEPTH} levels of brackets")));
        }
        match self.peek() {
            Some('[') => self.list(']', depth),
            Some('(') => self.list(')', depth),
            Some('{') => self.dict(depth),
            Some('\'' | '"') => self.string().map(Value::String),
            Some(sign) if sign.is_ascii_digit() || matches!(sign, '-' | '+' | '.') => self.number(),
            Some(letter) if letter.is_ascii_alphabetic() => self.word(),
            _ => Err(self.refuse("a list, a dict, a string or a number")),
        }
    }

    fn word(&mut self) -> Result<Value> {
        // A letter in front of a quote says how the string is written; `u` says nothing.
        if self.rest().starts_with(['u', 'U']) && self.rest()[1..].starts_with(['\'', '"']) {
            return self.string().map(Value::String);
        }
        let length = self.rest().find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.rest().len());
        let value = match &self.rest()[..length] {
            "True" => Value::Bool(true),
            "False" => Value::Bool(false),
            "None" => Value::Null,
            _ => return Err(self.refuse("a list, a dict, a string or a number")),
        };
        self.at += length;
        Ok(value)
    }

    /// A list or tuple: values between commas, one more comma allowed at the end. One value in round brackets without
    /// a comma is that value.
    fn list(&mut self, close: char, depth: usize) -> Result<Value> {
        self.next();
        let (mut values, mut comma) = (Vec::new(), false);
        loop {
            self.skip_space();
            if self.peek() == Some(close) {
                self.next();
                break;
            }
            if !values.is_empty() && !comma {
                return Err(self.refuse(&format!("`,` or `{close}`")));
            }
            values.push(self.value(depth + 1)?);
            self.skip_space();
            comma = self.take(",");
        }
        if close == ')' && values.len() == 1 && !comma {
            return Ok(values.remove(0));
        }
        Ok(Value::Array(values))
    }

    /// A dict; of equal keys the last counts.
    fn dict(&mut self, depth: usize) -> Result<Value> {
        self.next();
        let (mut fields, mut comma) = (Map::new(), true);
        loop {
            self.skip_space();
            if self.take("}") {
                return Ok(Value::Object(fields));
            }
            if !comma {
                return Err(self.refuse("`,` or `}`"));
            }
            if !self.rest().starts_with(['\'', '"', 'u', 'U']) {
                return Err(self.refuse("a key in quotes"));
            }
            let Value::String(key) = self.value(depth + 1)? else { return Err(self.refuse("a key in quotes")) };
            self.skip_space();
            if !self.take(":") {
                return Err(self.refuse("`:`"));
            }
            self.skip_space();
            let value = self.value(depth + 1)?;
            fields.insert(key, value);
            self.skip_space();
            comma = self.take(",");
        }
    }

    fn number(&mut self) -> Result<Value> {
        let length = self
            .rest()
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-' | '_')))
            .unwrap_or(self.rest().len());
        let written = &self.rest()[..length];
        let digits = written.trim_start_matches(['+', '-']);
        // Python refuses a leading nought; Rust's parser would take it, and words such as `inf`.
        let plain = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
            && written.len() - digits.len() <= 1
            && (digits.len() == 1 || !digits.starts_with('0') || digits.starts_with("0."));
        let whole = written.parse::<i64>().ok().map(Number::from);
        let number = whole.or_else(|| written.parse::<f64>().ok().and_then(Number::from_f64));
        match number.filter(|_| plain) {
            Some(number) => {
                self.at += length;
                Ok(Value::Number(number))
            }
            None => Err(self.refuse("a plain number")),
        }
    }

    /// One string, or several side by side, which are one.
    fn string(&mut self) -> Result<String> {
        let mut text = String::new();
        loop {
            if self.rest().starts_with(['u', 'U']) {
                self.next();
            }
            self.quoted(&mut text)?;
            let end = self.at;
            self.skip_space();
            let rest = self.rest();
            let prefixed = rest.starts_with(['u', 'U']) && rest[1..].starts_with(['\'', '"']);
            if !(prefixed || rest.starts_with(['\'', '"'])) {
                self.at = end;
                return Ok(text);
            }
        }
    }

    fn quoted(&mut self, text: &mut String) -> Result<()> {
        let quote = match self.peek() {
            Some('\'') => "'",
            Some('"') => "\"",
            _ => return Err(self.refuse("a string in quotes")),
        };
        let triple = quote.repeat(3);
        let long = self.take(&triple);
        if !long {
            self.next();
        }
        let close = if long { triple.as_str() } else { quote };
        loop {
            if self.take(close) {
                return Ok(());
            }
            match self.peek() {
                None => return Err(self.refuse("a closing quote")),
                Some('\n' | '\r') if !long => return Err(self.refuse("a closing quote on the same line")),
                Some('\0') => return Err(self.refuse("no character NUL")),
                Some('\\') => self.escape(text)?,
                // Python reads its source with every line end as one "\n".
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

    fn escape(&mut self, text: &mut String) -> Result<()> {
        let start = self.at;
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
            // A line continued on the next.
            Some('\n') => {
                self.next();
                return Ok(());
            }
            Some('\r') => {
                self.next();
                self.take("\n");
                return Ok(());
            }
            Some('x') => return self.code(2, start, text),
            Some('u') => return self.code(4, start, text),
            Some('U') => return self.code(8, start, text),
            Some('0'..='7') => {
                let length = self.rest().bytes().take(3).take_while(|byte| matches!(byte, b'0'..=b'7')).count();
                return self.digits(length, 8, start, text);
            }
            Some('N') => {
                self.at = start;
                return Err(self.refuse("no character by its name"));
            }
            // Python keeps the backslash of an escape that it does not know.
            _ => {
                text.push('\\');
                return Ok(());
            }
        };
        self.next();
        text.push(plain);
        Ok(())
    }

    fn code(&mut self, length: usize, start: usize, text: &mut String) -> Result<()> {
        self.next();
        self.digits(length, 16, start, text)
    }

    fn digits(&mut self, length: usize, radix: u32, start: usize, text: &mut String) -> Result<()> {
        let digits = self.rest().get(..length).filter(|digits| digits.chars().all(|digit| digit.is_digit(radix)));
        let character = digits.and_then(|digits| u32::from_str_radix(digits, radix).ok()).and_then(char::from_u32);
        if let Some(character) = character {
            self.at += length;
            text.push(character);
            return Ok(());
        }
        self.at = start;
        Err(self.refuse(&format!("{length} digits that name a character")))
    }
}

#[cfg(test)]
#[path = "literal_tests.rs"]
mod tests;
