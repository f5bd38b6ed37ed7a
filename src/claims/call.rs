//! The functions of a check, with their arguments.

use super::expr::{Accessor, Number, Rival};
use super::filter::{Field, Filter, Literal};
use super::parse::{Parser, Typed};
use super::token::{Fault, Token};
use super::words::{Complaint, Sense, sense};

pub(super) const FUNCTIONS: [&str; 9] = ["value", "best", "mean", "count", "gap", "rank", "abs", "min", "max"];

/// Reads a call whose name and opening bracket were taken; `start` is the character of the name.
pub(super) fn read(parser: &mut Parser, name: &str, start: usize) -> Result<Typed, Fault> {
    let number = match name {
        "abs" => {
            let inner = parser.number_argument(name)?;
            parser.expect_sign(")")?;
            Number::Absolute(Box::new(inner))
        }
        "min" => Number::Least(numbers(parser, name, start)?),
        "max" => Number::Greatest(numbers(parser, name, start)?),
        "value" => Number::Value(accessor(parser, 0)?.of),
        "mean" => Number::Mean(accessor(parser, 0)?.of),
        "count" => Number::Count(accessor(parser, 0)?.of),
        "gap" => gap(parser, start)?,
        "rank" => rank(parser, start)?,
        "best" => {
            let of = accessor(parser, 0)?.directed(name)?;
            return Ok(Typed::Best(of));
        }
        _ => return Err(Fault::new(start, Complaint::unknown("function", name, &FUNCTIONS))),
    };
    Ok(Typed::Number(number))
}

/// Two numbers or more, and the closing bracket.
fn numbers(parser: &mut Parser, name: &str, start: usize) -> Result<Vec<Number>, Fault> {
    let mut numbers = vec![parser.number_argument(name)?];
    while parser.takes_sign(",") {
        numbers.push(parser.number_argument(name)?);
    }
    parser.expect_sign(")")?;
    if numbers.len() < 2 {
        return Err(Fault::new(start, Complaint::new(format!("`{name}` has one argument")).expected("two or more")));
    }
    Ok(numbers)
}

/// `gap(METRIC, a, b, …)`.
fn gap(parser: &mut Parser, start: usize) -> Result<Number, Fault> {
    let read = accessor(parser, 2)?;
    let by = read.of.by;
    let [(a_start, a), (b_start, b)] = read.names.as_slice() else {
        let complaint = Complaint::new("`gap` has no two names to compare");
        return Err(Fault::new(start, complaint.expected("gap(METRIC, ghosted, others), or two names")));
    };
    by.check_name(a).map_err(|complaint| Fault::new(*a_start, complaint))?;
    let rival = if b == OTHERS { Rival::Others } else { Rival::Named(b.clone()) };
    if let Rival::Named(b) = &rival {
        by.check_name(b).map_err(|complaint| Fault::new(*b_start, complaint))?;
        if a == b {
            return Err(Fault::new(*b_start, Complaint::new(format!("`{a}` is compared with itself"))));
        }
    }
    let a = a.clone();
    Ok(Number::Gap { a, b: rival, of: read.directed("gap")? })
}

/// The word for the best of all others in a gap.
const OTHERS: &str = "others";

/// `rank(METRIC, recovery: ghosted, …)`: the filter on the ranked field names the one whose rank is asked.
fn rank(parser: &mut Parser, start: usize) -> Result<Number, Fault> {
    let mut of = accessor(parser, 0)?.directed("rank")?;
    let named = of.filters.iter().position(|filter| filter.field == of.by && filter.only_value().is_some());
    let Some(named) = named else {
        let by = of.by.name();
        let complaint = Complaint::new("`rank` does not say whose rank is asked");
        return Err(Fault::new(start, complaint.expected(format!("a filter `{by}: NAME` with one name"))));
    };
    let name = of.filters.remove(named).only_value().unwrap_or_default().to_owned();
    Ok(Number::Rank { of, name })
}

/// What stands in the brackets of a function that reads records.
struct Read {
    of: Accessor,
    metric_start: usize,
    /// Names without a field, and where they start.
    names: Vec<(usize, String)>,
}

impl Read {
    /// Refuses a metric that has no better and worse.
    fn directed(self, function: &str) -> Result<Accessor, Fault> {
        if self.of.sense != Sense::Neither {
            return Ok(self.of);
        }
        let complaint = Complaint::new(format!("of `{}` neither more nor less is better", self.of.metric));
        let hint = format!("`{function}` needs a better and a worse; compare two calls of `value`");
        Err(Fault::new(self.metric_start, complaint.hint(hint)))
    }
}

/// Reads a metric, up to `names` names and any number of filters, and the closing bracket.
fn accessor(parser: &mut Parser, names: usize) -> Result<Read, Fault> {
    parser.reads += 1;
    let metric_start = parser.start();
    let metric = name(parser, "a metric")?;
    let sense = sense(&metric).map_err(|complaint| Fault::new(metric_start, complaint))?;
    let of = Accessor { metric, sense, by: Field::Recovery, filters: Vec::new() };
    let mut read = Read { of, metric_start, names: Vec::new() };
    while parser.takes_sign(",") {
        let start = parser.start();
        if !parser.at_filter() && read.names.len() < names {
            let name = name(parser, "a name, or `field: value`")?;
            read.names.push((start, name));
            continue;
        }
        if !parser.at_filter() {
            return Err(parser.unexpected("`field: value`"));
        }
        let word = name(parser, "a field")?;
        parser.expect_sign(":")?;
        if word == "by" {
            let start = parser.start();
            let field = name(parser, "a field")?;
            read.of.by = Field::named(&field).map_err(|complaint| Fault::new(start, complaint))?;
        } else {
            let field = Field::named(&word).map_err(|complaint| Fault::new(start, complaint))?;
            if read.of.filters.iter().any(|filter| filter.field == field) {
                return Err(Fault::new(start, Complaint::new(format!("two filters on `{word}`")).hint(LIST)));
            }
            read.of.filters.push(filter(parser, field)?);
        }
    }
    parser.expect_sign(")")?;
    Ok(read)
}

const LIST: &str = "several values stand in a list: `[none, ghosted]`";

/// A word, or a text in quotes.
fn name(parser: &mut Parser, expected: &str) -> Result<String, Fault> {
    match parser.peek().clone() {
        Token::Word(name) | Token::Text(name) => {
            parser.advance();
            Ok(name)
        }
        _ => Err(parser.unexpected(expected)),
    }
}

/// `value`, `[value, …]`, or one of these after `not`.
fn filter(parser: &mut Parser, field: Field) -> Result<Filter, Fault> {
    let negated = parser.takes_word("not");
    let start = parser.start();
    let mut values = Vec::new();
    if parser.takes_sign("[") {
        while !parser.takes_sign("]") {
            if !values.is_empty() {
                parser.expect_sign(",")?;
            }
            values.push(literal(parser)?);
        }
    } else {
        values.push(literal(parser)?);
    }
    Filter::new(field, &values, negated).map_err(|complaint| Fault::new(start, complaint))
}

fn literal(parser: &mut Parser) -> Result<Literal, Fault> {
    let literal = match parser.peek().clone() {
        Token::Number(number) => Literal::Number(number),
        Token::Text(text) => Literal::Text(text),
        Token::Word(word) => match word.as_str() {
            "true" => Literal::Bool(true),
            "false" => Literal::Bool(false),
            _ => Literal::Text(word),
        },
        _ => return Err(parser.unexpected("a name, a number, true or false")),
    };
    parser.advance();
    if matches!(parser.peek(), Token::Sign(":")) {
        let fault = parser.unexpected("`,` or `)`");
        let complaint = fault.complaint.hint("a name with a colon in it stands in double quotes: \"ghosted:svd\"");
        return Err(Fault::new(fault.start, complaint));
    }
    Ok(literal)
}
