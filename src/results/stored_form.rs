//! Compact format of `numbers.json`.
//!
//! Numbers are grouped by cell so that each condition is stored only once. They refer to their columns by index.
//! Answers are packed into one hexadecimal number. Identity fields that several cells share, such as the model, are
//! stored once.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::number_record::{Condition, Record};
use super::result_row::{ResultRow, Sample, Setup};
use crate::metric::Metric;

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AllNumbers {
    columns: Vec<StoredColumn>,
    cells: Vec<StoredCell>,
}

/// Column in a run's table, with the metric id.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredColumn {
    column: String,
    metric: String,
}

#[derive(Serialize, Deserialize)]
struct StoredCell {
    cell: String,
    #[serde(flatten)]
    condition: Condition,
    values: Vec<StoredNumber>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredNumber {
    #[serde(rename = "of")]
    index: usize,
    value: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    /// Answers in order, as `N:HEX`: a number of N bits in which 1 stands for a correct answer. An average has one such
    /// entry per task, separated by commas, or [`PRECEDING_TASKS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    right: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    losses: Option<Vec<f64>>,
}

/// Placeholder for the answers in an average over all preceding tasks of the cell, in order.
const PRECEDING_TASKS: &str = "above";

pub(super) fn serialize<S: Serializer>(numbers: &[ResultRow], to: S) -> Result<S::Ok, S::Error> {
    let AllNumbers { mut columns, mut cells } = AllNumbers::default();
    // Answers to the preceding tasks of the current cell.
    let mut tasks: Vec<Vec<bool>> = Vec::new();
    for number in numbers {
        let ResultRow { record, cell, column, failure, .. } = number;
        let Record { condition, metric, value, error } = record;
        if cells.last().is_none_or(|last| last.cell != *cell || last.condition != *condition) {
            cells.push(StoredCell { cell: cell.clone(), condition: condition.clone(), values: Vec::new() });
            tasks.clear();
        }
        let right = number.answers().map(|all| match all.len() > 1 && *all == tasks {
            true => PRECEDING_TASKS.to_owned(),
            false => all.iter().map(|right| encode_answers(right)).collect::<Vec<_>>().join(","),
        });
        tasks.extend(number.task_answers().map(Vec::from));
        let heading = StoredColumn { column: column.clone(), metric: metric.clone() };
        let index = columns.iter().position(|known| *known == heading).unwrap_or(columns.len());
        if index == columns.len() {
            columns.push(heading);
        }
        let value = StoredNumber {
            index,
            value: *value,
            error: *error,
            failure: failure.clone(),
            right,
            losses: number.losses().map(<[f64]>::to_vec),
        };
        if let Some(last) = cells.last_mut() {
            last.values.push(value);
        }
    }
    AllNumbers { columns, cells }.serialize(to)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ResultRow>, D::Error> {
    let mut numbers = Vec::new();
    let AllNumbers { columns, cells } = AllNumbers::deserialize(from)?;
    let metrics: Vec<Metric> = columns.iter().map(|column| Metric::find_or_task(&column.metric)).collect();
    for StoredCell { cell, condition, values } in cells {
        let mut tasks: Vec<Vec<bool>> = Vec::new();
        for StoredNumber { index: column_index, value, error, failure, right, losses } in values {
            let (StoredColumn { column, metric: id }, metric) =
                columns.get(column_index).zip(metrics.get(column_index)).ok_or_else(|| {
                    de::Error::custom(format!("cell `{cell}` refers to column {column_index}, which is missing"))
                })?;
            let sample = match right.as_deref() {
                Some(PRECEDING_TASKS) => Sample::Answers(tasks.clone()),
                Some(all) => {
                    let unpacked: Option<Vec<Vec<bool>>> = all.split(',').map(decode_answers).collect();
                    Sample::Answers(unpacked.ok_or_else(|| {
                        de::Error::custom(format!("invalid answers of `{cell}` in `{column}`: expected `N:HEX`"))
                    })?)
                }
                None => losses.map_or(Sample::None, Sample::Losses),
            };
            let number = ResultRow {
                record: Record { condition: condition.clone(), metric: id.clone(), value, error },
                metric: metric.clone(),
                cell: cell.clone(),
                column: column.clone(),
                failure,
                sample,
                setup: Setup::default(),
            };
            tasks.extend(number.task_answers().map(Vec::from));
            numbers.push(number);
        }
    }
    Ok(numbers)
}

/// Packs answers into a hexadecimal string.
fn encode_answers(answers: &[bool]) -> String {
    // Pad the first hexadecimal digit to four bits.
    let padding = (4 - answers.len() % 4) % 4;
    let padded: Vec<bool> = std::iter::repeat_n(false, padding).chain(answers.iter().copied()).collect();
    let values = padded.chunks(4).map(|four| four.iter().fold(0, |digit, &bit| 2 * digit + u32::from(bit)));
    let digits = values.filter_map(|digit| char::from_digit(digit, 16));
    format!("{}:{}", answers.len(), digits.collect::<String>())
}

/// Unpacks answers from a hexadecimal string. Returns `None` if it is invalid.
fn decode_answers(text: &str) -> Option<Vec<bool>> {
    let (count, digits) = text.split_once(':')?;
    let count: usize = count.parse().ok()?;
    if digits.len() != count.div_ceil(4) {
        return None;
    }
    let mut answers = Vec::with_capacity(4 * digits.len());
    for digit in digits.chars() {
        let digit = digit.to_digit(16)?;
        answers.extend([8, 4, 2, 1].map(|bit| digit & bit != 0));
    }
    Some(answers.split_off(answers.len() - count))
}

/// Serialization of the cell identities in `numbers.json`. Fields that several identities share, such as the model and
/// the calibration, are stored once.
pub(super) mod identities {
    use std::collections::{BTreeMap, HashMap};

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
    use serde_json::{Map, Value};

    use crate::pipeline::identity::Identity;

    /// Distinct identity fields, and for each cell the index of each of its fields.
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
        let mut indices: HashMap<String, usize> = HashMap::new();
        for (cell, identity) in all {
            let Value::Object(parts) = serde_json::to_value(identity).map_err(ser::Error::custom)? else { continue };
            let parts_of = parts.into_iter().map(|(name, part)| {
                let index = *indices.entry(part.to_string()).or_insert(shared.parts.len());
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
                let missing_part = |index| {
                    de::Error::custom(format!("the identity of `{cell}` refers to part {index}, which is missing"))
                };
                let object = indices
                    .into_iter()
                    .map(|(name, index)| Ok((name, parts.get(index).cloned().ok_or_else(|| missing_part(index))?)))
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
    fn encoded_answers_round_trip_and_invalid_ones_are_rejected() {
        for bits in ["", "1", "0", "0110", "10110", "000000001", &"10".repeat(150)] {
            let answers: Vec<bool> = bits.chars().map(|bit| bit == '1').collect();
            assert_eq!(decode_answers(&encode_answers(&answers)), Some(answers));
        }
        assert_eq!(encode_answers(&[true, false, true, true, false]), "5:16");
        for bad in ["", "5", "5:1", "5:016", "999999999999999:0", "4:g", "4:é", "-1:", "x:0"] {
            assert_eq!(decode_answers(bad), None, "{bad}");
        }
    }
}
