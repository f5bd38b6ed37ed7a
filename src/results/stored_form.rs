//! Numbers as `numbers.json` has them: below their cell, whose condition stands once, with the place of their column among all,
//! and answers as one hexadecimal number; and what cells are, whose parts stand once.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::record::{Condition, Record};
use super::stored::StoredNumber;

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AllNumbers {
    columns: Vec<OneColumn>,
    cells: Vec<OfCell>,
}

/// The column of a run's table, and the metric's id.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OneColumn {
    column: String,
    metric: String,
}

/// The numbers of a cell.
#[derive(Serialize, Deserialize)]
struct OfCell {
    cell: String,
    #[serde(flatten)]
    condition: Condition,
    values: Vec<OneValue>,
}

/// Distinguishing properties of a number within its cell.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OneValue {
    /// Its place among the columns.
    of: usize,
    value: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    /// `N:HEX`: as a number of N binary digits the answers in their order, 1 for a right one. Of an average each task's
    /// after a comma, or [`ABOVE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    right: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    losses: Option<Vec<f64>>,
}

/// In the place of an average's answers: those of all tasks before it, in their order.
const ABOVE: &str = "above";

pub(super) fn serialize<S: Serializer>(numbers: &[StoredNumber], to: S) -> Result<S::Ok, S::Error> {
    let AllNumbers { mut columns, mut cells } = AllNumbers::default();
    // The answers of the tasks of the last cell so far.
    let mut tasks: Vec<&str> = Vec::new();
    for number in numbers {
        let StoredNumber { record, cell, column, failure, right, losses } = number;
        let Record { condition, metric, value, error } = record;
        if cells.last().is_none_or(|last| last.cell != *cell || last.condition != *condition) {
            cells.push(OfCell { cell: cell.clone(), condition: condition.clone(), values: Vec::new() });
            tasks.clear();
        }
        let written = right.as_ref().map(|right| match right.contains(',') {
            true if *right == tasks.join(",") => ABOVE.to_owned(),
            _ => right.split(',').map(packed).collect::<Vec<_>>().join(","),
        });
        tasks.extend(right.as_deref().filter(|right| !right.contains(',')));
        let own = OneColumn { column: column.clone(), metric: metric.clone() };
        let of = columns.iter().position(|known| *known == own).unwrap_or(columns.len());
        if of == columns.len() {
            columns.push(own);
        }
        let value = OneValue {
            of,
            value: *value,
            error: *error,
            failure: failure.clone(),
            right: written,
            losses: losses.clone(),
        };
        if let Some(last) = cells.last_mut() {
            last.values.push(value);
        }
    }
    AllNumbers { columns, cells }.serialize(to)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<StoredNumber>, D::Error> {
    let mut numbers = Vec::new();
    let AllNumbers { columns, cells } = AllNumbers::deserialize(from)?;
    for OfCell { cell, condition, values } in cells {
        let mut tasks: Vec<String> = Vec::new();
        for OneValue { of, value, error, failure, right, losses } in values {
            let lacking = || de::Error::custom(format!("a number of {cell} is of column {of}, and there is none"));
            let OneColumn { column, metric } = columns.get(of).ok_or_else(lacking)?;
            let right = match right.as_deref() {
                Some(ABOVE) => Some(tasks.join(",")),
                Some(all) => {
                    let all: Option<Vec<String>> = all.split(',').map(unpacked).collect();
                    let bad = || de::Error::custom(format!("the answers of {column} of {cell} are no `N:HEX`"));
                    Some(all.ok_or_else(bad)?.join(","))
                }
                None => None,
            };
            tasks.extend(right.iter().filter(|right| !right.contains(',')).cloned());
            let record = Record { condition: condition.clone(), metric: metric.clone(), value, error };
            let cell = cell.clone();
            let column = column.clone();
            numbers.push(StoredNumber { record, cell, column, failure, right, losses });
        }
    }
    Ok(numbers)
}

/// Ones and zeros as a number.
fn packed(bits: &str) -> String {
    // The first digit may stand for less than four.
    let lacking = (4 - bits.len() % 4) % 4;
    let padded: Vec<u8> = std::iter::repeat_n(b'0', lacking).chain(bits.bytes()).collect();
    let digit = |four: &[u8]| four.iter().fold(0, |digit, bit| 2 * digit + u32::from(*bit == b'1'));
    let digits = padded.chunks(4).filter_map(|four| char::from_digit(digit(four), 16));
    format!("{}:{}", bits.len(), digits.collect::<String>())
}

/// Decodes the packed form. `None` if invalid.
fn unpacked(text: &str) -> Option<String> {
    let (count, digits) = text.split_once(':')?;
    let count: usize = count.parse().ok()?;
    if digits.len() != count.div_ceil(4) {
        return None;
    }
    let four = |digit: char| Some(format!("{:04b}", digit.to_digit(16)?));
    let bits: String = digits.chars().map(four).collect::<Option<_>>()?;
    Some(bits.get(bits.len() - count..)?.to_owned())
}

/// Identities of cells in `numbers.json`: shared parts, such as backbone and calibration, are stored once.
pub(super) mod identities {
    use std::collections::{BTreeMap, HashMap};

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
    use serde_json::{Map, Value};

    use crate::identity::Identity;

    /// Parts, each once, and for each cell the places of its own among them.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct SharedParts {
        parts: Vec<Value>,
        cells: BTreeMap<String, BTreeMap<String, usize>>,
    }

    pub(in super::super) fn serialize<S: Serializer>(
        all: &BTreeMap<String, Identity>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let mut shared = SharedParts::default();
        let mut places: HashMap<String, usize> = HashMap::new();
        for (cell, identity) in all {
            let Value::Object(parts) = serde_json::to_value(identity).map_err(ser::Error::custom)? else { continue };
            let own = parts.into_iter().map(|(name, part)| {
                let place = *places.entry(part.to_string()).or_insert(shared.parts.len());
                if place == shared.parts.len() {
                    shared.parts.push(part);
                }
                (name, place)
            });
            shared.cells.insert(cell.clone(), own.collect());
        }
        shared.serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<String, Identity>, D::Error> {
        let SharedParts { parts, cells } = SharedParts::deserialize(from)?;
        let whole = |(cell, own): (String, BTreeMap<String, usize>)| {
            let lacking =
                |place| de::Error::custom(format!("the identity of {cell} has a part {place}, and there is none"));
            let part =
                |(name, place): (String, usize)| Ok((name, parts.get(place).cloned().ok_or_else(|| lacking(place))?));
            let object = own.into_iter().map(part).collect::<Result<Map<String, Value>, D::Error>>()?;
            let identity = serde_json::from_value(object.into()).map_err(de::Error::custom)?;
            Ok((cell, identity))
        };
        cells.into_iter().map(whole).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_back_and_what_are_none_is_refused() {
        for bits in ["", "1", "0", "0110", "10110", "000000001", &"10".repeat(150)] {
            assert_eq!(unpacked(&packed(bits)).as_deref(), Some(bits));
        }
        assert_eq!(packed("10110"), "5:16");
        for bad in ["", "5", "5:1", "5:016", "999999999999999:0", "4:g", "4:é", "-1:", "x:0"] {
            assert_eq!(unpacked(bad), None, "{bad}");
        }
    }
}
