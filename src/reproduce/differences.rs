//! Two runs side by side: settings that differ, and values that differ, with paired tests on the same items.

use std::collections::BTreeSet;

use serde_json::Value;

use super::paired::{self, Paired};
use super::stored::{Stored, StoredNumber};
use crate::record::Record;

/// What is not the same in two runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Differences {
    pub settings: Vec<Setting>,
    /// Conditions and metrics that both have.
    pub compared: usize,
    /// Those whose values differ, in the first run's order.
    pub values: Vec<Difference>,
    /// What only one of the two has.
    pub only_first: Vec<Record>,
    pub only_second: Vec<Record>,
}

/// A setting as JSON; none where a run does not have it.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// `calibration.sequences`
    pub path: String,
    pub first: Option<String>,
    pub second: Option<String>,
}

/// A number that differs.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    pub first: Record,
    pub second: Record,
    /// The second run against the first; none without common items.
    pub paired: Option<Paired>,
}

/// Keys of a grid that say where it lies, and the cells, which follow from its axes.
const ASIDE: [&str; 3] = ["file", "entries", "cells"];

impl Differences {
    pub fn of(first: &Stored, second: &Stored) -> Self {
        let settings = settings_that_differ(&first.settings, &second.settings);
        let key = |number: &StoredNumber| (number.record.condition.clone(), number.record.metric.clone());
        let of_second = |number: &StoredNumber| second.numbers.iter().find(|other| key(other) == key(number));
        let (mut values, mut only_first, mut compared) = (Vec::new(), Vec::new(), 0);
        for number in &first.numbers {
            let Some(other) = of_second(number) else {
                only_first.push(number.record.clone());
                continue;
            };
            compared += 1;
            if number.record.value != other.record.value {
                values.push(Difference {
                    first: number.record.clone(),
                    second: other.record.clone(),
                    paired: paired::test(&other.number(), &number.number()),
                });
            }
        }
        let known: BTreeSet<_> = first.numbers.iter().map(key).collect();
        let only_second = second.numbers.iter().filter(|number| !known.contains(&key(number)));
        let only_second = only_second.map(|number| number.record.clone()).collect();
        Self { settings, compared, values, only_first, only_second }
    }
}

/// The settings that are not the same in two resolved grids, wherever their files lie.
pub fn settings_that_differ(first: &Value, second: &Value) -> Vec<Setting> {
    let mut settings = Vec::new();
    differ("", first, second, &mut settings);
    settings
}

/// Walks both trees; maps key by key, all else as a whole.
fn differ(path: &str, first: &Value, second: &Value, found: &mut Vec<Setting>) {
    if let (Value::Object(one), Value::Object(two)) = (first, second) {
        let keys: BTreeSet<&String> = one.keys().chain(two.keys()).collect();
        for key in keys {
            if path.is_empty() && ASIDE.contains(&key.as_str()) {
                continue;
            }
            let inner = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            match (one.get(key), two.get(key)) {
                (Some(one), Some(two)) => differ(&inner, one, two, found),
                (one, two) => found.push(Setting {
                    path: inner,
                    first: one.map(Value::to_string),
                    second: two.map(Value::to_string),
                }),
            }
        }
    } else if first != second {
        let (first, second) = (Some(first.to_string()), Some(second.to_string()));
        found.push(Setting { path: path.to_owned(), first, second });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::record::Condition;

    fn number(recovery: &str, metric: &str, value: f64, right: &str) -> StoredNumber {
        let condition = Condition {
            backbone: "llama".into(),
            layers: 16,
            depth: 4,
            criterion: "sleb".into(),
            recovery: recovery.into(),
            finetuned: false,
            calibration: "c4".into(),
        };
        let record = Record { condition, metric: metric.into(), value: Some(value), error: None };
        StoredNumber { record, cell: "c".into(), failure: None, right: Some(right.into()), losses: None }
    }

    fn stored(settings: Value, numbers: Vec<StoredNumber>) -> Stored {
        Stored {
            name: "g".into(),
            profile: String::new(),
            program: "p".into(),
            gate: false,
            settings,
            inputs: BTreeMap::new(),
            numbers,
        }
    }

    #[test]
    fn settings_values_and_what_only_one_has_are_told_apart() {
        let one = stored(
            json!({"file": "a.yaml", "corpora": {"c4": {"limit": 3}}, "calibration": [{"seed": 1}]}),
            vec![
                number("none", "rte", 50.0, "0101"),
                number("ghosted", "rte", 75.0, "0111"),
                number("none", "boolq", 1.0, "1"),
            ],
        );
        let two = stored(
            json!({"file": "b.yaml", "corpora": {"c4": {"limit": 4, "column": "text"}}, "calibration": [{"seed": 2}]}),
            vec![
                number("none", "rte", 50.0, "0101"),
                number("ghosted", "rte", 25.0, "0001"),
                number("none", "copa", 1.0, "1"),
            ],
        );
        let differences = Differences::of(&one, &two);
        let paths: Vec<&str> = differences.settings.iter().map(|setting| setting.path.as_str()).collect();
        assert_eq!(paths, ["calibration", "corpora.c4.column", "corpora.c4.limit"], "where a file lies is no setting");
        assert_eq!(differences.settings[1].first, None);
        assert_eq!((differences.compared, differences.values.len()), (2, 1));
        let value = &differences.values[0];
        assert_eq!((value.first.value, value.second.value), (Some(75.0), Some(25.0)));
        // Two of four answers went wrong that were right: p = 2 · ½² of McNemar's exact test.
        let paired = value.paired.as_ref().unwrap();
        assert_eq!((paired.difference, paired.p), (-50.0, 0.5));
        assert_eq!(
            (differences.only_first[0].metric.as_str(), differences.only_second[0].metric.as_str()),
            ("boolq", "copa")
        );
        assert!(Differences::of(&one, &one).values.is_empty());
    }
}
