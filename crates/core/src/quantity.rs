//! Bounded numbers that are read from the command line and from files.
//!
//! ```
//! use ghostlab_core::quantity::Gigabytes;
//! assert_eq!("1.5".parse::<Gigabytes>().unwrap().bytes(), 1_500_000_000);
//! ```

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

/// Upper bound on every count, such as sequences, windows, documents or tokens per window. The product of two counts
/// fits in a `u64`.
pub const MAX: usize = 1 << 30;
/// Maximum number of tokens drawn for calibration or training. A pass over this many tokens would take months. The
/// Ghosted Layers paper uses at most 10,240,000 tokens.
pub const MAX_TOKENS: usize = 1 << 32;
/// Maximum number of times that a failed job is retried.
pub const MAX_RETRIES: u32 = 1000;
/// Maximum wait in seconds: one year, so that adding it to a timestamp cannot overflow.
pub const MAX_SECONDS: u64 = 366 * 86_400;

/// Size in bytes, specified in gigabytes. It is positive and at most 10⁶ GB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "f64")]
pub struct Gigabytes(u64);

impl Gigabytes {
    const MAX: f64 = 1e6;

    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    pub const fn bytes(self) -> u64 {
        self.0
    }
}

/// Formats the size in gigabytes, for example as `1.5`.
impl fmt::Display for Gigabytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0 as f64 / 1e9).fmt(f)
    }
}

impl TryFrom<f64> for Gigabytes {
    type Error = String;

    fn try_from(value: f64) -> Result<Self, String> {
        let bytes = (value * 1e9).round();
        if value <= Self::MAX && bytes >= 1.0 {
            return Ok(Self(bytes as u64));
        }
        Err(format!("`{value}` is not a valid size: expected more than 0 and at most {} gigabytes", Self::MAX))
    }
}

impl FromStr for Gigabytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_number(text)?.try_into()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Days(Duration);

impl Days {
    const MAX: f64 = 100_000.0;

    pub fn duration(self) -> Duration {
        self.0
    }
}

impl FromStr for Days {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match parse_number(text)? {
            days if (0.0..=Self::MAX).contains(&days) => Ok(Self(Duration::from_secs_f64(days * 86_400.0))),
            days => Err(format!("`{days}` is not a valid age: expected 0 to {} days", Self::MAX)),
        }
    }
}

/// Formats two sizes, each in the largest unit that fits, with enough decimals to distinguish them.
pub fn distinct_sizes(one: u64, other: u64) -> [String; 2] {
    (1..=9)
        .map(|decimals| format_sizes(decimals, one, other))
        .find(|[one, other]| one != other)
        .unwrap_or_else(|| format_sizes(1, one, other))
}

fn format_sizes(decimals: usize, one: u64, other: u64) -> [String; 2] {
    [one, other].map(|bytes| format_size(bytes, decimals))
}

/// Formats a size in the largest unit that does not exceed it.
fn format_size(bytes: u64, decimals: usize) -> String {
    const UNITS: [(&str, u64); 3] = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)];
    match UNITS.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.decimals$} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} bytes"),
    }
}

/// Parses a number. Callers must reject NaN and infinities.
pub(crate) fn parse_number(text: &str) -> Result<f64, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is not a number"))
}

/// Formats a count with its noun: `1 cell`, `2 cells`. The plural adds an `s`.
pub fn pluralize(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Strings that every bounded number type rejects.
    const INVALID: [&str; 9] = ["nan", "inf", "-inf", "-1", "1e30", "1e400", "-0.001", "", "many"];

    #[test]
    fn sizes_must_be_positive_and_finite() {
        for (text, bytes) in
            [("2", 2_000_000_000), ("0.000001", 1000), ("1e6", 1_000_000_000_000_000), (" 1.5", 1_500_000_000)]
        {
            assert_eq!(text.parse::<Gigabytes>().unwrap().bytes(), bytes);
        }
        assert_eq!(Gigabytes::from_bytes(1_500_000_000).to_string(), "1.5");
        for text in INVALID.into_iter().chain(["0", "1e-12", "1000001"]) {
            assert!(text.parse::<Gigabytes>().is_err(), "{text}");
        }
        assert_eq!(serde_json::from_str::<Gigabytes>("0.5").unwrap().bytes(), 500_000_000);
        assert!(serde_json::from_str::<Gigabytes>("-1").is_err());
    }

    #[test]
    fn different_sizes_are_formatted_distinctly() {
        for (one, other, written) in [
            (39_000_000_000, 34_000_000_000, ["39.0 GB", "34.0 GB"]),
            (39_000_000_000, 12_000, ["39.0 GB", "12.0 kB"]),
            (10_040_000_000, 10_010_000_000, ["10.04 GB", "10.01 GB"]),
            (4_900_000, 8_192, ["4.9 MB", "8.2 kB"]),
            (32_768, 8_192, ["32.8 kB", "8.2 kB"]),
            (900, 0, ["900 bytes", "0 bytes"]),
            (2_000_000_001, 2_000_000_000, ["2.000000001 GB", "2.000000000 GB"]),
            (5_000, 5_000, ["5.0 kB", "5.0 kB"]),
        ] {
            assert_eq!(distinct_sizes(one, other), written);
        }
    }

    #[test]
    fn ages_must_be_nonnegative_and_finite() {
        for (text, seconds) in [("0", 0), ("0.5", 43_200), ("-0", 0), ("100000", 8_640_000_000)] {
            assert_eq!(text.parse::<Days>().unwrap().duration().as_secs(), seconds);
        }
        for text in INVALID.into_iter().chain(["100001"]) {
            assert!(text.parse::<Days>().is_err(), "{text}");
        }
    }

    #[test]
    fn pluralize_uses_the_singular_for_one() {
        let texts = [0, 1, 2].map(|count| pluralize(count, "backbone"));
        assert_eq!(texts, ["0 backbones", "1 backbone", "2 backbones"]);
    }
}
