//! Reads a check. Everything that can be wrong with it is found here: an unknown name, a type that does not fit, a sign
//! that is missing; each with the character at which it stands.
//!
//! ```text
//! truth    := and { "or" and }
//! and      := not { "and" not }
//! not      := "not" not | compare
//! compare  := sum [ ("==" | "!=" | "<" | "<=" | ">" | ">=") sum ]
//! sum      := product { ("+" | "-") product }
//! product  := sign { ("*" | "/") sign }
//! sign     := "-" sign | atom
//! atom     := NUMBER | TEXT | "true" | "false" | "(" truth ")" | call
//! ```

use super::call::{self, FUNCTIONS};
use super::expr::{Accessor, Number, Operation, Relation, Truth};
use super::token::{Fault, Token, tokens};
use super::words::Complaint;

/// A part of a check whose type is known.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Typed {
    Number(Number),
    Truth(Truth),
    /// A text can only be compared with `best(…)`.
    Text(String),
    Best(Accessor),
}

impl Typed {
    fn describe(&self) -> &'static str {
        match self {
            Typed::Number(_) => "a number",
            Typed::Truth(_) => "a truth value",
            Typed::Text(_) => "a text",
            Typed::Best(_) => "the names of the best",
        }
    }
}

/// How deep brackets, `not` and `-` may nest. Reading and evaluating recurse, and no sentence is that deep.
const DEEPEST: usize = 16;
/// A chain of operators is a deep tree too.
const LONGEST: usize = 500;
const SPLIT: &str = "split the sentence into several claims";

pub(super) struct Parser {
    tokens: Vec<(usize, Token)>,
    next: usize,
    depth: usize,
    /// How many functions read records.
    pub(super) reads: usize,
}

/// Reads the whole of a check.
pub(super) fn parse(text: &str) -> Result<Truth, Fault> {
    let tokens = tokens(text)?;
    if let Some((start, _)) = tokens.get(LONGEST) {
        let complaint = Complaint::new(format!("the check has more than {LONGEST} words and signs"));
        return Err(Fault::new(*start, complaint.hint(SPLIT)));
    }
    let mut parser = Parser { tokens, next: 0, depth: 0, reads: 0 };
    let typed = parser.truth()?;
    if !matches!(parser.peek(), Token::End) {
        return Err(parser.unexpected("an operator, or the end of the check"));
    }
    let truth = parser.as_truth(0, typed, "a check")?;
    if parser.reads == 0 {
        let complaint = Complaint::new("the check looks at no record").expected("a function that reads records");
        return Err(Fault::new(0, complaint.hint(format!("the functions are {}", FUNCTIONS.join(", ")))));
    }
    Ok(truth)
}

impl Parser {
    pub(super) fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |(_, token)| token)
    }

    /// The character at which the next token starts.
    pub(super) fn start(&self) -> usize {
        self.tokens.get(self.next).or(self.tokens.last()).map_or(0, |(start, _)| *start)
    }

    pub(super) fn advance(&mut self) -> Token {
        let token = self.peek().clone();
        self.next += 1;
        token
    }

    pub(super) fn takes_sign(&mut self, wanted: &str) -> bool {
        let found = matches!(self.peek(), Token::Sign(sign) if *sign == wanted);
        self.next += usize::from(found);
        found
    }

    pub(super) fn takes_word(&mut self, wanted: &str) -> bool {
        let found = matches!(self.peek(), Token::Word(word) if word == wanted);
        self.next += usize::from(found);
        found
    }

    /// Whether the next two tokens are a word and a colon: a filter.
    pub(super) fn at_filter(&self) -> bool {
        matches!(self.peek(), Token::Word(_)) && matches!(self.tokens.get(self.next + 1), Some((_, Token::Sign(":"))))
    }

    pub(super) fn expect_sign(&mut self, wanted: &'static str) -> Result<(), Fault> {
        if self.takes_sign(wanted) { Ok(()) } else { Err(self.unexpected(&format!("`{wanted}`"))) }
    }

    pub(super) fn unexpected(&self, expected: &str) -> Fault {
        let complaint = Complaint::new(format!("{} does not belong here", self.peek().describe())).expected(expected);
        Fault::new(self.start(), complaint)
    }

    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Fault>) -> Result<T, Fault> {
        if self.depth == DEEPEST {
            let complaint = Complaint::new(format!("the check is nested deeper than {DEEPEST} levels"));
            return Err(Fault::new(self.start(), complaint.hint(SPLIT)));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    fn as_truth(&self, start: usize, typed: Typed, what: &str) -> Result<Truth, Fault> {
        match typed {
            Typed::Truth(truth) => Ok(truth),
            other => Err(mismatch(start, what, "a truth value, as a comparison gives it", &other)),
        }
    }

    fn as_number(&self, start: usize, typed: Typed, what: &str) -> Result<Number, Fault> {
        match typed {
            Typed::Number(number) => Ok(number),
            other => Err(mismatch(start, what, "a number", &other)),
        }
    }

    /// A number as an argument of the function `name`.
    pub(super) fn number_argument(&mut self, name: &str) -> Result<Number, Fault> {
        let start = self.start();
        let typed = self.truth()?;
        self.as_number(start, typed, &format!("an argument of `{name}`"))
    }

    fn truth(&mut self) -> Result<Typed, Fault> {
        self.deeper(|parser| parser.chain("or", Self::conjunction, Truth::Or))
    }

    fn conjunction(&mut self) -> Result<Typed, Fault> {
        self.chain("and", Self::negation, Truth::And)
    }

    fn chain(
        &mut self,
        word: &'static str,
        part: fn(&mut Self) -> Result<Typed, Fault>,
        join: fn(Box<Truth>, Box<Truth>) -> Truth,
    ) -> Result<Typed, Fault> {
        let start = self.start();
        let mut left = part(self)?;
        let what = format!("a side of `{word}`");
        while self.takes_word(word) {
            let first = self.as_truth(start, left, &what)?;
            let right_start = self.start();
            let right = part(self)?;
            let second = self.as_truth(right_start, right, &what)?;
            left = Typed::Truth(join(Box::new(first), Box::new(second)));
        }
        Ok(left)
    }

    fn negation(&mut self) -> Result<Typed, Fault> {
        if !self.takes_word("not") {
            return self.comparison();
        }
        let start = self.start();
        let inner = self.deeper(Self::negation)?;
        Ok(Typed::Truth(Truth::Not(Box::new(self.as_truth(start, inner, "what `not` turns round")?))))
    }

    fn comparison(&mut self) -> Result<Typed, Fault> {
        let left_start = self.start();
        let left = self.sum()?;
        let Some(relation) = self.relation() else {
            return Ok(left);
        };
        let sign_start = self.start();
        self.advance();
        let right_start = self.start();
        let right = self.sum()?;
        if self.relation().is_some() {
            let complaint = Complaint::new("two comparisons follow each other");
            return Err(Fault::new(self.start(), complaint.hint("write `a < b and b < c`")));
        }
        let truth = match (left, right) {
            (Typed::Best(of), Typed::Text(name)) => best(relation, of, name, sign_start, right_start)?,
            (Typed::Text(name), Typed::Best(of)) => best(relation, of, name, sign_start, left_start)?,
            (Typed::Best(_), other) => return Err(mismatch(right_start, "the other side of `best`", A_NAME, &other)),
            (other, Typed::Best(_)) => return Err(mismatch(left_start, "the other side of `best`", A_NAME, &other)),
            (left, right) => {
                let left = self.as_number(left_start, left, "a side of a comparison")?;
                Truth::Compare(relation, left, self.as_number(right_start, right, "a side of a comparison")?)
            }
        };
        Ok(Typed::Truth(truth))
    }

    fn relation(&self) -> Option<Relation> {
        let Token::Sign(sign) = self.peek() else { return None };
        Some(match *sign {
            "==" => Relation::Equal,
            "!=" => Relation::NotEqual,
            "<" => Relation::Less,
            "<=" => Relation::AtMost,
            ">" => Relation::Greater,
            ">=" => Relation::AtLeast,
            _ => return None,
        })
    }

    fn sum(&mut self) -> Result<Typed, Fault> {
        self.arithmetic([("+", Operation::Add), ("-", Operation::Subtract)], Self::product)
    }

    fn product(&mut self) -> Result<Typed, Fault> {
        self.arithmetic([("*", Operation::Multiply), ("/", Operation::Divide)], Self::sign)
    }

    fn arithmetic(
        &mut self,
        signs: [(&'static str, Operation); 2],
        part: fn(&mut Self) -> Result<Typed, Fault>,
    ) -> Result<Typed, Fault> {
        let start = self.start();
        let mut left = part(self)?;
        loop {
            let Some((sign, operation)) = signs.into_iter().find(|(sign, _)| self.takes_sign(sign)) else {
                return Ok(left);
            };
            let what = format!("a side of `{sign}`");
            let first = self.as_number(start, left, &what)?;
            let right_start = self.start();
            let right = part(self)?;
            let second = self.as_number(right_start, right, &what)?;
            left = Typed::Number(Number::Arithmetic(operation, Box::new(first), Box::new(second)));
        }
    }

    fn sign(&mut self) -> Result<Typed, Fault> {
        if !self.takes_sign("-") {
            return self.atom();
        }
        let start = self.start();
        let inner = self.deeper(Self::sign)?;
        Ok(Typed::Number(Number::Negate(Box::new(self.as_number(start, inner, "what `-` stands before")?))))
    }

    fn atom(&mut self) -> Result<Typed, Fault> {
        let start = self.start();
        match self.peek().clone() {
            Token::Number(number) => {
                self.advance();
                Ok(Typed::Number(Number::Constant(number)))
            }
            Token::Text(text) => {
                self.advance();
                Ok(Typed::Text(text))
            }
            Token::Sign("(") => {
                self.advance();
                let inner = self.truth()?;
                self.expect_sign(")")?;
                Ok(inner)
            }
            Token::Word(word) if matches!(word.as_str(), "true" | "false") => {
                self.advance();
                Ok(Typed::Truth(Truth::Constant(word == "true")))
            }
            Token::Word(word) if !matches!(word.as_str(), "and" | "or" | "not") => {
                self.advance();
                if self.takes_sign("(") {
                    return call::read(self, &word, start);
                }
                let complaint = Complaint::unknown("name", &word, &FUNCTIONS);
                let hint = complaint.hint.clone().unwrap_or_else(|| format!("a text stands in quotes: \"{word}\""));
                Err(Fault::new(start, complaint.expected("a function with its arguments in brackets").hint(hint)))
            }
            _ => Err(self.unexpected("a number, a text, a function or `(`")),
        }
    }
}

const A_NAME: &str = "a text, for example \"ghosted\"";

fn mismatch(start: usize, what: &str, expected: &str, found: &Typed) -> Fault {
    let complaint = Complaint::new(format!("{what} is {}", found.describe()));
    Fault::new(start, complaint.expected(expected))
}

fn best(relation: Relation, of: Accessor, name: String, sign: usize, text: usize) -> Result<Truth, Fault> {
    of.by.check_name(&name).map_err(|complaint| Fault::new(text, complaint))?;
    let is = Truth::Best { of, name };
    match relation {
        Relation::Equal => Ok(is),
        Relation::NotEqual => Ok(Truth::Not(Box::new(is))),
        _ => Err(Fault::new(sign, Complaint::new("names have no order").expected("`==` or `!=`"))),
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
