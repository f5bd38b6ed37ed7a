//! A check after it was read. Truths and numbers are types of their own, so that a check which was loaded cannot fail on
//! a type when it is evaluated.

use super::filter::{Field, Filter};
use super::words::Sense;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Truth {
    Constant(bool),
    Not(Box<Truth>),
    And(Box<Truth>, Box<Truth>),
    Or(Box<Truth>, Box<Truth>),
    Compare(Relation, Number, Number),
    /// Whether `name` is among the best.
    Best {
        of: Accessor,
        name: String,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Number {
    Constant(f64),
    Negate(Box<Number>),
    Arithmetic(Operation, Box<Number>, Box<Number>),
    Absolute(Box<Number>),
    /// Of at least two.
    Least(Vec<Number>),
    Greatest(Vec<Number>),
    /// The one record's value.
    Value(Accessor),
    /// Over all records of the accessor.
    Mean(Accessor),
    /// How many records the accessor has.
    Count(Accessor),
    /// By how much `a` is better than `b`; negative where it is worse.
    Gap {
        of: Accessor,
        a: String,
        b: Rival,
    },
    /// 1 for the best; equals have the same rank.
    Rank {
        of: Accessor,
        name: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation {
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Add,
    Subtract,
    Multiply,
    Divide,
}

/// With what a gap is measured.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Rival {
    Named(String),
    /// The best of all others: the runner-up, where `a` is the best.
    Others,
}

/// The records of a group that a function reads.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Accessor {
    pub(super) metric: String,
    pub(super) sense: Sense,
    /// What is compared by `best`, `gap` and `rank`.
    pub(super) by: Field,
    pub(super) filters: Vec<Filter>,
}
