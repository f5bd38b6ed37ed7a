//! Limit on how many documents of a task are scored.

use std::str::FromStr;

use crate::error::{Error, Result};
use crate::quantity::{self, MAX};

/// Number of documents, or fraction of all documents, to score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DocumentLimit(f64);

impl DocumentLimit {
    /// Creates a limit. An integer of at least 1 is a number of documents, and a number between 0 and 1 is a fraction.
    ///
    /// # Errors
    /// Fails for any other number, or if the number is too large.
    pub fn new(value: f64) -> Result<Self> {
        let is_fraction = value > 0.0 && value < 1.0;
        let is_count = value >= 1.0 && value <= MAX as f64 && value.fract() == 0.0;
        if is_fraction || is_count {
            return Ok(Self(value));
        }
        Err(Error::bad_input("invalid document limit").expected(EXPECTED_LIMIT).found(value))
    }

    /// Returns the limit as specified by the user.
    pub fn value(self) -> f64 {
        self.0
    }

    /// Returns how many of `documents` documents are scored. Fractions are rounded up.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn apply(self, documents: usize) -> usize {
        let count = if self.0 < 1.0 { (documents as f64 * self.0).ceil() } else { self.0 };
        (count as usize).min(documents)
    }
}

const EXPECTED_LIMIT: &str = "a whole number from 1 to 1073741824, or a fraction between 0 and 1";

impl FromStr for DocumentLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::new(quantity::parse_number(text)?).map_err(|_| format!("expected {EXPECTED_LIMIT}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractional_limit_rounds_up_and_count_is_capped() {
        for (value, documents, wanted) in
            [(3.0, 10, 3), (1.0, 10, 1), (99.0, 10, 10), (0.5, 7, 4), (0.01, 7, 1), (0.999, 1000, 999), (1e9, 5, 5)]
        {
            assert_eq!(DocumentLimit::new(value).unwrap().apply(documents), wanted, "{value} of {documents}");
        }
        // In floating-point arithmetic, 0.07 · 100 is 7.000000000000001, as in Python.
        assert_eq!(DocumentLimit::new(0.07).unwrap().apply(100), 8);
    }

    #[test]
    fn invalid_document_limits_are_rejected() {
        for value in [0.0, -1.0, 2.5, 1e30, f64::NAN, f64::INFINITY] {
            assert_eq!(DocumentLimit::new(value).unwrap_err().exit_code(), 2);
            assert!(value.to_string().parse::<DocumentLimit>().is_err(), "{value}");
        }
    }
}
