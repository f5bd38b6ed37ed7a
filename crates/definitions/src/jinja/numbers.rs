//! Jinja's number filters, with Python's semantics.

use ghostlab_core::tasks::python::strip;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, Value as Jinja};

use crate::exchange::unsupported_error;
use crate::method::decimal_digit;

/// Parses an integer like Python's `int(text, base)`. Returns `None` if Python raises `ValueError`.
///
/// # Errors
/// Fails if the number needs more than 127 bits.
fn parse_int(text: &str, base: u32) -> Result<Option<i128>, Error> {
    let text = strip(text);
    let negative = text.starts_with('-');
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let prefix = digits.get(..2).map(str::to_ascii_lowercase);
    let prefix_radix = match prefix.as_deref() {
        Some("0x") => 16,
        Some("0o") => 8,
        Some("0b") => 2,
        _ => 0,
    };
    let has_prefix = prefix_radix != 0 && (base == 0 || base == prefix_radix);
    let (digits, radix) = match (has_prefix, base) {
        (true, _) => (digits[2..].strip_prefix('_').unwrap_or(&digits[2..]), prefix_radix),
        (false, 0) => (digits, 10),
        (false, base) => (digits, base),
    };
    let is_separated = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    let digits: String = digits.chars().filter(|c| *c != '_').map(|c| decimal_digit(c).unwrap_or(c)).collect();
    if digits.is_empty() || is_separated || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Ok(None);
    }
    // With base 0, Python rejects leading zeros.
    if base == 0 && !has_prefix && digits.starts_with('0') && digits.bytes().any(|digit| digit != b'0') {
        return Ok(None);
    }
    let number = i128::from_str_radix(&digits, radix).map_err(|_| too_large_error())?;
    Ok(Some(if negative { -number } else { number }))
}

/// Parses a float like Python's `float(text)`. Returns `None` if Python raises `ValueError`.
pub(crate) fn parse_float(text: &str) -> Option<f64> {
    let text = strip(text);
    let mut plain = String::with_capacity(text.len());
    let mut previous = None;
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        if c == '_' {
            if !is_digit(previous) || !is_digit(characters.peek().copied()) {
                return None;
            }
        } else {
            plain.push(decimal_digit(c).unwrap_or(c));
        }
        previous = Some(c);
    }
    plain.parse().ok()
}

fn is_digit(c: Option<char>) -> bool {
    c.is_some_and(|c| decimal_digit(c).is_some())
}

/// Truncates a number like Python's `int(number)`.
fn truncate(number: f64) -> Result<Jinja, Error> {
    let number = number.trunc();
    if number.abs() < 2_f64.powi(126) { Ok(integer(number as i128)) } else { Err(too_large_error()) }
}

fn too_large_error() -> Error {
    unsupported_error("integers of more than 127 bits are not supported")
}

fn integer(number: i128) -> Jinja {
    i64::try_from(number).map_or_else(|_| Jinja::from(number), Jinja::from)
}

/// Implements the filter `int(default=0, base=10)`.
pub(crate) fn int(value: &Jinja, default: Option<Jinja>, base: Option<u32>, kwargs: &Kwargs) -> Result<Jinja, Error> {
    let default = default.or(kwargs.get("default")?).unwrap_or_else(|| Jinja::from(0));
    let base = base.or(kwargs.get("base")?).unwrap_or(10);
    kwargs.assert_all_used()?;
    if base == 1 || base > 36 {
        return Ok(default);
    }
    if let Some(text) = value.as_str() {
        if let Some(number) = parse_int(text, base)? {
            return Ok(integer(number));
        }
        return match parse_float(text) {
            Some(number) if number.is_finite() => truncate(number),
            _ => Ok(default),
        };
    }
    match value.kind() {
        ValueKind::Bool => Ok(Jinja::from(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => Ok(value.clone()),
        ValueKind::Number => {
            let number = f64::try_from(value.clone())?;
            if number.is_nan() { Ok(default) } else { truncate(number) }
        }
        ValueKind::Undefined => Err(Error::from(minijinja::ErrorKind::UndefinedError)),
        _ => Ok(default),
    }
}

/// Implements the filter `float(default=0.0)`.
pub(crate) fn float(value: &Jinja, default: Option<Jinja>, kwargs: &Kwargs) -> Result<Jinja, Error> {
    let default = default.or(kwargs.get("default")?).unwrap_or_else(|| Jinja::from(0.0));
    kwargs.assert_all_used()?;
    if let Some(text) = value.as_str() {
        return Ok(parse_float(text).map_or(default, Jinja::from));
    }
    match value.kind() {
        ValueKind::Bool => Ok(Jinja::from(f64::from(u8::from(value.is_true())))),
        ValueKind::Number => Ok(Jinja::from(f64::try_from(value.clone())?)),
        ValueKind::Undefined => Err(Error::from(minijinja::ErrorKind::UndefinedError)),
        _ => Ok(default),
    }
}

/// Implements the filter `round(precision=0, method='common')`. As in Python, the exact decimal value is rounded, and
/// ties go to the even digit.
pub(crate) fn round(
    value: &Jinja,
    precision: Option<i32>,
    method: Option<String>,
    kwargs: &Kwargs,
) -> Result<Jinja, Error> {
    let precision = precision.or(kwargs.get("precision")?).unwrap_or(0);
    let method = method.or(kwargs.get("method")?).unwrap_or_else(|| "common".to_owned());
    kwargs.assert_all_used()?;
    let places = usize::try_from(precision)
        .map_err(|_| unsupported_error("`round` with a negative precision is not supported"))?;
    // No `f64` has more than 1,100 decimal places.
    let places = places.min(1100);
    if !matches!(value.kind(), ValueKind::Number | ValueKind::Bool) {
        return Err(unsupported_error("`round` requires a number"));
    }
    if method == "common" && value.kind() == ValueKind::Bool {
        return Ok(Jinja::from(i64::from(value.is_true())));
    }
    if method == "common" && value.is_integer() {
        return Ok(value.clone());
    }
    let number = f64::try_from(value.clone())?;
    let scale = 10_f64.powi(precision);
    let rounded = match method.as_str() {
        _ if !number.is_finite() => return Err(unsupported_error("`round` requires a finite number")),
        "common" => format!("{number:.places$}").parse().unwrap_or(number),
        "ceil" => (number * scale).ceil() / scale,
        "floor" => (number * scale).floor() / scale,
        _ => return Err(unsupported_error("`round` supports the methods common, ceil and floor")),
    };
    Ok(Jinja::from(rounded))
}

/// Implements the filter `filesizeformat(binary=false)`.
pub(crate) fn filesizeformat(value: &Jinja, binary: Option<bool>) -> Result<String, Error> {
    const UNITS: [&str; 8] = ["k", "M", "G", "T", "P", "E", "Z", "Y"];
    let number = value.as_str().map_or_else(|| f64::try_from(value.clone()).ok(), parse_float);
    let bytes = number.ok_or_else(|| unsupported_error("`filesizeformat` requires a number"))?;
    let binary = binary.unwrap_or(false);
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Ok("1 Byte".to_owned());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", bytes.trunc()));
    }
    let mut unit = base;
    let mut name = UNITS[0];
    for next in UNITS {
        (unit, name) = (unit * base, next);
        if bytes < unit {
            break;
        }
    }
    let name = if binary { format!("{}iB", name.to_uppercase()) } else { format!("{name}B") };
    Ok(format!("{:.1} {name}", base * bytes / unit))
}
