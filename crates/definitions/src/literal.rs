//! Python's literals, as `ast.literal_eval` reads them: what a definition prints to say a list of choices.

use crate::value::Value;

/// The deepest list in a list that is read.
const DEEPEST: usize = 60;

/// Reads one literal; none where Python would raise.
pub fn literal(text: &str) -> Option<Value> {
    let mut reader = Reader { rest: text.trim_start_matches([' ', '\t']), depth: 0 };
    let first = reader.value()?;
    reader.blank();
    if reader.rest.is_empty() {
        return Some(first);
    }
    // A tuple needs no brackets.
    let mut items = vec![first];
    while reader.eat(",") {
        reader.blank();
        if reader.rest.is_empty() {
            break;
        }
        items.push(reader.value()?);
        reader.blank();
    }
    reader.rest.is_empty().then_some(Value::List(items))
}

struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

impl Reader<'_> {
    /// Skips blanks; lines end only inside brackets, or after the whole.
    fn blank(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r', '\x0c']);
    }

    fn eat(&mut self, token: &str) -> bool {
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self) -> Option<Value> {
        self.blank();
        if self.depth > DEEPEST {
            return None;
        }
        for (open, close) in [("[", "]"), ("(", ")"), ("{", "}")] {
            if self.eat(open) {
                self.depth += 1;
                let inside = self.inside(open, close);
                self.depth -= 1;
                return inside;
            }
        }
        for (word, value) in [("None", Value::None), ("True", Value::Bool(true)), ("False", Value::Bool(false))] {
            if self.rest.starts_with(word)
                && !self.rest[word.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_')
            {
                self.eat(word);
                return Some(value);
            }
        }
        if self.rest.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) {
            self.number()
        } else {
            self.texts()
        }
    }

    /// What stands between brackets: a list, a tuple, a set or a map; one value in round brackets is itself.
    fn inside(&mut self, open: &str, close: &str) -> Option<Value> {
        let (mut items, mut pairs, mut commas) = (Vec::new(), Value::Map(Vec::new()), 0);
        loop {
            self.blank();
            if self.eat(close) {
                break;
            }
            let item = self.value()?;
            self.blank();
            if open == "{" && self.eat(":") {
                let value = self.value()?;
                let Value::Map(pairs) = &mut pairs else { return None };
                pairs.retain(|(key, _)| *key != item);
                pairs.push((item, value));
                self.blank();
            } else {
                items.push(item);
            }
            if self.eat(",") {
                commas += 1;
            } else if !self.rest.starts_with(close) {
                return None;
            }
        }
        let no_pairs = matches!(&pairs, Value::Map(pairs) if pairs.is_empty());
        match open {
            "(" if commas == 0 && items.len() == 1 => items.pop(),
            "{" if items.is_empty() => Some(pairs),
            _ => no_pairs.then_some(Value::List(items)),
        }
    }

    fn number(&mut self) -> Option<Value> {
        let negative = self.eat("-");
        if !negative {
            self.eat("+");
        }
        self.blank();
        let end = self
            .rest
            .char_indices()
            .find(|(at, c)| {
                let signed = "+-".contains(*c) && *at > 0 && self.rest[..*at].ends_with(['e', 'E']);
                !(c.is_ascii_alphanumeric() || *c == '.' || *c == '_' || signed)
            })
            .map_or(self.rest.len(), |(at, _)| at);
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        if digits.starts_with('_') || digits.ends_with('_') || digits.contains("__") {
            return None;
        }
        let digits = digits.replace('_', "").to_ascii_lowercase();
        for (mark, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
            if let Some(digits) = digits.strip_prefix(mark) {
                let number = i64::from_str_radix(digits, radix).ok()?;
                return Some(Value::Int(if negative { -number } else { number }));
            }
        }
        if digits.bytes().all(|b| b.is_ascii_digit()) {
            // Python refuses leading zeros but in zero itself.
            let zeros = digits.starts_with('0') && digits.bytes().any(|b| b != b'0');
            let number = if zeros { None } else { digits.parse::<i64>().ok() }?;
            return Some(Value::Int(if negative { -number } else { number }));
        }
        let plain = digits.bytes().all(|b| b.is_ascii_digit() || b".e+-".contains(&b));
        let number = if plain { digits.parse::<f64>().ok() } else { None }?;
        Some(Value::Float(if negative { -number } else { number }))
    }

    /// One or more texts side by side, which are one.
    fn texts(&mut self) -> Option<Value> {
        let mut all = self.one_text()?;
        loop {
            let before = self.rest;
            self.blank();
            if !(self.rest.starts_with(['\'', '"']) || self.rest.starts_with("r'") || self.rest.starts_with("r\"")) {
                self.rest = before;
                return Some(Value::Text(all));
            }
            all.push_str(&self.one_text()?);
        }
    }

    fn one_text(&mut self) -> Option<String> {
        let raw = self.eat("r") || self.eat("R");
        if !raw {
            let _ = self.eat("u") || self.eat("U");
        }
        let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| self.rest.starts_with(quote))?;
        self.eat(quote);
        let mut out = String::new();
        loop {
            if self.eat(quote) {
                return Some(out);
            }
            let c = self.rest.chars().next()?;
            self.rest = &self.rest[c.len_utf8()..];
            match c {
                '\n' if quote.len() == 1 => return None,
                '\\' if raw => {
                    let next = self.rest.chars().next()?;
                    self.rest = &self.rest[next.len_utf8()..];
                    out.extend(['\\', next]);
                }
                '\\' => self.escape(&mut out)?,
                _ => out.push(c),
            }
        }
    }

    fn escape(&mut self, out: &mut String) -> Option<()> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        let digits = match c {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        if digits > 0 {
            let code = self.rest.get(..digits).filter(|code| code.bytes().all(|b| b.is_ascii_hexdigit()))?;
            out.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
            self.rest = &self.rest[digits..];
            return Some(());
        }
        match c {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(c),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'a' => out.push('\x07'),
            'b' => out.push('\x08'),
            'f' => out.push('\x0c'),
            'v' => out.push('\x0b'),
            '0'..='7' => {
                let more = self.rest.bytes().take(2).take_while(|b| (b'0'..=b'7').contains(b)).count();
                let code = format!("{c}{}", &self.rest[..more]);
                self.rest = &self.rest[more..];
                out.push(char::from_u32(u32::from_str_radix(&code, 8).ok()?)?);
            }
            'N' => return None,
            // An unknown escape stays as it is written.
            _ => out.extend(['\\', c]),
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values: `ast.literal_eval(…)`, Python 3.11.
    #[test]
    fn literals_are_read_as_python_reads_them() {
        let read = |text: &str| literal(text).map(|value| value.repr());
        assert_eq!(read(r#" ["a", 'b' "c", 1, -2.5, None]"#).as_deref(), Some("['a', 'bc', 1, -2.5, None]"));
        assert_eq!(read(r"{'a': [1, 2], 'b': ()}").as_deref(), Some("{'a': [1, 2], 'b': []}"));
        assert_eq!(read(r"['\x41\u00e9\n\q', r'\n']").as_deref(), Some(r"['Aé\n\\q', '\\n']"));
        assert_eq!(read("(1)").as_deref(), Some("1"));
        assert_eq!(read("1, 2").as_deref(), Some("[1, 2]"));
        for bad in ["[a]", "['a' 1]", "007", "['a'", "[1] 2", "x", "", "['a\nb']", "[,]"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
