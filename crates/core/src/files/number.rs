//! Serialization of `f64` that writes infinities and NaN as strings, because `serde_json` would write `null`.

use serde::de::{Deserializer, Error, Visitor};
use serde::ser::Serializer;

pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    match value.is_finite() {
        true => serializer.serialize_f64(*value),
        false => serializer.serialize_str(&value.to_string()),
    }
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    deserializer.deserialize_any(NumberVisitor)
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = f64;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a number, \"NaN\", \"inf\" or \"-inf\"")
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<f64, E> {
        Ok(value)
    }

    #[allow(clippy::cast_precision_loss, reason = "integers in JSON are rounded values")]
    fn visit_i64<E: Error>(self, value: i64) -> Result<f64, E> {
        Ok(value as f64)
    }

    #[allow(clippy::cast_precision_loss, reason = "integers in JSON are rounded values")]
    fn visit_u64<E: Error>(self, value: u64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<f64, E> {
        match word {
            "NaN" => Ok(f64::NAN),
            "inf" => Ok(f64::INFINITY),
            "-inf" => Ok(f64::NEG_INFINITY),
            _ => Err(E::invalid_value(serde::de::Unexpected::Str(word), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(transparent)]
    struct Number(#[serde(with = "super")] f64);

    #[test]
    fn nonfinite_number_round_trips_through_json() {
        for number in [-1.5, -3.0, f64::INFINITY, f64::NEG_INFINITY] {
            let text = serde_json::to_string(&Number(number)).unwrap();
            assert_eq!(serde_json::from_str::<Number>(&text).unwrap(), Number(number), "{text}");
        }
        let text = serde_json::to_string(&Number(f64::NAN)).unwrap();
        assert_eq!(text, "\"NaN\"");
        assert!(serde_json::from_str::<Number>(&text).unwrap().0.is_nan());
        assert!(serde_json::from_str::<Number>("\"none\"").is_err());
    }
}
