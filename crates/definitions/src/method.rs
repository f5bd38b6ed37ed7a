//! Methods of Python strings, lists and dicts that templates can call.

use ghostlab_core::tasks::python::{capitalize, is_space, words};
use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, State, Value as Jinja};

use crate::exchange::{printed, python, unsupported_error};
use crate::jinja::objects::DictView;
use crate::jinja::str_format;
use crate::value::Value;

mod letters;

use letters::{
    casefold, is_alnum, is_alpha, is_decimal, is_identifier, is_numeric, is_printable, is_title, swapcase, title,
};
pub(crate) use letters::{decimal_digit, is_digit, is_lower, is_upper};

/// Names of all methods that [`call`] or objects such as `cycler` implement.
pub(crate) const METHODS: [&str; 48] = [
    "strip",
    "lstrip",
    "rstrip",
    "split",
    "rsplit",
    "splitlines",
    "replace",
    "capitalize",
    "lower",
    "upper",
    "title",
    "startswith",
    "endswith",
    "join",
    "index",
    "find",
    "count",
    "isdigit",
    "isalpha",
    "isspace",
    "items",
    "keys",
    "values",
    "get",
    "removeprefix",
    "removesuffix",
    "swapcase",
    "casefold",
    "center",
    "ljust",
    "rjust",
    "zfill",
    "partition",
    "rpartition",
    "expandtabs",
    "isupper",
    "islower",
    "istitle",
    "isalnum",
    "isnumeric",
    "isdecimal",
    "isascii",
    "isidentifier",
    "isprintable",
    "rfind",
    "rindex",
    "format",
    "next",
];

/// Calls a Python method. minijinja uses this callback for methods that it does not implement.
pub(crate) fn call(_: &mut State<'_, '_>, object: &Jinja, method: &str, args: &[Jinja]) -> Result<Jinja, Error> {
    match object.kind() {
        ValueKind::String => call_on_text(object.as_str().unwrap_or_default(), method, args),
        ValueKind::Seq | ValueKind::Iterable => call_on_list(object, method, args),
        ValueKind::Map => call_on_map(object, method, args),
        kind => Err(unsupported_error(format!("a value of type {kind} has no method `{method}`"))),
    }
}

fn call_on_text(text: &str, method: &str, args: &[Jinja]) -> Result<Jinja, Error> {
    Ok(match method {
        "strip" | "lstrip" | "rstrip" => Jinja::from(strip_text(text, method, args)?),
        "split" | "rsplit" => {
            let (separator, max_splits, kwargs): (Option<String>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = separator.or(kwargs.get("sep")?);
            let max_splits = max_splits.or(kwargs.get("maxsplit")?);
            kwargs.assert_all_used()?;
            let max_splits = max_splits.filter(|count| *count >= 0).and_then(|count| usize::try_from(count).ok());
            Jinja::from(split(text, separator.as_deref(), max_splits, method == "rsplit")?)
        }
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(args)?;
            Jinja::from(split_lines(text, keep_ends.unwrap_or(false)))
        }
        "replace" => {
            let (old, new, count): (String, String, Option<i64>) = from_args(args)?;
            Jinja::from(replace_text(text, &old, &new, count)?)
        }
        "startswith" | "endswith" => Jinja::from(has_prefix_or_suffix(text, method == "startswith", args)?),
        "removeprefix" | "removesuffix" => {
            let (part,): (String,) = from_args(args)?;
            let cut = if method == "removeprefix" { text.strip_prefix(&part) } else { text.strip_suffix(&part) };
            Jinja::from(cut.unwrap_or(text))
        }
        "join" => {
            let (items,): (Jinja,) = from_args(args)?;
            Jinja::from(
                items
                    .try_iter()?
                    .map(|item| {
                        let one = item.as_str().ok_or_else(|| unsupported_error("`join` requires strings"))?;
                        printed(one.len() + text.len()).map(|()| one.to_owned())
                    })
                    .collect::<Result<Vec<_>, _>>()?
                    .join(text),
            )
        }
        "find" | "index" | "rfind" | "rindex" => Jinja::from(find_position(text, method, args)?),
        "count" => {
            let (part,): (String,) = from_args(args)?;
            Jinja::from(if part.is_empty() { text.chars().count() + 1 } else { text.matches(&part).count() })
        }
        "partition" | "rpartition" => Jinja::from(Tuple::from(partition(text, method == "rpartition", args)?)),
        "center" | "ljust" | "rjust" | "zfill" => Jinja::from(pad(text, method, args)?),
        "expandtabs" => {
            let (size,): (Option<usize>,) = from_args(args)?;
            Jinja::from(expand_tabs(text, size.unwrap_or(8))?)
        }
        "format" => Jinja::from(str_format(text, args)?),
        _ => {
            let () = from_args(args)?;
            call_without_arguments(text, method)?
        }
    })
}

/// Calls a string method that takes no arguments.
fn call_without_arguments(text: &str, method: &str) -> Result<Jinja, Error> {
    Ok(match method {
        "capitalize" => Jinja::from(capitalize(text)),
        "lower" => Jinja::from(text.to_lowercase()),
        "upper" => Jinja::from(text.to_uppercase()),
        "title" => Jinja::from(title(text)),
        "swapcase" => Jinja::from(swapcase(text)),
        "casefold" => Jinja::from(casefold(text)),
        "isdigit" => Jinja::from(is_digit(text)),
        "isdecimal" => Jinja::from(is_decimal(text)),
        "isnumeric" => Jinja::from(is_numeric(text)?),
        "isalpha" => Jinja::from(is_alpha(text)),
        "isalnum" => Jinja::from(is_alnum(text)),
        "isspace" => Jinja::from(!text.is_empty() && text.chars().all(is_space)),
        "isupper" => Jinja::from(is_upper(text)),
        "islower" => Jinja::from(is_lower(text)),
        "istitle" => Jinja::from(is_title(text)),
        "isascii" => Jinja::from(text.is_ascii()),
        "isidentifier" => Jinja::from(is_identifier(text)?),
        "isprintable" => Jinja::from(is_printable(text)),
        _ => return Err(unsupported_error(format!("the string method `{method}` is not supported"))),
    })
}

fn strip_text<'t>(text: &'t str, method: &str, args: &[Jinja]) -> Result<&'t str, Error> {
    let (set,): (Option<String>,) = from_args(args)?;
    let is_dropped = |c: char| set.as_ref().map_or_else(|| is_space(c), |set| set.contains(c));
    Ok(match method {
        "lstrip" => text.trim_start_matches(is_dropped),
        "rstrip" => text.trim_end_matches(is_dropped),
        _ => text.trim_matches(is_dropped),
    })
}

/// Replaces text like Python's `str.replace`.
pub(crate) fn replace_text(text: &str, old: &str, new: &str, count: Option<i64>) -> Result<String, Error> {
    let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    let times = text.matches(old).count().min(count);
    printed(text.len().saturating_add(times.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, times))
}

/// Implements Python's `str.startswith` or `str.endswith`, for a string or a tuple of strings.
fn has_prefix_or_suffix(text: &str, start: bool, args: &[Jinja]) -> Result<bool, Error> {
    let (part, from): (Jinja, Option<usize>) = from_args(args)?;
    let Some(text) = text
        .char_indices()
        .map(|(position, _)| position)
        .chain([text.len()])
        .nth(from.unwrap_or(0))
        .map(|position| &text[position..])
    else {
        return Ok(false);
    };
    match part.as_str() {
        Some(part) => Ok(has_edge(part, start, text)),
        None => Ok(part.try_iter()?.any(|part| part.as_str().is_some_and(|part| has_edge(part, start, text)))),
    }
}

fn has_edge(part: &str, start: bool, text: &str) -> bool {
    if start { text.starts_with(part) } else { text.ends_with(part) }
}

/// Implements Python's `str.find`, `str.index`, `str.rfind` or `str.rindex`. Positions are in characters.
fn find_position(text: &str, method: &str, args: &[Jinja]) -> Result<i64, Error> {
    let (part, from): (String, Option<usize>) = from_args(args)?;
    let skipped = text.char_indices().map(|(position, _)| position).chain([text.len()]).nth(from.unwrap_or(0));
    let found = skipped.and_then(|skipped| {
        let rest = &text[skipped..];
        let position = if method.starts_with('r') { rest.rfind(&part) } else { rest.find(&part) };
        position.map(|position| text[..skipped + position].chars().count())
    });
    match found.map(i64::try_from) {
        Some(Ok(position)) => Ok(position),
        _ if method.ends_with("find") => Ok(-1),
        _ => Err(unsupported_error(format!("the string does not contain `{part}`"))),
    }
}

fn partition(text: &str, last: bool, args: &[Jinja]) -> Result<[Jinja; 3], Error> {
    let (separator,): (String,) = from_args(args)?;
    if separator.is_empty() {
        return Err(unsupported_error("`partition` requires a nonempty separator"));
    }
    let parts = if last { text.rsplit_once(&separator) } else { text.split_once(&separator) };
    let parts = match parts {
        Some((before, after)) => [before, &separator, after],
        None if last => ["", "", text],
        None => [text, "", ""],
    };
    Ok(parts.map(Jinja::from))
}

fn pad(text: &str, method: &str, args: &[Jinja]) -> Result<String, Error> {
    let (width, fill): (usize, Option<String>) = from_args(args)?;
    let mut fill = fill.as_deref().unwrap_or(if method == "zfill" { "0" } else { " " }).chars();
    let (Some(fill), None) = (fill.next(), fill.next()) else {
        return Err(unsupported_error(format!("the fill argument of `{method}` must be a single character")));
    };
    let missing = width.saturating_sub(text.chars().count());
    printed(missing.saturating_mul(fill.len_utf8()))?;
    Ok(match method {
        "center" => center(text, width, fill)?,
        "ljust" => format!("{text}{}", fill_missing(fill, missing)),
        "zfill" if text.starts_with(['-', '+']) => {
            format!("{}{}{}", &text[..1], fill_missing(fill, missing), &text[1..])
        }
        _ => format!("{}{text}", fill_missing(fill, missing)),
    })
}

fn fill_missing(fill: char, missing: usize) -> String {
    fill.to_string().repeat(missing)
}

/// Centers text like Python's `str.center`. If the padding is odd, the extra character goes to the left for an odd
/// width and to the right for an even one.
pub(crate) fn center(text: &str, width: usize, fill: char) -> Result<String, Error> {
    let missing = width.saturating_sub(text.chars().count());
    printed(missing.saturating_mul(fill.len_utf8()))?;
    let left = missing / 2 + (missing & width & 1);
    Ok(format!("{}{text}{}", repeat_fill(left, fill), repeat_fill(missing - left, fill)))
}

fn repeat_fill(count: usize, fill: char) -> String {
    fill.to_string().repeat(count)
}

fn expand_tabs(text: &str, size: usize) -> Result<String, Error> {
    let mut out = String::with_capacity(text.len());
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' if size == 0 => {}
            '\t' => {
                let blanks = size - column % size;
                printed(blanks)?;
                out.push_str(&" ".repeat(blanks));
                column += blanks;
            }
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
    }
    Ok(out)
}

/// Splits lines like Python's `str.splitlines`, which recognizes other line boundaries besides newlines.
fn split_lines(text: &str, keep_ends: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest
            .find(|c| {
                matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
            })
            .unwrap_or(rest.len());
        let after = &rest[end..];
        let length = if after.starts_with("\r\n") { 2 } else { after.chars().next().map_or(0, char::len_utf8) };
        lines.push(rest[..if keep_ends { end + length } else { end }].to_owned());
        rest = &rest[end + length..];
    }
    lines
}

fn split(text: &str, separator: Option<&str>, max_splits: Option<usize>, right: bool) -> Result<Vec<String>, Error> {
    Ok(match (separator, max_splits) {
        (Some(""), _) => return Err(unsupported_error("`split` requires a nonempty separator")),
        (Some(separator), None) => owned_parts(text.split(separator).collect()),
        (Some(separator), Some(max_splits)) if right => {
            owned_parts(text.rsplitn(max_splits + 1, separator).collect::<Vec<_>>().into_iter().rev().collect())
        }
        (Some(separator), Some(max_splits)) => owned_parts(text.splitn(max_splits + 1, separator).collect()),
        (None, None) => owned_parts(words(text).collect()),
        (None, Some(max_splits)) if right => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end_matches(is_space);
            while !rest.is_empty() {
                let start = if parts.len() == max_splits { None } else { rest.rfind(is_space) };
                let Some(start) = start else {
                    parts.push(if parts.len() == max_splits { rest } else { rest.trim_start_matches(is_space) });
                    break;
                };
                let blank = rest[start..].chars().next().map_or(0, char::len_utf8);
                parts.push(&rest[start + blank..]);
                rest = rest[..start].trim_end_matches(is_space);
            }
            parts.reverse();
            owned_parts(parts)
        }
        (None, Some(max_splits)) => {
            let mut parts = Vec::new();
            let mut rest = text.trim_start_matches(is_space);
            while !rest.is_empty() {
                let end = if parts.len() == max_splits { None } else { rest.find(is_space) };
                let Some(end) = end else {
                    parts.push(if parts.len() == max_splits { rest } else { rest.trim_end_matches(is_space) });
                    break;
                };
                parts.push(&rest[..end]);
                rest = rest[end..].trim_start_matches(is_space);
            }
            owned_parts(parts)
        }
    })
}

fn owned_parts(parts: Vec<&str>) -> Vec<String> {
    parts.into_iter().map(str::to_owned).collect::<Vec<_>>()
}

fn call_on_list(object: &Jinja, method: &str, args: &[Jinja]) -> Result<Jinja, Error> {
    let (item,): (Jinja,) = from_args(args)?;
    let item = python(&item)?;
    let items = object.try_iter()?.map(|other| python(&other)).collect::<Result<Vec<_>, _>>()?;
    match method {
        "index" => match items.iter().position(|other| *other == item) {
            Some(position) => Ok(Jinja::from(position)),
            None => Err(unsupported_error(format!("{} is not in the list {}", item.repr(), Value::List(items).repr()))),
        },
        "count" => Ok(Jinja::from(items.iter().filter(|other| **other == item).count())),
        _ => Err(unsupported_error(format!("the list method `{method}` is not supported"))),
    }
}

fn call_on_map(object: &Jinja, method: &str, args: &[Jinja]) -> Result<Jinja, Error> {
    match method {
        "items" | "keys" | "values" => {
            let () = from_args(args)?;
            let name = match method {
                "items" => "dict_items",
                "keys" => "dict_keys",
                _ => "dict_values",
            };
            let items = object
                .try_iter()?
                .map(|key| {
                    let value = object.get_item(&key)?;
                    Ok(match method {
                        "items" => Jinja::from(Tuple::from([key, value])),
                        "keys" => key,
                        _ => value,
                    })
                })
                .collect::<Result<_, Error>>()?;
            Ok(Jinja::from_object(DictView { name, items }))
        }
        "get" => {
            let (key, default): (Jinja, Option<Jinja>) = from_args(args)?;
            let found = object.get_item(&key).ok().filter(|value| !value.is_undefined());
            Ok(found.or(default).unwrap_or_else(|| Jinja::from(())))
        }
        _ => Err(unsupported_error(format!("the dict method `{method}` is not supported"))),
    }
}
