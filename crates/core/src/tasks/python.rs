//! Python string methods whose behavior differs from Rust's.

/// Implements `str.isspace` for one character. Whitespace includes the separators U+001C to U+001F, which Rust's `trim`
/// does not remove, in addition to the Unicode property White_Space.
pub fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1C}'..='\u{1F}').contains(&character)
}

/// Implements `str.strip()`.
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Implements `str.rstrip()`.
pub fn strip_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

/// Implements `str.split()`.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|word| !word.is_empty())
}

/// Implements `str.capitalize()`: the first character in title case, the rest in lower case.
pub fn capitalize(text: &str) -> String {
    let Some(head) = text.chars().next() else { return String::new() };
    // Lowercase the whole text before replacing the first character, because the form of a final sigma depends on the
    // preceding characters, including the first.
    let lower = text.to_lowercase();
    let lowered_head: usize = head.to_lowercase().map(char::len_utf8).sum();
    // The length is also correct for texts that start with a sigma, because all forms of sigma are equally long in
    // UTF-8.
    let rest = lower.get(lowered_head..).unwrap_or_default();
    let mut capital = titlecase(head);
    capital.push_str(rest);
    capital
}

/// Implements `text[0].lower() + text[1:]`. Returns `None` for an empty text.
pub fn lower_first(text: &str) -> Option<String> {
    let mut characters = text.chars();
    let head = characters.next()?;
    Some(head.to_lowercase().chain(characters).collect())
}

/// Returns the title case of a character. The standard library only provides upper case. The match lists the characters
/// for which the two differ (UnicodeData.txt and SpecialCasing.txt: digraphs, Georgian, iota subscripts, ligatures).
pub fn titlecase(character: char) -> String {
    match character {
        '\u{1C4}'..='\u{1C6}' => capital_text('\u{1C5}'),
        '\u{1C7}'..='\u{1C9}' => capital_text('\u{1C8}'),
        '\u{1CA}'..='\u{1CC}' => capital_text('\u{1CB}'),
        '\u{1F1}'..='\u{1F3}' => capital_text('\u{1F2}'),
        // The title case of a Georgian letter is the letter itself.
        '\u{10D0}'..='\u{10FA}' | '\u{10FD}'..='\u{10FF}' => capital_text(character),
        // Greek letters with iota subscript: each row of 16 contains first the small letters and then the title-case
        // ones.
        '\u{1F80}'..='\u{1FAF}' => capital_text(char::from_u32(u32::from(character) | 8).unwrap_or(character)),
        '\u{1FB3}' | '\u{1FBC}' => capital_text('\u{1FBC}'),
        '\u{1FC3}' | '\u{1FCC}' => capital_text('\u{1FCC}'),
        '\u{1FF3}' | '\u{1FFC}' => capital_text('\u{1FFC}'),
        '\u{1FB2}' | '\u{1FB4}' | '\u{1FB7}' | '\u{1FC2}' | '\u{1FC4}' | '\u{1FC7}' | '\u{1FF2}' | '\u{1FF4}'
        | '\u{1FF7}' => {
            // The iota becomes a combining mark below the capital.
            character.to_uppercase().map(|part| if part == '\u{399}' { '\u{345}' } else { part }).collect()
        }
        // Ligatures decompose, and only the first letter is capitalized: "ß" becomes "Ss".
        '\u{DF}' | '\u{587}' | '\u{FB00}'..='\u{FB06}' | '\u{FB13}'..='\u{FB17}' => {
            let mut characters = character.to_uppercase();
            characters.next().into_iter().chain(characters.flat_map(char::to_lowercase)).collect()
        }
        _ => character.to_uppercase().collect(),
    }
}

fn capital_text(capital: char) -> String {
    capital.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whitespace_characters_match_python() {
        let spaces = (0..=0x10_FFFF).filter_map(char::from_u32).filter(|character| is_space(*character));
        let expected = "\t\n\u{b}\u{c}\r\u{1c}\u{1d}\u{1e}\u{1f} \u{85}\u{a0}\u{1680}\u{2000}\u{2001}\u{2002}\u{2003}\
                      \u{2004}\u{2005}\u{2006}\u{2007}\u{2008}\u{2009}\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}";
        assert_eq!(spaces.collect::<String>(), expected);
        assert_eq!(strip("\u{1c}\u{a0} a\u{200b} b \u{1f}\n"), "a\u{200b} b");
        assert_eq!(strip_end(" A\u{1e} "), " A");
        assert_eq!("\u{1f}".trim(), "\u{1f}", "Rust must not trim this separator");
    }

    #[test]
    fn capitalize_lowercases_the_remaining_letters() {
        for (text, wanted) in [
            ("DJ MARY and O'Neil", "Dj mary and o'neil"),
            ("", ""),
            ("it", "It"),
            ("[STEP] A", "[step] a"),
            ("ÉCOLE STRASSE ß", "École strasse ß"),
            ("ßTART", "Sstart"),
            ("ΑΣ", "Ας"),
            ("ΑΣ ΟΔΟΣ", "Ας οδος"),
            ("Σ", "Σ"),
            ("ΣΣ", "Σς"),
            ("ǆ ONE", "ǅ one"),
            ("İI", "İi"),
            ("ŉA", "ʼNa"),
            ("ﬁN", "Fin"),
            ("აბ", "აბ"),
            ("ᾳΑ", "ᾼα"),
            ("ᾷΑ", "Α\u{342}\u{345}α"),
            ("1 TWO", "1 two"),
        ] {
            assert_eq!(capitalize(text), wanted, "{text}");
        }
    }

    /// CPython 3.11 has 135 characters whose title case differs from their upper case.
    #[test]
    fn title_case_matches_python() {
        let all: Vec<char> = (0..=0x10_FFFF)
            .filter_map(char::from_u32)
            .filter(|character| titlecase(*character) != character.to_uppercase().collect::<String>())
            .collect();
        assert_eq!(all.len(), 135);
    }

    #[test]
    fn lower_first_changes_only_the_first_character() {
        assert_eq!(lower_first("I OPENED").as_deref(), Some("i OPENED"));
        assert_eq!(lower_first("Élise Ä").as_deref(), Some("élise Ä"));
        assert_eq!(lower_first("İ").as_deref(), Some("i\u{307}"));
        assert_eq!(lower_first(""), None);
    }
}
