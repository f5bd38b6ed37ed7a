//! Python values used in documents, templates and filters.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use fancy_regex::Regex;
use ghostlab_core::files::not_finite::NOT_FINITE;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

use crate::keys::{Key, KeyIndex};
use crate::python_object::PythonObject;

/// Value from JSON, YAML or a Python literal. Maps preserve insertion order.
#[derive(Debug, Clone)]
pub enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    /// List or tuple.
    List(Vec<Value>),
    /// Map with unique keys.
    Map(Vec<(Value, Value)>),
    /// Parquet value without a JSON form, such as a date, a decimal or bytes.
    Object(Box<PythonObject>),
}

impl Value {
    /// Returns the value for a key, or `None` if this is not a map or the key is missing.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let Self::Map(pairs) = self else { return None };
        pairs.iter().find(|(key, _)| key.as_text() == Some(name)).map(|(_, value)| value)
    }

    /// Returns the text, or `None` if this is not a string.
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// Returns the integer, or `None` if this is neither an integer nor a boolean. As in Python, `True` is 1 and
    /// `False` is 0.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bool(truth) => Some(i64::from(*truth)),
            _ => None,
        }
    }

    /// Returns the number as a float, or `None` if this is neither a number nor a boolean.
    pub fn as_number(&self) -> Option<f64> {
        if let Self::Float(number) = self { Some(*number) } else { self.as_int().map(|number| number as f64) }
    }

    /// Negates a number. Returns other values unchanged.
    pub(crate) fn negated(self) -> Self {
        match self {
            Self::Int(number) => Self::Int(-number),
            Self::Float(number) => Self::Float(-number),
            other => other,
        }
    }

    /// Returns the items, or `None` if this is not a list.
    pub fn as_list(&self) -> Option<&[Value]> {
        if let Self::List(items) = self { Some(items) } else { None }
    }

    /// Sets the value for a key. Does nothing if this is not a map.
    pub fn set(&mut self, name: &str, value: Value) {
        let Self::Map(pairs) = self else { return };
        match pairs.iter_mut().find(|(key, _)| key.as_text() == Some(name)) {
            Some((_, old)) => *old = value,
            None => pairs.push((Self::from(name), value)),
        }
    }

    /// Formats the value like Python's `str()`.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Object(object) => object.text().map_or_else(|| self.repr(), str::to_owned),
            other => other.repr(),
        }
    }

    /// Formats the value like Python's `repr()`.
    pub fn repr(&self) -> String {
        match self {
            Self::None => "None".to_owned(),
            Self::Bool(true) => "True".to_owned(),
            Self::Bool(false) => "False".to_owned(),
            Self::Int(number) => number.to_string(),
            Self::Float(number) => float_repr(*number),
            Self::Text(text) => text_repr(text),
            Self::List(items) => format!("[{}]", items.iter().map(Self::repr).collect::<Vec<_>>().join(", ")),
            Self::Map(pairs) => {
                let pairs = pairs.iter().map(|(key, value)| format!("{}: {}", key.repr(), value.repr()));
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
            }
            Self::Object(object) => object.repr().map_or_else(|| format!("<{}>", object.class()), str::to_owned),
        }
    }

    /// Returns whether templates can render the value. Returns false only for a placeholder, which replaces a Parquet
    /// value such as bytes.
    fn is_renderable(&self) -> bool {
        !matches!(self, Self::Object(object) if object.text().is_none())
    }

    /// Formats the value like Python's `json.dumps(value, ensure_ascii=False)`. With an indent, the output spans
    /// several lines.
    pub fn json(&self, indent: Option<usize>) -> String {
        self.json_in(&JsonStyle { indent, ..JsonStyle::default() })
    }

    /// Formats the value like Python's `json.dumps`.
    pub(crate) fn json_in(&self, style: &JsonStyle) -> String {
        self.json_at(style, 0)
    }

    fn json_at(&self, style: &JsonStyle, depth: usize) -> String {
        match self {
            Self::None => "null".to_owned(),
            Self::Bool(truth) => truth.to_string(),
            Self::Float(number) if number.is_nan() => "NaN".to_owned(),
            Self::Float(number) if number.is_infinite() => {
                format!("{}Infinity", if *number > 0.0 { "" } else { "-" })
            }
            Self::Int(_) | Self::Float(_) => self.repr(),
            Self::Text(text) => style.quoted(text),
            // lm-evaluation-harness passes `default=str` for values without a JSON form.
            Self::Object(_) => style.quoted(&self.text()),
            Self::List(items) if items.is_empty() => "[]".to_owned(),
            Self::Map(pairs) if pairs.is_empty() => "{}".to_owned(),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(|item| item.json_at(style, depth + 1)).collect();
                style.enclosed(['[', ']'], &items, depth)
            }
            Self::Map(pairs) => {
                let mut pairs: Vec<(String, &Self)> = pairs
                    .iter()
                    .filter(|(_, value)| value.is_renderable())
                    .map(|(key, value)| (key.as_text().map_or_else(|| key.json(None), str::to_owned), value))
                    .collect();
                if style.sorted {
                    pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
                }
                let colon = style.separators.as_ref().map_or(": ", |(_, colon)| colon);
                let pairs: Vec<String> = pairs
                    .iter()
                    .map(|(key, value)| format!("{}{colon}{}", style.quoted(key), value.json_at(style, depth + 1)))
                    .collect();
                style.enclosed(['{', '}'], &pairs, depth)
            }
        }
    }
}

/// Arguments of Python's `json.dumps`.
#[derive(Debug, Default)]
pub(crate) struct JsonStyle {
    pub(crate) indent: Option<usize>,
    /// Whether to escape non-ASCII characters.
    pub(crate) ascii: bool,
    pub(crate) sorted: bool,
    /// Separators after each item and each key.
    pub(crate) separators: Option<(String, String)>,
}

impl JsonStyle {
    fn quoted(&self, text: &str) -> String {
        // serde_json escapes like Python, except for DEL, which Python escapes only with `ensure_ascii`.
        let quoted = serde_json::Value::from(text).to_string();
        if !self.ascii {
            return quoted;
        }
        let mut ascii = String::with_capacity(quoted.len());
        for c in quoted.chars() {
            if matches!(c, ' '..='~') {
                ascii.push(c);
            } else {
                let mut units = [0; 2];
                c.encode_utf16(&mut units).iter().for_each(|unit| ascii.push_str(&format!("\\u{unit:04x}")));
            }
        }
        ascii
    }

    /// Returns a newline with the indentation for `depth`, or an empty string if the output is a single line.
    fn line_break(&self, depth: usize) -> String {
        self.indent.map_or_else(String::new, |indent| format!("\n{}", " ".repeat(indent * depth)))
    }

    fn enclosed(&self, [open, close]: [char; 2], items: &[String], depth: usize) -> String {
        let comma = match &self.separators {
            Some((comma, _)) => comma,
            None if self.indent.is_some() => ",",
            None => ", ",
        };
        let items = items.join(&format!("{comma}{}", self.line_break(depth + 1)));
        format!("{open}{}{items}{}{close}", self.line_break(depth + 1), self.line_break(depth))
    }
}

impl<T: Into<String>> From<T> for Value {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}

/// Python equality: `1 == 1.0 == True`, and the key order of maps is ignored.
impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None) => true,
            (Self::Text(a), Self::Text(b)) => a == b,
            (Self::List(a), Self::List(b)) => a == b,
            (Self::Object(a), Self::Object(b)) => a == b,
            (Self::Map(a), Self::Map(b)) => {
                a.len() == b.len() && {
                    let index = KeyIndex::new(b);
                    a.iter().all(|(key, value)| index.position(b, key).is_some_and(|position| b[position].1 == *value))
                }
            }
            (Self::Float(a), Self::Float(b)) => a == b,
            (Self::Float(a), b) | (b, Self::Float(a)) => b.as_int().is_some_and(|b| *a == b as f64),
            (a, b) => a.as_int().is_some() && a.as_int() == b.as_int(),
        }
    }
}

/// Hashes numbers so that `1`, `1.0` and `True` are the same key, as in Python.
impl Key for Value {
    fn hash(&self, state: &RandomState) -> u64 {
        match (self, self.as_number()) {
            (Self::Text(text), _) => state.hash_one(text),
            // Adding 0.0 maps -0.0 to 0.0.
            (_, Some(number)) => state.hash_one((number + 0.0).to_bits()),
            _ => 0,
        }
    }
}

/// Serializes to JSON. Map keys are converted to strings. Map entries whose value is a placeholder, such as bytes, are
/// omitted.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_unit(),
            Self::Bool(truth) => serializer.serialize_bool(*truth),
            Self::Int(number) => serializer.serialize_i64(*number),
            Self::Float(number) => serializer.serialize_f64(*number),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => serializer.collect_seq(items),
            Self::Object(_) => serializer.serialize_str(&self.text()),
            Self::Map(pairs) => {
                let pairs = pairs.iter().filter(|(_, value)| value.is_renderable());
                serializer.collect_map(pairs.map(|(key, value)| (key.text(), value)))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Value;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::None)
            }
            fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
                Ok(Value::Bool(truth))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
                Ok(Value::Int(number))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
                Ok(i64::try_from(number).map_or(Value::Float(number as f64), Value::Int))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
                Ok(Value::Float(number))
            }
            fn visit_str<E>(self, text: &str) -> Result<Value, E> {
                Ok(Value::from(text))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(Value::List(list))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
                let mut map = Vec::new();
                let mut index = KeyIndex::default();
                while let Some((key, value)) = pairs.next_entry::<String, Value>()? {
                    if key == NOT_FINITE {
                        return Ok(value.as_text().and_then(|name| name.parse().ok()).map_or(value, Value::Float));
                    }
                    index.set(&mut map, Value::Text(key), value);
                }
                Ok(Value::Map(map))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// Formats a float like Python's `repr`, with the shortest digits that round-trip.
fn float_repr(number: f64) -> String {
    if !number.is_finite() {
        return if number.is_nan() {
            "nan"
        } else if number > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let power: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&power) {
        let sign = if power < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", power.abs());
    }
    let plain = number.to_string();
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

/// Returns whether Python's `str.isprintable` accepts a character. It rejects control, format and unassigned
/// characters, and all separators except the space.
pub(crate) fn is_printable(character: char) -> bool {
    static NONPRINTABLE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^[\p{C}\p{Z}]$").ok());
    if character.is_ascii() {
        return !character.is_ascii_control();
    }
    let mut buffer = [0; 4];
    let text = &*character.encode_utf8(&mut buffer);
    NONPRINTABLE.as_ref().is_none_or(|hidden| !hidden.is_match(text).unwrap_or(false))
}

/// Formats a string like Python's `repr`. Uses double quotes only if it contains a single quote and no double quote.
fn text_repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if c == quote => out.extend(['\\', c]),
            _ if is_printable(c) => out.push(c),
            _ => match c as u32 {
                code @ ..=0xff => out.push_str(&format!("\\x{code:02x}")),
                code @ ..=0xffff => out.push_str(&format!("\\u{code:04x}")),
                code => out.push_str(&format!("\\U{code:08x}")),
            },
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_lookup_finds_python_equal_keys_of_other_types() {
        for others in [0, 100] {
            let mut pairs = vec![(Value::Int(1), 0), (Value::from("1"), 0), (Value::None, 0), (Value::Float(-0.0), 0)];
            let mut index = KeyIndex::new(&pairs);
            (0..others).for_each(|number| index.set(&mut pairs, Value::Text(format!("k{number}")), number));
            for (key, position) in [
                (Value::Bool(true), Some(0)),
                (Value::Float(1.0), Some(0)),
                (Value::from("1"), Some(1)),
                (Value::None, Some(2)),
                (Value::Int(0), Some(3)),
                (Value::from("2"), None),
            ] {
                assert_eq!(index.position(&pairs, &key), position, "{key:?} among {others}");
            }
            index.set(&mut pairs, Value::Float(1.0), 7);
            assert_eq!((pairs.len(), pairs[0].1), (4 + others, 7));
        }
    }

    /// The expected strings are the results of `repr` in Python 3.11.
    #[test]
    fn values_print_as_in_python() {
        assert_eq!(
            json_repr(r#"[true, null, 1, 1.0, "it's", "say \"it's\""]"#),
            r#"[True, None, 1, 1.0, "it's", 'say "it\'s"']"#
        );
        assert_eq!(json_repr(r#"["\u00a0\u200b\n\ud83d\ude00é\u007f"]"#), r"['\xa0\u200b\n😀é\x7f']");
        let floats = [1e16, 1e15, 0.0001, 0.00001, 1e22, 1.5e-7, -0.0, 123456.789].map(|f| Value::Float(f).repr());
        assert_eq!(
            floats,
            ["1e+16", "1000000000000000.0", "0.0001", "1e-05", "1e+22", "1.5e-07", "-0.0", "123456.789"]
        );
    }

    fn json_repr(json: &str) -> String {
        serde_json::from_str::<Value>(json).unwrap().repr()
    }

    #[test]
    fn numbers_and_maps_are_equal_as_in_python() {
        assert_eq!(Value::Int(1), Value::Bool(true));
        assert_eq!(Value::Int(1), Value::Float(1.0));
        assert_ne!(Value::Int(1), Value::from("1"));
        assert_eq!(parse_value(r#"{"a": 1, "b": 2}"#), parse_value(r#"{"b": 2, "a": 1}"#));
    }

    fn parse_value(json: &str) -> Value {
        serde_json::from_str::<Value>(json).unwrap()
    }
}
