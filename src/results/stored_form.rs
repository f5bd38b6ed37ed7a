//! Compact format of `numbers.json`.
//!
//! Numbers are stored below their cell, which holds the condition once, with the index of their column. Answers are
//! packed into one hexadecimal number. Shared parts of cell identities are stored once.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::record::{Condition, Record};
use super::stored::StoredNumber;

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AllNumbers {
    columns: Vec<OneColumn>,
    cells: Vec<OfCell>,
}

/// Column of a run's table, with the metric ID.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OneColumn {
    column: String,
    metric: String,
}

#[derive(Serialize, Deserialize)]
struct OfCell {
    cell: String,
    #[serde(flatten)]
    condition: Condition,
    values: Vec<OneValue>,
}

/// Number within its cell.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OneValue {
    #[serde(rename = "of")]
    index: usize,
    value: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    /// Answers in order, as `N:HEX`: a number of N bits with 1 for a correct answer. An average has a comma-separated
    /// entry per task, or [`ABOVE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    right: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    losses: Option<Vec<f64>>,
}

/// Placeholder for the answers of an average that covers all preceding tasks of the cell, in order.
const ABOVE: &str = "above";

pub(super) fn serialize<S: Serializer>(numbers: &[StoredNumber], to: S) -> Result<S::Ok, S::Error> {
    let AllNumbers { mut columns, mut cells } = AllNumbers::default();
    // Answers of the preceding tasks of the current cell.
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
        let heading = OneColumn { column: column.clone(), metric: metric.clone() };
        let index = columns.iter().position(|known| *known == heading).unwrap_or(columns.len());
        if index == columns.len() {
            columns.push(heading);
        }
        let value = OneValue {
            index,
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
        for OneValue { index: column_index, value, error, failure, right, losses } in values {
            let OneColumn { column, metric } = columns.get(column_index).ok_or_else(|| {
                de::Error::custom(format!("a number of {cell} is of column {column_index}, and there is none"))
            })?;
            let right = match right.as_deref() {
                Some(ABOVE) => Some(tasks.join(",")),
                Some(all) => {
                    let all: Option<Vec<String>> = all.split(',').map(unpacked).collect();
                    Some(
                        all.ok_or_else(|| {
                            de::Error::custom(format!("the answers of {column} of {cell} are no `N:HEX`"))
                        })?
                        .join(","),
                    )
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

/// Packs binary digits into hexadecimal.
fn packed(bits: &str) -> String {
    // Pad the first hexadecimal digit to four bits.
    let lacking = (4 - bits.len() % 4) % 4;
    let padded: Vec<u8> = std::iter::repeat_n(b'0', lacking).chain(bits.bytes()).collect();
    let values = padded.chunks(4).map(|four| four.iter().fold(0, |digit, bit| 2 * digit + u32::from(*bit == b'1')));
    let digits = values.filter_map(|digit| char::from_digit(digit, 16));
    format!("{}:{}", bits.len(), digits.collect::<String>())
}

/// Unpacks hexadecimal to binary digits. Returns `None` if invalid.
fn unpacked(text: &str) -> Option<String> {
    let (count, digits) = text.split_once(':')?;
    let count: usize = count.parse().ok()?;
    if digits.len() != count.div_ceil(4) {
        return None;
    }
    let bits: String =
        digits.chars().map(|digit| Some(format!("{:04b}", digit.to_digit(16)?))).collect::<Option<_>>()?;
    Some(bits.get(bits.len() - count..)?.to_owned())
}

/// Cell identities in `numbers.json`. Shared parts, such as backbone and calibration, are stored once.
pub(super) mod identities {
    use std::collections::{BTreeMap, HashMap};

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
    use serde_json::{Map, Value};

    use crate::pipeline::identity::Identity;

    /// Distinct parts, and the part indices of each cell.
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
            let parts_of = parts.into_iter().map(|(name, part)| {
                let index = *places.entry(part.to_string()).or_insert(shared.parts.len());
                if index == shared.parts.len() {
                    shared.parts.push(part);
                }
                (name, index)
            });
            shared.cells.insert(cell.clone(), parts_of.collect());
        }
        shared.serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<String, Identity>, D::Error> {
        let SharedParts { parts, cells } = SharedParts::deserialize(from)?;
        cells
            .into_iter()
            .map(|(cell, indices)| {
                let lacking =
                    |index| de::Error::custom(format!("the identity of {cell} has a part {index}, and there is none"));
                let object = indices
                    .into_iter()
                    .map(|(name, index)| Ok((name, parts.get(index).cloned().ok_or_else(|| lacking(index))?)))
                    .collect::<Result<Map<String, Value>, D::Error>>()?;
                let identity = serde_json::from_value(object.into()).map_err(de::Error::custom)?;
                Ok((cell, identity))
            })
            .collect()
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
