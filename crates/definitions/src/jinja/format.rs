//! Python's `"…" % values` and `"…".format(…)`. minijinja formats the individual values. Where its output differs from
//! Python's, this module formats the value itself or rejects it.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, Value as Jinja};

use crate::exchange::{printed, repr, text, unsupported_error};

/// Maximum number of digits in a width or precision. It bounds the size of the output.
const MAX_DIGITS: usize = 4;

/// Implements Python's `format % values`.
pub(super) fn format_percent(format: &str, values: &Jinja) -> Result<String, Error> {
    let positional: Vec<Jinja> = match values.downcast_object_ref::<Tuple>() {
        Some(values) => values.to_vec(),
        None => vec![values.clone()],
    };
    let mut positional = positional.iter();
    let mut uses_names = false;
    let mut out = String::new();
    let mut rest = format;
    while let Some(start) = rest.find('%') {
        out.push_str(&rest[..start]);
        rest = &rest[start + 1..];
        let key = match rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            Some((key, after)) => {
                rest = after;
                Some(key)
            }
            None => None,
        };
        let length = rest
            .find(|c: char| !"#0- +.0123456789".contains(c))
            .ok_or_else(|| unsupported_error("a format specifier after `%` is incomplete"))?;
        let options = &rest[..length];
        let conversion = rest[length..].chars().next().unwrap_or('%');
        rest = &rest[length + conversion.len_utf8()..];
        check_width(options)?;
        if conversion == '%' {
            out.push('%');
            continue;
        }
        let value = match key {
            Some(key) if values.kind() == ValueKind::Map => {
                uses_names = true;
                values.get_item(&Jinja::from(key))?
            }
            Some(_) => return Err(unsupported_error("a `%` format with names requires a dict")),
            None => positional
                .next()
                .cloned()
                .ok_or_else(|| unsupported_error("not enough values for the format string"))?,
        };
        out.push_str(&format_value(options, conversion, &value)?);
    }
    out.push_str(rest);
    if positional.next().is_some() && !uses_names && values.kind() != ValueKind::Map {
        return Err(unsupported_error("the format string does not use all values"));
    }
    printed(out.len()).map(|()| out)
}

fn format_value(options: &str, conversion: char, value: &Jinja) -> Result<String, Error> {
    let is_number = matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    let (conversion, value) = match conversion {
        's' => ('s', Jinja::from(text(value)?)),
        'r' => ('s', Jinja::from(repr(value)?)),
        'd' | 'i' | 'u' if is_number => {
            let number = if value.is_integer() { value.clone() } else { to_integer(value)? };
            ('d', number)
        }
        'x' | 'X' | 'o' if value.is_integer() => (conversion, value.clone()),
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' if is_number => (conversion, Jinja::from(f64::try_from(value.clone())?)),
        'c' => ('c', value.clone()),
        _ => return Err(unsupported_error(format!("%{conversion} cannot format a value of type {}", value.kind()))),
    };
    format(FormatStyle::Printf, &format!("%{options}{conversion}"), &[value])
}

fn to_integer(value: &Jinja) -> Result<Jinja, Error> {
    let number = f64::try_from(value.clone())?.trunc();
    if number.abs() < 9e18 {
        Ok(Jinja::from(number as i64))
    } else {
        Err(unsupported_error("integers of more than 64 bits are not supported"))
    }
}

/// Rejects a width or precision of more than [`MAX_DIGITS`] digits.
fn check_width(options: &str) -> Result<(), Error> {
    let longest = options.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0);
    if longest > MAX_DIGITS {
        Err(unsupported_error(format!("a width or precision in a format string exceeds {MAX_DIGITS} digits")))
    } else {
        Ok(())
    }
}

/// Implements Python's `format.format(*args)`.
pub(crate) fn str_format(format: &str, args: &[Jinja]) -> Result<String, Error> {
    let (positional, names): (&[Jinja], Kwargs) = from_args(args)?;
    let mut next_position = 0;
    let mut out = String::new();
    let mut characters = format.char_indices().peekable();
    while let Some((at, c)) = characters.next() {
        let doubled = characters.peek().is_some_and(|(_, next)| *next == c);
        match c {
            '{' | '}' if doubled => {
                characters.next();
                out.push(c);
            }
            '}' => return Err(unsupported_error("a single `}` in a format string: write `}}`")),
            '{' => {
                let length = format[at + 1..]
                    .find(['}', '{'])
                    .ok_or_else(|| unsupported_error("`{` without `}` in a format string"))?;
                let field = &format[at + 1..at + 1 + length];
                if format[at + 1 + length..].starts_with('{') {
                    return Err(unsupported_error("nested fields in a format string are not supported"));
                }
                out.push_str(&format_field(field, positional, &names, &mut next_position)?);
                while characters.next_if(|(next, _)| *next <= at + 1 + length).is_some() {}
            }
            c => out.push(c),
        }
    }
    printed(out.len()).map(|()| out)
}

/// Formats one replacement field. It consists of a name or index, an optional `!r` or `!s`, and an optional `:` with a
/// format specification.
fn format_field(field: &str, positional: &[Jinja], names: &Kwargs, next_position: &mut usize) -> Result<String, Error> {
    let (name, specification) = field.split_once(':').unwrap_or((field, ""));
    let (name, conversion) = name.split_once('!').map_or((name, None), |(name, conversion)| (name, Some(conversion)));
    let missing_value_error = || unsupported_error(format!("no value for `{name}` in the format string"));
    let value = if name.is_empty() {
        *next_position += 1;
        positional.get(*next_position - 1).cloned().ok_or_else(missing_value_error)?
    } else if let Ok(position) = name.parse::<usize>() {
        positional.get(position).cloned().ok_or_else(missing_value_error)?
    } else if name.contains(['.', '[']) {
        return Err(unsupported_error("attributes in a format string are not supported"));
    } else {
        names.get::<Option<Jinja>>(name)?.ok_or_else(missing_value_error)?
    };
    let value = match conversion {
        None => value,
        Some("s") => Jinja::from(text(&value)?),
        Some("r") => Jinja::from(repr(&value)?),
        Some(_) => return Err(unsupported_error("only the conversions !s and !r are supported")),
    };
    if specification.is_empty() {
        return text(&value);
    }
    check_width(specification)?;
    if let Some(text) = format_grouped(specification, &value)? {
        return Ok(text);
    }
    let is_plain = value.as_str().is_some() || value.kind() == ValueKind::Number;
    let has_type = specification.ends_with(|c: char| c.is_ascii_alphabetic() || c == '%');
    if !is_plain || !has_type && text(&value)? != value.to_string() {
        return Err(unsupported_error(format!("`{{:{specification}}}` cannot format {}", text(&value)?)));
    }
    format(FormatStyle::StrFormat, &format!("{{:{specification}}}"), &[value])
}

/// Formats a number with a `,` or `%` specification (such as `,d`, `,.2f`, `.2%`), which minijinja does not support.
/// Returns `None` for other specifications.
fn format_grouped(specification: &str, value: &Jinja) -> Result<Option<String>, Error> {
    let is_grouped = specification.contains(',');
    if !is_grouped && !specification.ends_with('%') {
        return Ok(None);
    }
    let rest = specification.strip_prefix(',').unwrap_or(specification);
    let kind = rest.chars().last().filter(|last| "df%".contains(*last));
    let precision = kind.map_or(rest, |kind| rest.trim_end_matches(kind));
    let digits = match precision.strip_prefix('.') {
        Some(digits) => digits.parse::<usize>().ok(),
        None if precision.is_empty() => Some(6),
        None => None,
    };
    let format_error = || unsupported_error(format!("`{{:{specification}}}` is not supported"));
    let digits = digits.ok_or_else(format_error)?;
    let number = || f64::try_from(value.clone()).ok().filter(|number| number.is_finite()).ok_or_else(format_error);
    let plain = match kind {
        _ if value.kind() != ValueKind::Number => return Err(format_error()),
        None | Some('d') if value.is_integer() && precision.is_empty() => value.to_string(),
        Some('f') => format!("{:.digits$}", number()?),
        Some('%') => format!("{:.digits$}%", 100.0 * number()?),
        _ => return Err(format_error()),
    };
    Ok(Some(if is_grouped { insert_commas(&plain) } else { plain }))
}

/// Inserts thousands separators into the integer part of a number.
fn insert_commas(number: &str) -> String {
    let (sign, digits) = number.strip_prefix('-').map_or(("", number), |digits| ("-", digits));
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let (whole, rest) = digits.split_at(end);
    let mut out = sign.to_owned();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}
