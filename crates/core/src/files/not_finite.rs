//! Support for Python's `NaN` and `Infinity`, which JSON does not have.

/// Key of the object that represents a non-finite number. The value is `NaN`, `Infinity` or `-Infinity`.
pub const NOT_FINITE: &str = "$ghostlab::not_finite";

/// Replaces Python's `NaN`, `Infinity` and `-Infinity` outside strings. Returns `None` if the text contains none.
pub(super) fn with_finite_numbers(text: &str) -> Option<String> {
    let mut finite = String::with_capacity(text.len());
    let mut rest = text;
    let mut is_found = false;
    while let Some(start) = rest.find(['"', 'N', 'I', '-']) {
        finite.push_str(&rest[..start]);
        rest = &rest[start..];
        if rest.starts_with('"') {
            let end = string_end(rest);
            finite.push_str(&rest[..end]);
            rest = &rest[end..];
        } else if let Some(name) = ["NaN", "Infinity", "-Infinity"].iter().find(|name| rest.starts_with(**name)) {
            finite.push_str(&format!("{{\"{NOT_FINITE}\": \"{name}\"}}"));
            rest = &rest[name.len()..];
            is_found = true;
        } else {
            finite.push_str(&rest[..1]);
            rest = &rest[1..];
        }
    }
    finite.push_str(rest);
    is_found.then_some(finite)
}

/// Returns the length of the JSON string at the start of `text`, including the quotes.
fn string_end(text: &str) -> usize {
    let mut is_escaped = false;
    for (index, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return index + 1,
            _ => {}
        }
    }
    text.len()
}
