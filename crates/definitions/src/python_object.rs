//! Parquet values that become instances of a Python class, such as dates, times and decimals. Templates can print them
//! but not compute with them.

use std::fmt::Write as _;

use chrono::{DateTime, Datelike, NaiveDate, NaiveDateTime, Timelike};
use polars::prelude::{ArrowDataType as Type, ArrowTimeUnit as Unit};

/// Python object, represented by its class name and the results of `str()` and `repr()`.
#[derive(Debug, Clone, PartialEq)]
pub struct PythonObject {
    class: String,
    /// Result of `str()`. `None` for the placeholder of a value that templates cannot print.
    text: Option<String>,
    /// Result of `repr()`, if known.
    repr: Option<String>,
}

/// Returns the name of the Python class that represents a type, for use in messages.
pub(crate) fn class_of(dtype: &Type) -> String {
    match dtype {
        Type::Binary | Type::LargeBinary | Type::BinaryView | Type::FixedSizeBinary(_) => "bytes".to_owned(),
        Type::Date32 | Type::Date64 => "date".to_owned(),
        Type::Timestamp(_, None) => "datetime".to_owned(),
        Type::Timestamp(_, Some(zone)) => format!("datetime of the time zone {zone}"),
        Type::Time32(_) | Type::Time64(_) => "time".to_owned(),
        Type::Duration(_) => "timedelta".to_owned(),
        Type::Decimal(..) | Type::Decimal32(..) | Type::Decimal64(..) | Type::Decimal256(..) => "Decimal".to_owned(),
        Type::Struct(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|field| format!("{}: {}", field.name, class_of(&field.dtype))).collect();
            format!("struct of {}", fields.join(", "))
        }
        Type::List(field) | Type::LargeList(field) | Type::FixedSizeList(field, _) => {
            format!("list of {}", class_of(&field.dtype))
        }
        other => format!("{other:?}"),
    }
}

impl PythonObject {
    /// Creates the placeholder for a value that templates cannot print.
    pub(crate) fn placeholder(class: &str) -> Self {
        Self { class: class.to_owned(), text: None, repr: None }
    }

    pub fn class(&self) -> &str {
        &self.class
    }

    /// Returns the result of Python's `str()`, or `None` for a placeholder.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Returns the result of Python's `repr()`, if it is known.
    pub fn repr(&self) -> Option<&str> {
        self.repr.as_deref()
    }

    /// Returns whether values of an Arrow type are converted to Python objects.
    pub(crate) fn is_object_type(dtype: &Type) -> bool {
        match dtype {
            Type::Date32 | Type::Time32(_) | Type::Time64(_) | Type::Duration(_) | Type::Timestamp(_, None) => true,
            Type::Timestamp(_, Some(zone)) => is_utc(zone),
            Type::Decimal(_, scale) | Type::Decimal32(_, scale) | Type::Decimal64(_, scale) => *scale <= 38,
            _ => false,
        }
    }

    /// Creates an object from a stored number, or returns `None` if Python cannot represent the value.
    pub(crate) fn from_number(number: i64, dtype: &Type) -> Option<Self> {
        match dtype {
            Type::Date32 => date(number),
            Type::Timestamp(unit, zone) => date_time(microseconds(number, *unit)?, zone.is_some()),
            Type::Time32(unit) | Type::Time64(unit) => time(microseconds(number, *unit)?),
            Type::Duration(unit) => Some(duration(microseconds(number, *unit)?)),
            Type::Decimal(_, scale) | Type::Decimal32(_, scale) | Type::Decimal64(_, scale) => {
                Some(decimal(number.into(), *scale))
            }
            _ => None,
        }
    }

    /// Creates a decimal from the big-endian bytes of its unscaled value. Returns `None` for other types, and unless
    /// there are 1 to 16 bytes.
    pub(crate) fn decimal_from_bytes(bytes: &[u8], dtype: &Type) -> Option<Self> {
        let Type::Decimal(_, scale) = dtype else { return None };
        let first = bytes.first()?;
        let missing = 16_usize.checked_sub(bytes.len())?;
        let mut number = [if *first >= 128 { 255 } else { 0 }; 16];
        number[missing..].copy_from_slice(bytes);
        Some(decimal(i128::from_be_bytes(number), *scale))
    }

    fn new(class: &str, text: String, repr: Option<String>) -> Self {
        Self { class: class.to_owned(), text: Some(text), repr }
    }
}

fn is_utc(zone: &str) -> bool {
    ["UTC", "Etc/UTC", "+00:00", "Z"].contains(&zone)
}

/// Converts a time to microseconds, which is Python's resolution. Returns `None` if precision would be lost.
fn microseconds(number: i64, unit: Unit) -> Option<i64> {
    match unit {
        Unit::Second => number.checked_mul(1_000_000),
        Unit::Millisecond => number.checked_mul(1_000),
        Unit::Microsecond => Some(number),
        Unit::Nanosecond => (number % 1_000 == 0).then_some(number / 1_000),
    }
}

/// Returns the date unchanged, or `None` if its year is outside Python's range of 1 to 9999.
fn check_python_year(date: NaiveDate) -> Option<NaiveDate> {
    (1..=9999).contains(&date.year()).then_some(date)
}

fn date(days: i64) -> Option<PythonObject> {
    let date = check_python_year(DateTime::from_timestamp(days.checked_mul(86_400)?, 0)?.date_naive())?;
    let repr = format!("datetime.date({}, {}, {})", date.year(), date.month(), date.day());
    Some(PythonObject::new("date", date.format("%Y-%m-%d").to_string(), Some(repr)))
}

fn date_time(microseconds: i64, universal: bool) -> Option<PythonObject> {
    let moment: NaiveDateTime = DateTime::from_timestamp_micros(microseconds)?.naive_utc();
    let date = check_python_year(moment.date())?;
    let clock = format_clock(moment.hour(), moment.minute(), moment.second(), microseconds.rem_euclid(1_000_000));
    let zone = if universal { "+00:00" } else { "" };
    let text = format!("{} {clock}{zone}", date.format("%Y-%m-%d"));
    let numbers = [moment.second().into(), microseconds.rem_euclid(1_000_000)];
    let repr = format!(
        "datetime.datetime({}, {}, {}, {}, {}{})",
        date.year(),
        date.month(),
        date.day(),
        moment.hour(),
        moment.minute(),
        format_fraction(numbers)
    );
    Some(PythonObject::new("datetime", text, (!universal).then_some(repr)))
}

fn time(microseconds: i64) -> Option<PythonObject> {
    let seconds = u32::try_from(microseconds.div_euclid(1_000_000)).ok().filter(|seconds| *seconds < 86_400)?;
    let fraction = microseconds.rem_euclid(1_000_000);
    let hour = seconds / 3600;
    let minute = seconds / 60 % 60;
    let second = seconds % 60;
    let repr = format!("datetime.time({hour}, {minute}{})", format_fraction([second.into(), fraction]));
    Some(PythonObject::new("time", format_clock(hour, minute, second, fraction), Some(repr)))
}

fn format_clock(hour: u32, minute: u32, second: u32, fraction: i64) -> String {
    let mut text = format!("{hour:02}:{minute:02}:{second:02}");
    if fraction != 0 {
        let _ = write!(text, ".{fraction:06}");
    }
    text
}

/// Formats seconds and microseconds as constructor arguments, omitting trailing arguments that are zero.
fn format_fraction([second, fraction]: [i64; 2]) -> String {
    match (second, fraction) {
        (0, 0) => String::new(),
        (second, 0) => format!(", {second}"),
        (second, fraction) => format!(", {second}, {fraction}"),
    }
}

fn duration(microseconds: i64) -> PythonObject {
    let fraction = microseconds.rem_euclid(1_000_000);
    let all = microseconds.div_euclid(1_000_000);
    let days = all.div_euclid(86_400);
    let seconds = all.rem_euclid(86_400);
    let mut text = match days {
        0 => String::new(),
        1 | -1 => format!("{days} day, "),
        days => format!("{days} days, "),
    };
    let _ = write!(text, "{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if fraction != 0 {
        let _ = write!(text, ".{fraction:06}");
    }
    let parts = [("days", days), ("seconds", seconds), ("microseconds", fraction)];
    let parts: Vec<String> =
        parts.iter().filter(|(_, number)| *number != 0).map(|(name, number)| format!("{name}={number}")).collect();
    let arguments = if parts.is_empty() { "0".to_owned() } else { parts.join(", ") };
    PythonObject::new("timedelta", text, Some(format!("datetime.timedelta({arguments})")))
}

/// Formats a decimal like Python's `str(Decimal)`, with an exponent for very small numbers.
fn decimal(unscaled: i128, scale: usize) -> PythonObject {
    let sign = if unscaled < 0 { "-" } else { "" };
    let digits = unscaled.unsigned_abs().to_string();
    let exponent = i64::try_from(digits.len()).unwrap_or(0) - 1 - i64::try_from(scale).unwrap_or(0);
    let text = if scale == 0 {
        digits
    } else if exponent >= -6 {
        let digits = format!("{digits:0>width$}", width = scale + 1);
        let (integer, fraction) = digits.split_at(digits.len() - scale);
        format!("{integer}.{fraction}")
    } else {
        let (first, rest) = digits.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        format!("{first}{point}{rest}E{exponent}")
    };
    let text = format!("{sign}{text}");
    let repr = format!("Decimal('{text}')");
    PythonObject::new("Decimal", text, Some(repr))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected strings are the results of `str` and `repr` in Python 3.11.
    #[test]
    fn objects_print_as_in_python() {
        let us = Unit::Microsecond;
        for (number, dtype, text, repr) in [
            (18_263, Type::Date32, "2020-01-02", "datetime.date(2020, 1, 2)"),
            (-719_162, Type::Date32, "0001-01-01", "datetime.date(1, 1, 1)"),
            (
                1_577_934_245_000_000,
                Type::Timestamp(us, None),
                "2020-01-02 03:04:05",
                "datetime.datetime(2020, 1, 2, 3, 4, 5)",
            ),
            (
                -1,
                Type::Timestamp(us, None),
                "1969-12-31 23:59:59.999999",
                "datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)",
            ),
            (0, Type::Timestamp(Unit::Second, None), "1970-01-01 00:00:00", "datetime.datetime(1970, 1, 1, 0, 0)"),
            (3_661_000, Type::Time32(Unit::Millisecond), "01:01:01", "datetime.time(1, 1, 1)"),
            (60_000_001, Type::Time64(us), "00:01:00.000001", "datetime.time(0, 1, 0, 1)"),
            (86_400_000_000, Type::Duration(us), "1 day, 0:00:00", "datetime.timedelta(days=1)"),
            (
                -1,
                Type::Duration(us),
                "-1 day, 23:59:59.999999",
                "datetime.timedelta(days=-1, seconds=86399, microseconds=999999)",
            ),
            (0, Type::Duration(us), "0:00:00", "datetime.timedelta(0)"),
            (-150, Type::Decimal(5, 2), "-1.50", "Decimal('-1.50')"),
            (5, Type::Decimal(9, 7), "5E-7", "Decimal('5E-7')"),
            (12, Type::Decimal(9, 9), "1.2E-8", "Decimal('1.2E-8')"),
            (0, Type::Decimal(9, 2), "0.00", "Decimal('0.00')"),
            (7, Type::Decimal(9, 0), "7", "Decimal('7')"),
        ] {
            let object = PythonObject::from_number(number, &dtype).unwrap();
            assert_eq!((object.text(), object.repr()), (Some(text), Some(repr)), "{number} {dtype:?}");
        }
        let bytes = PythonObject::decimal_from_bytes(&[0xff, 0x6a], &Type::Decimal(20, 2)).unwrap();
        assert_eq!(bytes.text(), Some("-1.50"));
        let utc = PythonObject::from_number(0, &Type::Timestamp(us, Some("UTC".into()))).unwrap();
        assert_eq!(utc.text(), Some("1970-01-01 00:00:00+00:00"));
        assert!(PythonObject::from_number(i64::MAX, &Type::Date32).is_none());
        assert!(PythonObject::from_number(1, &Type::Timestamp(Unit::Nanosecond, None)).is_none());
    }
}
