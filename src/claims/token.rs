//! The words and signs of a check, each with the character at which it starts.

use super::words::Complaint;

/// A piece of a check.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Number(f64),
    /// In double quotes.
    Text(String),
    /// Letters, digits and `_`; also `-` and `.` between two of them, as in `llm-streamline` and `llama-3.1-8b`.
    Word(String),
    Sign(&'static str),
    End,
}

impl Token {
    pub(super) fn describe(&self) -> String {
        match self {
            Token::Number(number) => format!("the number {number}"),
            Token::Text(text) => format!("the text \"{text}\""),
            Token::Word(word) => format!("`{word}`"),
            Token::Sign(sign) => format!("`{sign}`"),
            Token::End => "the end of the check".to_owned(),
        }
    }
}

/// A complaint and the character (from 0) of the check that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) start: usize,
    pub(super) complaint: Complaint,
}

impl Fault {
    pub(super) fn new(start: usize, complaint: Complaint) -> Self {
        Self { start, complaint }
    }
}

/// Longer signs before their beginnings.
const SIGNS: [&str; 15] = ["==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "(", ")", "[", "]", ","];
const COLON: &str = ":";

/// All tokens of `text` and the characters at which they start; the last one is [`Token::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, Token)>, Fault> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&first) = chars.get(at) {
        if first.is_whitespace() {
            at += 1;
            continue;
        }
        let (token, end) = match first {
            '"' => quoted(&chars, at)?,
            '0'..='9' => number(&chars, at)?,
            _ if first.is_ascii_alphabetic() || first == '_' => word(&chars, at),
            _ => sign(&chars, at)?,
        };
        tokens.push((at, token));
        at = end;
    }
    tokens.push((chars.len(), Token::End));
    Ok(tokens)
}

fn quoted(chars: &[char], start: usize) -> Result<(Token, usize), Fault> {
    let rest = &chars[start + 1..];
    match rest.iter().position(|&c| c == '"') {
        Some(length) => Ok((Token::Text(rest[..length].iter().collect()), start + length + 2)),
        None => Err(Fault::new(start, Complaint::new("a text has no closing quote").expected("`\"` at its end"))),
    }
}

fn number(chars: &[char], start: usize) -> Result<(Token, usize), Fault> {
    let length = chars[start..].iter().take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_')).count();
    let written: String = chars[start..start + length].iter().collect();
    // No exponents and no `inf`: a number in a sentence is one that its reader can read.
    let plain = written.chars().all(|c| c.is_ascii_digit() || c == '.') && !written.ends_with('.');
    match written.parse::<f64>() {
        Ok(number) if plain && number.is_finite() => Ok((Token::Number(number), start + length)),
        _ => Err(Fault::new(
            start,
            Complaint::new(format!("`{written}` is not a number"))
                .expected("digits, at most one point among them")
                .hint("put a name that begins with a digit in double quotes"),
        )),
    }
}

fn word(chars: &[char], start: usize) -> (Token, usize) {
    let inner = |c: Option<&char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || *c == '_');
    let mut end = start;
    while inner(chars.get(end)) || (matches!(chars.get(end), Some('-' | '.')) && inner(chars.get(end + 1))) {
        end += 1;
    }
    (Token::Word(chars[start..end].iter().collect()), end)
}

fn sign(chars: &[char], start: usize) -> Result<(Token, usize), Fault> {
    let found = SIGNS.into_iter().chain([COLON]).find(|sign| {
        let length = sign.len();
        chars.get(start..start + length).is_some_and(|here| here.iter().copied().eq(sign.chars()))
    });
    if let Some(sign) = found {
        return Ok((Token::Sign(sign), start + sign.len()));
    }
    let character = chars.get(start).copied().unwrap_or_default();
    let complaint = Complaint::new(format!("a check has no `{character}`"));
    Err(Fault::new(
        start,
        match character {
            '=' => complaint.hint("two values are compared by `==`"),
            '&' => complaint.hint("write `and`"),
            '|' => complaint.hint("write `or`"),
            '!' => complaint.hint("write `not`, or `!=` between two values"),
            '\'' => complaint.hint("a text stands in double quotes"),
            _ => complaint.expected("a number, a name, a text in double quotes, or a sign like `<`"),
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Token> {
        tokens(text).unwrap().into_iter().map(|(_, token)| token).collect()
    }

    #[test]
    fn a_hyphen_between_letters_is_part_of_a_name_and_any_other_is_minus() {
        let word = |word: &str| Token::Word(word.to_owned());
        assert_eq!(read("llm-streamline"), [word("llm-streamline"), Token::End]);
        assert_eq!(read("llama-3.1-8b"), [word("llama-3.1-8b"), Token::End]);
        assert_eq!(read("1-x"), [Token::Number(1.0), Token::Sign("-"), word("x"), Token::End]);
        assert_eq!(read("x - 1"), [word("x"), Token::Sign("-"), Token::Number(1.0), Token::End]);
    }

    #[test]
    fn each_token_has_the_character_at_which_it_starts() {
        let starts: Vec<usize> = tokens("min(\"é\", 1.5) >= 2").unwrap().into_iter().map(|(start, _)| start).collect();
        assert_eq!(starts, [0, 3, 4, 7, 9, 12, 14, 17, 18]);
    }

    #[test]
    fn what_is_no_token_is_refused_where_it_stands() {
        let refused = |text: &str| {
            let fault = tokens(text).unwrap_err();
            (fault.start, fault.complaint.what)
        };
        assert_eq!(refused("1 = 2"), (2, "a check has no `=`".to_owned()));
        assert_eq!(refused("a == \"b"), (5, "a text has no closing quote".to_owned()));
        assert_eq!(refused("1 + 2.5.1"), (4, "`2.5.1` is not a number".to_owned()));
        assert_eq!(refused("8b"), (0, "`8b` is not a number".to_owned()));
        assert_eq!(refused("1 < 3."), (4, "`3.` is not a number".to_owned()));
        assert_eq!(refused("a & b"), (2, "a check has no `&`".to_owned()));
    }
}
