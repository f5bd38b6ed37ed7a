//! Named settings that distinguish the numbers in a run. Labels built from them are only displayed, never parsed.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use crate::grid::Cell;
use crate::pipeline::identity::{SettingPath, visit_leaves};
use crate::{criterion, recovery};

/// Settings by dotted name, such as `depth`, `recovery.solver` or `calibration.seed`.
pub type Settings = BTreeMap<String, Value>;

/// Name of the setting for the number of removed layers or sublayers.
pub const DEPTH: &str = "depth";
pub const SEED: &str = "calibration.seed";
/// Name of the setting for the number of sequences from which operators are computed.
pub const OPERATOR_SEQUENCES: &str = "calibration.operator_sequences";

pub const CORPUS: &str = "calibration.corpus";

pub const CALIBRATION_SETTINGS: [&str; 5] =
    [CORPUS, "calibration.sequences", "calibration.length", SEED, OPERATOR_SEQUENCES];

/// Returns the names of the criterion and recovery options that the grid sets explicitly.
pub fn explicit_options(cell: &Cell) -> BTreeSet<String> {
    let criterion = cell.criterion.iter().map(|method| flatten_below("criterion", &method.options));
    let recovery = cell.recovery.iter().map(|method| flatten_below("recovery", &method.options));
    criterion.chain(recovery).flat_map(Settings::into_keys).collect()
}

/// Returns the settings of a cell, including defaults.
pub fn from_cell(cell: &Cell) -> Settings {
    let depth: Value = match cell.depth.is_in_layers() {
        true => cell.depth.count.into(),
        false => cell.depth.to_string().into(),
    };
    let mut all = Settings::from([("backbone".to_owned(), cell.backbone.clone().into()), (DEPTH.to_owned(), depth)]);
    let criterion = cell.criterion.iter().map(|method| ("criterion", &method.name, &method.resolved));
    for (axis, name, resolved) in
        criterion.chain(cell.recovery.iter().map(|method| ("recovery", &method.name, &method.resolved)))
    {
        all.insert(axis.to_owned(), name.clone().into());
        all.extend(flatten_below(axis, resolved));
    }
    all.extend(cell.calibration.iter().flat_map(|calibration| flatten_below("calibration", calibration)));
    all
}

/// Returns whether a cell uses the repair that the paper proposes.
pub(super) fn is_ours(settings: &Settings) -> bool {
    recovery::is_ours(setting_text(settings, "recovery"))
}

/// Flattens a value into settings with dotted names that start with `name`.
pub fn flatten_below(name: &str, value: &impl Serialize) -> Settings {
    let mut all = Settings::new();
    if let Ok(value) = serde_json::to_value(value) {
        visit_leaves(&SettingPath::new(name), &value, &mut |path, leaf| {
            if !leaf.is_object() {
                all.insert(path.to_string(), leaf.clone());
            }
        });
    }
    all
}

/// Returns the fewest settings that distinguish as many rows as all settings together would. Ties are broken by name.
pub fn distinguishing_settings<'a>(rows: &[&'a Settings]) -> Vec<&'a str> {
    let names: BTreeSet<&str> = rows.iter().flat_map(|row| row.keys().map(String::as_str)).collect();
    let varying: Vec<&str> =
        names.into_iter().filter(|name| rows.windows(2).any(|pair| pair[0].get(*name) != pair[1].get(*name))).collect();
    let count_distinct_rows = |columns: &[&str]| {
        rows.iter()
            .map(|row| columns.iter().map(|name| row.get(*name).map(ToString::to_string)).collect::<Vec<_>>())
            .collect::<BTreeSet<_>>()
            .len()
    };
    let all = count_distinct_rows(&varying);
    (0..=varying.len().min(MAX_SETTINGS))
        .find_map(|count| first_combination(&[], &varying, count, &|names| count_distinct_rows(names) == all))
        .unwrap_or(varying)
}

/// Maximum number of settings in the sets that [`distinguishing_settings`] tries. If no such set suffices, it returns
/// all varying settings.
const MAX_SETTINGS: usize = 3;

/// Extends `chosen` with the first combination of `count` candidates for which `suffices` returns true.
fn first_combination<'a>(
    chosen: &[&'a str],
    candidates: &[&'a str],
    count: usize,
    suffices: &dyn Fn(&[&str]) -> bool,
) -> Option<Vec<&'a str>> {
    if count == 0 {
        return suffices(chosen).then(|| chosen.to_vec());
    }
    (0..candidates.len()).find_map(|index| {
        let extended = [chosen, &candidates[index..=index]].concat();
        first_combination(&extended, &candidates[index + 1..], count - 1, suffices)
    })
}

/// Formats a value as text, without JSON quotes.
pub fn value_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the value of a setting, or an empty string if the setting is missing or not a string.
pub(super) fn setting_text<'s>(settings: &'s Settings, name: &str) -> &'s str {
    settings.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the settings whose names satisfy `keeps`.
pub(super) fn select_settings(settings: &Settings, keeps: impl Fn(&str) -> bool) -> Settings {
    let selected = settings.iter().filter(|(name, _)| keeps(name));
    selected.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Formats a setting for a label, such as `seed 1`, `operators from 16 sequences` or `solver svd`.
pub fn format_setting(name: &str, value: &Value) -> String {
    let value = value_text(value);
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

/// Labels each row with `label` applied to its name. Labels of rows with equal names end in the settings that
/// distinguish these rows.
pub fn distinct_labels<N: Clone + PartialEq>(
    names: &[N],
    label: impl Fn(&N) -> String,
    rows: &[&Settings],
) -> Vec<String> {
    let mut labels: Vec<String> = names.iter().map(label).collect();
    for name in distinct(names) {
        let same: Vec<usize> = (0..names.len()).filter(|&row| names[row] == name).collect();
        let suffixes = distinguishing_labels(&same.iter().map(|&row| rows[row]).collect::<Vec<_>>());
        for (row, suffix) in same.into_iter().zip(suffixes).filter(|(_, suffix)| !suffix.is_empty()) {
            labels[row] = format!("{}, {suffix}", labels[row]);
        }
    }
    labels
}

/// Formats, for each row, the settings that distinguish it from the other rows.
fn distinguishing_labels(rows: &[&Settings]) -> Vec<String> {
    let names = distinguishing_settings(rows);
    rows.iter()
        .map(|row| {
            let words = names.iter().filter_map(|name| Some(format_setting(name, row.get(*name)?)));
            words.collect::<Vec<_>>().join(", ")
        })
        .collect()
}

/// Groups values by key. Keys are in order of first appearance.
pub fn group_by_key<K: PartialEq, V>(values: impl IntoIterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in values {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, all)) => all.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

/// Returns the distinct values in order of first appearance.
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

    fn row(options: &Value) -> Settings {
        flatten_below("", options)
    }

    #[test]
    fn rows_are_distinguished_by_the_fewest_settings() {
        let (a, b, c) = (
            row(&json!({"depth": 4, "calibration": {"seed": 0, "length": 64}})),
            row(&json!({"depth": 4, "calibration": {"seed": 1, "length": 64}})),
            row(&json!({"depth": 4, "calibration": {"seed": 1, "length": 32}})),
        );
        assert_eq!(distinguishing_labels(&[&a, &b]), ["seed 0", "seed 1"]);
        assert_eq!(distinguishing_settings(&[&a, &b, &c]), ["calibration.length", "calibration.seed"]);
        assert_eq!(distinguishing_labels(&[&a]), [""]);
        assert_eq!(distinguishing_labels(&[&a, &a]), ["", ""], "equal values cannot be distinguished");
    }

    #[test]
    fn setting_of_a_single_row_labels_only_that_row() {
        let plain = row(&json!({"recovery": "ghosted"}));
        let trained =
            Settings::from([("recovery".into(), json!("ghosted")), ("recovery.finetune.sequences".into(), json!(8))]);
        assert_eq!(distinguishing_labels(&[&plain, &trained]), ["", "finetune.sequences 8"]);
    }
}
