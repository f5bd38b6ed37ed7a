//! What the files beside a model's weights say of its answers. Expected: lm-evaluation-harness 0.4.13 with transformers 5.24 in
//! f32 at batch size 1, which is each request by itself, unless a test names another source.
#![allow(clippy::unwrap_used, reason = "a test stops at what it lacks")]

use std::fs;
use std::path::Path;

use crate::common::shared;
use crate::common::world::World;
use serde_json::{Value, json};

/// A log-likelihood, in nats: the harness' numbers have four digits behind the point.
const LIKELIHOOD: f64 = 2e-4;
const LIKELIHOODS: &str = "output_type: loglikelihood\ndoc_to_text: '{{q}}'\nmetric_list: [{metric: perplexity}]\n";

/// A world with a copy of a model, in which some files are others.
fn with_model(model: &Path, files: &[(&str, Value)]) -> World {
    let world = World::new();
    fs::create_dir(world.path("model")).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(model.join(name), world.path("model").join(name)).unwrap();
    }
    files.iter().for_each(|(name, file)| world.write(&format!("model/{name}"), file.to_string()));
    world
}

/// Asks a model something of rows with a `q` each, and returns its answers, row by row, and what was said on standard error.
fn asked(world: &World, definition: &str, questions: &[&str], more: &[&str]) -> (Vec<Value>, String) {
    let target = if definition.contains("doc_to_target") { "" } else { "doc_to_target: ' happy'\n" };
    world.write(
        "asked.yaml",
        format!(
            "task: asked\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: rows.jsonl}}}}\ntest_split: test\n\
             {definition}{target}"
        ),
    );
    world.write("rows.jsonl", questions.iter().map(|q| json!({"q": q}).to_string() + "\n").collect::<String>());
    let arguments = ["score", "model", "--tasks", "asked.yaml", "--samples", "said"];
    let output = world.ghostlab(&[&arguments[..], more].concat());
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{log}");
    let samples = fs::read_to_string(world.path("said/samples_asked.jsonl")).unwrap();
    fs::remove_dir_all(world.path("said")).unwrap();
    let lines = samples.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["resps"].clone());
    (lines.collect(), log)
}

/// The first number or text of an answer.
fn first(answer: &Value) -> &Value {
    match answer {
        Value::Array(items) => first(&items[0]),
        one => one,
    }
}

fn number(answer: &Value) -> f64 {
    let one = first(answer);
    one.as_f64().unwrap_or_else(|| one.as_str().unwrap().parse().unwrap())
}

fn near(what: &str, answers: &[Value], expected: &[f64]) {
    assert_eq!(answers.len(), expected.len(), "{what}");
    for (at, (answer, expected)) in answers.iter().zip(expected).enumerate() {
        let own = number(answer);
        assert!((own - expected).abs() <= LIKELIHOOD, "{what}, row {at}: {own}, the harness has {expected}");
    }
}

/// Two of five documents are longer than the context up to which `longrope` has its short factors; all begin alike.
#[test]
fn longrope_document_scores_by_its_own_length() {
    let Some(model) = shared("cases/turn4/longrope-lengths/model") else { return };
    let questions = [
        "Tom",
        "He was sad",
        "A big dog",
        "Lily ran home and saw a red bird in the big tree near her house with her mom and dad on a sunny day",
        "Once upon a time there was a little girl who liked to play with her dog in the big park near the house and the lake",
    ];
    let expected = [-7.4262, -6.749, -9.0715, -7.0826, -6.4006];
    for engine in ["cpu", "candle"] {
        let world = with_model(&model, &[]);
        let (answers, _) = asked(&world, LIKELIHOODS, &questions, &["--engine", engine]);
        near(engine, &answers, &expected);
    }
}
