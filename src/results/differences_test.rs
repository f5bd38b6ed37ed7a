//! Tests for the comparison of two runs.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::number_record::Condition;
use super::super::{Sample, Settings};
use super::*;
use crate::pipeline::identity::ComputeId;
use crate::pipeline::identity::{Identity, MeasureId};

fn number(recovery: &str, metric: &str, value: f64, right: &str) -> ResultRow {
    let condition = Condition {
        backbone: "llama".into(),
        layers: 16,
        depth: 4,
        unit: crate::criterion::DepthUnit::Layers,
        criterion: "sleb".into(),
        recovery: recovery.into(),
        finetuned: false,
        calibration: "c4".into(),
    };
    let record = Record { condition, metric: metric.into(), value: Some(value), error: None };
    ResultRow { sample: Sample::from_bits(right), ..ResultRow::new(record, format!("llama/{recovery}")) }
}

fn stored(settings: Value, numbers: Vec<ResultRow>) -> StoredResults {
    let mut identities = BTreeMap::new();
    let mut measured = BTreeMap::<String, BTreeMap<_, _>>::new();
    for number in &numbers {
        identities.insert(number.cell.clone(), identity(&number.record.condition, 0));
        let task = json!({"task": {
            "task": number.column, "version": 1, "rows": ["44"], "formats": ["jsonl"], "bos": "tokenizer",
            "max_length": 64, "batch": 4096,
        }});
        let backbone = measured.entry(number.record.condition.backbone.clone()).or_default();
        backbone.insert(number.column.clone(), vec![serde_json::from_value(task).unwrap()]);
    }
    StoredResults {
        name: "g".into(),
        profile: String::new(),
        program: "p".into(),
        gate: false,
        settings,
        inputs: BTreeMap::new(),
        engines: BTreeMap::new(),
        protocols: BTreeMap::new(),
        cells: numbers.iter().map(|number| (number.cell.clone(), Settings::new())).collect(),
        measures: BTreeMap::new(),
        identities,
        measured,
        timed: BTreeMap::new(),
        numbers,
    }
}

/// Builds the identity of a pruned cell. The name of the backbone is also used as its content hash.
fn identity(condition: &Condition, seed: u64) -> Identity {
    let value = json!({
        "model": {"content": condition.backbone, "tokenizer": condition.backbone},
        "engine": {"name": "cpu", "dtype": "f32", "device": "cpu"},
        "cut": {"criterion": condition.criterion, "version": 1, "options": {}, "depth": condition.depth},
        "repair": {"recovery": condition.recovery, "version": 1, "options": {"solver": "svd"}, "fitted": 4},
        "calibration": {
            "text": {"bytes": condition.calibration, "format": "jsonl", "rule": "c4"}, "sequences": 4, "length": 64,
            "seed": seed,
        },
    });
    serde_json::from_value(value).unwrap()
}

/// Applies a change to the identity of each cell in a run.
fn with_identity_change(mut run: StoredResults, change: impl Fn(&mut Value)) -> StoredResults {
    for identity in run.identities.values_mut() {
        let mut value = json!(identity);
        change(&mut value);
        *identity = serde_json::from_value(value).unwrap();
    }
    run
}

/// Replaces the hashes of the documents in all task measurements of a run.
fn with_rows(mut run: StoredResults, other: &str) -> StoredResults {
    for measure in run.measured.values_mut().flat_map(BTreeMap::values_mut).flatten() {
        let MeasureId::Task { rows, .. } = measure else { panic!("{measure:?}") };
        *rows = vec![other.to_owned()];
    }
    run
}

/// Builds a run with one cell for each seed.
fn run(seeds: &[(u64, f64)]) -> StoredResults {
    let mut run = stored(
        json!({}),
        seeds
            .iter()
            .map(|&(seed, value)| {
                let number = number("ghosted", "rte", value, "0101");
                ResultRow { cell: format!("llama/ghosted@{seed}"), ..number }
            })
            .collect(),
    );
    for (seed, _) in seeds {
        let condition = run.numbers[0].record.condition.clone();
        run.identities.insert(format!("llama/ghosted@{seed}"), identity(&condition, *seed));
    }
    run
}

#[test]
fn cells_that_differ_only_in_seed_are_paired_by_seed() {
    let both = run(&[(0, 50.0), (1, 75.0)]);
    let same = Differences::between(&both, &both, &[]).unwrap();
    assert_eq!((same.compared, same.values.len(), same.coinciding.len()), (2, 0, 0));
    // A run that has one of the two seeds is compared with the cell for that seed.
    let other = Differences::between(&both, &run(&[(1, 75.0)]), &[]).unwrap();
    assert_eq!((other.compared, other.values.len(), other.only_first.len()), (1, 0, 1));
    assert_eq!(other.only_first[0].cell, "llama/ghosted@0");
}

#[test]
fn numbers_are_paired_across_a_uniform_setting_change() {
    let changed = Differences::between(&run(&[(0, 50.0)]), &run(&[(7, 75.0)]), &[]).unwrap();
    assert_eq!((changed.compared, changed.values.len()), (1, 1));
    let global_differences: Vec<_> = changed
        .global_differences
        .iter()
        .map(|change| {
            (
                change.path.as_str(),
                change.first.as_ref().map(Canonical::value),
                change.second.as_ref().map(Canonical::value),
            )
        })
        .collect();
    assert_eq!(global_differences, [("calibration.seed", Some(json!(0)), Some(json!(7)))]);
    // Two numbers in one run match the same number in the other run, so none of them are paired.
    let several = Differences::between(&run(&[(0, 50.0), (1, 60.0)]), &run(&[(7, 75.0)]), &[]).unwrap();
    assert_eq!((several.compared, several.only_first.len(), several.only_second.len()), (0, 2, 1));
}

#[test]
fn numbers_with_duplicate_identity_are_not_paired() {
    let duplicate =
        with_identity_change(run(&[(0, 50.0), (1, 75.0)]), |identity| identity["calibration"]["seed"] = json!(0));
    let found = Differences::between(&duplicate, &run(&[(0, 50.0)]), &[]).unwrap();
    assert_eq!((found.compared, found.values.len(), found.coinciding.len()), (0, 0, 1));
    assert_eq!((found.coinciding[0].first.len(), found.coinciding[0].second.len()), (2, 1));
}

#[test]
fn differences_list_settings_values_and_unmatched_cells() {
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
    let mut one = one;
    let mut two = two;
    for run in [&mut one, &mut two] {
        run.inputs.insert("rte.jsonl".into(), "11".into());
    }
    let differences = Differences::between(&one, &two, &[]).unwrap();
    let paths: Vec<&str> = differences.settings.iter().map(|setting| setting.path.as_str()).collect();
    assert_eq!(paths, ["calibration", "corpora.c4.column", "corpora.c4.limit"], "a file location is not a setting");
    assert_eq!(differences.settings[1].first, None);
    assert_eq!((differences.compared, differences.values.len()), (2, 1));
    let value = &differences.values[0];
    assert_eq!((value.first.value, value.second.value), (Some(75.0), Some(25.0)));
    // Two of four correct answers became wrong, so McNemar's exact test gives p = 2 · ½².
    let paired = value.paired.as_ref().unwrap();
    assert_eq!((paired.difference, paired.p), (-50.0, 0.5));
    assert_eq!(
        (differences.only_first[0].record.metric.as_str(), differences.only_second[0].record.metric.as_str()),
        ("boolq", "copa")
    );
    assert!(Differences::between(&one, &one, &[]).unwrap().values.is_empty());
}

#[test]
fn changed_data_is_listed_and_prevents_paired_tests() {
    let settings = json!({"corpora": {"c4": {"path": "a"}}, "backbones": {"llama": {"path": "m"}}});
    let right = [number("none", "rte", 50.0, "0101")];
    let mut one = stored(settings.clone(), right.to_vec());
    let mut two = stored(settings, vec![number("none", "rte", 25.0, "0001")]);
    one.inputs.extend([("a".into(), "11".into()), ("m/config.json".into(), "22".into())]);
    two.inputs.extend([("a".into(), "33".into()), ("m/config.json".into(), "22".into())]);
    one.protocols.insert("rte".into(), protocol("44"));
    two.protocols.insert("rte".into(), protocol("44"));
    let differences = Differences::between(&one, &two, &[]).unwrap();
    assert!(differences.settings.is_empty());
    let data: Vec<&str> = differences.data.iter().map(|change| change.path.as_str()).collect();
    assert_eq!(data, ["corpora.c4"]);
    assert!(differences.values[0].paired.is_some(), "the task is the same");
    two.protocols.insert("rte".into(), protocol("55"));
    let differences = Differences::between(&one, &with_rows(two, "55"), &[]).unwrap();
    assert_eq!(differences.protocols.len(), 1);
    let global_differences: Vec<&str> =
        differences.global_differences.iter().map(|change| change.path.as_str()).collect();
    assert_eq!(global_differences, ["measure.0.task.rows"]);
    assert!(!differences.values[0].same_items && differences.values[0].paired.is_none());
}

fn protocol(data: &str) -> Value {
    json!({"data": [data], "documents": 4})
}

#[test]
fn values_beyond_the_engine_tolerance_are_flagged() {
    let settings = json!({"backbones": {"llama": {"path": "m"}}});
    let numbers = |value| vec![number("none", "rte", value, "0101"), number("ghosted", "rte", value, "0101")];
    let mut one = stored(settings.clone(), numbers(50.0));
    let mut two = stored(settings, numbers(75.0));
    two.numbers[1].sample = Sample::from_bits("0111");
    for run in [&mut one, &mut two] {
        run.inputs.insert("m/config.json".into(), "22".into());
    }
    let beyond = |one: &StoredResults, two: &StoredResults| {
        let differences = Differences::between(one, two, &[]).unwrap();
        (differences.engines, differences.values.iter().map(|value| value.beyond).collect::<Vec<_>>())
    };
    assert_eq!(beyond(&one, &two), (Vec::new(), vec![None, None]), "a run without recorded engines used the CPU");
    let candle = ComputeId { name: "candle".into(), dtype: "bf16".into(), device: "cuda".into() };
    two.engines.insert("llama".into(), candle.clone());
    let mut two = with_identity_change(two, |identity| identity["engine"] = json!(candle));
    // The engine for GPUs uses a larger batch.
    for measures in two.measured.values_mut().flat_map(BTreeMap::values_mut) {
        let mut parts = json!(measures);
        parts[0]["task"]["batch"] = json!(8192);
        *measures = serde_json::from_value(parts).unwrap();
    }
    let (engines, values) = beyond(&one, &two);
    assert_eq!(engines[0].path.as_str(), "backbones.llama");
    assert_eq!(
        [&engines[0].first, &engines[0].second].map(|engine| engine.as_ref().map(Canonical::value)),
        [Some("cpu f32 on cpu".into()), Some("candle bf16 on cuda".into())]
    );
    assert_eq!(values, [Some(false), Some(true)]);
    // If the weights differ too, no bound on the difference is known.
    two.inputs.insert("m/config.json".into(), "33".into());
    let two = with_identity_change(two, |identity| identity["model"]["content"] = json!("another"));
    assert_eq!(beyond(&one, &two).1, [None, None]);
}

#[test]
fn name_map_pairs_backbones_and_rejects_unknown_names() {
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
    let differences = Differences::between(&one, &two, &[]).unwrap();
    assert_eq!((differences.compared, differences.only_first.len()), (0, 1));
    let map = [("llama".to_string(), "qwen".to_string())];
    let differences = Differences::between(&one, &two, &map).unwrap();
    assert_eq!((differences.compared, differences.only_first.len(), differences.only_second.len()), (1, 0, 0));
    assert!(differences.values[0].paired.is_some());
    let paths: Vec<&str> = differences.settings.iter().map(|setting| setting.path.as_str()).collect();
    assert_eq!(paths, ["backbones.qwen.path"], "a mapped name is not a difference");
    let data: Vec<&str> = differences.data.iter().map(|change| change.path.as_str()).collect();
    assert_eq!(data, ["backbones.qwen", "tokenizers.qwen"]);
    for (from, to, words) in [("lama", "qwen", "did you mean `llama`?"), ("llama", "qwem", "did you mean `qwen`?")] {
        let error = Differences::between(&one, &two, &[(from.into(), to.into())]).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains(words), "{error}");
    }
}

fn settings(name: &str) -> Value {
    json!({"backbones": {name: {"path": format!("models/{name}")}}, "backbone": [name]})
}

#[test]
fn equal_identities_are_paired_despite_different_names() {
    let one = stored(json!({}), vec![number("none", "rte", 50.0, "0101")]);
    let mut two = one.clone();
    two.numbers[0].record.condition.backbone = "mine".into();
    two.numbers[0].record.condition.recovery = "called otherwise".into();
    let measured = two.measured.remove("llama").unwrap();
    two.measured.insert("mine".into(), measured);
    two.numbers[0].record.value = Some(75.0);
    let found = Differences::between(&one, &two, &[]).unwrap();
    assert_eq!((found.compared, found.values.len(), found.global_differences.len()), (1, 1, 0));
    assert!(found.values[0].same_items);
    // If one run has two names for the same backbone, the numbers are paired by name.
    let mut both = one.clone();
    both.numbers.push(ResultRow { cell: "mine/none".into(), ..two.numbers[0].clone() });
    both.identities.insert("mine/none".into(), both.identities["llama/none"].clone());
    both.measured.extend(two.measured.clone());
    let found = Differences::between(&both, &both, &[]).unwrap();
    assert_eq!((found.compared, found.values.len(), found.coinciding.len()), (2, 0, 0));
    let found = Differences::between(&both, &one, &[]).unwrap();
    assert_eq!((found.compared, found.values.len(), found.only_first.len()), (1, 0, 1));
    assert_eq!(found.only_first[0].cell, "mine/none");
}

#[test]
fn changed_option_of_one_method_is_reported() {
    let one = stored(json!({}), vec![number("none", "rte", 50.0, "0101"), number("ghosted", "rte", 75.0, "0111")]);
    let two = with_identity_change(one.clone(), |identity| {
        if identity["repair"]["recovery"] == "ghosted" {
            identity["repair"]["options"]["solver"] = json!("normal");
        }
    });
    let found = Differences::between(&one, &two, &[]).unwrap();
    assert_eq!((found.compared, found.coinciding.len()), (2, 0));
    let global_differences: Vec<_> = found
        .global_differences
        .iter()
        .map(|change| {
            (
                change.path.as_str(),
                change.first.as_ref().map(Canonical::value),
                change.second.as_ref().map(Canonical::value),
            )
        })
        .collect();
    assert_eq!(global_differences, [("repair.options.solver", Some(json!("svd")), Some(json!("normal")))]);
}

#[test]
fn every_setting_that_differs_is_reported() {
    let one = stored(json!({}), vec![number("none", "rte", 50.0, "0101")]);
    let flat = one.flat_settings(&one.numbers[0]).unwrap();
    assert!(flat.len() > 20, "{flat:?}");
    let mut count = 0;
    for path in flat.keys().filter(|leave| !leave.is_of("measure")) {
        let two = with_identity_change(one.clone(), |identity| {
            let value = identity.pointer_mut(&format!("/{}", path.as_str().replace('.', "/"))).unwrap();
            *value = if value.is_number() { json!(7) } else { json!("another") };
        });
        let found = Differences::between(&one, &two, &[]).unwrap();
        // Numbers of different methods are never paired.
        if ["cut.criterion", "repair.recovery"].contains(&path.as_str()) {
            assert_eq!((found.compared, found.only_first.len(), found.only_second.len()), (0, 1, 1), "{path}");
            continue;
        }
        assert_eq!((found.compared, found.coinciding.len()), (1, 0), "{path}");
        let global_differences: Vec<&str> =
            found.global_differences.iter().map(|change| change.path.as_str()).collect();
        // The engine and the content of a backbone are listed under its name instead.
        let by_name = path.is_of("model") || path.is_of("engine");
        assert_eq!(global_differences, if by_name { Vec::new() } else { vec![path.as_str()] });
        count += global_differences.len();
    }
    assert!(count > 10, "{count}");
}
