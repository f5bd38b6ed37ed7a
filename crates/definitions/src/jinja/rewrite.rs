//! Changes to the text of a template where minijinja's operators print otherwise than Jinja's: `~` and `%`.

use minijinja::machinery::{Span, Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind};

/// Name of the filter that does what `%` does after a text.
pub(crate) const PERCENT: &str = "ghostlab_percent";

/// Filters whose result Jinja treats as markup. Another operator would escape its other operand.
const MARKUP: [&str; 4] = ["e", "escape", "forceescape", "safe"];
/// Words between two operands.
const WORDS: [&str; 12] = ["and", "elif", "else", "endset", "for", "if", "in", "is", "not", "or", "recursive", "set"];

struct Edit {
    offset: usize,
    /// Order of several edits at one offset.
    rank: u8,
    removed: usize,
    text: String,
}

/// Rewrites `a ~ b` as `(a)|string ~ (b)|string`, since minijinja prints floats and texts in lists otherwise, and
/// `"…" % b` as a filter.
///
/// # Errors
/// When the template cannot be read, or puts markup together with other texts.
pub(crate) fn rewritten(source: &str) -> Result<String, Error> {
    let tokens = tokenize(source, false, SyntaxConfig::default()).collect::<Result<Vec<_>, _>>()?;
    let mut edits: Vec<Edit> = Vec::new();
    for (at, (token, span)) in tokens.iter().enumerate() {
        match token {
            Token::Tilde => {
                let start = operand_start(&tokens, at);
                let follows_another = start > 0 && matches!(tokens[start - 1].0, Token::Tilde);
                if !follows_another {
                    edits.extend(as_string(&tokens, start, at).into_iter().flatten());
                }
                let end = operand_end(&tokens, at + 1, false);
                edits.extend(as_string(&tokens, at + 1, end).into_iter().flatten());
            }
            Token::Mod if follows_text(&tokens, at) => {
                let end = operand_end(&tokens, at + 1, true);
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

type Spanned<'a> = (Token<'a>, Span);

fn start_of(span: &Span) -> usize {
    span.start_offset as usize
}

fn end_of(span: &Span) -> usize {
    span.end_offset as usize
}

/// Edits that make the tokens from `start` to before `end` a text.
fn as_string(tokens: &[Spanned<'_>], start: usize, end: usize) -> Option<[Edit; 2]> {
    let operand = tokens.get(start..end)?;
    let first = operand.first()?;
    let last = operand.last()?;
    if operand.iter().all(|(token, _)| matches!(token, Token::Str(_) | Token::String(_))) {
        return None;
    }
    Some([
        Edit { offset: start_of(&first.1), rank: 1, removed: 0, text: "(".into() },
        Edit { offset: end_of(&last.1), rank: 1, removed: 0, text: ")|string".into() },
    ])
}

/// Whether a token can end an operand, so that a sign behind it has two operands.
fn ends_operand(token: &Token<'_>) -> bool {
    match token {
        Token::Ident(name) => !WORDS.contains(name),
        Token::Str(_) | Token::String(_) | Token::Int(_) | Token::Int128(_) | Token::Float(_) => true,
        Token::BracketClose | Token::ParenClose | Token::BraceClose => true,
        _ => false,
    }
}

/// Whether the token at `at`, outside of brackets, stands between operands of `~`; or of `%`, which binds more closely.
fn is_boundary(tokens: &[Spanned<'_>], at: usize, factors: bool) -> bool {
    let previous = at.checked_sub(1).and_then(|before| tokens.get(before)).map(|(token, _)| token);
    match &tokens[at].0 {
        Token::Plus | Token::Minus => previous.is_some_and(ends_operand),
        Token::Mul | Token::Div | Token::FloorDiv | Token::Mod => factors,
        Token::Ident("is") => false,
        Token::Ident("not") => !matches!(previous, Some(Token::Ident("is"))),
        // A word behind a dot, a pipe or `is` is a name.
        Token::Ident(word) => {
            WORDS.contains(word) && !matches!(previous, Some(Token::Dot | Token::Pipe | Token::Ident("is" | "not")))
        }
        Token::Comma | Token::Colon | Token::Assign | Token::Tilde => true,
        Token::Eq | Token::Ne | Token::Gt | Token::Gte | Token::Lt | Token::Lte => true,
        Token::VariableStart | Token::VariableEnd | Token::BlockStart | Token::BlockEnd => true,
        Token::TemplateData(_) => true,
        _ => false,
    }
}

/// Position of the first token of the operand that ends before `end`.
fn operand_start(tokens: &[Spanned<'_>], end: usize) -> usize {
    let mut depth = 0_usize;
    for at in (0..end).rev() {
        match &tokens[at].0 {
            Token::BracketClose | Token::ParenClose | Token::BraceClose => depth += 1,
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => {
                let Some(outer) = depth.checked_sub(1) else { return at + 1 };
                depth = outer;
            }
            _ if depth == 0 && is_boundary(tokens, at, false) => return at + 1,
            _ => {}
        }
    }
    0
}

/// Position behind the last token of the operand that starts at `start`.
fn operand_end(tokens: &[Spanned<'_>], start: usize, factors: bool) -> usize {
    let mut depth = 0_usize;
    for at in start..tokens.len() {
        match &tokens[at].0 {
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => depth += 1,
            Token::BracketClose | Token::ParenClose | Token::BraceClose => {
                let Some(outer) = depth.checked_sub(1) else { return at };
                depth = outer;
            }
            _ if depth == 0 && is_boundary(tokens, at, factors) => return at,
            _ => {}
        }
    }
    tokens.len()
}

/// Whether `%` at `at` stands behind a text that is no factor of a product.
fn follows_text(tokens: &[Spanned<'_>], at: usize) -> bool {
    let mut before = tokens[..at].iter().rev().map(|(token, _)| token).peekable();
    if !matches!(before.peek(), Some(Token::Str(_) | Token::String(_))) {
        return false;
    }
    let left = before.find(|token| !matches!(token, Token::Str(_) | Token::String(_)));
    !matches!(left, Some(Token::Mul | Token::Div | Token::FloorDiv | Token::Mod | Token::Pow | Token::Minus))
}

/// Refuses markup anywhere but at the end of what is printed.
fn check_markup(tokens: &[Spanned<'_>], pipe: usize) -> Result<(), Error> {
    let Some((Token::Ident(name), _)) = tokens.get(pipe + 1) else { return Ok(()) };
    if !MARKUP.contains(name) || matches!(tokens.get(pipe + 2), Some((Token::VariableEnd, _))) {
        return Ok(());
    }
    let detail = format!("`{name}` is offered at the end of a `{{{{ … }}}}` only: markup changes what is joined to it");
    Err(Error::new(ErrorKind::SyntaxError, detail))
}
