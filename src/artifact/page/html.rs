//! Escaping of text for HTML, ids and URLs.

use minijinja::{AutoEscape, Output, State, Value, escape_formatter};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

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

/// Characters that are percent-encoded in ids: all except letters, digits and `-._~`. The encoding is injective, and
/// the result is valid in ids and URL fragments.
const ENCODED_IN_IDS: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Characters that are percent-encoded in links to files.
pub(super) const ENCODED_IN_PATHS: &AsciiSet = &ENCODED_IN_IDS.remove(b'/');

/// Returns the id of the note for a cell. Ids are short, because every number on the page contains one.
pub(super) fn cell_id(key: &str) -> String {
    format!("cell-{}", &sha256::of_bytes(key)[..12])
}

pub(super) fn artifact_id(profile: &str, name: &str) -> String {
    let slash = if profile.is_empty() { "" } else { "/" };
    let [profile, name] = [profile, name].map(|text| utf8_percent_encode(text, ENCODED_IN_IDS));
    format!("artifact-{profile}{slash}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

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
