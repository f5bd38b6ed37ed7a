//! Text that is safe inside HTML, ids, base64, and the filling of a template.

use std::fmt::Write;

use crate::error::{Error, Result};

/// `text` for an element's content or a quoted attribute. Nothing of the data is ever put into a script or a style.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

/// `text` with every byte percent-encoded that is not a letter, a digit or one of `-._~` and `also`. Two texts never
/// become the same, so ids made of it are unique, and it means the same in an id and after the `#` of a link: browsers
/// look for the fragment as it is written first.
pub(super) fn encoded(text: &str, also: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || also.as_bytes().contains(&byte) {
            safe.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(safe, "%{byte:02X}");
        }
    }
    safe
}

/// The id of a cell's note.
pub(super) fn cell_id(key: &str) -> String {
    format!("cell-{}", encoded(key, "/:@+,"))
}

/// The id of an artifact's section.
pub(super) fn artifact_id(profile: &str, name: &str) -> String {
    let slash = if profile.is_empty() { "" } else { "/" };
    format!("artifact-{}{slash}{}", encoded(profile, ""), encoded(name, ""))
}

/// RFC 4648 §4, with padding.
pub(super) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().enumerate().fold(0u32, |group, (i, &byte)| group | u32::from(byte) << (16 - 8 * i));
        for digit in 0..4 {
            let place = (group >> (18 - 6 * digit)) & 63;
            text.push(if digit <= chunk.len() { char::from(DIGITS[place as usize]) } else { '=' });
        }
    }
    text
}

/// `template` with each `{{name}}` replaced by its value. One pass: what a value contains is not replaced again.
///
/// # Errors
/// When the template has a name without a value, which is a mistake in this module.
pub(super) fn fill(template: &str, values: &[(&str, &str)]) -> Result<String> {
    let mut filled = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        let Some((_, value)) = values.iter().find(|(known, _)| *known == name) else {
            return Err(Error::job("the page's template has a place for something unknown")
                .at("page.html")
                .found(name));
        };
        filled.push_str(before);
        filled.push_str(value);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// A `<dl>` of names and values; nothing where there are none.
pub(super) fn definitions(lines: &[(String, String)]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let items: String =
        lines.iter().map(|(name, value)| format!("<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(value))).collect();
    format!("<dl>{items}</dl>\n")
}

/// A `<p>`; nothing where there is no text.
pub(super) fn paragraph(class: &str, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("<p class=\"{class}\">{}</p>\n", escaped(text)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        // RFC 4648 §10.
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn keys_that_differ_have_ids_that_differ() {
        let keys = ["a b", "a%20b", "a_b", "a/b", "a:b", "A/b", "ä", "a\"b", ""];
        let ids: std::collections::BTreeSet<String> = keys.iter().map(|key| cell_id(key)).collect();
        assert_eq!(ids.len(), keys.len());
        assert_eq!(cell_id("tiny-llama/sleb/4@c4:32 x"), "cell-tiny-llama/sleb/4@c4:32%20x");
        assert_ne!(artifact_id("a/b", "c"), artifact_id("a", "b/c"));
    }

    #[test]
    fn a_value_is_not_filled_again() {
        assert_eq!(fill("<{{a}}|{{b}}>", &[("a", "{{b}}"), ("b", "x")]).unwrap(), "<{{b}}|x>");
        assert!(fill("{{c}}", &[]).unwrap_err().to_string().contains('c'));
    }
}
