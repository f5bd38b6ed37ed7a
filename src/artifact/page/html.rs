//! Escaping of text for HTML, ids and URLs.

use minijinja::{AutoEscape, Output, State, Value, escape_formatter};

use crate::files::sha256;

/// Escapes a value for use in an element or a quoted attribute, unless it is marked as safe. Leaves slashes unescaped,
/// which makes the page a tenth smaller.
pub(super) fn write_escaped(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), minijinja::Error> {
    match value.as_str() {
        Some(text) if !value.is_safe() && *state.auto_escape() == AutoEscape::Html => {
            let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            Ok(out.write_str(&text.replace('"', "&quot;").replace('\'', "&#39;"))?)
        }
        _ => escape_formatter(out, state, value),
    }
}

/// Percent-encodes every byte except letters, digits, `-._~` and the characters in `also`. The encoding is injective,
/// and the result is valid in ids and URL fragments.
pub(super) fn percent_encode(text: &str, also: &str) -> String {
    text.bytes()
        .map(|byte| if is_plain(also, byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn is_plain(also: &str, byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || also.as_bytes().contains(&byte)
}

/// Returns the id of the note for a cell. Ids are short, because every number on the page contains one.
pub(super) fn cell_id(key: &str) -> String {
    format!("cell-{}", &sha256::of_bytes(key)[..12])
}

pub(super) fn artifact_id(profile: &str, name: &str) -> String {
    let slash = if profile.is_empty() { "" } else { "/" };
    format!("artifact-{}{slash}{}", percent_encode(profile, ""), percent_encode(name, ""))
}

/// Encodes bytes in base64 with padding (RFC 4648 §4).
pub(super) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().enumerate().fold(0u32, |group, (i, &byte)| group | u32::from(byte) << (16 - 8 * i));
        for digit in 0..4 {
            let index = (group >> (18 - 6 * digit)) & 63;
            text.push(if digit <= chunk.len() { char::from(DIGITS[index as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_the_rfc_vectors() {
        // Test vectors from RFC 4648 §10.
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
    fn different_keys_have_different_ids() {
        let keys = ["a b", "a%20b", "a_b", "a/b", "a:b", "A/b", "ä", "a\"b", ""];
        let ids: std::collections::BTreeSet<String> = keys.iter().map(|key| cell_id(key)).collect();
        assert_eq!(ids.len(), keys.len());
        // Expected hash computed with `sha256sum` for `a/b`.
        assert_eq!(cell_id("a/b"), "cell-c14cddc033f6");
        assert_ne!(artifact_id("a/b", "c"), artifact_id("a", "b/c"));
    }
}
