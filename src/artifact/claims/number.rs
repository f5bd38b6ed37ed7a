//! Numbers that may be unknown, and the results of checks on them.
//!
//! A known number records its origin, and an unknown number records why it is unknown. Any operation on an unknown
//! number yields an unknown number.

use std::cmp::Ordering;
use std::ops::{Mul, Sub};

use crate::results::distinct;

/// Number with its origin, such as `0.33 (ghosted 60.01 over replaceme-ls 59.68)`, or the reason it is unknown.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Quantity(Result<(f64, String), String>);

impl Quantity {
    fn from_value(value: f64, shown: String) -> Self {
        if value.is_finite() { Self(Ok((value, shown))) } else { Self(Err(format!("{shown} is not a number"))) }
    }

    pub(super) fn new(read: Result<(f64, String), String>) -> Self {
        match read {
            Ok((value, shown)) => Self::from_value(value, shown),
            unknown => Self(unknown),
        }
    }

    pub(super) fn check_above(&self, other: impl Into<Quantity>) -> ClaimCheck {
        self.compare(&other.into(), Ordering::is_gt)
    }

    pub(super) fn check_at_least(&self, other: impl Into<Quantity>) -> ClaimCheck {
        self.compare(&other.into(), Ordering::is_ge)
    }

    pub(super) fn check_below(&self, other: impl Into<Quantity>) -> ClaimCheck {
        self.compare(&other.into(), Ordering::is_lt)
    }

    pub(super) fn check_at_most(&self, other: impl Into<Quantity>) -> ClaimCheck {
        self.compare(&other.into(), Ordering::is_le)
    }

    pub(super) fn check_equal(&self, other: impl Into<Quantity>) -> ClaimCheck {
        self.compare(&other.into(), Ordering::is_eq)
    }

    pub(super) fn abs(self) -> Self {
        self.map(|value, shown| (value.abs(), format!("|{shown}|")))
    }

    pub(super) fn ratio_to(self, other: Self) -> Self {
        self.combine(other, |(a, a_shown), (b, b_shown)| {
            (a / b, format!("{} ({a_shown} / {b_shown})", format_short(a / b)))
        })
    }

    pub(super) fn max(self, other: Self) -> Self {
        self.combine(other, |(a, a_shown), (b, b_shown)| {
            let larger = a.max(b);
            (larger, format!("{} (the larger of {a_shown}, {b_shown})", format_short(larger)))
        })
    }

    fn compare(&self, other: &Self, holds: fn(Ordering) -> bool) -> ClaimCheck {
        match (&self.0, &other.0) {
            (Ok((a, a_shown)), Ok((b, b_shown))) => {
                let order = compare_approximately(*a, *b);
                ClaimCheck::from_verdict(holds(order), format!("{a_shown} {} {b_shown}", order_sign(order)))
            }
            (Err(a), Err(b)) if a != b => ClaimCheck::unknown(format!("{a}; {b}")),
            (Err(reason), _) | (_, Err(reason)) => ClaimCheck::unknown(reason.clone()),
        }
    }

    fn map(self, make: impl FnOnce(f64, String) -> (f64, String)) -> Self {
        Self::new(self.0.map(|(value, shown)| make(value, shown)))
    }

    fn combine(self, other: Self, make: impl FnOnce((f64, String), (f64, String)) -> (f64, String)) -> Self {
        Self::new(self.0.and_then(|a| Ok(make(a, other.0?))))
    }
}

impl From<f64> for Quantity {
    fn from(value: f64) -> Self {
        Self::from_value(value, value.to_string())
    }
}

impl Sub for Quantity {
    type Output = Quantity;

    fn sub(self, other: Quantity) -> Quantity {
        self.combine(other, |(a, a_shown), (b, b_shown)| {
            (a - b, format!("{} ({a_shown} - {b_shown})", format_short(a - b)))
        })
    }
}

impl Mul<Quantity> for f64 {
    type Output = Quantity;

    fn mul(self, other: Quantity) -> Quantity {
        other.map(|value, shown| (self * value, format!("{} ({self} * {shown})", format_short(self * value))))
    }
}

/// Compares two numbers, ignoring rounding errors. For example, 60.01 − 59.65 is not exactly 0.36 in floating point.
pub(super) fn compare_approximately(a: f64, b: f64) -> Ordering {
    if is_nearly_equal(a, b) { Ordering::Equal } else { a.total_cmp(&b) }
}

/// Returns whether two numbers agree within 10⁻⁹. The tolerance is relative, or absolute if both numbers are below 1.
fn is_nearly_equal(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

pub(super) fn order_sign(order: Ordering) -> &'static str {
    match order {
        Ordering::Less => "<",
        Ordering::Equal => "=",
        Ordering::Greater => ">",
    }
}

/// Formats a value with two decimals. A value below 0.1 has up to four decimals, and one below 0.00005 is shown as
/// 0.00.
pub(super) fn format_short(value: f64) -> String {
    match value.abs() {
        size if size >= 0.1 => format!("{value:.2}"),
        size if size >= 0.000_05 => format!("{value:.4}").trim_end_matches('0').to_owned(),
        _ => "0.00".to_owned(),
    }
}

pub use crate::artifact::page::Judgement;

/// Result of a check in one setting, with the numbers that it used or found missing.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClaimCheck {
    pub(super) outcome: Judgement,
    /// Actual relation between the numbers, regardless of what the claim states: `ghosted 60.10 > replaceme-ls 59.45`.
    pub(super) shown: String,
}

impl ClaimCheck {
    pub(super) fn from_verdict(holds: bool, shown: String) -> Self {
        Self { outcome: if holds { Judgement::Holds } else { Judgement::Fails }, shown }
    }

    pub(super) fn unknown(reason: String) -> Self {
        Self { outcome: Judgement::Unknown, shown: reason }
    }

    /// Combines two checks. The result is `Fails` if either fails. Otherwise it is `Unknown` or `NotApplicable` if
    /// either has that outcome.
    pub(super) fn and(self, other: Self) -> Self {
        match (self.outcome, other.outcome) {
            (Judgement::Fails, _) | (_, Judgement::Fails) | (Judgement::Holds, Judgement::Holds) => {
                let holds = [self.outcome, other.outcome] == [Judgement::Holds; 2];
                Self::from_verdict(holds, format!("{}; {}", self.shown, other.shown))
            }
            (Judgement::Unknown, Judgement::Unknown) => {
                let reasons: Vec<&str> = self.shown.split("; ").chain(other.shown.split("; ")).collect();
                Self::unknown(distinct(&reasons).join("; "))
            }
            (Judgement::Unknown | Judgement::NotApplicable, _) => self,
            (_, Judgement::Unknown | Judgement::NotApplicable) => other,
        }
    }

    pub(super) fn all(checks: impl IntoIterator<Item = ClaimCheck>) -> Self {
        checks.into_iter().reduce(ClaimCheck::and).unwrap_or_else(|| Self::unknown("no checks".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: f64) -> Quantity {
        Quantity::from(value)
    }

    fn missing() -> Quantity {
        Quantity::new(Err("it is missing".to_owned()))
    }

    #[test]
    fn numbers_that_differ_by_rounding_alone_are_equal() {
        assert_eq!(inexact_difference().check_at_most(0.36).outcome, Judgement::Holds);
        assert_eq!(inexact_difference().check_above(0.36).outcome, Judgement::Fails);
        assert_eq!(inexact_difference().check_equal(0.36).outcome, Judgement::Holds);
        assert_eq!(inexact_difference().check_at_most(0.359_999).outcome, Judgement::Fails);
    }

    /// Returns a difference that is inexact in floating point: 40.52 − 40.16 is 0.36000000000000654.
    fn inexact_difference() -> Quantity {
        number(40.52) - number(40.16)
    }

    #[test]
    fn arithmetic_with_a_missing_number_is_unknown() {
        for quantity in [
            missing() - number(1.0),
            number(1.0) - missing(),
            0.5 * missing(),
            missing().abs(),
            number(1.0).max(missing()),
        ] {
            let check = quantity.check_above(0.0);
            assert_eq!((check.outcome, check.shown.as_str()), (Judgement::Unknown, "it is missing"));
            assert_eq!(number(0.0).check_below(quantity).outcome, Judgement::Unknown);
        }
        assert_eq!(number(f64::NAN).check_at_most(1.0).outcome, Judgement::Unknown);
    }

    #[test]
    fn comparison_shows_the_actual_relation() {
        assert_eq!((0.5 * number(3.0)).check_above(2.0).shown, "1.50 (0.5 * 3) < 2");
        assert_eq!((number(1.0) - number(3.0)).abs().check_at_least(2.0).shown, "|-2.00 (1 - 3)| = 2");
        assert_eq!(number(1.0).max(number(3.0)).check_below(4.0).shown, "3.00 (the larger of 1, 3) < 4");
        assert_eq!(
            missing().check_above(Quantity::new(Err("also missing".to_owned()))).shown,
            "it is missing; also missing"
        );
    }

    #[test]
    fn numbers_below_a_tenth_are_shown_with_up_to_four_decimals() {
        assert_eq!((format_short(0.0213).as_str(), format_short(0.36).as_str()), ("0.0213", "0.36"));
        assert_eq!((format_short(1e-12).as_str(), format_short(-0.5).as_str()), ("0.00", "-0.50"));
    }

    #[test]
    fn failed_and_unknown_checks_combine_to_a_failure() {
        assert_eq!(outcome_of_both(Judgement::Holds, Judgement::Holds), Judgement::Holds);
        assert_eq!(outcome_of_both(Judgement::Unknown, Judgement::Fails), Judgement::Fails);
        assert_eq!(outcome_of_both(Judgement::Fails, Judgement::Unknown), Judgement::Fails);
        assert_eq!(outcome_of_both(Judgement::Unknown, Judgement::Holds), Judgement::Unknown);
        assert_eq!(outcome_of_both(Judgement::Holds, Judgement::Unknown), Judgement::Unknown);
    }

    fn outcome_of_both(a: Judgement, b: Judgement) -> Judgement {
        check_with_outcome(a).and(check_with_outcome(b)).outcome
    }

    fn check_with_outcome(outcome: Judgement) -> ClaimCheck {
        ClaimCheck { outcome, shown: String::new() }
    }

    #[test]
    fn unknown_check_shows_each_reason_once() {
        assert_eq!(
            ClaimCheck::all([held_check(), unknown_check("noise"), held_check(), unknown_check("noise")]),
            unknown_check("noise")
        );
        assert_eq!(
            ClaimCheck::all([unknown_check("noise"), unknown_check("noise; no value")]).shown,
            "noise; no value"
        );
        assert_eq!(ClaimCheck::all([held_check(), held_check()]).shown, "1 < 2; 1 < 2");
        assert_eq!(
            ClaimCheck::all([unknown_check("noise"), ClaimCheck::from_verdict(false, "1 > 2".to_owned())]).shown,
            "noise; 1 > 2"
        );
    }

    fn held_check() -> ClaimCheck {
        ClaimCheck::from_verdict(true, "1 < 2".to_owned())
    }

    fn unknown_check(reason: &str) -> ClaimCheck {
        ClaimCheck::unknown(reason.to_owned())
    }
}
