//! Collision-free file names for user-provided names.

use super::sha256;

/// Maximum length in bytes of the readable prefix. File systems limit names to 255 bytes, and callers add prefixes and
/// suffixes.
const MAX_READABLE_BYTES: usize = 120;

/// Returns a unique, readable file name for any text: at most 137 bytes of ASCII letters, digits and `-.=_`, ending in
/// 16 hexadecimal digits of the text's SHA-256. The name is also unique on case-insensitive file systems.
pub fn sanitize(text: &str) -> String {
    let readable: String = text
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '=') { c } else { '_' })
        .take(MAX_READABLE_BYTES)
        .collect();
    // Avoid hidden files.
    let readable = readable.trim_start_matches('.');
    format!("{readable}-{}", &sha256::of_bytes(text)[..16])
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn sanitized_file_names_are_safe_and_distinct() {
        let long = "x".repeat(500);
        let texts = ["a b", "a_b", "A_b", "a/b", "../a", ".", "", "é", "a\u{1b}[31m", &long, &long[1..], "NUL", "a\0"];
        let names: HashSet<String> = texts.iter().map(|text| sanitize(text).to_lowercase()).collect();
        assert_eq!(names.len(), texts.len(), "{names:?}");
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            assert!(name.len() <= 137 && !name.starts_with('.') && name.is_ascii(), "{name}");
            std::fs::write(folder.path().join(name + ".json"), "").unwrap();
        }
    }
}
