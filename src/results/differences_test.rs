//! Two runs side by side.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::Factors;
use super::super::factors::below;
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
    let (cell, column) = (format!("llama/{recovery}"), metric.to_owned());
    StoredNumber { record, cell, column, failure: None, right: Some(right.into()), losses: None }
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
        cells: numbers.iter().map(|of| (of.cell.clone(), Factors::new())).collect(),
        measures: BTreeMap::new(),
        identities: BTreeMap::new(),
        measured: BTreeMap::new(),
        numbers,
    }
}

/// One of several seeds.
fn seeded(seed: u64, value: f64) -> (StoredNumber, (String, Factors)) {
    let mut number = number("ghosted", "rte", value, "0101");
    number.cell = format!("llama/ghosted@{seed}");
    let factors = below("", &json!({"calibration": {"seed": seed, "length": 64}, "recovery": {"solver": "svd"}}));
    (number.clone(), (number.cell, factors))
}

fn run(seeds: &[(u64, f64)]) -> StoredResults {
    let (numbers, cells): (Vec<_>, Vec<_>) = seeds.iter().map(|&(seed, value)| seeded(seed, value)).unzip();
    StoredResults { cells: cells.into_iter().collect(), ..stored(json!({}), numbers) }
}

#[test]
fn cells_that_differ_in_a_seed_alone_stand_beside_their_own_like() {
    let both = run(&[(0, 50.0), (1, 75.0)]);
    let alike = Differences::of(&both, &both, &[]).unwrap();
    assert_eq!((alike.compared, alike.values.len(), alike.coinciding.len()), (2, 0, 0));
    // One of two seeds stands beside its own.
    let other = Differences::of(&both, &run(&[(1, 75.0)]), &[]).unwrap();
    assert_eq!((other.compared, other.values.len(), other.only_first.len()), (1, 0, 1));
    assert_eq!(other.only_first[0].cell, "llama/ghosted@0");
}

#[test]
fn a_setting_that_is_one_within_each_run_is_told_and_does_not_keep_numbers_apart() {
    let apart = Differences::of(&run(&[(0, 50.0)]), &run(&[(7, 75.0)]), &[]).unwrap();
    assert_eq!((apart.compared, apart.values.len()), (1, 1));
    let aside: Vec<_> = apart.aside.iter().map(|of| (of.path.as_str(), of.first.clone(), of.second.clone())).collect();
    assert_eq!(aside, [("calibration.seed", Some(json!(0)), Some(json!(7)))]);
    // One run has several: which of them should stand beside the other's?
    let several = Differences::of(&run(&[(0, 50.0), (1, 60.0)]), &run(&[(7, 75.0)]), &[]).unwrap();
    assert_eq!((several.compared, several.only_first.len(), several.only_second.len()), (0, 2, 1));
}

#[test]
fn what_cannot_be_told_apart_stands_beside_none_and_the_setting_is_named() {
    let both = run(&[(0, 50.0), (1, 75.0)]);
    // A run by an older program, which did not say what tells its numbers apart.
    let older = StoredResults { cells: BTreeMap::new(), ..run(&[(0, 50.0)]) };
    let found = Differences::of(&both, &older, &[]).unwrap();
    assert!(!found.identified);
    assert_eq!((found.compared, found.values.len(), found.coinciding.len()), (0, 0, 1));
    assert_eq!((found.coinciding[0].first.len(), found.coinciding[0].second.len()), (2, 1));
    assert!(found.coinciding[0].settings.contains(&"calibration.seed".to_owned()), "{:?}", found.coinciding);
    let older = Differences::of(&run(&[(0, 50.0)]), &older, &[]).unwrap();
    assert_eq!((older.compared, older.values.len()), (1, 0));
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
        (differences.only_first[0].record.metric.as_str(), differences.only_second[0].record.metric.as_str()),
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
    let settings = |name: &str| json!({"backbones": {name: {"path": format!("models/{name}")}}, "backbone": [name]});
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
    for (from, to, words) in [("lama", "qwen", "did you mean `llama`?"), ("llama", "qwem", "did you mean `qwen`?")] {
        let error = Differences::of(&one, &two, &[(from.into(), to.into())]).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains(words), "{error}");
    }
}
