//! Limits on untrusted input. They are checked before parsing or tokenization, so that the error can name the exact
//! location in the input.
//!
//! Input within the limits may still need too much time or memory. ghostlab therefore processes all input in a child
//! process first (`src/sandbox`).

use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::limit::TextLimit;

use crate::value::Value;

/// Maximum number of operators in a template expression or statement. The limit exists because the parser and the
/// compiler recurse once per operator.
const MAX_OPERATORS: usize = 1_000;
const MAX_PATTERN_CHARS: usize = 50_000;
/// Maximum number of values in a JSON row. Each value takes up to 260 bytes of memory.
const MAX_ROW_VALUES: usize = 1_000_000;
/// Maximum size of a JSON row, as a multiple of the maximum size of a text.
const MAX_ROW_TEXTS: u64 = 16;
/// Maximum number of columns in a row. The limit exists because column lookup is a linear scan.
const MAX_COLUMNS: usize = 10_000;
/// Default limit on the size of a text in bytes. Tokenization takes up to 200 bytes of memory per byte of text, and
/// several texts are tokenized concurrently.
const MAX_TEXT_BYTES: u64 = 2_000_000;
/// Maximum number of times that a request is repeated.
pub(crate) const MAX_REPEATS: usize = 10_000;
/// Maximum number of answers per task, which is the number of documents times the number of repeats.
pub(crate) const MAX_ANSWERS: usize = 5_000_000;

/// Returns the maximum size in bytes of a text in a row or prompt. The option `--text` can raise it.
fn max_text_bytes() -> u64 {
    (TextLimit::current().bytes() / 1_000).max(MAX_TEXT_BYTES)
}

fn format_megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Checks the number of operators in each expression and statement of a template.
///
/// # Errors
/// Fails if an expression or statement has more than [`MAX_OPERATORS`].
pub(crate) fn check_operators(source: &str) -> Result<()> {
    let mut rest = source;
    while let Some(open) = next_tag(rest) {
        rest = &rest[open + 2..];
        let (operators, end) = count_operators(rest);
        if operators > MAX_OPERATORS {
            let line = source[..source.len() - rest.len()].matches('\n').count() + 1;
            return Err(Error::bad_input("a template expression has too many operators")
                .at(format!("line {line} of the template"))
                .expected(format!("at most {MAX_OPERATORS} operators"))
                .found(operators));
        }
        rest = &rest[end..];
    }
    Ok(())
}

/// Returns the byte offset of the next `{{` or `{%` in a template.
fn next_tag(text: &str) -> Option<usize> {
    text.match_indices('{').map(|(position, _)| position).find(|position| text[position + 1..].starts_with(['{', '%']))
}

/// Counts the operators in a tag. Returns their number, and the byte offset of the end of the tag. `code` starts after
/// the opening `{{` or `{%`.
fn count_operators(code: &str) -> (usize, usize) {
    const OPERATOR_WORDS: [&str; 7] = ["and", "or", "not", "is", "in", "if", "else"];
    let mut count = 0;
    let mut quote = None;
    let mut last = ' ';
    let mut word_start = 0;
    for (position, c) in code.char_indices() {
        if quote.is_none() && (c.is_alphanumeric() || c == '_') {
            last = c;
            continue;
        }
        count += usize::from(OPERATOR_WORDS.contains(&&code[word_start..position]));
        word_start = position + c.len_utf8();
        match quote {
            Some(mark) if c == mark && last != '\\' => quote = None,
            Some(_) => {}
            None if c == '}' && (last == '}' || last == '%') => return (count, position + 1),
            None if c == '\'' || c == '"' => quote = Some(c),
            None => count += usize::from("+-*/~|.[(<>=!".contains(c)),
        }
        last = if last == '\\' && c == '\\' { ' ' } else { c };
    }
    (count, code.len())
}

/// Checks the length of a regular expression.
///
/// # Errors
/// Fails if the expression has more than [`MAX_PATTERN_CHARS`] characters.
pub(crate) fn check_pattern(source: &str) -> Result<()> {
    match source.chars().count() {
        0..=MAX_PATTERN_CHARS => Ok(()),
        count => Err(Error::bad_input("a regular expression is too long")
            .expected(format!("at most {MAX_PATTERN_CHARS} characters"))
            .found(format!("{count} characters"))),
    }
}

/// Checks the size of a JSON row before it is parsed.
///
/// # Errors
/// Fails if the row has more than [`MAX_ROW_VALUES`] values or too many bytes.
pub(crate) fn check_row_bytes(row: &[u8]) -> Result<()> {
    // Each value needs a delimiter, so a row with at most `MAX_ROW_VALUES` bytes cannot exceed the limit. The count is
    // an upper bound, because it includes delimiters inside strings.
    if row.len() > MAX_ROW_VALUES
        && row.iter().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count() > MAX_ROW_VALUES
    {
        return Err(Error::bad_input("a row has too many values").expected(format!("at most {MAX_ROW_VALUES} values")));
    }
    let max = MAX_ROW_TEXTS * max_text_bytes();
    if row.len() as u64 > max {
        return Err(Error::bad_input("a row is too long")
            .expected(format!("at most {}", format_megabytes(max)))
            .found(format_megabytes(row.len() as u64)));
    }
    Ok(())
}

/// Checks the number of columns in a row and the length of its longest text.
///
/// # Errors
/// Fails if the row has more than [`MAX_COLUMNS`] columns or a text is too long.
pub(crate) fn check_row(value: &Value, location: &str) -> Result<()> {
    if let Value::Map(pairs) = value
        && pairs.len() > MAX_COLUMNS
    {
        return Err(Error::bad_input("a row has too many columns")
            .at(location)
            .expected(format!("at most {MAX_COLUMNS} columns"))
            .found(format!("{} columns", pairs.len())));
    }
    check_text(longest_text_bytes(value)).map_err(|error| error.at(location))
}

/// Checks the length in bytes of a text before it is tokenized.
///
/// # Errors
/// Fails if the text is longer than [`max_text_bytes`].
pub(crate) fn check_text(byte_count: usize) -> Result<()> {
    let max = max_text_bytes();
    if byte_count as u64 <= max {
        return Ok(());
    }
    Err(Error::bad_input("a text is too long to be tokenized")
        .expected(format!("at most {}", format_megabytes(max)))
        .found(format_megabytes(byte_count as u64))
        .hint("split the text into several rows, or raise the limit with `--text GB`"))
}

fn longest_text_bytes(value: &Value) -> usize {
    match value {
        Value::Text(text) => text.len(),
        Value::List(items) => items.iter().map(longest_text_bytes).max().unwrap_or(0),
        Value::Map(pairs) => pairs.iter().map(|(_, value)| longest_text_bytes(value)).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_operators_are_counted_per_expression() {
        for (source, operators) in [
            ("{{ a + b * -c }} + - {{ d }}", 3),
            ("{% if a and not b or c is defined %}", 5),
            ("{{ 'a + b' ~ \"c \\\" + d\" }}", 1),
            ("{{ a.b[0]|trim(x) }}", 4),
            ("{{ android in notes }}", 1),
            ("{{ a if b else c }}", 2),
        ] {
            assert_eq!(count_operators(&source[2..]).0, operators, "{source}");
        }
        for unit in ["1+", "q~", "not ", "1 if q else ", "-", "q.a.", "q[0]", "x|trim|", "1 or ", "a is b "] {
            let error = check_operators(&format!("a\n{{{{ {}1 }}}}", unit.repeat(MAX_OPERATORS + 1))).unwrap_err();
            assert!(
                error.to_string().contains("line 2") && error.to_string().contains("at most 1000"),
                "{unit}: {error}"
            );
            assert!(check_operators(&format!("{{{{ {}1 }}}}", unit.repeat(400)).repeat(5)).is_ok(), "{unit}");
        }
    }

    #[test]
    fn row_that_exceeds_a_limit_is_rejected_with_the_limit() {
        let many = format!("{{\"x\":[{}1]}}", "1,".repeat(MAX_ROW_VALUES));
        assert!(check_row_bytes(many.as_bytes()).unwrap_err().to_string().contains("1000000 values"));
        let prose = format!("{{\"x\":\"{}\"}}", "a, b ".repeat(MAX_ROW_VALUES / 2));
        assert!(check_row_bytes(prose.as_bytes()).is_ok(), "commas in a string must not count as values");
        let long = Value::List(vec![Value::Text("a".repeat(2_000_001))]);
        assert!(check_row(&long, "x.jsonl:3").unwrap_err().to_string().contains("at most 2.0 MB"));
        let wide = Value::Map((0..=MAX_COLUMNS as i64).map(|index| (Value::Int(index), Value::None)).collect());
        assert!(check_row(&wide, "x.jsonl:3").unwrap_err().to_string().contains("10001"));
    }
}
