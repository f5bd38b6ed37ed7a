//! What tells the numbers of a run from each other: the settings of each, by name. Labels are made of them where
//! something is shown, and nothing is read back out of a label. Values stand in the order of their first appearance.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use crate::grid::{Calibration, Cell};
use crate::{criterion, recovery};

/// Settings by dotted name: `depth`, `recovery.solver`, `calibration.seed`.
pub type Factors = BTreeMap<String, Value>;

/// How many layers a cell lacks.
pub const DEPTH: &str = "depth";
/// The seed of the calibration.
pub const SEED: &str = "calibration.seed";
/// How many sequences the operators are computed from.
pub const OPERATOR_SEQUENCES: &str = "calibration.operator_sequences";

/// The text of the calibration.
pub const CORPUS: &str = "calibration.corpus";

/// All settings of a calibration.
pub const OF_CALIBRATION: [&str; 5] = [CORPUS, "calibration.sequences", "calibration.length", SEED, OPERATOR_SEQUENCES];

/// The options of a cell's methods that the grid writes: all others have the value that they have everywhere.
pub fn written(cell: &Cell) -> BTreeSet<String> {
    let mut all = Factors::new();
    let criterion = cell.criterion.iter().map(|of| ("criterion", &of.options));
    for (axis, options) in criterion.chain(cell.recovery.iter().map(|of| ("recovery", &of.options))) {
        options.iter().for_each(|(option, value)| leaves(&format!("{axis}.{option}"), value, &mut all));
    }
    all.into_keys().collect()
}

/// The settings of a cell, with every default filled in.
pub fn of_cell(cell: &Cell) -> Factors {
    let mut all =
        Factors::from([("backbone".to_owned(), cell.backbone.clone().into()), (DEPTH.to_owned(), cell.depth.into())]);
    let criterion = cell.criterion.iter().map(|of| ("criterion", &of.name, &of.resolved));
    for (axis, name, resolved) in criterion.chain(cell.recovery.iter().map(|of| ("recovery", &of.name, &of.resolved))) {
        all.insert(axis.to_owned(), name.clone().into());
        resolved.iter().for_each(|(option, value)| leaves(&format!("{axis}.{option}"), value, &mut all));
    }
    cell.calibration.iter().for_each(|of| all.extend(calibrated(of)));
    all
}

/// Whether a cell of these settings has the paper's own repair.
pub(super) fn is_ours(of: &Factors) -> bool {
    of.get("recovery").and_then(Value::as_str).is_some_and(recovery::is_ours)
}

fn calibrated(of: &Calibration) -> Factors {
    let Calibration { corpus, sequences, length, seed, operator_sequences } = of;
    let named = |name: &str, value: Value| (format!("calibration.{name}"), value);
    Factors::from([
        named("corpus", corpus.clone().into()),
        named("sequences", (*sequences).into()),
        named("length", (*length).into()),
        named("seed", (*seed).into()),
        named("operator_sequences", (*operator_sequences).into()),
    ])
}

/// All settings of a value, each by its place in it, below a name.
pub fn below(name: &str, value: &impl Serialize) -> Factors {
    let mut all = Factors::new();
    if let Ok(value) = serde_json::to_value(value) {
        leaves(name, &value, &mut all);
    }
    all
}

fn leaves(place: &str, value: &Value, into: &mut Factors) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            leaves(&if place.is_empty() { name.clone() } else { format!("{place}.{name}") }, value, into);
        }),
        leaf => drop(into.insert(place.to_owned(), leaf.clone())),
    }
}

/// The fewest settings that tell all rows apart, as far as anything does. Of equally few those that come first by name.
pub fn fewest<'a>(rows: &[&'a Factors]) -> Vec<&'a str> {
    let names: BTreeSet<&str> = rows.iter().flat_map(|row| row.keys().map(String::as_str)).collect();
    let varies = |name: &&str| rows.windows(2).any(|pair| pair[0].get(*name) != pair[1].get(*name));
    let varying: Vec<&str> = names.into_iter().filter(varies).collect();
    let kinds = |of: &[&str]| {
        let kind = |row: &&Factors| of.iter().map(|name| row.get(*name).map(ToString::to_string)).collect::<Vec<_>>();
        rows.iter().map(kind).collect::<BTreeSet<_>>().len()
    };
    let all = kinds(&varying);
    (0..=varying.len().min(MOST)).find_map(|count| chosen(&varying, count, &|of| kinds(of) == all)).unwrap_or(varying)
}

/// More settings than these are not chosen among: then all that vary are said.
const MOST: usize = 3;

/// The first so many of these that will do.
fn chosen<'a>(of: &[&'a str], count: usize, will_do: &dyn Fn(&[&str]) -> bool) -> Option<Vec<&'a str>> {
    fn extended<'a>(known: &mut Vec<&'a str>, of: &[&'a str], count: usize, will_do: &dyn Fn(&[&str]) -> bool) -> bool {
        if known.len() == count {
            return will_do(known);
        }
        (0..of.len()).any(|at| {
            known.push(of[at]);
            let found = extended(known, &of[at + 1..], count, will_do);
            if !found {
                known.pop();
            }
            found
        })
    }
    let mut known = Vec::new();
    extended(&mut known, of, count, will_do).then_some(known)
}

/// What a label says of a setting: `seed 1`, `operators from 16 sequences`, `solver svd`.
pub fn words(name: &str, value: &Value) -> String {
    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match name {
        "backbone" | "calibration.corpus" => value,
        "criterion" => criterion::label(&value).to_owned(),
        "recovery" => recovery::label(&value).to_owned(),
        "calibration.sequences" => format!("{value} sequences"),
        "calibration.length" => format!("sequences of {value} tokens"),
        OPERATOR_SEQUENCES => format!("operators from {value} sequences"),
        _ => {
            let short = ["criterion.", "recovery.", "calibration."].iter().find_map(|axis| name.strip_prefix(axis));
            format!("{} {value}", short.unwrap_or(name))
        }
    }
}

/// What each of several rows is to be called besides, where others are called as it is; nothing where all of these are alike.
pub fn besides<N: Clone + PartialEq>(called: &[N], rows: &[&Factors]) -> Vec<String> {
    let mut words = vec![String::new(); called.len()];
    for name in distinct(called) {
        let alike: Vec<usize> = (0..called.len()).filter(|&at| called[at] == name).collect();
        let told = told_apart(&alike.iter().map(|&at| rows[at]).collect::<Vec<_>>());
        alike.into_iter().zip(told).for_each(|(at, told)| words[at] = told);
    }
    words
}

/// What tells each of several rows from the others.
fn told_apart(rows: &[&Factors]) -> Vec<String> {
    let names = fewest(rows);
    let said = |row: &&Factors| {
        let words = names.iter().filter_map(|name| Some(words(name, row.get(*name)?)));
        words.collect::<Vec<_>>().join(", ")
    };
    rows.iter().map(said).collect()
}

/// Values under what they have in common, in the order of first appearance.
pub fn grouped<K: PartialEq, V>(values: impl IntoIterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in values {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, all)) => all.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

/// Each value once, in the order of first appearance.
pub fn distinct<'a, T: Clone + PartialEq + 'a>(values: impl IntoIterator<Item = &'a T>) -> Vec<T> {
    let mut all: Vec<T> = Vec::new();
    for value in values {
        if !all.contains(value) {
            all.push(value.clone());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(of: &Value) -> Factors {
        below("", of)
    }

    #[test]
    fn rows_are_told_apart_by_the_fewest_settings() {
        let (a, b, c) = (
            row(&json!({"depth": 4, "calibration": {"seed": 0, "length": 64}})),
            row(&json!({"depth": 4, "calibration": {"seed": 1, "length": 64}})),
            row(&json!({"depth": 4, "calibration": {"seed": 1, "length": 32}})),
        );
        assert_eq!(told_apart(&[&a, &b]), ["seed 0", "seed 1"]);
        assert_eq!(fewest(&[&a, &b, &c]), ["calibration.length", "calibration.seed"]);
        assert_eq!(told_apart(&[&a]), [""]);
        assert_eq!(told_apart(&[&a, &a]), ["", ""], "what is alike cannot be told apart");
    }

    #[test]
    fn what_only_one_row_has_tells_it_from_the_others() {
        let plain = row(&json!({"recovery": "ghosted"}));
        let trained =
            Factors::from([("recovery".into(), json!("ghosted")), ("recovery.finetune.sequences".into(), json!(8))]);
        assert_eq!(told_apart(&[&plain, &trained]), ["", "finetune.sequences 8"]);
    }
}
