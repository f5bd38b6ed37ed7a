//! Values written as a Python literal, as RACE's hub data have them: a list of dicts in one string.

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
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Value {
        parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_list_of_dicts_is_read_in_either_quote_style() {
        let text = r#" [{'question': 'Who said "no"?', 'options': ["isn't", 'b',], 'answer': 'A'}, {"x": 1}]"#;
        let wanted = json!([{"question": "Who said \"no\"?", "options": ["isn't", "b"], "answer": "A"}, {"x": 1}]);
        assert_eq!(read(text), wanted);
    }

    #[test]
    fn every_escape_means_what_it_means_in_python() {
        for (text, wanted) in [
            (r"'\'\x22\\\n\r\t'", "'\"\\\n\r\t"),
            (r"'\xe9\u2014\U0001F600\0\101\18'", "é—😀\0A\u{1}8"),
            (r"'\a\b\f\v\q\.'", "\u{7}\u{8}\u{c}\u{b}\\q\\."),
            ("'a\\\nb'", "ab"),
            ("'''it's\n\"so\"'''", "it's\n\"so\""),
            ("'a' \"b\"\nu'c'", "abc"),
            ("''", ""),
            ("u\"é\"", "é"),
        ] {
            assert_eq!(read(text), json!(wanted), "{text}");
        }
    }

    #[test]
    fn other_literals_are_read() {
        assert_eq!(read("(1, -2.5, True, False, None, ('a'), ('a',), (), {}, [],)"), {
            json!([1, -2.5, true, false, null, "a", ["a"], [], {}, []])
        });
        assert_eq!(read("{'a': 1, 'a': 2,}"), json!({"a": 2}));
    }

    #[test]
    fn what_is_no_literal_is_refused_with_its_place() {
        for text in [
            "",
            "[",
            "[1",
            "[1 2]",
            "[,]",
            "(,)",
            "{'a'}",
            "{'a': }",
            "{1: 2}",
            "{'a': 1 'b': 2}",
            "{,}",
            "'a",
            "'a\nb'",
            "'a\rb'",
            "'\0'",
            "b'a'",
            "f'a'",
            "r'a'",
            "nan",
            "inf",
            "__import__('os')",
            "1 + 1",
            "01",
            "0x10",
            "--1",
            "-",
            "1e999",
            "'\\x4'",
            "'\\xé'",
            "'\\ud83d'",
            "'\\ud83d\\ude00'",
            "'\\U00110000'",
            "'\\N{DASH}'",
            "[1] # end",
            "[1]]",
            "\u{a0}[1]",
            "[\u{3000}1]",
            "u",
            "Truer",
            "é",
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{text}");
            assert!(error.to_string().contains("character "), "{error}");
        }
        let error = parse("['é', x]").unwrap_err().to_string();
        assert!(error.contains("character 7") && error.contains("\"x]\""), "{error}");
    }

    /// A value of at most `depth` levels, and how Python's `repr` might write it.
    fn any(random: &mut impl FnMut(usize) -> usize, depth: usize) -> (Value, String) {
        let text = |random: &mut dyn FnMut(usize) -> usize| {
            let letters = ["a", "'", "\"", "\\", "\n", "é", "\u{1f600}", " ", "]", "\0"];
            let text: String = (0..random(6)).map(|_| letters[random(letters.len())]).collect();
            let quote = ["'", "\"", "'''", "\"\"\""][random(4)];
            let escaped = |c: char| match c {
                '\'' | '"' | '\\' => format!("\\{c}"),
                '\n' => "\\n".to_owned(),
                '\0' => "\\x00".to_owned(),
                'é' if quote == "'" => "\\u00e9".to_owned(),
                c => c.to_string(),
            };
            let written: String = text.chars().map(escaped).collect();
            (text, format!("{quote}{written}{quote}"))
        };
        let parts = if depth == 0 { 0 } else { random(4) };
        match random(if depth == 0 { 3 } else { 5 }) {
            0 => {
                let number = random(2_000_001) as i64 - 1_000_000;
                (json!(number), number.to_string())
            }
            1 => {
                let (value, written) =
                    &[(json!(true), "True"), (json!(false), "False"), (json!(null), "None")][random(3)];
                (value.clone(), (*written).to_owned())
            }
            2 => {
                let (text, written) = text(random);
                (json!(text), written)
            }
            3 => {
                let items: Vec<(Value, String)> = (0..parts).map(|_| any(random, depth - 1)).collect();
                let written: Vec<&str> = items.iter().map(|(_, written)| written.as_str()).collect();
                let end = if parts > 0 && random(2) == 0 { "," } else { "" };
                let written = format!("[{}{end}]", written.join(", "));
                (items.into_iter().map(|(value, _)| value).collect(), written)
            }
            _ => {
                let (mut map, mut written) = (Map::new(), Vec::new());
                for _ in 0..parts {
                    let ((key, key_written), (value, value_written)) = (text(random), any(random, depth - 1));
                    map.insert(key, value);
                    written.push(format!("{key_written}: {value_written}"));
                }
                (Value::Object(map), format!("{{{}}}", written.join(",\n ")))
            }
        }
    }

    #[test]
    fn what_python_writes_is_read_back_as_it_was() {
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for _ in 0..2_000 {
            let (value, written) = any(&mut random, 4);
            assert_eq!(parse(&written).unwrap_or_else(|error| panic!("{written}: {error}")), value, "{written}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_and_does_not_overflow() {
        assert!(parse(&"[".repeat(1_000_000)).is_err());
        assert!(parse(&"{'a':".repeat(100_000)).is_err());
        let fits = format!("{}{}", "[".repeat(60), "]".repeat(60));
        parse(&fits).unwrap();
    }
}
