//! Tasks by definitions of lm-evaluation-harness against the harness itself: `simple_evaluate` on an embedded backbone, with
//! definitions and rows that `tools/harness_scores.py` makes up. What is asked is equal to the byte, log-likelihoods within
//! 1e-3, scores and standard errors as far as those allow.
//!
//! Skipped, with the reason, where `GHOSTLAB_PYTHON` names no interpreter that has `lm_eval`. `.ci/run` makes one.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_macros,
    reason = "a test stops at what it lacks, and says what it skips"
)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::world::World;
use ghostlab_definitions::aggregate::{Aggregation, Item};
use ghostlab_definitions::{Library, Value as Plain};
use serde_json::{Value, json};

/// A log-likelihood, in nats: f32 kernels of two programs.
const LIKELIHOOD: f64 = 1e-3;
/// A chat template with special tokens, roles and trimmed contents.
const CHAT: &str = "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] | trim }}\n\
    {% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

fn python() -> Option<PathBuf> {
    let named = std::env::var_os("GHOSTLAB_PYTHON").filter(|named| named != "skip").map(PathBuf::from);
    if named.is_none() {
        let left_to_another_step = std::env::var_os("GHOSTLAB_PYTHON").is_some();
        let in_ci = std::env::var("CI").is_ok_and(|value| !value.is_empty());
        assert!(left_to_another_step || !in_ci, "in CI this may not be skipped: GHOSTLAB_PYTHON names no interpreter");
        eprintln!("skipped: GHOSTLAB_PYTHON names no interpreter with lm_eval");
    }
    named
}

/// The embedded backbone with a chat template.
fn model(world: &World) -> PathBuf {
    let model = world.path("model");
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(common::checkout().join("data/tiny/llama")).unwrap().flatten() {
        fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
    }
    fs::write(model.join("chat_template.jinja"), CHAT).unwrap();
    model
}

/// What `score` writes of all definitions in a setting: its results file, and each task's samples.
fn scored(world: &World, out: &Path, asked: &Value, system: &str) -> (Value, BTreeMap<String, Vec<Value>>) {
    let name = |what: &str| format!("{what}-{}-{}", asked["shots"], asked["chat"]);
    let (results, samples) = (world.path(&name("results.json")), world.path(&name("samples")));
    let definitions = out.join("defs");
    let mut command = world.command(&["score"]);
    command.arg(world.path("model")).arg("--tasks").arg(&definitions).arg("--output").arg(&results);
    command.arg("--samples").arg(&samples);
    if let Some(shots) = asked["shots"].as_u64() {
        command.args(["--shots", &shots.to_string()]);
    }
    if asked["chat"] == true {
        command.args(["--chat", "--system", system]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = |path: &Path| -> Vec<Value> {
        fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let of = |entry: fs::DirEntry| {
        let file = entry.file_name().to_string_lossy().into_owned();
        (file.strip_prefix("samples_").unwrap().strip_suffix(".jsonl").unwrap().to_owned(), lines(&entry.path()))
    };
    (common::json(&results), fs::read_dir(samples).unwrap().flatten().map(of).collect())
}

/// A number that may be written as a text.
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| value.as_str().unwrap().parse().unwrap())
}

/// The arguments of a request: those of the harness' results are lists, those of its files have names.
fn arguments(of: &Value) -> Vec<Vec<String>> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    match of {
        Value::Array(all) => all.iter().map(|one| one.as_array().unwrap().iter().map(text).collect()).collect(),
        all => (0..all.as_object().unwrap().len())
            .map(|at| all[format!("gen_args_{at}")].as_object().unwrap().values().map(text).collect())
            .collect(),
    }
}

/// The numbers and truths of answers, in order.
fn flat(answers: &Value) -> Vec<String> {
    match answers {
        Value::Array(items) => items.iter().flat_map(flat).collect(),
        Value::String(text) => vec![text.clone()],
        Value::Bool(truth) => vec![if *truth { "True" } else { "False" }.to_owned()],
        other => vec![other.to_string()],
    }
}

fn near(what: &str, own: f64, theirs: f64, tolerance: f64) {
    assert!((own - theirs).abs() <= tolerance, "{what}: {own}, the harness has {theirs}");
}

#[test]
fn requests_likelihoods_scores_errors_and_groups_are_those_of_the_harness() {
    let Some(python) = python() else { return };
    let world = World::new();
    let (model, out) = (model(&world), world.path("harness"));
    let script = common::checkout().join("tools/harness_scores.py");
    let made = Command::new(python).arg(script).arg(&out).arg(&model).env("HF_HUB_OFFLINE", "1").output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let harness = common::json(&out.join("scores.json"));
    let draws = usize::try_from(harness["draws"].as_u64().unwrap()).unwrap();
    let library = Library::of_folders(&[&out.join("defs")]).unwrap();
    let definitions: BTreeMap<String, _> =
        library.all().unwrap().tasks.into_iter().map(|of| (of.name.clone(), of)).collect();
    assert!(definitions.len() >= 12, "{}", definitions.len());
    let (mut likelihoods, mut scores, mut errors, mut groups) = (0, 0, 0, 0);
    for asked in harness["asked"].as_array().unwrap() {
        let setting = format!("{} shots, chat {}", asked["shots"], asked["chat"]);
        let (own, samples) = scored(&world, &out, asked, harness["system"].as_str().unwrap());
        for (name, definition) in &definitions {
            let what = format!("{name}, {setting}");
            let theirs = asked["samples"][name].as_array().unwrap();
            let ours = &samples[name];
            assert_eq!(ours.len(), theirs.len(), "{what}: samples");
            let same = |key: &str| {
                ours.iter().zip(theirs).for_each(|(own, theirs)| assert_eq!(own[key], theirs[key], "{what}: {key}"));
            };
            ["doc_id", "doc_hash", "prompt_hash", "target_hash", "filter", "metrics", "doc"].into_iter().for_each(same);
            let mut most = 0.0_f64;
            for (own, theirs) in ours.iter().zip(theirs) {
                let what = format!("{what}, document {}", own["doc_id"]);
                assert_eq!(arguments(&own["arguments"]), arguments(&theirs["arguments"]), "{what}");
                let (one, two) = (flat(&own["resps"]), flat(&theirs["resps"]));
                assert_eq!(one.len(), two.len(), "{what}");
                for (one, two) in one.iter().zip(&two) {
                    match (one.parse::<f64>(), two.parse::<f64>()) {
                        (Ok(one), Ok(two)) => {
                            likelihoods += 1;
                            most = most.max((one - two).abs());
                            // A text of many windows is a sum of as many.
                            let tolerance = LIKELIHOOD.max(LIKELIHOOD * two.abs() / 500.0);
                            near(&what, one, two, tolerance);
                        }
                        _ => assert_eq!(one, two, "{what}: whether it is the likeliest"),
                    }
                }
            }
            for metric in &definition.metrics {
                let key = format!("{},none", metric.kind.name());
                let (one, two) = (number(&own["results"][name][&key]), number(&asked["results"][name][&key]));
                scores += 1;
                let exact = matches!(metric.aggregation, Aggregation::Mean | Aggregation::F1 | Aggregation::Matthews);
                let tolerance = if exact { 1e-12 } else { 1e-3 * two.abs() };
                near(&format!("{what}, {key}"), one, two, tolerance);
                let of_error = format!("{}_stderr,none", metric.kind.name());
                let (one, two) = (&own["results"][name][&of_error], &asked["results"][name][&of_error]);
                match (two.as_f64(), metric.aggregation) {
                    (None, _) => assert_eq!((one, two), (&json!("N/A"), &json!("N/A")), "{what}, {of_error}"),
                    (Some(two), Aggregation::Mean) => near(&format!("{what}, {of_error}"), number(one), two, 1e-12),
                    // By as many draws as the harness took here, of the items that it noted.
                    (Some(two), aggregation) => {
                        let item = |sample: &Value| match &sample[metric.kind.name()] {
                            Value::Array(pair) => Item::Labels(Plain::from(pair[0].clone()), pair[1].as_i64().unwrap()),
                            one => Item::Number(number(one)),
                        };
                        let items: Vec<Item> = theirs.iter().map(item).collect();
                        let one = aggregation.error(&items, draws).unwrap().unwrap();
                        near(&format!("{what}, {of_error}"), one, two, 1e-9 * two.abs());
                    }
                }
                errors += 1;
            }
            for part in ["n-samples", "n-shot", "higher_is_better", "versions"] {
                assert_eq!(own[part][name], asked[part][name], "{what}: {part}");
            }
        }
        for group in ["made_inner", "made_outer"] {
            let theirs = asked["results"][group].as_object().unwrap();
            let of_numbers = theirs.iter().filter(|(key, _)| key.contains(','));
            for (key, theirs) in of_numbers {
                groups += 1;
                near(&format!("{group}, {setting}, {key}"), number(&own["results"][group][key]), number(theirs), 1e-12);
            }
        }
    }
    println!(
        "{likelihoods} log-likelihoods, {scores} scores, {errors} standard errors, {groups} values of groups compared"
    );
    assert!(likelihoods > 1000 && groups >= 24, "{likelihoods} {groups}");
}
