//! Putting words together: slots, capitals, lists, and the spellings of the registers.

/// The template with each `{key}` replaced by its value. A key without a value stays as it is, which a test looks for.
pub(super) fn fill(template: &str, slots: &[(&str, &str)]) -> String {
    let mut text = String::with_capacity(template.len() + 24);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        text.push_str(before);
        let Some((key, tail)) = after.split_once('}') else {
            text.push('{');
            rest = after;
            continue;
        };
        match slots.iter().find(|(name, _)| *name == key) {
            Some((_, value)) => text.push_str(value),
            None => text.extend(["{", key, "}"]),
        }
        rest = tail;
    }
    text.push_str(rest);
    text
}

/// The text with a capital first letter. All texts of the world are ASCII.
pub(super) fn capital(text: &str) -> String {
    let mut text = text.to_owned();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    text
}

/// A clause as a sentence: a capital and a full stop.
pub(super) fn sentence(clause: &str) -> String {
    let mut text = capital(clause);
    text.push('.');
    text
}

/// `a`, `a and b`, `a, b and c`.
pub(super) fn list(items: &[&str]) -> String {
    match items {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [head @ .., last] => format!("{} and {last}", head.join(", ")),
    }
}

/// The noun without its article, the predicate without its `it`.
pub(super) fn bare(phrase: &str) -> &str {
    ["a ", "an ", "the ", "it "].iter().find_map(|article| phrase.strip_prefix(article)).unwrap_or(phrase)
}

/// As WikiText is printed: a space on both sides of every mark.
pub(super) fn spaced(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for (at, c) in text.char_indices() {
        match c {
            '.' | ',' | ';' | ':' | '?' | '!' | '(' | ')' | '"' => {
                if !out.ends_with(' ') {
                    out.push(' ');
                }
                out.push(c);
                if !text[at + 1..].starts_with(' ') {
                    out.push(' ');
                }
            }
            '\'' if text[at..].starts_with("'s") => out.push_str(" '"),
            _ => out.push(c),
        }
    }
    out.trim_end().to_owned()
}

/// As the Penn Treebank is printed: lower case, no marks, `'s` a word of its own.
pub(super) fn wire(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len() + 4);
    for (at, byte) in bytes.iter().copied().enumerate() {
        match byte {
            b'.' | b',' | b';' | b':' | b'?' | b'!' => {}
            b'\'' if bytes.get(at + 1) == Some(&b's') => out.push_str(" '"),
            // A number stays the capital N that stands for it.
            b'N' if !bytes.get(at + 1).is_some_and(u8::is_ascii_alphanumeric) => out.push('N'),
            _ => out.push(char::from(byte.to_ascii_lowercase())),
        }
    }
    out
}

/// The number of words: runs without white space.
pub(super) fn words(text: &str) -> usize {
    text.split_ascii_whitespace().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_filled() {
        assert_eq!(fill("{s} has {v}", &[("s", "Anna"), ("v", "a {x}")]), "Anna has a {x}");
        assert_eq!(fill("a {b", &[]), "a {b");
        assert_eq!(fill("{?}", &[]), "{?}");
    }

    #[test]
    fn the_registers_spell_differently() {
        assert_eq!(spaced("Anna's pet, a zorp, hums."), "Anna 's pet , a zorp , hums .");
        assert_eq!(wire("In Gant, N of Anna's tiles rose N %."), "in gant N of anna 's tiles rose N %");
        assert_eq!(list(&["a", "b", "c"]), "a, b and c");
        assert_eq!((bare("an oven"), bare("red"), bare("it tears")), ("oven", "red", "tears"));
        assert_eq!(sentence("the end"), "The end.");
    }
}
