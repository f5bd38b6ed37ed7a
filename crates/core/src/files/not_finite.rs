//! Support for Python's `NaN` and `Infinity`, which the JSON standard does not allow.

/// Key of the object that represents a non-finite number. The value is `NaN`, `Infinity` or `-Infinity`.
pub const NOT_FINITE: &str = "$ghostlab::not_finite";

/// Replaces Python's `NaN`, `Infinity` and `-Infinity` outside strings with objects that have the key [`NOT_FINITE`].
/// Returns `None` if the text contains none of them.
pub(super) fn with_finite_numbers(text: &str) -> Option<String> {
    let mut finite = String::with_capacity(text.len());
    let mut rest = text;
    let mut has_replaced = false;
    while let Some(start) = rest.find(['"', 'N', 'I', '-']) {
        finite.push_str(&rest[..start]);
        rest = &rest[start..];
        if rest.starts_with('"') {
            let end = find_string_end(rest);
            finite.push_str(&rest[..end]);
            rest = &rest[end..];
        } else if let Some(name) = ["NaN", "Infinity", "-Infinity"].iter().find(|name| rest.starts_with(**name)) {
            finite.push_str(&format!("{{\"{NOT_FINITE}\": \"{name}\"}}"));
            rest = &rest[name.len()..];
            has_replaced = true;
        } else {
            finite.push_str(&rest[..1]);
            rest = &rest[1..];
        }
    }
    finite.push_str(rest);
    has_replaced.then_some(finite)
}

/// Returns the length of the JSON string at the start of `text`, including the quotes.
fn find_string_end(text: &str) -> usize {
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
