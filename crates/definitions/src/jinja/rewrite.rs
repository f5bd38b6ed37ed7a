//! Rewriting of the template source for constructs that minijinja evaluates differently from Jinja: `~`, `%`,
//! comparisons, `in`, slices and tests on methods.

use minijinja::machinery::{Span, Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind};

use super::names::{CONTAINER, DICT_METHODS, LEFT, OWNER, PERCENT, RIGHT, SLICE, TEXT};
use crate::method::METHODS;

/// Filters that return markup in Jinja. An operator with a markup operand escapes the other operand.
const MARKUP: [&str; 4] = ["e", "escape", "forceescape", "safe"];
/// Keywords that end an operand.
const OPERATOR_WORDS: [&str; 12] =
    ["and", "elif", "else", "endset", "for", "if", "in", "is", "not", "or", "recursive", "set"];

struct Edit {
    offset: usize,
    /// Order among edits at the same offset, lowest first.
    rank: u8,
    /// Number of bytes that `text` replaces.
    removed: usize,
    text: String,
}

/// Rewrites operators into filters. `a ~ b` becomes `(a)|text ~ (b)|text`, because minijinja prints floats and nested
/// strings differently. `a < b` becomes `(a)|left(0) < (b)|right(0)`, which checks that Python can order the operands.
/// `"…" % b` and slices become filters.
///
/// # Errors
/// Fails if the template is invalid or combines markup with other strings.
pub(crate) fn rewrite_operators(source: &str) -> Result<String, Error> {
    let tokens = tokenize(source, false, SyntaxConfig::default()).collect::<Result<Vec<_>, _>>()?;
    let mut edits: Vec<Edit> = Vec::new();
    for (at, (token, span)) in tokens.iter().enumerate() {
        match token {
            Token::Tilde => {
                let start = operand_start(&tokens, at, Level::Concat);
                let follows_another = start > 0 && matches!(tokens[start - 1].0, Token::Tilde);
                if !follows_another {
                    edits.extend(wrap_as_string(&tokens, start, at).into_iter().flatten());
                }
                let end = operand_end(&tokens, at + 1, Level::Concat);
                edits.extend(wrap_as_string(&tokens, at + 1, end).into_iter().flatten());
            }
            Token::Lt | Token::Lte | Token::Gt | Token::Gte => edits.extend(wrap_comparison(&tokens, at, at, RIGHT)),
            Token::Ident("in") if is_containment(&tokens, at) => {
                let is_negated = matches!(tokens[at - 1].0, Token::Ident("not"));
                edits.extend(wrap_comparison(&tokens, at - usize::from(is_negated), at, CONTAINER));
            }
            Token::Ident("is") => edits.extend(reject_method_test(&tokens, at)?),
            Token::BracketOpen if at > 0 && ends_operand(&tokens[at - 1].0) => {
                edits.extend(rewrite_slice(&tokens, at)?);
            }
            Token::Mod if follows_text(&tokens, at) => {
                let end = operand_end(&tokens, at + 1, Level::Product);
                edits.push(Edit { offset: start_of(span), rank: 1, removed: 1, text: format!("|{PERCENT}(") });
                edits.push(Edit { offset: end_of(&tokens[end.max(1) - 1].1), rank: 0, removed: 0, text: ")".into() });
            }
            Token::Pipe => check_markup(&tokens, at)?,
            _ => {}
        }
    }
    edits.sort_by_key(|edit| (edit.offset, edit.rank));
    let mut out = String::with_capacity(source.len() + 16 * edits.len());
    let mut end = 0;
    for edit in edits {
        out.push_str(source.get(end..edit.offset).unwrap_or_default());
        out.push_str(&edit.text);
        end = edit.offset + edit.removed;
    }
    out.push_str(source.get(end..).unwrap_or_default());
    Ok(out)
}

type SpannedToken<'a> = (Token<'a>, Span);

fn start_of(span: &Span) -> usize {
    span.start_offset as usize
}

fn end_of(span: &Span) -> usize {
    span.end_offset as usize
}

/// Returns the edits that convert the operand in the tokens `start..end` to a string, or `None` for a string literal.
fn wrap_as_string(tokens: &[SpannedToken<'_>], start: usize, end: usize) -> Option<[Edit; 2]> {
    let operand = tokens.get(start..end)?;
    let first = operand.first()?;
    let last = operand.last()?;
    if operand.iter().all(|(token, _)| matches!(token, Token::Str(_) | Token::String(_))) {
        return None;
    }
    Some([
        Edit { offset: start_of(&first.1), rank: 1, removed: 0, text: "(".into() },
        Edit { offset: end_of(&last.1), rank: 1, removed: 0, text: format!(")|{TEXT}") },
    ])
}

/// Returns whether a token can end an operand, which makes a following sign a binary operator.
fn ends_operand(token: &Token<'_>) -> bool {
    match token {
        Token::Ident(name) => !OPERATOR_WORDS.contains(name),
        Token::Str(_) | Token::String(_) | Token::Int(_) | Token::Int128(_) | Token::Float(_) => true,
        Token::BracketClose | Token::ParenClose | Token::BraceClose => true,
        _ => false,
    }
}

/// Operator precedence, lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Comparison,
    Concat,
    Product,
}

/// Returns whether the token at `at` delimits the operands of an operator with the given precedence. The token must be
/// outside brackets.
fn is_boundary(tokens: &[SpannedToken<'_>], at: usize, level: Level) -> bool {
    let previous = at.checked_sub(1).and_then(|before| tokens.get(before)).map(|(token, _)| token);
    match &tokens[at].0 {
        Token::Plus | Token::Minus => level > Level::Comparison && previous.is_some_and(ends_operand),
        Token::Mul | Token::Div | Token::FloorDiv | Token::Mod => level == Level::Product,
        Token::Tilde => level > Level::Comparison,
        Token::Ident("is") => false,
        Token::Ident("not") => !matches!(previous, Some(Token::Ident("is"))),
        // After a dot, a pipe or `is`, a keyword is a name.
        Token::Ident(word) => {
            OPERATOR_WORDS.contains(word)
                && !matches!(previous, Some(Token::Dot | Token::Pipe | Token::Ident("is" | "not")))
        }
        Token::Comma | Token::Colon | Token::Assign => true,
        Token::Eq | Token::Ne | Token::Gt | Token::Gte | Token::Lt | Token::Lte => true,
        Token::VariableStart | Token::VariableEnd | Token::BlockStart | Token::BlockEnd => true,
        Token::TemplateData(_) => true,
        _ => false,
    }
}

/// Returns the index of the first token of the operand that ends before `end`.
fn operand_start(tokens: &[SpannedToken<'_>], end: usize, level: Level) -> usize {
    let mut depth = 0_usize;
    for at in (0..end).rev() {
        match &tokens[at].0 {
            Token::BracketClose | Token::ParenClose | Token::BraceClose => depth += 1,
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => {
                let Some(outer) = depth.checked_sub(1) else { return at + 1 };
                depth = outer;
            }
            _ if depth == 0 && is_boundary(tokens, at, level) => return at + 1,
            _ => {}
        }
    }
    0
}

/// Returns the index after the last token of the operand that starts at `start`.
fn operand_end(tokens: &[SpannedToken<'_>], start: usize, level: Level) -> usize {
    let mut depth = 0_usize;
    for at in start..tokens.len() {
        match &tokens[at].0 {
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => depth += 1,
            Token::BracketClose | Token::ParenClose | Token::BraceClose => {
                let Some(outer) = depth.checked_sub(1) else { return at };
                depth = outer;
            }
            _ if depth == 0 && is_boundary(tokens, at, level) => return at,
            _ => {}
        }
    }
    tokens.len()
}

/// Returns the edits that pass the operands of a comparison through filters. The operator spans the tokens
/// `first..=last`.
fn wrap_comparison(tokens: &[SpannedToken<'_>], first: usize, last: usize, right: &str) -> Vec<Edit> {
    let start = operand_start(tokens, first, Level::Comparison);
    let end = operand_end(tokens, last + 1, Level::Comparison);
    if start >= first || end <= last + 1 {
        return Vec::new();
    }
    // The byte offset of the operator identifies the comparison within the template.
    let number = start_of(&tokens[first].1);
    vec![
        insertion(start_of(&tokens[start].1), 1, "(".into()),
        insertion(end_of(&tokens[first - 1].1), 3, format!(")|{LEFT}({number})")),
        insertion(start_of(&tokens[last + 1].1), 1, "(".into()),
        insertion(end_of(&tokens[end - 1].1), 2, format!(")|{right}({number})")),
    ]
}

fn insertion(offset: usize, rank: u8, text: String) -> Edit {
    Edit { offset, rank, removed: 0, text }
}

/// Returns whether the token `in` at `at` is the containment operator. Otherwise, it is part of a loop, or the name of
/// a test, filter or attribute.
fn is_containment(tokens: &[SpannedToken<'_>], at: usize) -> bool {
    let before = [1, 2].map(|back| Some(&tokens[at.checked_sub(back)?].0));
    let is_test = matches!(before, [Some(Token::Dot | Token::Pipe | Token::Ident("is")), _]);
    let is_negated_test = matches!(before, [Some(Token::Ident("not")), Some(Token::Ident("is"))]);
    if is_test || is_negated_test {
        return false;
    }
    let mut others = tokens[..at].iter().rev().skip_while(|token| match token.0 {
        Token::Ident(name) => !OPERATOR_WORDS.contains(&name),
        Token::Comma | Token::ParenOpen | Token::ParenClose | Token::Dot => true,
        _ => false,
    });
    let is_loop = matches!(others.next(), Some((Token::Ident("for"), _)));
    !(is_loop && matches!(others.next(), Some((Token::BlockStart, _))))
}

/// Returns the index of the bracket that matches the closing bracket at `close`, or `None` if there is none.
fn find_opening(tokens: &[SpannedToken<'_>], close: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for at in (0..=close).rev() {
        match &tokens[at].0 {
            Token::BracketClose | Token::ParenClose | Token::BraceClose => depth += 1,
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns the index of the first token of the value that ends before `end`. The value includes its attributes, items
/// and calls.
///
/// # Errors
/// Fails if the value is the result of a filter or test, because Jinja does not allow items or attributes there.
fn value_start(tokens: &[SpannedToken<'_>], end: usize) -> Result<usize, Error> {
    let mut end = end;
    while let Some(last) = end.checked_sub(1) {
        let start = match &tokens[last].0 {
            Token::BracketClose | Token::ParenClose | Token::BraceClose => {
                let Some(open) = find_opening(tokens, last) else { return Ok(last) };
                if open > 0 && ends_operand(&tokens[open - 1].0) {
                    end = open;
                    continue;
                }
                open
            }
            _ => last,
        };
        match start.checked_sub(1).map(|before| &tokens[before].0) {
            Some(Token::Dot) => end = start - 1,
            Some(Token::Pipe | Token::Ident("is")) => {
                let detail = "a filter result must be in parentheses before `[` or `.`";
                return Err(Error::new(ErrorKind::SyntaxError, detail));
            }
            _ => return Ok(start),
        }
    }
    Ok(0)
}

/// Returns the edits that rewrite the slice whose bracket opens at `open` into a filter. Returns no edits for a plain
/// index.
fn rewrite_slice(tokens: &[SpannedToken<'_>], open: usize) -> Result<Vec<Edit>, Error> {
    let mut depth = 0_usize;
    let mut colons = Vec::new();
    let close = tokens[open..].iter().position(|(token, _)| {
        match token {
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => depth += 1,
            Token::BracketClose | Token::ParenClose | Token::BraceClose => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0
    });
    let Some(close) = close.map(|behind| open + behind) else { return Ok(Vec::new()) };
    for (at, (token, _)) in tokens.iter().enumerate().take(close).skip(open + 1) {
        match token {
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => depth += 1,
            Token::BracketClose | Token::ParenClose | Token::BraceClose => depth = depth.saturating_sub(1),
            Token::Colon if depth == 0 => colons.push(at),
            _ => {}
        }
    }
    if colons.is_empty() || colons.len() > 2 {
        return Ok(Vec::new());
    }
    let start = value_start(tokens, open)?;
    let replaced = |at: usize, text: String| Edit { offset: start_of(&tokens[at].1), rank: 5, removed: 1, text };
    let mut edits = vec![Edit { offset: start_of(&tokens[start].1), rank: 1, removed: 0, text: "(".into() }];
    edits.push(replaced(open, format!("|{SLICE}({}", absent_bound(open, colons[0]))));
    let last = colons.len() - 1;
    edits.extend(
        colons[..last].iter().map(|&colon| replaced(colon, format!(", {}", absent_bound(colon, colons[last])))),
    );
    edits.push(replaced(colons[last], format!(", {}", absent_bound(colons[last], close))));
    edits.push(replaced(close, if last == 0 { ", none))".into() } else { "))".into() }));
    Ok(edits)
}

/// Returns `none` for an omitted slice bound (no token between `from` and `to`), and an empty string otherwise.
fn absent_bound(from: usize, to: usize) -> &'static str {
    if from + 1 == to { "none" } else { "" }
}

/// Returns the edits that reject `is defined` for a method that is not called. `x.upper is defined` is true in Python,
/// but false in minijinja.
fn reject_method_test(tokens: &[SpannedToken<'_>], is: usize) -> Result<Vec<Edit>, Error> {
    let is_negated = matches!(tokens.get(is + 1), Some((Token::Ident("not"), _)));
    let test = tokens.get(is + 1 + usize::from(is_negated)).map(|(token, _)| token);
    let Some(Token::Ident("defined" | "undefined")) = test else { return Ok(Vec::new()) };
    let Some([(Token::Dot, dot), (Token::Ident(name), _)]) = is.checked_sub(2).map(|start| &tokens[start..is]) else {
        return Ok(Vec::new());
    };
    if !METHODS.contains(name) && !DICT_METHODS.contains(name) {
        return Ok(Vec::new());
    }
    let start = value_start(tokens, is - 2)?;
    Ok(vec![
        insertion(start_of(&tokens[start].1), 1, "((".into()),
        insertion(start_of(dot), 5, format!(")|{OWNER}(\"{name}\"))")),
    ])
}

/// Returns whether the `%` at `at` formats the string literal before it. A literal that is the operand of a preceding
/// arithmetic operator is not formatted.
fn follows_text(tokens: &[SpannedToken<'_>], at: usize) -> bool {
    let mut before = tokens[..at].iter().rev().map(|(token, _)| token).peekable();
    if !matches!(before.peek(), Some(Token::Str(_) | Token::String(_))) {
        return false;
    }
    let left = before.find(|token| !matches!(token, Token::Str(_) | Token::String(_)));
    !matches!(left, Some(Token::Mul | Token::Div | Token::FloorDiv | Token::Mod | Token::Pow | Token::Minus))
}

/// Rejects a markup filter that is not the last filter in a `{{ … }}`.
fn check_markup(tokens: &[SpannedToken<'_>], pipe: usize) -> Result<(), Error> {
    let Some((Token::Ident(name), _)) = tokens.get(pipe + 1) else { return Ok(()) };
    if !MARKUP.contains(name) || matches!(tokens.get(pipe + 2), Some((Token::VariableEnd, _))) {
        return Ok(());
    }
    let detail = format!(
        "`{name}` is supported only as the last filter in `{{{{ … }}}}`, because Jinja escapes text joined to markup"
    );
    Err(Error::new(ErrorKind::SyntaxError, detail))
}
