//! Jinja's string filters. Values of other types are first converted to strings, as with Python's `str()`.

use std::sync::LazyLock;

use fancy_regex::{Captures, Regex};
use ghostlab_core::tasks::python::{capitalize, strip, words};
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, State, UndefinedBehavior, Value as Jinja};

use super::names::TEXT;
use crate::exchange::{printed, text, unsupported_error};
use crate::method::{center, replace_text};
use crate::pattern::Pattern;

pub(super) fn add_filters(environment: &mut Environment<'static>) {
    add_case_filters(environment);
    add_markup_filters(environment);
    environment.add_filter("string", |state: &State<'_, '_>, value: Jinja| {
        // In a strict template, return the undefined value, so that any use of it fails.
        if value.is_undefined() && state.undefined_behavior() == UndefinedBehavior::Strict {
            return Ok(value);
        }
        let text = if value.is_undefined() { lenient_text(&value)? } else { text(&value)? };
        printed(text.len()).map(|()| Jinja::from(text))
    });
    // Return undefined values unchanged. `~` rejects them unless they are the result of an inline `if` without `else`.
    environment.add_filter(TEXT, |value: Jinja| {
        if value.is_undefined() {
            return Ok(value);
        }
        let text = text(&value)?;
        printed(text.len()).map(|()| Jinja::from(text))
    });
    environment.add_filter("trim", |value: Jinja, set: Option<String>| {
        let text = text(&value)?;
        Ok::<_, Error>(match set {
            Some(set) => text.trim_matches(|c| set.contains(c)).to_owned(),
            None => strip(&text).to_owned(),
        })
    });
    environment.add_filter("replace", |value: Jinja, old: Jinja, new: Jinja, count: Option<i64>| {
        replace_text(&text(&value)?, &text(&old)?, &text(&new)?, count)
    });
    environment.add_filter(
        "regex_replace",
        |text: String, pattern: Option<String>, replacement: Option<String>, count: Option<i64>, kwargs: Kwargs| {
            regex_replace(text, pattern, replacement, count, &kwargs)
        },
    );
    environment
        .add_filter("center", |value: Jinja, width: Option<usize>| center(&text(&value)?, width.unwrap_or(80), ' '));
    environment.add_filter("truncate", truncate);
    environment.add_filter("wordcount", |value: Jinja| {
        static WORD: LazyLock<Option<Pattern>> = LazyLock::new(|| Pattern::new(r"\w+").ok());
        let found = WORD.as_ref().and_then(|word| word.find_all(&text(&value).ok()?).ok());
        found.map(|words| words.len()).ok_or_else(|| unsupported_error("`wordcount` requires a string"))
    });
    environment.add_filter("urlencode", |value: Jinja| urlencode(&value));
}

/// Returns the text of an undefined value in a template that may print undefined values.
fn lenient_text(value: &Jinja) -> Result<String, Error> {
    Ok(value.to_string())
}

fn add_case_filters(environment: &mut Environment<'static>) {
    environment.add_filter("upper", |value: Jinja| text(&value).map(|text| text.to_uppercase()));
    environment.add_filter("lower", |value: Jinja| text(&value).map(|text| text.to_lowercase()));
    environment.add_filter("capitalize", |value: Jinja| text(&value).map(|text| capitalize(&text)));
    environment.add_filter("title", |value: Jinja| text(&value).map(|text| title(&text)));
}

fn add_markup_filters(environment: &mut Environment<'static>) {
    for name in ["e", "escape", "forceescape"] {
        environment.add_filter(name, |value: Jinja| text(&value).map(|text| escape_html(&text)));
    }
    environment.add_filter("safe", |value: Jinja| text(&value));
    environment.add_filter("striptags", |value: Jinja| striptags(text(&value)?));
}

/// Capitalizes the first letter of each word and lowercases the rest. Words end at whitespace, hyphens and opening
/// brackets.
fn title(text: &str) -> String {
    let mut titled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let boundary = is_title_boundary(first);
        let end = rest.find(|c| is_title_boundary(c) != boundary).unwrap_or(rest.len());
        titled.extend(first.to_uppercase());
        titled.push_str(&rest[first.len_utf8()..end].to_lowercase());
        rest = &rest[end..];
    }
    titled
}

fn is_title_boundary(c: char) -> bool {
    c.is_whitespace() || "-({[<".contains(c) || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn regex_replace(
    text: String,
    pattern: Option<String>,
    replacement: Option<String>,
    count: Option<i64>,
    kwargs: &Kwargs,
) -> Result<String, Error> {
    let pattern = pattern.or(kwargs.get("pattern")?).ok_or_else(|| missing_argument_error("pattern"))?;
    let replacement = replacement.or(kwargs.get("repl")?).ok_or_else(|| missing_argument_error("repl"))?;
    let count = count.or(kwargs.get("count")?).unwrap_or(0);
    kwargs.assert_all_used()?;
    // A count of 0 replaces all matches and a negative count replaces none, as in Python.
    let count = match usize::try_from(count) {
        Ok(0) => usize::MAX,
        Ok(count) => count,
        Err(_) => return Ok(text),
    };
    let replaced = Pattern::new(&pattern).and_then(|pattern| pattern.replace_matches(&text, &replacement, count));
    let replaced = replaced.map_err(|error| unsupported_error(error.one_line()))?;
    printed(replaced.len()).map(|()| replaced)
}

fn missing_argument_error(name: &str) -> Error {
    unsupported_error(format!("`regex_replace` requires the argument `{name}`"))
}

fn truncate(text: String, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    type Arguments = (Option<usize>, Option<bool>, Option<String>, Option<usize>, Kwargs);
    let args = args.into_values();
    let (length, killwords, end, leeway, kwargs): Arguments = from_args(&args)?;
    let length = length.or(kwargs.get("length")?).unwrap_or(255);
    let killwords = killwords.or(kwargs.get("killwords")?).unwrap_or(false);
    let end = end.or(kwargs.get("end")?).unwrap_or_else(|| "...".to_owned());
    let leeway = leeway.or(kwargs.get("leeway")?).unwrap_or(5);
    kwargs.assert_all_used()?;
    let retained = length.checked_sub(end.chars().count());
    let retained = retained
        .ok_or_else(|| unsupported_error(format!("`truncate` to {length} characters has no room for {end:?}")))?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let cut: String = text.chars().take(retained).collect();
    let cut = if killwords { cut.as_str() } else { cut.rsplit_once(' ').map_or(cut.as_str(), |(words, _)| words) };
    Ok(format!("{cut}{end}"))
}

/// Escapes text like markupsafe's `escape`.
fn escape_html(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('>', "&gt;").replace('<', "&lt;");
    text.replace('\'', "&#39;").replace('"', "&#34;")
}

/// Strips tags like markupsafe's `Markup.striptags`.
fn striptags(mut text: String) -> Result<String, Error> {
    for (open, close) in [("<!--", "-->"), ("<", ">")] {
        while let Some(start) = text.find(open) {
            let Some(end) = text[start..].find(close) else { break };
            text.replace_range(start..start + end + close.len(), "");
        }
    }
    unescape_html(&words(&text).collect::<Vec<_>>().join(" "))
}

/// Unescapes text like Python's `html.unescape`, limited to markup entities and numeric references.
fn unescape_html(text: &str) -> Result<String, Error> {
    const NAMES: [(&str, char); 6] =
        [("amp", '&'), ("lt", '<'), ("gt", '>'), ("quot", '"'), ("apos", '\''), ("nbsp", '\u{a0}')];
    static ENTITY: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(r"&(?:#(?<ten>[0-9]+)|#[xX](?<hex>[0-9a-fA-F]+)|(?<name>[A-Za-z][A-Za-z0-9]*));?").ok()
    });
    let Some(entity) = ENTITY.as_ref() else { return Ok(text.to_owned()) };
    let mut out = String::with_capacity(text.len());
    let mut end = 0;
    for found in entity.captures_iter(text) {
        let found = found.map_err(|error| unsupported_error(error.to_string()))?;
        let Some(all) = found.get(0) else { break };
        let character = match numeric_entity(&found, "ten", 10).or_else(|| numeric_entity(&found, "hex", 16)) {
            Some(character) => character,
            None => found.name("name").filter(|_| all.as_str().ends_with(';')).and_then(|name| {
                NAMES.iter().find(|(known, _)| *known == name.as_str()).map(|(_, character)| *character)
            }),
        };
        out.push_str(&text[end..all.start()]);
        out.push(
            character.ok_or_else(|| {
                unsupported_error(format!("`striptags` does not support the entity {}", all.as_str()))
            })?,
        );
        end = all.end();
    }
    out.push_str(&text[end..]);
    Ok(out)
}

/// Returns the character of a numeric entity, or `Some(None)` if its code point is invalid or HTML maps it to another
/// character. Returns `None` if the group `name` did not match.
fn numeric_entity(found: &Captures<'_, str>, name: &str, radix: u32) -> Option<Option<char>> {
    let digits = found.name(name)?;
    // HTML remaps the code points of control characters, so such code points are rejected.
    let code = u32::from_str_radix(digits.as_str(), radix).ok();
    Some(code.filter(|code| (32..127).contains(code) || *code >= 160).and_then(char::from_u32))
}

/// Implements the filter `urlencode`, which quotes a string as a path and a dict or list of pairs as a query string.
fn urlencode(value: &Jinja) -> Result<String, Error> {
    let pairs = match value.kind() {
        ValueKind::Map => {
            let pairs = value
                .try_iter()?
                .map(|key| Ok(format!("{}={}", encode_query_part(&key)?, encode_query_part(&value.get_item(&key)?)?)));
            pairs.collect::<Result<Vec<_>, Error>>()?
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let pairs = value.try_iter()?.map(|pair| {
                let items: Vec<Jinja> = pair.try_iter()?.collect();
                let [key, value] = items.as_slice() else {
                    return Err(unsupported_error("`urlencode` requires pairs"));
                };
                Ok(format!("{}={}", encode_query_part(key)?, encode_query_part(value)?))
            });
            pairs.collect::<Result<Vec<_>, Error>>()?
        }
        _ => return text(value).map(|text| percent_encode(&text, "/")),
    };
    Ok(pairs.join("&"))
}

fn encode_query_part(value: &Jinja) -> Result<String, Error> {
    text(value).map(|text| percent_encode(&text, "").replace("%20", "+"))
}

/// Quotes text like Python's `urllib.parse.quote`.
fn percent_encode(text: &str, safe: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let character = char::from(byte);
        if byte.is_ascii_alphanumeric() || "_.-~".contains(character) || byte.is_ascii() && safe.contains(character) {
            out.push(character);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
