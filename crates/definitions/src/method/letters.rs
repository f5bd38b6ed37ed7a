//! Python's character classes and case conversions.

use std::sync::LazyLock;

use fancy_regex::Regex;
use ghostlab_core::tasks::python::titlecase;
use minijinja::Error;

use crate::exchange::unsupported_error;
use crate::value;

/// Returns whether a character matches a regular expression for a Unicode class.
fn matches_class(class: &LazyLock<Option<Regex>>, character: char) -> bool {
    let mut buffer = [0; 4];
    let text = character.encode_utf8(&mut buffer);
    class.as_ref().is_some_and(|class| class.is_match(text).unwrap_or(false))
}

static LETTER: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\p{L}$").ok());
static DECIMAL: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\p{Nd}$").ok());
static NUMBER: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\p{N}$").ok());
static TITLECASE_LETTER: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\p{Lt}$").ok());
static HAN: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\p{Han}$").ok());

/// Returns the ASCII digit that corresponds to a decimal digit of any script. In every script, the ten digits have
/// contiguous code points.
pub(crate) fn decimal_digit(character: char) -> Option<char> {
    if character.is_ascii_digit() {
        return Some(character);
    }
    if character.is_ascii() || !matches_class(&DECIMAL, character) {
        return None;
    }
    let code = u32::from(character);
    let before =
        (1..10).take_while(|step| char::from_u32(code - step).is_some_and(|c| matches_class(&DECIMAL, c))).count();
    // Counting preceding digits fails only for the mathematical digits (from U+1D7CE), which are adjacent blocks of
    // ten.
    let value = if (0x1D7CE..=0x1D7FF).contains(&code) { (code - 0x1D7CE) % 10 } else { u32::try_from(before).ok()? };
    char::from_digit(value, 10)
}

/// Implements Python's `str.isdecimal`.
pub(super) fn is_decimal(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| decimal_digit(c).is_some())
}

/// Implements Python's `str.isdigit`, except that enclosed digits such as `①` are not recognized.
pub(crate) fn is_digit(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| decimal_digit(c).is_some() || (matches!(c, '²' | '³' | '¹' | '⁰' | '⁴'..='⁹' | '₀'..='₉')))
}

/// Implements Python's `str.isnumeric`.
///
/// # Errors
/// Fails if the text contains Chinese characters, because the regular expressions cannot tell which are numeric.
pub(super) fn is_numeric(text: &str) -> Result<bool, Error> {
    if text.chars().any(|c| !c.is_ascii() && matches_class(&HAN, c)) {
        return Err(unsupported_error("`isnumeric` of Chinese characters is not supported"));
    }
    Ok(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || !c.is_ascii() && matches_class(&NUMBER, c)))
}

fn is_letter(c: char) -> bool {
    c.is_ascii_alphabetic() || !c.is_ascii() && matches_class(&LETTER, c)
}

/// Implements Python's `str.isalpha`.
pub(super) fn is_alpha(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_letter)
}

/// Implements Python's `str.isalnum`.
pub(super) fn is_alnum(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|c| is_letter(c) || c.is_ascii_digit() || !c.is_ascii() && matches_class(&NUMBER, c))
}

/// Implements Python's `str.isidentifier`.
///
/// # Errors
/// Fails if the text is not ASCII.
pub(super) fn is_identifier(text: &str) -> Result<bool, Error> {
    if !text.is_ascii() {
        return Err(unsupported_error("`isidentifier` is supported only for ASCII strings"));
    }
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    Ok(is_plain && text.starts_with(|c: char| !c.is_ascii_digit()))
}

/// Implements Python's `str.isprintable`.
pub(super) fn is_printable(text: &str) -> bool {
    text.chars().all(value::is_printable)
}

fn is_titled(c: char) -> bool {
    !c.is_ascii() && matches_class(&TITLECASE_LETTER, c)
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || is_titled(c)
}

/// Implements Python's `str.isupper`.
pub(crate) fn is_upper(text: &str) -> bool {
    text.chars().any(char::is_uppercase) && !text.chars().any(|c| c.is_lowercase() || is_titled(c))
}

/// Implements Python's `str.islower`.
pub(crate) fn is_lower(text: &str) -> bool {
    text.chars().any(char::is_lowercase) && !text.chars().any(|c| c.is_uppercase() || is_titled(c))
}

/// Implements Python's `str.istitle`.
pub(super) fn is_title(text: &str) -> bool {
    let mut previous_cased = false;
    let mut has_cased = false;
    for c in text.chars() {
        let starts_word = c.is_uppercase() || is_titled(c);
        if starts_word && previous_cased || c.is_lowercase() && !previous_cased {
            return false;
        }
        previous_cased = is_cased(c);
        has_cased |= previous_cased;
    }
    has_cased
}

/// Implements Python's `str.title`.
pub(super) fn title(text: &str) -> String {
    let mut titled = String::with_capacity(text.len());
    let mut previous_cased = false;
    for (position, c) in text.char_indices() {
        titled.push_str(&if previous_cased { lowercase_at(text, position, c) } else { titlecase(c) });
        previous_cased = is_cased(c);
    }
    titled
}

/// Implements Python's `str.swapcase`.
pub(super) fn swapcase(text: &str) -> String {
    let mut swapped = String::with_capacity(text.len());
    for (position, c) in text.char_indices() {
        if c.is_uppercase() {
            swapped.push_str(&lowercase_at(text, position, c));
        } else if c.is_lowercase() {
            swapped.extend(c.to_uppercase());
        } else {
            swapped.push(c);
        }
    }
    swapped
}

/// Returns the lowercase form of the character at `position`. A sigma at the end of a word gets its final form.
fn lowercase_at(text: &str, position: usize, c: char) -> String {
    if c != 'Σ' {
        return c.to_lowercase().collect();
    }
    let has_letter_before = text[..position].chars().next_back().is_some_and(is_cased);
    let has_letter_after = text[position + c.len_utf8()..].chars().next().is_some_and(is_cased);
    if has_letter_before && !has_letter_after { "ς" } else { "σ" }.to_owned()
}

/// Implements Python's `str.casefold`. Each letter is lowercased, uppercased and lowercased again, except that Turkish
/// `ı` is unchanged and Cherokee letters fold to uppercase.
pub(super) fn casefold(text: &str) -> String {
    let mut folded = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            'ı' => folded.push(c),
            '\u{13A0}'..='\u{13FD}' | '\u{AB70}'..='\u{ABBF}' => folded.extend(c.to_uppercase()),
            c => folded.extend(c.to_lowercase().flat_map(char::to_uppercase).flat_map(char::to_lowercase)),
        }
    }
    folded
}
