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

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::world::World;
use ghostlab_definitions::Library;
use ghostlab_definitions::aggregate::{Aggregation, Item};
use serde_json::{Value, json};

/// A log-likelihood, in nats: f32 kernels of two programs.
const LIKELIHOOD: f64 = 1e-3;
/// A chat template with special tokens, roles and trimmed contents.
const CHAT: &str = "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] | trim }}\n\
    {% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

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
    let Some(python) = common::python::python("lm_eval") else { return };
    let world = World::new();
    let (model, out) = (model(&world), world.path("harness"));
    common::python::printed(&mut common::python::script(&python, "harness_scores.py", [&out, &model]));
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
                            Value::Array(pair) => Item::Labels(
                                serde_json::from_value(pair[0].clone()).unwrap(),
                                pair[1].as_i64().unwrap(),
                            ),
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

/// A world whose grid scores a definition in the folder `defs`.
fn defined(definition: &str, options: &str) -> World {
    let world = World::new();
    fs::create_dir(world.path("defs")).unwrap();
    fs::create_dir(world.path("rows")).unwrap();
    let row = |at: usize| json!({"text": format!("w{at} w{}", at * 7 % 299), "label": at % 2, "list": ["w1", "w2"]});
    for (split, count) in [("train", 5), ("test", 6)] {
        let rows = (0..count).map(|at| format!("{}\n", row(3 * at + count)));
        world.write(&format!("rows/{split}.jsonl"), rows.collect::<String>());
    }
    world.write("backbone/tokenizer_config.json", json!({"bos_token": "w1"}).to_string());
    world.write("defs/made.yaml", definition);
    world.write(
        "grid.yaml",
        format!(
            "backbones:\n  tiny: {{path: backbone}}\nbackbone: tiny\nevaluate:\n  tasks:\n\
             \x20   - {{definition: defs, data: rows{options}}}\n"
        ),
    );
    world
}

const MADE: &str = "task: made\ndataset_path: a/b\ntraining_split: train\ntest_split: test\n\
    output_type: multiple_choice\ndoc_to_text: '{{text}} w9'\ndoc_to_choice: list\ndoc_to_target: label\n\
    metric_list:\n  - metric: acc\n";

#[test]
fn a_grid_of_a_definition_runs_once_and_another_metric_computes_nothing() {
    let world = defined(MADE, ", shots: 2, generated: true");
    world.write("defs/all.yaml", "group: all\ntask: [made]\naggregate_metric_list: [{metric: acc}]\n");
    let log = world.runs(&[]);
    assert!(log.contains("tiny on made(shots=2)"), "{log}");
    let head = || fs::read_to_string(world.path("results/grid/results.csv")).unwrap();
    assert!(head().contains("made(shots=2)") && head().contains("all(shots=2)"), "{}", head());
    let results = || common::json(&world.path("results/grid/lm_eval/tiny.dense.json"));
    let first = results();
    assert_eq!(first["results"]["made"]["acc,none"], first["groups"]["all"]["acc,none"]);
    assert_eq!((&first["n-shot"]["made"], &first["n-samples"]["made"]["effective"]), (&json!(2), &json!(6)));
    world.write("defs/made.yaml", format!("{MADE}  - metric: acc_norm\n"));
    let log = world.runs(&[]);
    assert!(!log.contains("tokens/s"), "{log}");
    assert_eq!(results()["results"]["made"]["acc,none"], first["results"]["made"]["acc,none"]);
    assert!(results()["results"]["made"]["acc_norm,none"].is_number());
    // The same by `score`, and what was asked and answered.
    let output = world.ghostlab(&[
        "score",
        "backbone",
        "--tasks",
        "defs/",
        "--rows",
        "rows",
        "--shots",
        "2",
        "--samples",
        "said",
        "--json",
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["answer"]["lm_eval"]["results"], results()["results"], "{answer:#}");
    let said = fs::read_to_string(world.path("said/samples_made.jsonl")).unwrap();
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mean = lines.iter().map(|line| line["acc"].as_f64().unwrap()).sum::<f64>() / 6.0;
    assert_eq!((lines.len(), json!(mean)), (6, first["results"]["made"]["acc,none"].clone()));
    // Whoever checks the folder computes it afresh.
    let output = world.ghostlab(&["verify", "results/grid", "--share", "100%"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn what_cannot_be_scored_by_a_definition_is_refused_with_its_place() {
    let target = |more: &str| format!("{MADE}{more}");
    let replaced = |from: &str, to: &str| MADE.replace(from, to);
    for (definition, options, code, words) in [
        (target("output_type: generate_until\n"), "", 2, &["made.yaml:"][..]),
        (target("doc_to_txt: a\n"), "", 2, &["`doc_to_txt` is no key", "made.yaml:11", "is `doc_to_text` meant?"]),
        (
            target("process_results: !function utils.f\n"),
            "",
            2,
            &["`process_results` is a Python hook", "made.yaml:11"],
        ),
        (replaced("{{text}}", "{{txt}}"), "", 2, &["txt", "made.yaml:6", "label, list, text"]),
        (
            replaced("{{text}}", "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"),
            "",
            2,
            &["does not come to an end"],
        ),
        (
            replaced("{{text}}", "{% set x = text * 1000000 %}{% for a in range(999) %}{{ x }}{% endfor %}"),
            "",
            2,
            &["MB of text", "made.yaml:6"],
        ),
        (replaced("{{text}}", "{{ [1].index(2) }}"), "", 2, &["not in the list", "made.yaml:6"]),
        (replaced("test_split: test", "test_split: absent"), "", 3, &["no split `absent`"]),
        (
            replaced("doc_to_choice: list", "doc_to_choice: ['', 'w2']\ntarget_delimiter: ''"),
            "",
            2,
            &["a choice is empty"],
        ),
        (MADE.to_owned(), ", max_length: 1, shots: 9", 2, &["too few examples"]),
        (
            replaced("doc_to_choice: list", "doc_to_choice: ['w1 w2 w3', 'w2']"),
            ", max_length: 2",
            2,
            &["the continuation is longer", "test.jsonl:1, choice 1"],
        ),
        (MADE.to_owned(), ", chat: true", 2, &["no chat template"]),
        (MADE.to_owned(), ", multiturn: true", 2, &["`multiturn` belongs to `chat: true`", "grid.yaml:6"]),
        (MADE.to_owned(), ", name: copa", 2, &["either `name` or `definition`", "grid.yaml:6"]),
    ] {
        defined(&definition, options).refuses(&[], code, words);
    }
    let world = defined(MADE, "");
    world.write(
        "grid.yaml",
        "backbones:\n  tiny: {path: backbone}\nbackbone: tiny\nevaluate:\n  tasks: {name: copa, shots: 2}\n",
    );
    world.refuses(&[], 2, &["`shots` belongs to `definition`", "grid.yaml:5"]);
    let output = world.ghostlab(&["score", "backbone", "--tasks", "copa=rows/test.jsonl", "--shots", "2"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && text.contains("--shots"), "{text}");
}

#[test]
fn a_context_longer_than_the_model_is_cut_from_the_left_and_told() {
    let world = defined(MADE, ", shots: 3, max_length: 6");
    world.runs(&[]);
    let run = common::json(&world.path("results/grid/run.json"));
    let cell = &run["cells"][0]["definitions"][0];
    assert_eq!((&cell["truncated"], &cell["effective"]), (&json!(12), &json!(6)), "{cell:#}");
}
