//! Pruning depth: the number or fraction of layers or sublayers to remove.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::json;

use super::validate::{self, EntryPosition};
use super::yaml::Positioned;
use crate::criterion::{self, DepthUnit};
use crate::error::{Error, Result};

/// Maximum number of decimals in a percentage. Six suffice for any layer count, and the integer arithmetic cannot
/// overflow.
const MAX_DECIMALS: usize = 6;

/// Deserialized depth, or the error about its value. [`read_depths`] adds the position to the error.
#[derive(Debug, Clone)]
pub(super) struct DepthEntry(Result<Depth>);

/// Number or fraction of layers or sublayers to remove, not yet resolved for a backbone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Depth {
    unit: DepthUnit,
    amount: Amount,
}

/// Count, or fraction in millionths of a percent. These integers represent decimal percentages exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Amount {
    Count(usize),
    Fraction { millionths: u64 },
}

impl DepthEntry {
    /// Creates an entry for a number of whole layers.
    pub(super) fn from_layers(count: usize) -> Self {
        Self::new(DepthUnit::Layers, Amount::from_count(count))
    }

    fn new(unit: DepthUnit, amount: Result<Amount>) -> Self {
        Self(amount.map(|amount| Depth { unit, amount }))
    }
}

impl Depth {
    /// Returns the depth for a backbone with `layers` layers. Fractions are rounded half up, but to at least 1.
    pub(super) fn resolve(self, layers: usize) -> criterion::Depth {
        criterion::Depth { count: self.amount.resolve(self.unit.available(layers)), unit: self.unit }
    }

    /// Returns whether the depth is written as a percentage.
    pub(super) fn is_fraction(self) -> bool {
        matches!(self.amount, Amount::Fraction { .. })
    }
}

/// Formats the depth as in a grid file: `7`, `12.5%` or `{attention: 8}`.
impl fmt::Display for Depth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit {
            DepthUnit::Layers => write!(f, "{}", self.amount),
            unit => write!(f, "{{{unit}: {}}}", self.amount),
        }
    }
}

impl Amount {
    fn from_count(count: usize) -> Result<Self> {
        if count > 0 {
            return Ok(Self::Count(count));
        }
        Err(Error::bad_input("invalid depth `0`")
            .expected("1 or more layers to remove")
            .found("0")
            .hint("remove this depth: every grid includes the dense backbone"))
    }

    /// Parses a percentage such as `25%`, which must be above 0% and below 100%.
    fn parse_fraction(text: &str) -> Result<Self> {
        let Some(number) = text.strip_suffix('%') else {
            let error = fraction_error(text, "invalid depth");
            return Err(match text.trim().parse::<f64>() {
                Ok(number) if number >= 1.0 && number.fract() == 0.0 => {
                    error.hint(format!("write `{number}` without quotes for a count, or `{number}%` for a share"))
                }
                Ok(number) => error.hint(format!("write a whole number for a count, or `{number}%` for a share")),
                Err(_) => error,
            });
        };
        let Some(millionths) = parse_millionths(number) else {
            let error = fraction_error(text, "invalid depth");
            return Err(match parse_millionths(number.trim()) {
                Some(_) => error.hint(format!("write `{}%`, without a space", number.trim())),
                None => error.hint(format!("write digits, with at most {MAX_DECIMALS} decimals, then `%`")),
            });
        };
        if millionths == 0 || millionths >= 100_000_000 {
            return Err(fraction_error(text, "depth out of range")
                .expected("more than 0% and less than 100%")
                .hint("keep at least one layer; every grid includes the dense backbone"));
        }
        Ok(Self::Fraction { millionths })
    }

    /// Returns the number of layers or sublayers to remove out of `available`.
    fn resolve(self, available: usize) -> usize {
        match self {
            Self::Count(count) => count,
            Self::Fraction { millionths } => {
                let exact = u128::from(millionths) * available as u128;
                usize::try_from((exact + 50_000_000) / 100_000_000).unwrap_or(usize::MAX).max(1)
            }
        }
    }
}

fn fraction_error(text: &str, message: &str) -> Error {
    Error::bad_input(message)
        .expected("a count such as `7`, or a share of the layers such as `25%`")
        .found(format!("the string `{text}`"))
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Fraction { millionths } => {
                let integer = millionths / 1_000_000;
                let rest = millionths % 1_000_000;
                let digits = format!("{rest:06}");
                match digits.trim_end_matches('0') {
                    "" => write!(f, "{integer}%"),
                    digits => write!(f, "{integer}.{digits}%"),
                }
            }
        }
    }
}

/// Returns the depths on an axis, with their positions.
///
/// # Errors
/// Fails if a depth is invalid or listed twice, or if there are no depths.
pub(super) fn read_depths(at: &EntryPosition<'_>, entries: &[DepthEntry]) -> Result<Vec<Positioned<Depth>>> {
    let depths = entries
        .iter()
        .enumerate()
        .map(|(i, DepthEntry(depth))| depth.clone().map_err(|error| error.at(at.item(i).position().to_string())))
        .collect::<Result<Vec<_>>>()?;
    validate::read_values(at, &depths)
}

/// Parses `12.5` as 12,500,000 millionths. Accepts only digits and one decimal point.
fn parse_millionths(text: &str) -> Option<u64> {
    let (integer, rest) = text.split_once('.').unwrap_or((text, "0"));
    if !is_digits(integer) || !is_digits(rest) || rest.len() > MAX_DECIMALS {
        return None;
    }
    format!("{integer}{rest:0<6}").parse().ok()
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

const EXPECTED_AMOUNT: &str = "a count such as `7`, or a share of the layers such as `25%`";
const EXPECTED_UNITS: &str =
    "one of `attention`, `mlp` and `sublayers` with a count or a share, such as `{attention: 8}`";

struct AmountVisitor;

impl<'de> DeserializeSeed<'de> for AmountVisitor {
    type Value = Result<Amount>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for AmountVisitor {
    type Value = Result<Amount>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED_AMOUNT)
    }

    fn visit_u64<E: de::Error>(self, count: u64) -> Result<Self::Value, E> {
        Ok(Amount::from_count(usize::try_from(count).unwrap_or(usize::MAX)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Amount::parse_fraction(text))
    }
}

struct DepthVisitor;

impl<'de> Visitor<'de> for DepthVisitor {
    type Value = DepthEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED_AMOUNT)
    }

    fn visit_u64<E: de::Error>(self, count: u64) -> Result<DepthEntry, E> {
        AmountVisitor.visit_u64(count).map(|amount| DepthEntry::new(DepthUnit::Layers, amount))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<DepthEntry, E> {
        AmountVisitor.visit_str(text).map(|amount| DepthEntry::new(DepthUnit::Layers, amount))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DepthEntry, A::Error> {
        let unit: Option<String> = map.next_key()?;
        let unit = unit.as_deref().and_then(|unit| unit.parse().ok()).filter(|unit| *unit != DepthUnit::Layers);
        let unit = unit.ok_or_else(|| de::Error::custom(format!("expected {EXPECTED_UNITS}")))?;
        let amount = map.next_value_seed(AmountVisitor)?;
        match map.next_key::<String>()? {
            None => Ok(DepthEntry::new(unit, amount)),
            Some(_) => Err(de::Error::custom(format!("expected only {EXPECTED_UNITS}"))),
        }
    }
}

impl<'de> Deserialize<'de> for DepthEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DepthVisitor)
    }
}

impl JsonSchema for DepthEntry {
    fn schema_name() -> Cow<'static, str> {
        "Depth".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = format!(r"^[0-9]+(\.[0-9]{{1,{MAX_DECIMALS}}})?%$");
        let amount = json!({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": pattern}]});
        let mut forms = vec![
            json!({"description": "Number of layers.", "type": "integer", "minimum": 1}),
            json!({
                "description": "Share of the backbone's layers, rounded half up.",
                "type": "string",
                "pattern": pattern,
            }),
        ];
        forms.extend(DepthUnit::SUBLAYER_UNITS.iter().map(|unit| {
            json!({
                "description": "Number of sublayers of a kind, or a share of them.",
                "type": "object",
                "properties": {unit.name(): amount},
                "required": [unit.name()],
                "additionalProperties": false,
            })
        }));
        json_schema!({"anyOf": forms})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: serde_json::Value) -> Result<Depth> {
        serde_json::from_value::<DepthEntry>(value).unwrap().0
    }

    fn parse_depth(text: &str) -> Result<Depth> {
        parse(text.into())
    }

    #[test]
    fn sublayer_depth_is_a_map_with_one_unit() {
        for (text, layers, unit, count) in [
            ("{attention: 8}", 16, DepthUnit::Attention, 8),
            ("{mlp: 25%}", 16, DepthUnit::Mlp, 4),
            ("{sublayers: 25%}", 16, DepthUnit::Sublayers, 8),
        ] {
            let (written, amount) = text[1..text.len() - 1].split_once(": ").unwrap();
            let amount = amount.parse::<u64>().map_or_else(|_| json!(amount), |count| json!(count));
            let depth = parse(json!({written: amount})).unwrap();
            assert_eq!(depth.resolve(layers), criterion::Depth { count, unit }, "{text}");
            assert_eq!(depth.to_string(), text);
        }
        for wrong in [json!({"heads": 1}), json!({"layers": 1}), json!({}), json!({"mlp": 1, "attention": 1})] {
            let error = serde_json::from_value::<DepthEntry>(wrong.clone()).unwrap_err().to_string();
            assert!(error.contains("`{attention: 8}`"), "{wrong}: {error}");
        }
        assert!(parse(json!({"mlp": 0})).is_err());
    }

    #[test]
    fn fractional_depth_rounds_half_up_to_at_least_one_layer() {
        for (text, layers, count) in [
            ("25%", 16, 4),
            ("25%", 32, 8),
            ("25%", 10, 3),
            ("25%", 9, 2),
            ("1%", 16, 1),
            ("12.5%", 4, 1),
            ("21.875%", 32, 7),
            ("35%", 10, 4),
            ("34.999999%", 10, 3),
            ("99.999999%", 80, 80),
        ] {
            assert_eq!(
                parse_depth(text).unwrap().resolve(layers),
                criterion::Depth::layers(count),
                "{text} of {layers}"
            );
            assert_eq!(parse_depth(text).unwrap().to_string(), text);
        }
        assert_eq!(parse_depth("12.50%").unwrap(), parse_depth("12.5%").unwrap());
    }

    #[test]
    fn invalid_depth_fraction_is_rejected_with_a_hint() {
        for (text, words) in [
            ("25 %", "write `25%`, without a space"),
            (" 25%", "write `25%`, without a space"),
            ("0%", "more than 0% and less than 100%"),
            ("0.0%", "more than 0%"),
            ("100%", "less than 100%"),
            ("250%", "less than 100%"),
            ("-5%", "digits"),
            ("1e1%", "digits"),
            ("%", "digits"),
            ("1.1234567%", "at most 6"),
            ("99999999999999999999%", "digits"),
            ("7", "write `7` without quotes for a count, or `7%` for a share"),
            ("2.5", "write a whole number for a count, or `2.5%` for a share"),
            ("many", "invalid depth"),
            ("", "invalid depth"),
        ] {
            let message = parse_depth(text).unwrap_err().to_string();
            assert!(message.contains(words) && message.contains(&format!("`{text}`")), "{text}: {message}");
        }
    }
}
