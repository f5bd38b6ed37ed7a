//! Two runs side by side: settings, data and protocols that differ, and values that differ, with paired tests on the same
//! items.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::paired::{self, Paired};
use super::record::{Condition, Record};
use super::renamed::Renamed;
use super::stored::{StoredNumber, StoredResults};
use super::tolerance;
use crate::error::Result;
use crate::files::sha256;
use crate::metric::Metric;

/// What is not the same in two runs.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Differences {
    /// Keys of the grids, as they ran.
    pub settings: Vec<SettingDifference>,
    /// Backbones, tokenizers, corpora and tasks whose bytes differ under one name, by hash.
    pub data: Vec<SettingDifference>,
    /// Whether both runs say which bytes they read.
    pub data_known: bool,
    /// Metrics that were measured in different ways.
    pub protocols: Vec<SettingDifference>,
    /// Backbones that different engines ran, or in different float types or on different devices.
    pub engines: Vec<SettingDifference>,
    /// Conditions and metrics that both have.
    pub compared: usize,
    /// Those whose values differ, in the first run's order.
    pub values: Vec<ValueDifference>,
    /// Numbers that only the first has.
    pub only_first: Vec<Record>,
    /// Numbers that only the second has.
    pub only_second: Vec<Record>,
}

/// Something that two runs do not have alike.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SettingDifference {
    /// `calibration.sequences`, `corpora.c4`
    pub path: String,
    /// What the first run has, any JSON value; absent where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<Value>,
    /// What the second run has, any JSON value; absent where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second: Option<Value>,
}

/// A number that differs.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ValueDifference {
    pub first: Record,
    pub second: Record,
    /// Of the same items on two engines: whether they are further apart than the engines' float types explain. Null
    /// where nothing says how far that is.
    pub beyond: Option<bool>,
    /// Whether both are of the same items, measured in the same way.
    pub same_items: bool,
    /// A test of the second run against the first; null without common items.
    pub paired: Option<Paired>,
}

/// Keys of a grid that say where it lies, and the cells, which follow from its axes.
const ASIDE: [&str; 3] = ["file", "entries", "cells"];

/// A condition and a metric.
type Subject = (Condition, String);

/// A dense backbone is the same whatever others in its grid are calibrated on.
fn subject(number: &StoredNumber) -> Subject {
    let mut condition = number.record.condition.clone();
    if condition.depth == 0 {
        condition.calibration.clear();
    }
    (condition, number.record.metric.clone())
}

impl Differences {
    /// `names` are names of the first run with what the second run calls the same.
    ///
    /// # Errors
    /// A name that a run does not have.
    pub fn of(first: &StoredResults, second: &StoredResults, names: &[(String, String)]) -> Result<Self> {
        let renamed = Renamed::new(names, first, second)?;
        let settings = settings_that_differ(&renamed.value(&first.settings), &second.settings);
        let data_known = !first.inputs.is_empty() && !second.inputs.is_empty();
        let (one, two) = (bytes(first), bytes(second));
        let one: BTreeMap<String, String> =
            one.into_iter().filter_map(|(name, hash)| Some((renamed.dotted(&name)?, hash))).collect();
        let data = by_name(&one, &two);
        let one: BTreeMap<String, Value> =
            first.protocols.iter().filter_map(|(name, of)| Some((renamed.metric(name)?, of.clone()))).collect();
        let protocols = by_name(&one, &second.protocols);
        let engines = engines_that_differ(&renamed, first, second);
        let same_items = |metric: &str, backbone: &str| {
            let tokenizer = format!("tokenizers.{backbone}");
            // A text becomes other windows under another tokenizer; a task's documents are what they are.
            let same_tokens = Metric::text_of(metric).is_none() || data.iter().all(|of| of.path != tokenizer);
            data_known && one.contains_key(metric) && protocols.iter().all(|of| of.path != metric) && same_tokens
        };
        let of_second: BTreeMap<Subject, &StoredNumber> =
            second.numbers.iter().map(|number| (subject(number), number)).collect();
        let (mut values, mut only_first, mut compared) = (Vec::new(), Vec::new(), 0);
        let mut known = BTreeSet::new();
        for number in &first.numbers {
            let called = renamed.subject(subject(number));
            let found = called.and_then(|called| Some((of_second.get(&called)?, called)));
            let Some((other, called)) = found else {
                only_first.push(number.record.clone());
                continue;
            };
            compared += 1;
            if number.record.value != other.record.value {
                let same_items = same_items(&called.1, &called.0.backbone);
                let paired = same_items.then(|| paired::test(&other.measurement(), &number.measurement())).flatten();
                let ran = [first.engine(&number.record.condition.backbone), second.engine(&called.0.backbone)];
                let same_backbone = data.iter().all(|of| of.path != format!("backbones.{}", called.0.backbone));
                let beyond = (same_items && same_backbone).then(|| tolerance::beyond(number, other, &ran)).flatten();
                let (first, second) = (number.record.clone(), other.record.clone());
                values.push(ValueDifference { first, second, beyond, same_items, paired });
            }
            known.insert(called);
        }
        let only_second = second.numbers.iter().filter(|number| !known.contains(&subject(number)));
        let only_second = only_second.map(|number| number.record.clone()).collect();
        Ok(Self { settings, data, data_known, protocols, engines, compared, values, only_first, only_second })
    }
}

/// The bytes that a run has read, by the names that its grid has for them: `corpora.c4`, `backbones.mine`.
fn bytes(stored: &StoredResults) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for kind in ["backbones", "corpora", "tasks"] {
        for (name, entry) in stored.settings[kind].as_object().into_iter().flatten() {
            let Some(path) = entry["path"].as_str() else { continue };
            let files = stored.inputs.iter().filter(|(file, _)| Path::new(file).starts_with(path));
            let is_tokenizer = |file: &str| file.ends_with("tokenizer.json") || file.ends_with("tokenizer_config.json");
            let (tokenizer, others): (Vec<_>, Vec<_>) = files.partition(|(file, _)| is_tokenizer(file));
            let over = |files: Vec<(&String, &String)>| match files.as_slice() {
                [] => None,
                [(_, hash)] => Some((*hash).clone()),
                several => Some(sha256::of_bytes(several.iter().map(|(_, hash)| hash.as_str()).collect::<String>())),
            };
            all.extend(over(others).map(|hash| (format!("{kind}.{name}"), hash)));
            all.extend(over(tokenizer).map(|hash| (format!("tokenizers.{name}"), hash)));
        }
    }
    all
}

/// The backbones of both runs that something else ran.
fn engines_that_differ(renamed: &Renamed, first: &StoredResults, second: &StoredResults) -> Vec<SettingDifference> {
    let all =
        |of: &StoredResults| of.numbers.iter().map(|n| n.record.condition.backbone.clone()).collect::<BTreeSet<_>>();
    let called = |name: String| Some((renamed.dotted(&format!("backbones.{name}"))?, first.engine(&name).to_string()));
    let one: BTreeMap<String, String> = all(first).into_iter().filter_map(called).collect();
    let two =
        all(second).into_iter().map(|name| (format!("backbones.{name}"), second.engine(&name).to_string())).collect();
    by_name(&one, &two)
}

/// What both have under one name, and not the same.
fn by_name<T: PartialEq + Clone + Into<Value>>(
    first: &BTreeMap<String, T>,
    second: &BTreeMap<String, T>,
) -> Vec<SettingDifference> {
    let both = first.iter().filter_map(|(name, one)| Some((name, one, second.get(name)?)));
    both.filter(|(_, one, two)| one != two)
        .map(|(name, one, two)| SettingDifference {
            path: name.clone(),
            first: Some(one.clone().into()),
            second: Some(two.clone().into()),
        })
        .collect()
}

/// The settings that are not the same in two resolved grids, wherever their files lie.
pub fn settings_that_differ(first: &Value, second: &Value) -> Vec<SettingDifference> {
    let mut settings = Vec::new();
    differ("", first, second, &mut settings);
    settings
}

/// Walks both trees; maps key by key, all else as a whole.
fn differ(path: &str, first: &Value, second: &Value, found: &mut Vec<SettingDifference>) {
    if let (Value::Object(one), Value::Object(two)) = (first, second) {
        let keys: BTreeSet<&String> = one.keys().chain(two.keys()).collect();
        for key in keys {
            if path.is_empty() && ASIDE.contains(&key.as_str()) {
                continue;
            }
            let inner = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            match (one.get(key), two.get(key)) {
                (Some(one), Some(two)) => differ(&inner, one, two, found),
                (one, two) => found.push(SettingDifference { path: inner, first: one.cloned(), second: two.cloned() }),
            }
        }
    } else if first != second {
        let (first, second) = (Some(first.clone()), Some(second.clone()));
        found.push(SettingDifference { path: path.to_owned(), first, second });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::super::record::Condition;
    use super::super::stored::StoredEngine;
    use super::*;

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

    fn stored(settings: Value, numbers: Vec<StoredNumber>) -> StoredResults {
        StoredResults {
            name: "g".into(),
            profile: String::new(),
            program: "p".into(),
            gate: false,
            settings,
            inputs: BTreeMap::new(),
            engines: BTreeMap::new(),
            protocols: BTreeMap::new(),
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
        let (mut one, mut two) = (one, two);
        for run in [&mut one, &mut two] {
            run.inputs.insert("rte.jsonl".into(), "11".into());
            run.protocols.insert("rte".into(), json!({"data": ["11"]}));
        }
        let differences = Differences::of(&one, &two, &[]).unwrap();
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
        assert!(Differences::of(&one, &one, &[]).unwrap().values.is_empty());
    }

    #[test]
    fn other_bytes_under_one_name_are_told_and_their_items_are_not_paired() {
        let settings = json!({"corpora": {"c4": {"path": "a"}}, "backbones": {"llama": {"path": "m"}}});
        let right = [number("none", "rte", 50.0, "0101")];
        let mut one = stored(settings.clone(), right.to_vec());
        let mut two = stored(settings, vec![number("none", "rte", 25.0, "0001")]);
        one.inputs.extend([("a".into(), "11".into()), ("m/config.json".into(), "22".into())]);
        two.inputs.extend([("a".into(), "33".into()), ("m/config.json".into(), "22".into())]);
        let of = |data: &str| json!({"data": [data], "documents": 4});
        one.protocols.insert("rte".into(), of("44"));
        two.protocols.insert("rte".into(), of("44"));
        let differences = Differences::of(&one, &two, &[]).unwrap();
        assert!(differences.settings.is_empty());
        let data: Vec<&str> = differences.data.iter().map(|of| of.path.as_str()).collect();
        assert_eq!(data, ["corpora.c4"]);
        assert!(differences.values[0].paired.is_some(), "the task is the same");
        two.protocols.insert("rte".into(), of("55"));
        let differences = Differences::of(&one, &two, &[]).unwrap();
        assert_eq!(differences.protocols.len(), 1);
        assert!(!differences.values[0].same_items && differences.values[0].paired.is_none());
    }

    #[test]
    fn of_two_engines_it_is_told_which_numbers_are_further_apart_than_their_float_types() {
        let settings = json!({"backbones": {"llama": {"path": "m"}}});
        let numbers = |value| vec![number("none", "rte", value, "0101"), number("ghosted", "rte", value, "0101")];
        let (mut one, mut two) = (stored(settings.clone(), numbers(50.0)), stored(settings, numbers(75.0)));
        two.numbers[1].right = Some("0111".into());
        for run in [&mut one, &mut two] {
            run.inputs.insert("m/config.json".into(), "22".into());
            run.protocols.insert("rte".into(), json!({"data": ["44"]}));
        }
        let beyond = |one: &StoredResults, two: &StoredResults| {
            let differences = Differences::of(one, two, &[]).unwrap();
            (differences.engines, differences.values.iter().map(|of| of.beyond).collect::<Vec<_>>())
        };
        assert_eq!(beyond(&one, &two), (Vec::new(), vec![None, None]), "what says nothing ran on the CPU");
        let candle = StoredEngine { name: "candle".into(), dtype: "bf16".into(), device: "cuda".into() };
        two.engines.insert("llama".into(), candle);
        let (engines, values) = beyond(&one, &two);
        assert_eq!(engines[0].path, "backbones.llama");
        assert_eq!(
            (engines[0].first.clone(), engines[0].second.clone()),
            (Some("cpu f32 on cpu".into()), Some("candle bf16 on cuda".into()))
        );
        assert_eq!(values, [Some(false), Some(true)]);
        // The weights are others': nothing is known of how far apart they are.
        two.inputs.insert("m/config.json".into(), "33".into());
        assert_eq!(beyond(&one, &two).1, [None, None]);
    }

    #[test]
    fn two_backbones_are_paired_by_a_map_and_unknown_names_are_refused() {
        let settings =
            |name: &str| json!({"backbones": {name: {"path": format!("models/{name}")}}, "backbone": [name]});
        let mut one = stored(settings("llama"), vec![number("none", "rte", 50.0, "0101")]);
        let mut other = number("none", "rte", 75.0, "0111");
        other.record.condition.backbone = "qwen".into();
        let mut two = stored(settings("qwen"), vec![other]);
        for (run, name) in [(&mut one, "llama"), (&mut two, "qwen")] {
            run.inputs.insert(format!("models/{name}/config.json"), name.into());
            run.inputs.insert(format!("models/{name}/tokenizer.json"), name.into());
            run.protocols.insert("rte".into(), json!({"data": ["44"]}));
            run.protocols.insert("ppl_c4".into(), json!({"data": ["55"]}));
        }
        let differences = Differences::of(&one, &two, &[]).unwrap();
        assert_eq!((differences.compared, differences.only_first.len()), (0, 1));
        let map = [("llama".to_string(), "qwen".to_string())];
        let differences = Differences::of(&one, &two, &map).unwrap();
        assert_eq!((differences.compared, differences.only_first.len(), differences.only_second.len()), (1, 0, 0));
        assert!(differences.values[0].paired.is_some());
        let paths: Vec<&str> = differences.settings.iter().map(|of| of.path.as_str()).collect();
        assert_eq!(paths, ["backbones.qwen.path"], "the name itself is no difference any more");
        let data: Vec<&str> = differences.data.iter().map(|of| of.path.as_str()).collect();
        assert_eq!(data, ["backbones.qwen", "tokenizers.qwen"]);
        for (from, to, words) in [("lama", "qwen", "did you mean `llama`?"), ("llama", "qwem", "did you mean `qwen`?")]
        {
            let error = Differences::of(&one, &two, &[(from.into(), to.into())]).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains(words), "{error}");
        }
    }
}
