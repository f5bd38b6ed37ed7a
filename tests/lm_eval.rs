//! Compares this program with lm-evaluation-harness on tasks that are defined in its format. `tools/harness_scores.py`
//! generates definitions and rows, and runs `simple_evaluate` on a bundled backbone. Requests must be byte-identical.
//! Log-likelihoods must agree within 1e-3, and scores and standard errors within the bounds that follow from this.
//!
//! Skipped with a message unless `GHOSTLAB_PYTHON` names an interpreter that has `lm_eval`, which `.ci/run` installs.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_macros,
    reason = "tests panic on setup errors, and print why they are skipped"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::world::World;
use ghostlab_definitions::aggregate::{Aggregation, Item};
use ghostlab_definitions::metric::Metric;
use ghostlab_definitions::{Definition, Library};
use serde_json::{Value, json};

/// Maximum difference in nats between log-likelihoods computed by two programs in f32.
const LIKELIHOOD_TOLERANCE: f64 = 1e-3;
/// Chat template that uses special tokens and roles, and trims contents.
const CHAT_TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] | trim }}\n\
    {% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

fn write_model(world: &World) -> PathBuf {
    let model = world.path("model");
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(common::checkout().join("data/tiny/llama")).unwrap().flatten() {
        fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
    }
    fs::write(model.join("chat_template.jinja"), CHAT_TEMPLATE).unwrap();
    model
}

/// Runs `ghostlab score` on all definitions, with the number of shots and the chat flag of a setting recorded by
/// lm-evaluation-harness. Returns the results file, and the samples of each task.
fn run_score(world: &World, out: &Path, setting: &Value, system: &str) -> (Value, BTreeMap<String, Vec<Value>>) {
    let [results, samples] =
        ["results.json", "samples"].map(|what| world.path(&format!("{what}-{}-{}", setting["shots"], setting["chat"])));
    let definitions = out.join("defs");
    let mut command = world.command(&["score"]);
    command.arg(world.path("model")).arg("--tasks").arg(&definitions).arg("--output").arg(&results);
    command.arg("--samples").arg(&samples);
    if let Some(shots) = setting["shots"].as_u64() {
        command.args(["--shots", &shots.to_string()]);
    }
    if setting["chat"] == true {
        command.args(["--chat", "--system", system]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (
        common::json(&results),
        fs::read_dir(samples)
            .unwrap()
            .flatten()
            .map(|entry| {
                let file = entry.file_name().to_string_lossy().into_owned();
                (
                    file.strip_prefix("samples_").unwrap().strip_suffix(".jsonl").unwrap().to_owned(),
                    json_lines(&entry.path()),
                )
            })
            .collect(),
    )
}

fn json_lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Parses a number that may be given as a string.
fn parse_number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| value.as_str().unwrap().parse().unwrap())
}

/// Returns the arguments of a request. lm-evaluation-harness returns them as lists, but its sample files store them as
/// maps with the keys `gen_args_N`.
fn request_arguments(recorded: &Value) -> Vec<Vec<String>> {
    match recorded {
        Value::Array(all) => all.iter().map(|one| one.as_array().unwrap().iter().map(text_of).collect()).collect(),
        all => (0..all.as_object().unwrap().len())
            .map(|at| all[format!("gen_args_{at}")].as_object().unwrap().values().map(text_of).collect())
            .collect(),
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// Flattens nested answers into a list of strings.
fn flatten_answers(answers: &Value) -> Vec<String> {
    match answers {
        Value::Array(items) => items.iter().flat_map(flatten_answers).collect(),
        Value::String(text) => vec![text.clone()],
        Value::Bool(truth) => vec![if *truth { "True" } else { "False" }.to_owned()],
        other => vec![other.to_string()],
    }
}

fn assert_near(what: &str, ours: f64, theirs: f64, tolerance: f64) {
    assert!((ours - theirs).abs() <= tolerance, "{what}: {ours}, the harness has {theirs}");
}

#[test]
fn requests_scores_errors_and_groups_match_lm_eval() {
    let Some(python) = common::python::python("lm_eval") else { return };
    let world = World::new();
    let model = write_model(&world);
    let out = world.path("harness");
    common::python::run(&mut common::python::script(&python, "harness_scores.py", [&out, &model]));
    let harness = common::json(&out.join("scores.json"));
    let draws = usize::try_from(harness["draws"].as_u64().unwrap()).unwrap();
    let library = Library::from_folders(&[&out.join("defs")]).unwrap();
    let definitions: BTreeMap<String, Definition> =
        library.all().unwrap().tasks.into_iter().map(|task| (task.name.clone(), task)).collect();
    assert!(definitions.len() >= 12, "{}", definitions.len());
    let mut compared = HarnessComparison::default();
    for expected in harness["asked"].as_array().unwrap() {
        let setting = format!("{} shots, chat {}", expected["shots"], expected["chat"]);
        let (results, samples) = run_score(&world, &out, expected, harness["system"].as_str().unwrap());
        for (name, definition) in &definitions {
            let what = format!("{name}, {setting}");
            let theirs = expected["samples"][name].as_array().unwrap();
            compare_rows(&what, &samples[name], theirs);
            compared.likelihoods += compare_answers(&what, &samples[name], theirs);
            for metric in &definition.metrics {
                let metric_scores =
                    MetricScores { ours: &results["results"][name], theirs: &expected["results"][name] };
                metric_scores.compare_score(&what, metric);
                metric_scores.compare_error(&what, metric, theirs, draws);
                compared.scores += 1;
            }
            for part in ["n-samples", "n-shot", "higher_is_better", "versions"] {
                assert_eq!(results[part][name], expected[part][name], "{what}: {part}");
            }
        }
        compared.groups += compare_groups(&setting, &results["results"], &expected["results"]);
    }
    let HarnessComparison { likelihoods, scores, groups } = compared;
    println!(
        "{likelihoods} log-likelihoods, {scores} scores, {scores} standard errors, {groups} group values compared"
    );
    assert!(likelihoods > 1000 && groups >= 24, "{likelihoods} {groups}");
}

/// Numbers of compared values. Each score is compared together with its standard error.
#[derive(Default)]
struct HarnessComparison {
    likelihoods: usize,
    scores: usize,
    groups: usize,
}

/// Compares those fields of the samples that must be equal.
fn compare_rows(what: &str, ours: &[Value], theirs: &[Value]) {
    assert_eq!(ours.len(), theirs.len(), "{what}: samples");
    for key in ["doc_id", "doc_hash", "prompt_hash", "target_hash", "filter", "metrics", "doc"] {
        ours.iter().zip(theirs).for_each(|(row, theirs)| assert_eq!(row[key], theirs[key], "{what}: {key}"));
    }
}

/// Compares the requests and answers in the samples. Returns the number of log-likelihoods compared.
fn compare_answers(what: &str, ours: &[Value], theirs: &[Value]) -> usize {
    let mut likelihoods = 0;
    for (row, theirs) in ours.iter().zip(theirs) {
        let what = format!("{what}, document {}", row["doc_id"]);
        assert_eq!(request_arguments(&row["arguments"]), request_arguments(&theirs["arguments"]), "{what}");
        let one = flatten_answers(&row["resps"]);
        let two = flatten_answers(&theirs["resps"]);
        assert_eq!(one.len(), two.len(), "{what}");
        for (one, two) in one.iter().zip(&two) {
            match (one.parse::<f64>(), two.parse::<f64>()) {
                (Ok(one), Ok(two)) => {
                    likelihoods += 1;
                    // The tolerance grows with the magnitude of the log-likelihood, because long texts are sums over
                    // many windows.
                    let tolerance = LIKELIHOOD_TOLERANCE.max(LIKELIHOOD_TOLERANCE * two.abs() / 500.0);
                    assert_near(&what, one, two, tolerance);
                }
                _ => assert_eq!(one, two, "{what}: whether the continuation is the most likely one"),
            }
        }
    }
    likelihoods
}

/// Scores for a task from both programs.
struct MetricScores<'a> {
    ours: &'a Value,
    theirs: &'a Value,
}

impl MetricScores<'_> {
    fn compare_score(&self, what: &str, metric: &Metric) {
        let key = format!("{},none", metric.kind.name());
        let one = parse_number(&self.ours[&key]);
        let two = parse_number(&self.theirs[&key]);
        let exact = matches!(metric.aggregation, Aggregation::Mean | Aggregation::F1 | Aggregation::Matthews);
        let tolerance = if exact { 1e-12 } else { 1e-3 * two.abs() };
        assert_near(&format!("{what}, {key}"), one, two, tolerance);
    }

    /// Compares a standard error. `samples` are the items scored by lm-evaluation-harness, and `draws` is its number of
    /// bootstrap draws.
    fn compare_error(&self, what: &str, metric: &Metric, samples: &[Value], draws: usize) {
        let key = format!("{}_stderr,none", metric.kind.name());
        let one = &self.ours[&key];
        let two = &self.theirs[&key];
        match (two.as_f64(), metric.aggregation) {
            (None, _) => assert_eq!((one, two), (&json!("N/A"), &json!("N/A")), "{what}, {key}"),
            (Some(two), Aggregation::Mean) => assert_near(&format!("{what}, {key}"), parse_number(one), two, 1e-12),
            // Recompute the error from the items and the number of bootstrap draws used by lm-evaluation-harness.
            (Some(two), aggregation) => {
                let items: Vec<Item> = samples.iter().map(|sample| parse_item(&sample[metric.kind.name()])).collect();
                let one = aggregation.error(&items, draws).unwrap().unwrap();
                assert_near(&format!("{what}, {key}"), one, two, 1e-9 * two.abs());
            }
        }
    }
}

/// Converts the value of a metric in a sample from lm-evaluation-harness into an [`Item`].
fn parse_item(value: &Value) -> Item {
    match value {
        Value::Array(pair) => Item::Labels(serde_json::from_value(pair[0].clone()).unwrap(), pair[1].as_i64().unwrap()),
        one => Item::Number(parse_number(one)),
    }
}

/// Compares the scores of task groups. Returns the number of values compared.
fn compare_groups(setting: &str, ours: &Value, theirs: &Value) -> usize {
    let mut count = 0;
    for group in ["made_inner", "made_outer"] {
        let values = theirs[group].as_object().unwrap();
        for (key, value) in values.iter().filter(|(key, _)| key.contains(',')) {
            count += 1;
            assert_near(
                &format!("{group}, {setting}, {key}"),
                parse_number(&ours[group][key]),
                parse_number(value),
                1e-12,
            );
        }
    }
    count
}

/// Creates a world whose grid scores a definition in the folder `defs`.
fn world_with_definition(definition: &str, options: &str) -> World {
    let world = World::new();
    fs::create_dir(world.path("defs")).unwrap();
    fs::create_dir(world.path("rows")).unwrap();
    for (split, count) in [("train", 5), ("test", 6)] {
        let rows = (0..count).map(|at| format!("{}\n", labeled_row(3 * at + count)));
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

fn labeled_row(at: usize) -> Value {
    json!({"text": format!("w{at} w{}", at * 7 % 299), "label": at % 2, "list": ["w1", "w2"]})
}

const MADE_TASK: &str = "task: made\ndataset_path: a/b\ntraining_split: train\ntest_split: test\n\
    output_type: multiple_choice\ndoc_to_text: '{{text}} w9'\ndoc_to_choice: list\ndoc_to_target: label\n\
    metric_list:\n  - metric: acc\n";

#[test]
fn definition_grid_reuses_scores_for_a_new_metric() {
    let world = world_with_definition(MADE_TASK, ", shots: 2, generated: true");
    world.write("defs/all.yaml", "group: all\ntask: [made]\naggregate_metric_list: [{metric: acc}]\n");
    let log = world.run_ok(&[]);
    assert!(log.contains("tiny on made(shots=2)"), "{log}");
    assert!(
        fs::read_to_string(world.path("results/grid/results.csv")).unwrap().contains("made(shots=2)")
            && fs::read_to_string(world.path("results/grid/results.csv")).unwrap().contains("all(shots=2)"),
        "{}",
        fs::read_to_string(world.path("results/grid/results.csv")).unwrap()
    );
    let first = read_harness_results(&world);
    assert_eq!(first["results"]["made"]["acc,none"], first["groups"]["all"]["acc,none"]);
    assert_eq!((&first["n-shot"]["made"], &first["n-samples"]["made"]["effective"]), (&json!(2), &json!(6)));
    world.write("defs/made.yaml", format!("{MADE_TASK}  - metric: acc_norm\n"));
    let log = world.run_ok(&[]);
    assert!(!log.contains("tokens/s"), "{log}");
    assert_eq!(read_harness_results(&world)["results"]["made"]["acc,none"], first["results"]["made"]["acc,none"]);
    assert!(read_harness_results(&world)["results"]["made"]["acc_norm,none"].is_number());
    // `score` produces the same requests and answers.
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
    assert_eq!(answer["answer"]["lm_eval"]["results"], read_harness_results(&world)["results"], "{answer:#}");
    let samples = fs::read_to_string(world.path("said/samples_made.jsonl")).unwrap();
    let lines: Vec<Value> = samples.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mean = lines.iter().map(|line| line["acc"].as_f64().unwrap()).sum::<f64>() / 6.0;
    assert_eq!((lines.len(), json!(mean)), (6, first["results"]["made"]["acc,none"].clone()));
    // `verify` must reproduce all results in the folder.
    let output = world.ghostlab(&["verify", "results/grid", "--share", "100%"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn read_harness_results(world: &World) -> Value {
    common::json(&world.path("results/grid/lm_eval/tiny.dense.json"))
}

#[test]
fn unscorable_definition_is_rejected_with_its_location() {
    for (definition, options, code, words) in [
        (definition_with("output_type: generate_until\n"), "", 2, &["made.yaml:"][..]),
        (
            definition_with("doc_to_txt: a\n"),
            "",
            2,
            &["unknown task key `doc_to_txt`", "made.yaml:11", "did you mean `doc_to_text`?"],
        ),
        (
            definition_with("process_results: !function utils.f\n"),
            "",
            2,
            &["`process_results` is a Python hook", "made.yaml:11"],
        ),
        (MADE_TASK.replace("{{text}}", "{{txt}}"), "", 2, &["txt", "made.yaml:6", "label, list, text"]),
        (
            (MADE_TASK
                .replace("{{text}}", "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}")),
            "",
            2,
            &["exceeds the step limit"],
        ),
        (
            (MADE_TASK.replace("{{text}}", "{% set x = text * 1000000 %}{% for a in range(999) %}{{ x }}{% endfor %}")),
            "",
            2,
            &["at most 400 MB of memory", "`doc_to_text`"],
        ),
        (MADE_TASK.replace("{{text}}", "{{ [1].index(2) }}"), "", 2, &["not in the list", "made.yaml:6"]),
        (MADE_TASK.replace("test_split: test", "test_split: absent"), "", 3, &["no split `absent`"]),
        (
            (MADE_TASK.replace("doc_to_choice: list", "doc_to_choice: ['', 'w2']\ntarget_delimiter: ''")),
            "",
            2,
            &["a choice is empty"],
        ),
        (MADE_TASK.to_owned(), ", max_length: 1, shots: 9", 2, &["too few examples"]),
        (
            (MADE_TASK.replace("doc_to_choice: list", "doc_to_choice: ['w1 w2 w3', 'w2']")),
            ", max_length: 2",
            2,
            &["the continuation exceeds the model's context", "test.jsonl:1, choice 1"],
        ),
        (MADE_TASK.to_owned(), ", chat: true", 2, &["no chat template"]),
        (MADE_TASK.to_owned(), ", multiturn: true", 2, &["`multiturn` requires `chat: true`", "grid.yaml:6"]),
        (MADE_TASK.to_owned(), ", name: copa", 2, &["either `name` or `definition`", "grid.yaml:6"]),
    ] {
        world_with_definition(&definition, options).assert_rejected(&[], code, words);
    }
    let world = world_with_definition(MADE_TASK, "");
    world.write(
        "grid.yaml",
        "backbones:\n  tiny: {path: backbone}\nbackbone: tiny\nevaluate:\n  tasks: {name: copa, shots: 2}\n",
    );
    world.assert_rejected(&[], 2, &["`shots` requires `definition`", "grid.yaml:5"]);
    let output = world.ghostlab(&["score", "backbone", "--tasks", "copa=rows/test.jsonl", "--shots", "2"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && text.contains("--shots"), "{text}");
}

fn definition_with(more: &str) -> String {
    format!("{MADE_TASK}{more}")
}

#[test]
fn overlong_contexts_are_truncated_and_counted() {
    let world = world_with_definition(MADE_TASK, ", shots: 3, max_length: 6");
    world.run_ok(&[]);
    let run = common::json(&world.path("results/grid/run.json"));
    let cell = &run["cells"][0]["definitions"][0];
    assert_eq!((&cell["truncated"], &cell["effective"]), (&json!(12), &json!(6)), "{cell:#}");
}
