//! Text assembly: slots, capitals, lists, and the spellings of the registers.

/// Replaces each `{key}` in the template by its value. Unknown keys are kept, and a test detects them.
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

/// Capitalizes the first letter. All texts of the world are ASCII.
pub(super) fn capital(text: &str) -> String {
    let mut text = text.to_owned();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    text
}

/// Turns a clause into a sentence, with a capital and a full stop.
pub(super) fn sentence(clause: &str) -> String {
    let mut text = capital(clause);
    text.push('.');
    text
}

/// Formats `a`, `a and b`, `a, b and c`.
pub(super) fn list(items: &[&str]) -> String {
    match items {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [head @ .., last] => format!("{} and {last}", head.join(", ")),
    }
}

/// Strips the article of a noun, or the `it` of a predicate.
pub(super) fn bare(phrase: &str) -> &str {
    ["a ", "an ", "the ", "it "].iter().find_map(|article| phrase.strip_prefix(article)).unwrap_or(phrase)
}

/// Formats text like WikiText, with spaces around every punctuation mark.
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

/// Formats text like the Penn Treebank: lower case, no punctuation, `'s` as a separate word.
pub(super) fn wire(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len() + 4);
    for (at, byte) in bytes.iter().copied().enumerate() {
        match byte {
            b'.' | b',' | b';' | b':' | b'?' | b'!' => {}
            b'\'' if bytes.get(at + 1) == Some(&b's') => out.push_str(" '"),
            // Keep the capital N, which stands for a number.
            b'N' if !bytes.get(at + 1).is_some_and(u8::is_ascii_alphanumeric) => out.push('N'),
            _ => out.push(char::from(byte.to_ascii_lowercase())),
        }
    }
    out
}

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
