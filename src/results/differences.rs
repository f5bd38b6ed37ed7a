//! Comparison of two runs: which settings, data, protocols and values differ, with paired tests on the items that both
//! runs have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::number_record::Record;
use super::paired::{self, Paired};
use super::pairing::{NameMap, NumberPair, pair_numbers};
use super::result_row::ResultRow;
use super::stored::StoredResults;
use crate::error::Result;
use crate::files::sha256;
use crate::metric::Metric;
use crate::model::Tolerance;
use crate::pipeline::identity::{
    Canonical, ComputeId, SettingDifference, SettingOwner, SettingPath, flatten, setting_differences,
};

/// Differences between two runs.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Differences {
    /// Keys that differ between the grids as they were run.
    pub settings: Vec<SettingDifference>,
    /// Backbones, tokenizers, corpora and tasks with the same name but different hashes.
    pub data: Vec<SettingDifference>,
    /// Whether both runs record the hashes of their inputs.
    pub data_known: bool,
    /// Metrics with different protocols.
    pub protocols: Vec<SettingDifference>,
    /// Backbones that ran on different engines, float types or devices.
    pub engines: Vec<SettingDifference>,
    /// Whether both runs record the full identity of each number. Always true for results that this version can read.
    pub identified: bool,
    /// Settings that differ between paired numbers. Within each run, a setting has one value for its input or method.
    /// Differences of backbones and engines are listed under `data` and `engines`.
    #[serde(rename = "aside")]
    pub global_differences: Vec<SettingDifference>,
    /// Count of paired numbers.
    pub compared: usize,
    /// Numbers with different values, in the order of the first run.
    pub values: Vec<ValueDifference>,
    /// Numbers that are only in the first run.
    pub only_first: Vec<Unpaired>,
    /// Numbers that are only in the second run.
    pub only_second: Vec<Unpaired>,
    /// Unpaired numbers with several possible partners.
    pub coinciding: Vec<CoincidingNumbers>,
}

/// Number without a partner in the other run.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Unpaired {
    #[serde(flatten)]
    pub record: Record,
    /// Cell name, as in `plan` and `explain`.
    pub cell: String,
    /// Column in the run's own table; empty if unknown.
    pub column: String,
}

/// Numbers of two runs that cannot be matched one to one by their shared settings.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CoincidingNumbers {
    pub first: Vec<Unpaired>,
    pub second: Vec<Unpaired>,
    /// Settings in which the numbers differ; empty if neither run records any.
    pub settings: Vec<String>,
}

/// Number with different values in two runs.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ValueDifference {
    pub first: Record,
    pub second: Record,
    /// Cell name in the first run, as in `plan` and `explain`.
    pub cell: String,
    /// Column in the first run's own table; empty if unknown.
    pub column: String,
    /// Whether the difference exceeds the rounding error of the float types, for the same items on two engines. Null if
    /// no bound is known.
    pub beyond: Option<bool>,
    /// Whether both values come from the same items, measured in the same way.
    pub same_items: bool,
    /// Test of the second run against the first; null if there are no common items.
    pub paired: Option<Paired>,
}

/// Keys of the grid that are not compared: file locations, and the cells, which follow from the axes.
const EXCLUDED_KEYS: [&str; 3] = ["file", "entries", "cells"];
/// Keys of the grid under which inputs are defined by name.
const INPUT_KEYS: [&str; 3] = ["backbones", "corpora", "tasks"];

impl Differences {
    /// Compares two runs. `names` maps names in the first run to names in the second.
    ///
    /// # Errors
    /// Fails if a name does not occur in its run.
    pub fn between(first: &StoredResults, second: &StoredResults, names: &[(String, String)]) -> Result<Self> {
        let renamed = NameMap::new(names, first, second)?;
        let settings = settings_that_differ(&renamed.value(&first.settings), &second.settings);
        let data_known = !first.inputs.is_empty() && !second.inputs.is_empty();
        let one = renamed.dotted_keys(input_hashes(&first.settings, &first.inputs));
        let data = changed_entries(&one, &input_hashes(&second.settings, &second.inputs));
        let one: BTreeMap<String, Value> = first
            .protocols
            .iter()
            .filter_map(|(name, protocol)| Some((renamed.metric(name)?, protocol.clone())))
            .collect();
        let protocols = changed_entries(&one, &second.protocols);
        let one = renamed.dotted_keys(engines_by_backbone(first));
        let engines = changed_entries(&one, &engines_by_backbone(second));
        let pairing = pair_numbers(&renamed, first, second);
        let mut values = Vec::new();
        let mut global_differences = BTreeSet::new();
        for pair in &pairing.pairs {
            // Skip engines and backbones, because they are listed by name in `engines` and `data`.
            let notable = pair.differences.iter().filter(|change| change.path.owner() != SettingOwner::Backbone);
            global_differences.extend(notable.cloned());
            values.extend(value_difference(first, second, pair));
        }
        let coinciding = pairing.coinciding.into_iter().map(|numbers| CoincidingNumbers {
            first: unpaired_numbers(first, &numbers.first),
            second: unpaired_numbers(second, &numbers.second),
            settings: numbers.settings,
        });
        Ok(Self {
            settings,
            data,
            data_known,
            protocols,
            engines,
            identified: true,
            global_differences: global_differences.into_iter().collect(),
            compared: pairing.pairs.len(),
            values,
            only_first: unpaired_numbers(first, &pairing.only_first),
            only_second: unpaired_numbers(second, &pairing.only_second),
            coinciding: coinciding.collect(),
        })
    }
}

/// Compares the values of a pair of numbers. Returns `None` if they are equal.
fn value_difference(first: &StoredResults, second: &StoredResults, pair: &NumberPair) -> Option<ValueDifference> {
    let number = &first.numbers[pair.first];
    let other = &second.numbers[pair.second];
    if number.record.value == other.record.value {
        return None;
    }
    let same_items = have_same_items(&pair.differences, &other.record.metric);
    let paired = same_items.then(|| paired::paired_test(other, number)).flatten();
    let engines = [first.engine(&number.record.condition.backbone), second.engine(&other.record.condition.backbone)];
    // A bound is known only if nothing but the engine differs. The batch size may also differ, because it depends on
    // the engine.
    let only_engines_differ = pair
        .differences
        .iter()
        .all(|SettingDifference { path, .. }| path.is_of("engine") || path.is_of("measure") && path.name() == "batch");
    let beyond = (same_items && only_engines_differ).then(|| exceeds_tolerance(number, other, &engines)).flatten();
    let Unpaired { record, cell, column } = unpaired(number);
    Some(ValueDifference { first: record, second: other.record.clone(), cell, column, beyond, same_items, paired })
}

fn unpaired_numbers(run: &StoredResults, indices: &[usize]) -> Vec<Unpaired> {
    indices.iter().map(|&index| unpaired(&run.numbers[index])).collect::<Vec<_>>()
}

/// Returns whether two numbers were measured on the same items: windows with the same tokens, or the same documents.
fn have_same_items(differences: &[SettingDifference], metric: &str) -> bool {
    /// Fields of a `MeasureId` that have no effect on the items.
    const ITEM_NEUTRAL_FIELDS: [&str; 4] = ["batch", "generation", "max_length", "prefix"];
    differences.iter().all(|SettingDifference { path, .. }| match path.is_of("measure") {
        true => ITEM_NEUTRAL_FIELDS.contains(&path.name()),
        // A different tokenizer changes the windows of a text, but not the documents of a task.
        false => !Metric::find(metric).is_ok_and(|metric| metric.is_text_metric()) || !path.is_of("model.tokenizer"),
    })
}

fn unpaired(number: &ResultRow) -> Unpaired {
    Unpaired { record: number.record.clone(), cell: number.cell.clone(), column: number.column.clone() }
}

/// Returns the name of an input, as in [`input_hashes`], if the setting is the path of that input.
fn input_name(setting: &SettingPath) -> Option<&str> {
    let name = setting.as_str().strip_suffix(".path")?;
    let kind = name.split('.').next()?;
    INPUT_KEYS.contains(&kind).then_some(name)
}

/// Returns the paths of the settings and inputs in which a stored run differs from the given ones. Inputs are compared
/// by their hashes if both are known, or else by their paths.
pub fn changed_settings(kept: &StoredResults, settings: &Value, inputs: &BTreeMap<String, String>) -> Vec<String> {
    let one = input_hashes(&kept.settings, &kept.inputs);
    let two = input_hashes(settings, inputs);
    let absolute = |path: &Option<Canonical>| std::path::absolute(path.as_ref()?.value().as_str()?).ok();
    let mut paths: Vec<String> = settings_that_differ(&kept.settings, settings)
        .into_iter()
        .filter(|setting| match input_name(&setting.path) {
            None => true,
            Some(name) => match (one.get(name), two.get(name)) {
                (Some(one), Some(two)) => one != two,
                _ => absolute(&setting.first) != absolute(&setting.second),
            },
        })
        .map(|setting| setting.path.to_string())
        .collect();
    let more: Vec<String> = changed_entries(&one, &two)
        .into_iter()
        .map(|change| change.path.to_string())
        .filter(|name| !contains_path_setting(&paths, name))
        .collect();
    paths.extend(more);
    paths
}

/// Returns whether `settings` contains the `path` setting of the named input.
fn contains_path_setting(settings: &[String], input: &str) -> bool {
    settings.iter().any(|setting| setting.strip_suffix(".path") == Some(input))
}

/// Returns the hashes of a run's inputs by their names in the grid, such as `corpora.c4`, `backbones.mine` or
/// `tokenizers.mine`.
fn input_hashes(settings: &Value, inputs: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for kind in INPUT_KEYS {
        for (name, entry) in settings[kind].as_object().into_iter().flatten() {
            let Some(path) = entry["path"].as_str() else { continue };
            let files = inputs.iter().filter(|(file, _)| Path::new(file).starts_with(path));
            let (tokenizer, others): (Vec<_>, Vec<_>) = files.partition(|(file, _)| is_tokenizer(file));
            let combine = |files: Vec<(&String, &String)>| match files.as_slice() {
                [] => None,
                [(_, hash)] => Some((*hash).clone()),
                several => Some(sha256::of_bytes(several.iter().map(|(_, hash)| hash.as_str()).collect::<String>())),
            };
            all.extend(combine(others).map(|hash| (format!("{kind}.{name}"), hash)));
            all.extend(combine(tokenizer).map(|hash| (format!("tokenizers.{name}"), hash)));
        }
    }
    all
}

fn is_tokenizer(file: &str) -> bool {
    file.ends_with("tokenizer.json") || file.ends_with("tokenizer_config.json")
}

/// Returns the engine of each backbone with numbers, keyed by a name such as `backbones.mine`.
fn engines_by_backbone(run: &StoredResults) -> BTreeMap<String, String> {
    let names = run.numbers.iter().map(|number| &number.record.condition.backbone);
    names.map(|name| (format!("backbones.{name}"), run.engine(name).to_string())).collect()
}

/// Returns the entries that have the same name in both maps but different values.
fn changed_entries<T: PartialEq + Clone + Into<Value>>(
    first: &BTreeMap<String, T>,
    second: &BTreeMap<String, T>,
) -> Vec<SettingDifference> {
    let shared = first.iter().filter_map(|(name, one)| Some((name, one, second.get(name)?)));
    shared
        .filter(|(_, one, two)| one != two)
        .map(|(name, one, two)| SettingDifference {
            path: SettingPath::new(name),
            first: Some(Canonical::from_value(&one.clone().into())),
            second: Some(Canonical::from_value(&two.clone().into())),
        })
        .collect()
}

/// Returns the settings in which two resolved grids differ, except for the locations of files.
pub fn settings_that_differ(first: &Value, second: &Value) -> Vec<SettingDifference> {
    let mut all = setting_differences(&flatten(first), &flatten(second));
    all.retain(|change| !EXCLUDED_KEYS.iter().any(|key| change.path.is_of(key)));
    all
}

/// Returns whether two values differ by more than the rounding tolerance between their engines. Returns `None` if the
/// engines are the same or the tolerance is unknown.
pub(super) fn exceeds_tolerance(first: &ResultRow, second: &ResultRow, engines: &[ComputeId; 2]) -> Option<bool> {
    if engines[0] == engines[1] {
        return None;
    }
    let Tolerance { perplexity, answers, .. } = Tolerance::between(&engines[0].dtype, &engines[1].dtype);
    if let Some((one, two)) = first.answers().zip(second.answers()) {
        let is_same_size = one.iter().map(Vec::len).eq(two.iter().map(Vec::len));
        let [one, two] = [one, two].map(|tasks| tasks.iter().flatten());
        let documents = one.clone().count();
        let differing = one.zip(two).filter(|(a, b)| a != b).count();
        return is_same_size.then_some(differing as f64 > answers * documents as f64);
    }
    if !first.metric.is_text_metric() {
        return None;
    }
    let one = first.record.value?;
    let two = second.record.value?;
    let difference = (two - one).abs();
    // NaN counts as different from every value.
    Some(difference.is_nan() || difference > perplexity * one.abs())
}

#[cfg(test)]
#[path = "differences_test.rs"]
mod tests;

#[cfg(test)]
mod tolerance_tests {
    use super::super::Sample;
    use super::*;
    use crate::model::CPU;
    use crate::results::number_record::{Condition, Record};

    fn number(metric: &str, value: f64, right: Option<&str>) -> ResultRow {
        let condition = Condition {
            backbone: "llama".into(),
            layers: 16,
            depth: 0,
            unit: crate::criterion::DepthUnit::Layers,
            criterion: "dense".into(),
            recovery: "none".into(),
            finetuned: false,
            calibration: String::new(),
        };
        let record = Record { condition, metric: metric.into(), value: Some(value), error: None };
        ResultRow { sample: right.map_or(Sample::None, Sample::from_bits), ..ResultRow::new(record, "c") }
    }

    #[test]
    fn tolerance_depends_on_dtype_and_needs_two_engines() {
        let cpu = ComputeId::from(CPU);
        let other = |dtype: &str| ComputeId { name: "candle".into(), dtype: dtype.into(), device: "cuda".into() };
        let ppl = |value| number("ppl_c4", value, None);
        for (dtype, value, expected) in [
            ("f32", 10.009, false),
            ("f32", 10.02, true),
            ("bf16", 10.04, false),
            ("bf16", 10.06, true),
            ("f16", f64::NAN, true),
        ] {
            let found = exceeds_tolerance(&ppl(10.0), &ppl(value), &[cpu.clone(), other(dtype)]);
            assert_eq!(found, Some(expected), "{dtype} {value}");
        }
        let answers = |wrong: usize| number("rte", 0.0, Some(&("0".repeat(wrong) + &"1".repeat(100 - wrong))));
        let ours = |dtype: &str, wrong| exceeds_tolerance(&answers(0), &answers(wrong), &[cpu.clone(), other(dtype)]);
        assert_eq!([ours("bf16", 2), ours("bf16", 3)], [Some(false), Some(true)]);
        assert_eq!([ours("f32", 0), ours("f32", 1)], [Some(false), Some(true)]);
        assert_eq!(exceeds_tolerance(&ppl(10.0), &ppl(20.0), &[cpu.clone(), cpu.clone()]), None);
        assert_eq!(
            exceeds_tolerance(
                &number("boundary_mae", 1.0, None),
                &number("boundary_mae", 2.0, None),
                &[cpu, other("f16")]
            ),
            None
        );
    }
}
