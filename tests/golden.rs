//! Checks the versions of pipeline stages. A stage whose output changes needs a new version. Otherwise, objects stored
//! by the old code would be reused.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::collections::{BTreeMap, BTreeSet};

use crate::common;
use crate::common::world::World;
use crate::common::{fixture, json};
use ghostlab::pipeline::stage;
use ghostlab_store::Store;
use serde_json::{Value, json};

/// Relative tolerance. It exceeds the rounding differences between instruction sets: changing half of the weights by
/// one ulp changes no number by more than 2e-7. Real changes to a stage exceed the tolerance.
const TOLERANCE: f64 = 1e-5;

/// Collects the versioned stages in an object's key: the stage of the object and those of its inputs.
fn collect_stages(key: &Value, stages: &mut BTreeSet<String>) {
    let Value::Object(map) = key else { return };
    if let (Some(Value::String(kind)), Some(version)) = (map.get("kind"), map.get("version")) {
        stages.insert(format!("{kind}-v{version}"));
    }
    map.values().for_each(|value| collect_stages(value, stages));
}

/// Formats an object's key, leaving out versions, hashes and input names.
fn format_key(key: &Value) -> String {
    match key {
        Value::Object(map) => {
            let entries = map.iter().filter(|(key, _)| !["version", "input"].contains(&key.as_str()));
            let entries = entries.map(|(key, value)| format!("{key}={}", format_key(value)));
            format!("({})", entries.collect::<Vec<_>>().join(" "))
        }
        Value::Array(items) => items.iter().map(format_key).collect::<Vec<_>>().join(","),
        Value::String(text) if text.len() == 64 => "#".to_string(),
        other => other.to_string(),
    }
}

/// Collects all numbers in a JSON value in order, except times.
fn collect_numbers(value: &Value, found: &mut Vec<f64>) {
    match value {
        Value::Number(number) => found.push(number.as_f64().unwrap()),
        Value::Array(items) => items.iter().for_each(|item| collect_numbers(item, found)),
        Value::Object(map) => {
            // Skip condition numbers, because they mostly reflect how the smallest singular value was rounded.
            map.iter()
                .filter(|(key, _)| !key.contains("seconds") && *key != "condition")
                .for_each(|(_, value)| collect_numbers(value, found));
        }
        _ => {}
    }
}

/// Summarizes a file of a stored object as a few numbers.
fn summarize_payload(file: &str, bytes: &[u8]) -> Vec<f64> {
    let values: Vec<f64> = match file.rsplit('.').next().unwrap() {
        "json" => {
            let mut found = Vec::new();
            collect_numbers(&serde_json::from_slice(bytes).unwrap(), &mut found);
            found
        }
        "f64" => bytemuck::pod_collect_to_vec::<u8, f64>(bytes),
        "f32" => bytemuck::pod_collect_to_vec::<u8, f32>(bytes).into_iter().map(f64::from).collect(),
        "u32" => return summarize_exactly(bytes),
        other => panic!("unknown payload format: {other}"),
    };
    summarize(&values)
}

/// Summarizes bytes that must match exactly as their length and 32 bits of their hash.
fn summarize_exactly(bytes: &[u8]) -> Vec<f64> {
    let hash = ghostlab::files::sha256::of_bytes(bytes);
    vec![bytes.len() as f64, f64::from(u32::from_str_radix(&hash[..8], 16).unwrap())]
}

fn summarize(values: &[f64]) -> Vec<f64> {
    vec![values.len() as f64, weighted_sum(values, f64::abs), weighted_sum(values, |v| v * v)]
}

/// Returns a sum whose weights depend on the position, so that swapped numbers are detected. If `map` takes
/// absolute values, the terms cannot cancel out and leave only rounding errors.
fn weighted_sum(values: &[f64], map: fn(f64) -> f64) -> f64 {
    values.iter().enumerate().map(|(i, &v)| map(v) * (1.0 + (i % 7) as f64)).sum()
}

/// Outputs of one kind of stored object, keyed by name, and the stages that produced them.
#[derive(Default)]
struct Outputs {
    values: BTreeMap<String, Vec<f64>>,
    stages: BTreeSet<String>,
}

/// Computes the outputs of every stage on a small grid that uses all kinds of methods.
fn compute_outputs() -> BTreeMap<&'static str, Outputs> {
    let world = World::large();
    world.run_ok(&["--set", "recovery=[none, prune-and-comp, replaceme-ls, linearpatch-rotate, ghosted]"]);
    world.run_ok(&[
        "--set",
        "criterion=llm-streamline",
        "--set",
        "recovery=[{name: ghosted, finetune: {sequences: 4, length: 32}}]",
    ]);
    world.write("rows.jsonl", (0..9).map(|i| format!("{{\"question\": \"w{i} w{}\"}}\n", i * 7)).collect::<String>());
    world.write(
        "answers.yaml",
        "task: answers\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\ntest_split: test\n\
         output_type: generate_until\ndoc_to_text: \"{{question}}\"\ndoc_to_target: w7\n\
         generation_kwargs: {until: [\"w9\"], do_sample: false, max_gen_toks: 6}\nmetric_list: [{metric: exact_match}]\n",
    );
    let generated = ["criterion=llm-streamline", "recovery=[none]", "evaluate={tasks: [{definition: answers.yaml}]}"];
    world.run_ok(&generated.map(|set| ["--set", set]).concat());
    let store = Store::open_read_only(&world.path("data/store"), stage::STORE_WORDS).unwrap();
    let mut outputs: BTreeMap<&str, Outputs> = BTreeMap::new();
    for entry in store.entries() {
        let Ok(artifact) = entry.object else { panic!("a stored object is damaged") };
        let key = &artifact.meta().key;
        let kind = stage::KINDS.into_iter().find(|kind| key["kind"] == kind.name()).unwrap();
        let kind_outputs = outputs.entry(kind.name()).or_default();
        collect_stages(key, &mut kind_outputs.stages);
        // Skip the most likely tokens, because two tokens with nearly equal probabilities may swap.
        for file in artifact.payloads().filter(|file| *file != "likeliest.u32") {
            let values = summarize_payload(file, &artifact.read(file).unwrap());
            let before = kind_outputs.values.insert(format!("{} {file}", format_key(&key["of"])), values);
            assert!(before.is_none(), "duplicate artifact name: {}", format_key(key));
        }
    }
    outputs
}

fn are_different(ours: &[f64], golden: &Value) -> bool {
    let golden = common::numbers(golden);
    ours.len() != golden.len()
        || !ours.iter().zip(golden).all(|(a, b)| (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()).max(1e-6))
}

#[test]
fn changed_stage_output_needs_a_new_version() {
    let path = fixture("golden.json");
    let golden = if path.exists() { json(&path) } else { json!({}) };
    let outputs = compute_outputs();
    let mut renewed = serde_json::Map::new();
    // Skip latencies, which are not reproducible.
    for kind in stage::KINDS.into_iter().filter(|kind| *kind != stage::latency::KIND) {
        let Outputs { values, stages } = &outputs[kind.name()];
        let stored = &golden[kind.name()];
        let changed: Vec<&String> = values
            .iter()
            .filter(|(name, v)| stored["outputs"].get(*name).is_none_or(|g| are_different(v, g)))
            .map(|(name, _)| name)
            .collect();
        let same = changed.is_empty() && stored["outputs"].as_object().is_some_and(|all| all.len() == values.len());
        if stored["stages"] == json!(stages) {
            // New outputs do not require a new version, but `GHOSTLAB_BLESS` must be set to record them.
            let added = changed.iter().all(|name| stored["outputs"].get(name.as_str()).is_none());
            assert!(
                same || (added && std::env::var_os("GHOSTLAB_BLESS").is_some()),
                "the output of stage `{}` has changed, but neither its version nor that of an input stage has: raise the \
                 version in src/pipeline/stage, then run this test with GHOSTLAB_BLESS=1 to update \
                 tests/fixtures/golden.json; first change: {:?}",
                kind.name(),
                changed.first()
            );
        } else {
            assert!(
                std::env::var_os("GHOSTLAB_BLESS").is_some(),
                "`{}` depends on stages with new versions, {stages:?}: run this test with GHOSTLAB_BLESS=1 to update \
                 tests/fixtures/golden.json",
                kind.name()
            );
        }
        renewed.insert(kind.name().to_string(), json!({"stages": stages, "outputs": values}));
    }
    if std::env::var_os("GHOSTLAB_BLESS").is_some() {
        std::fs::write(path, serde_json::to_string_pretty(&renewed).unwrap() + "\n").unwrap();
    }
}
