//! Resolution of YAML 1.1 scalars.

use granit_parser::{ScalarStyle, Tag};

use super::Tree;
use crate::value::Value;

pub(super) fn resolve_scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Tree {
    if let Some(tag) = tag {
        let (handle, suffix) = tag.parts();
        if format!("{handle}{suffix}") == "!function" {
            return Tree::Hook(text.to_owned());
        }
        if tag.core_suffix() == Some("str") {
            return Tree::Scalar(Value::from(text));
        }
    }
    Tree::Scalar(if style == ScalarStyle::Plain { resolve_plain(text) } else { Value::from(text) })
}

/// Resolves a plain scalar by YAML 1.1 rules, like PyYAML (`yaml/resolver.py`).
fn resolve_plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::None,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Value::Bool(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => return Value::Bool(false),
        _ => {}
    }
    let (negative, digits) = match text.as_bytes()[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    parse_number(digits).map_or_else(|| Value::from(text), |number| if negative { number.negated() } else { number })
}

fn parse_number(text: &str) -> Option<Value> {
    if let Some(digits) = text.strip_prefix("0b").filter(|digits| consists_of(digits, |b| b == b'0' || b == b'1')) {
        return parse_radix(digits, 2);
    }
    if let Some(digits) = text.strip_prefix("0x").filter(|digits| consists_of(digits, |b| b.is_ascii_hexdigit())) {
        return parse_radix(digits, 16);
    }
    if text == "0" {
        return Some(Value::Int(0));
    }
    if let Some(digits) = text.strip_prefix('0').filter(|digits| consists_of(digits, |b| (b'0'..=b'7').contains(&b))) {
        return parse_radix(digits, 8);
    }
    if text.starts_with(|c: char| ('1'..='9').contains(&c)) && consists_of(text, is_decimal) {
        return parse_radix(text, 10);
    }
    if matches!(text, ".inf" | ".Inf" | ".INF") {
        return Some(Value::Float(f64::INFINITY));
    }
    if matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Some(Value::Float(f64::NAN));
    }
    // `1:30` is a base-60 number in YAML 1.1.
    if text.contains(':') {
        let parts: Vec<&str> = text.split(':').collect();
        let is_valid = parts[0].starts_with(|c: char| ('1'..='9').contains(&c))
            && consists_of(parts[0], is_decimal)
            && parts[1..].iter().all(|part| part.len() <= 2 && part.parse::<u8>().is_ok_and(|part| part < 60));
        let sum = parts
            .iter()
            .try_fold(0i64, |sum, part| sum.checked_mul(60)?.checked_add(part.replace('_', "").parse().ok()?));
        return if is_valid { sum.map(Value::Int) } else { None };
    }
    // A float has a decimal point, and its exponent has a sign.
    let (mantissa, exponent) = text.split_once(['e', 'E']).map_or((text, None), |(m, e)| (m, Some(e)));
    let (integer, part) = mantissa.split_once('.')?;
    let is_valid = (integer.is_empty() && !part.is_empty() || integer.starts_with(|c: char| c.is_ascii_digit()))
        && integer.bytes().chain(part.bytes()).all(|b| b.is_ascii_digit() || b == b'_')
        && exponent
            .is_none_or(|e| e.starts_with(['+', '-']) && e.len() > 1 && e[1..].bytes().all(|b| b.is_ascii_digit()));
    if !is_valid {
        return None;
    }
    text.replace('_', "").parse().ok().map(Value::Float)
}

fn is_decimal(b: u8) -> bool {
    b.is_ascii_digit()
}

fn consists_of(text: &str, is_digit: fn(u8) -> bool) -> bool {
    !text.is_empty() && text.bytes().all(|b| is_digit(b) || b == b'_')
}

fn parse_radix(digits: &str, radix: u32) -> Option<Value> {
    i64::from_str_radix(&digits.replace('_', ""), radix).ok().map(Value::Int)
}
