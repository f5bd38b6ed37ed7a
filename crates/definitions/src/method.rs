//! The methods of Python's texts, lists and maps that templates call.

use ghostlab_core::tasks::python::{capitalize, is_space, words};
use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value as Jinja};

use crate::exchange::{jinja, printed, python};
use crate::value::Value;

/// All names that [`call`] knows.
pub(crate) const METHODS: [&str; 26] = [
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
];

fn refused(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}

/// Calls a method that the template engine does not know.
pub(crate) fn call(_: &mut State<'_, '_>, on: &Jinja, method: &str, args: &[Jinja]) -> Result<Jinja, Error> {
    match on.kind() {
        ValueKind::String => of_text(on.as_str().unwrap_or_default(), method, args),
        ValueKind::Seq | ValueKind::Iterable => of_list(on, method, args),
        ValueKind::Map => of_map(on, method, args),
        kind => Err(refused(format!("a value of type {kind} has no method `{method}`"))),
    }
}

fn of_text(text: &str, method: &str, args: &[Jinja]) -> Result<Jinja, Error> {
    let trimmed = |set: Option<String>, left: bool, right: bool| {
        let drop = |c: char| set.as_ref().map_or_else(|| is_space(c), |set| set.contains(c));
        let text = if left { text.trim_start_matches(drop) } else { text };
        if right { text.trim_end_matches(drop) } else { text }.to_owned()
    };
    let ends = |args: &[Jinja], test: fn(&str, &str) -> bool| -> Result<Jinja, Error> {
        let (of,): (Jinja,) = from_args(args)?;
        let any = match of.as_str() {
            Some(part) => test(text, part),
            None => of.try_iter()?.any(|part| part.as_str().is_some_and(|part| test(text, part))),
        };
        Ok(Jinja::from(any))
    };
    Ok(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (set,): (Option<String>,) = from_args(args)?;
            Jinja::from(trimmed(set, method != "rstrip", method != "lstrip"))
        }
        "split" | "rsplit" => {
            let (by, most): (Option<String>, Option<i64>) = from_args(args)?;
            let most = most.filter(|most| *most >= 0).and_then(|most| usize::try_from(most).ok());
            Jinja::from(split(text, by.as_deref(), most, method == "rsplit")?)
        }
        "splitlines" => Jinja::from(text.lines().map(str::to_owned).collect::<Vec<_>>()),
        "replace" => {
            let (old, new, most): (String, String, Option<i64>) = from_args(args)?;
            let most = most.and_then(|most| usize::try_from(most).ok());
            let times = text.matches(old.as_str()).count().min(most.unwrap_or(usize::MAX));
            printed(text.len().saturating_add(times.saturating_mul(new.len())))?;
            Jinja::from(most.map_or_else(|| text.replace(&old, &new), |most| text.replacen(&old, &new, most)))
        }
        "capitalize" => Jinja::from(capitalize(text)),
        "lower" => Jinja::from(text.to_lowercase()),
        "upper" => Jinja::from(text.to_uppercase()),
        "title" => {
            let mut inside = false;
            let titled = text.chars().flat_map(|c| {
                let shown: Vec<char> = if inside { c.to_lowercase().collect() } else { c.to_uppercase().collect() };
                inside = c.is_alphabetic();
                shown
            });
            Jinja::from(titled.collect::<String>())
        }
        "startswith" => ends(args, |text, part| text.starts_with(part))?,
        "endswith" => ends(args, |text, part| text.ends_with(part))?,
        "removeprefix" | "removesuffix" => {
            let (part,): (String,) = from_args(args)?;
            let cut = if method == "removeprefix" { text.strip_prefix(&part) } else { text.strip_suffix(&part) };
            Jinja::from(cut.unwrap_or(text))
        }
        "join" => {
            let (items,): (Jinja,) = from_args(args)?;
            let item = |item: Jinja| {
                let one = item.as_str().ok_or_else(|| refused("`join` takes texts only"))?;
                printed(one.len() + text.len()).map(|()| one.to_owned())
            };
            Jinja::from(items.try_iter()?.map(item).collect::<Result<Vec<_>, _>>()?.join(text))
        }
        "find" | "index" => {
            let (part,): (String,) = from_args(args)?;
            match text.find(&part) {
                Some(at) => Jinja::from(text[..at].chars().count()),
                None if method == "find" => Jinja::from(-1),
                None => return Err(refused(format!("`{part}` is not in the text"))),
            }
        }
        "count" => {
            let (part,): (String,) = from_args(args)?;
            Jinja::from(if part.is_empty() { text.chars().count() + 1 } else { text.matches(&part).count() })
        }
        "isdigit" => Jinja::from(is_digit(text)),
        "isalpha" => Jinja::from(!text.is_empty() && text.chars().all(char::is_alphabetic)),
        "isspace" => Jinja::from(!text.is_empty() && text.chars().all(is_space)),
        _ => return Err(refused(format!("a text has no method `{method}` here"))),
    })
}

fn split(text: &str, by: Option<&str>, most: Option<usize>, right: bool) -> Result<Vec<String>, Error> {
    let owned = |parts: Vec<&str>| parts.into_iter().map(str::to_owned).collect::<Vec<_>>();
    Ok(match (by, most) {
        (Some(""), _) => return Err(refused("`split` by an empty text")),
        (Some(by), None) => owned(text.split(by).collect()),
        (Some(by), Some(most)) if right => {
            owned(text.rsplitn(most + 1, by).collect::<Vec<_>>().into_iter().rev().collect())
        }
        (Some(by), Some(most)) => owned(text.splitn(most + 1, by).collect()),
        (None, None) => owned(words(text).collect()),
        (None, Some(_)) if right => return Err(refused("`rsplit` by blanks with a count is not offered")),
        (None, Some(most)) => {
            let mut parts = Vec::new();
            let mut rest = text.trim_start_matches(is_space);
            while !rest.is_empty() {
                let end = if parts.len() == most { None } else { rest.find(is_space) };
                let Some(end) = end else {
                    parts.push(if parts.len() == most { rest } else { rest.trim_end_matches(is_space) });
                    break;
                };
                parts.push(&rest[..end]);
                rest = rest[end..].trim_start_matches(is_space);
            }
            owned(parts)
        }
    })
}

/// Implements Python's `str.isdigit`, except for a few enclosed digits.
pub(crate) fn is_digit(text: &str) -> bool {
    let raised = |c: char| matches!(c, '²' | '³' | '¹' | '⁰' | '⁴'..='⁹' | '₀'..='₉');
    let decimal =
        |c: char| c.is_ascii_digit() || !c.is_ascii() && c.is_numeric() && !c.is_alphabetic() && is_decimal(c);
    !text.is_empty() && text.chars().all(|c| decimal(c) || raised(c))
}

/// Returns whether a non-ASCII character is a decimal digit.
fn is_decimal(c: char) -> bool {
    static DECIMAL: std::sync::LazyLock<Option<fancy_regex::Regex>> =
        std::sync::LazyLock::new(|| fancy_regex::Regex::new(r"^\p{Nd}$").ok());
    let mut buffer = [0; 4];
    DECIMAL.as_ref().is_some_and(|decimal| decimal.is_match(&*c.encode_utf8(&mut buffer)).unwrap_or(false))
}

fn of_list(on: &Jinja, method: &str, args: &[Jinja]) -> Result<Jinja, Error> {
    let (item,): (Jinja,) = from_args(args)?;
    let item = python(&item)?;
    let items = on.try_iter()?.map(|other| python(&other)).collect::<Result<Vec<_>, _>>()?;
    match method {
        "index" => match items.iter().position(|other| *other == item) {
            Some(at) => Ok(Jinja::from(at)),
            None => Err(refused(format!("{} is not in the list {}", item.repr(), Value::List(items).repr()))),
        },
        "count" => Ok(Jinja::from(items.iter().filter(|other| **other == item).count())),
        _ => Err(refused(format!("a list has no method `{method}` here"))),
    }
}

fn of_map(on: &Jinja, method: &str, args: &[Jinja]) -> Result<Jinja, Error> {
    let Value::Map(pairs) = python(on)? else { return Err(refused("no map")) };
    match method {
        "items" => {
            Ok(pairs.iter().map(|(key, value)| Jinja::from(vec![jinja(key), jinja(value)])).collect::<Vec<_>>().into())
        }
        "keys" => Ok(pairs.iter().map(|(key, _)| jinja(key)).collect::<Vec<_>>().into()),
        "values" => Ok(pairs.iter().map(|(_, value)| jinja(value)).collect::<Vec<_>>().into()),
        "get" => {
            let (key, other): (Jinja, Option<Jinja>) = from_args(args)?;
            let key = python(&key)?;
            let found = pairs.iter().find(|(own, _)| *own == key).map(|(_, value)| jinja(value));
            Ok(found.or(other).unwrap_or_else(|| Jinja::from(())))
        }
        _ => Err(refused(format!("a map has no method `{method}` here"))),
    }
}
