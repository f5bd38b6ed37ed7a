//! What a check comes to on the records of one group: true, false, or unknown because a number is missing.

use std::cmp::Ordering;

use serde::Serialize;

use super::expr::{Number, Operation, Relation, Truth};
use super::read::{Group, close, short};

/// What a check came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    True,
    False,
    /// A number that decides it is missing. Never counted as true.
    Unknown,
}

impl From<bool> for Outcome {
    fn from(value: bool) -> Self {
        if value { Outcome::True } else { Outcome::False }
    }
}

impl std::ops::Not for Outcome {
    type Output = Outcome;

    fn not(self) -> Outcome {
        match self {
            Outcome::True => Outcome::False,
            Outcome::False => Outcome::True,
            Outcome::Unknown => Outcome::Unknown,
        }
    }
}

/// A number and what it was made of: `0.33 (ghosted 60.01 over replaceme-ls 59.68)`; or why it is not known.
pub(super) type Seen = Result<(f64, String), String>;

/// The outcome and the numbers that it rests on. `shown` states what is, whatever the check had asked.
pub(super) fn truth(truth: &Truth, group: &Group<'_>) -> (Outcome, String) {
    match truth {
        Truth::Constant(value) => (Outcome::from(*value), value.to_string()),
        Truth::Not(inner) => {
            let (outcome, shown) = self::truth(inner, group);
            (!outcome, shown)
        }
        Truth::And(a, b) => both(a, b, Outcome::False, group),
        Truth::Or(a, b) => both(a, b, Outcome::True, group),
        Truth::Compare(relation, a, b) => compare(*relation, a, b, group),
        Truth::Best { of, name } => group.is_best(of, name),
    }
}

/// One side that is `decisive` decides, whatever the other one is; otherwise both have to be known.
fn both(a: &Truth, b: &Truth, decisive: Outcome, group: &Group<'_>) -> (Outcome, String) {
    let ((a, a_shown), (b, b_shown)) = (truth(a, group), truth(b, group));
    let outcome = match (a, b) {
        _ if a == decisive || b == decisive => decisive,
        (Outcome::Unknown, _) | (_, Outcome::Unknown) => Outcome::Unknown,
        _ => !decisive,
    };
    (outcome, format!("{a_shown}; {b_shown}"))
}

fn compare(relation: Relation, a: &Number, b: &Number, group: &Group<'_>) -> (Outcome, String) {
    let ((a, a_shown), (b, b_shown)) = match (number(a, group), number(b, group)) {
        (Ok(a), Ok(b)) => (a, b),
        (Err(a), Err(b)) if a != b => return (Outcome::Unknown, format!("unknown: {a}; {b}")),
        (Err(reason), _) | (_, Err(reason)) => return (Outcome::Unknown, format!("unknown: {reason}")),
    };
    let order = order(a, b);
    let holds = match relation {
        Relation::Equal => order == Ordering::Equal,
        Relation::NotEqual => order != Ordering::Equal,
        Relation::Less => order == Ordering::Less,
        Relation::AtMost => order != Ordering::Greater,
        Relation::Greater => order == Ordering::Greater,
        Relation::AtLeast => order != Ordering::Less,
    };
    (Outcome::from(holds), format!("{a_shown} {} {b_shown}", sign(order)))
}

/// Of two finite numbers. What differs by rounding alone is equal: the tables have two decimals, and 60.01 − 59.65 is
/// not quite 0.36 in binary.
pub(super) fn order(a: f64, b: f64) -> Ordering {
    if close(a, b) { Ordering::Equal } else { a.total_cmp(&b) }
}

pub(super) fn sign(order: Ordering) -> &'static str {
    match order {
        Ordering::Less => "<",
        Ordering::Equal => "=",
        Ordering::Greater => ">",
    }
}

fn number(wanted: &Number, group: &Group<'_>) -> Seen {
    let (value, shown) = match wanted {
        Number::Constant(value) => (*value, value.to_string()),
        Number::Negate(inner) => {
            let (value, shown) = number(inner, group)?;
            (-value, format!("-{shown}"))
        }
        Number::Arithmetic(operation, a, b) => {
            let ((a, a_shown), (b, b_shown)) = (number(a, group)?, number(b, group)?);
            let (value, sign) = match operation {
                Operation::Add => (a + b, '+'),
                Operation::Subtract => (a - b, '-'),
                Operation::Multiply => (a * b, '*'),
                Operation::Divide => (a / b, '/'),
            };
            (value, format!("{} ({a_shown} {sign} {b_shown})", short(value)))
        }
        Number::Absolute(inner) => {
            let (value, shown) = number(inner, group)?;
            (value.abs(), format!("|{shown}|"))
        }
        Number::Least(numbers) => chosen(numbers, "min", f64::min, group)?,
        Number::Greatest(numbers) => chosen(numbers, "max", f64::max, group)?,
        Number::Value(of) => group.value(of)?,
        Number::Mean(of) => group.mean(of)?,
        Number::Count(of) => group.count(of)?,
        Number::Gap { of, a, b } => group.gap(of, a, b)?,
        Number::Rank { of, name } => group.rank(of, name)?,
    };
    // A division by zero, or an overflow.
    if value.is_finite() { Ok((value, shown)) } else { Err(format!("{shown} is not a number")) }
}

fn chosen(numbers: &[Number], name: &str, choose: fn(f64, f64) -> f64, group: &Group<'_>) -> Seen {
    let seen = numbers.iter().map(|wanted| number(wanted, group)).collect::<Result<Vec<_>, _>>()?;
    let value = seen.iter().map(|(value, _)| *value).reduce(choose).unwrap_or(f64::NAN);
    let shown: Vec<&str> = seen.iter().map(|(_, shown)| shown.as_str()).collect();
    Ok((value, format!("{} ({name} of {})", short(value), shown.join(", "))))
}

#[cfg(test)]
#[path = "eval_tests.rs"]
mod tests;
