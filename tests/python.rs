//! Tests for compatibility with Python libraries. The cache can be shared with `huggingface_hub` in both directions,
//! and files written by `datasets`, `pyarrow` and `safetensors` can be read.
//!
//! Skipped with a message unless `GHOSTLAB_PYTHON` names an interpreter that has these packages, which `.ci/run`
//! installs.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_macros,
    reason = "tests panic on setup errors, and print why they are skipped"
)]

mod hub_cache;
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use crate::common;
use crate::common::fixture;
use crate::common::world::World;
use crate::server::{COMMIT, FakeHub, ServedFile, TOKEN, content, large, no_fault, small};
use candle_core::quantized::gguf_file::{self, Value as Entry};
use ghostlab::corpus;
use ghostlab::hub::{FilePattern, Hub, HubSettings, Lock, RepoFiles, SilentReporter, Source};
use ghostlab::model::weights::Weights;
use ghostlab::model::{Config, check_weights};
use ghostlab::tasks::{TASKS, Task};
use ghostlab_definitions::{FileRows, PromptSettings, Request, Rows, Task as Documents, Value as Row, builtin};
use serde_json::Value;
use tempfile::TempDir;

/// Returns the interpreter, or `None` if the tests must be skipped.
fn python() -> Option<PathBuf> {
    common::python::python("huggingface_hub, datasets, pyarrow and safetensors")
}

fn run(python: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let home = TempDir::new().unwrap();
    let mut command = Command::new(python);
    command
        .args(arguments)
        .env("HF_HOME", home.path())
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .env("HF_HUB_DISABLE_XET", "1");
    command
        .env_remove("HF_HUB_OFFLINE")
        .env_remove("HF_HUB_CACHE")
        .env_remove("HF_TOKEN")
        .envs(variables.iter().copied());
    common::python::run(&mut command)
}

/// Returns a folder with the output of `tools/real_formats.py`.
fn write_real_formats() -> Option<TempDir> {
    let python = python()?;
    let (folder, script) =
        (TempDir::new().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/real_formats.py"));
    let script = script.to_str().unwrap();
    let out = folder.path().to_str().unwrap();
    run(&python, &[script, out], &[("HF_HUB_OFFLINE", "1"), ("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")]);
    Some(folder)
}

/// Returns the requests that a task builds from the rows in the given files, and the solutions to its documents.
fn build_prompts(known: &Task, files: &[PathBuf]) -> (Vec<Request>, Vec<(Vec<Row>, Row)>) {
    let definition = builtin::definition(known).unwrap();
    let split = definition.evaluated_split();
    let files = FileRows { splits: [(split.to_owned(), files.to_vec())].into() };
    let rows = files.rows(&definition.data, split).unwrap();
    let task = Documents::from_rows(definition.clone(), rows, None).unwrap();
    let requests = task.requests(&FileRows::default(), &PromptSettings::default()).unwrap();
    let solutions = (0..task.documents.len()).map(|at| task.solution(at).unwrap()).collect();
    (requests, solutions)
}

#[test]
fn hub_parquet_tasks_give_the_same_prompts_as_json_lines() {
    let Some(folder) = write_real_formats() else { return };
    for task in TASKS.iter().filter(|task| task.in_paper) {
        let docs = fixture("lm_eval/docs").join(format!("{}.jsonl", task.name));
        let expected = build_prompts(task, &[docs]);
        assert!(!expected.0.is_empty());
        for folder_name in ["tasks", "shards"] {
            let files = task.files(&folder.path().join(folder_name).join(task.name)).unwrap();
            assert_eq!(files.len(), if folder_name == "tasks" { 1 } else { 2 });
            assert_eq!(build_prompts(task, &files), expected, "{} in {folder_name}", task.name);
        }
    }
}

#[test]
fn hub_texts_are_read_byte_for_byte() {
    let Some(folder) = write_real_formats() else { return };
    let expected: Value = serde_json::from_slice(&fs::read(folder.path().join("texts.json")).unwrap()).unwrap();
    for (text, file) in [
        ("wikitext", "wikitext/test-00000-of-00001.parquet"),
        ("ptb", "ptb/0000.parquet"),
        ("c4", "c4-train.00000-of-01024.json.gz"),
    ] {
        let rows = corpus::read_rows(folder.path().join(file), None).unwrap();
        assert_eq!(Value::from(rows), expected[text], "{text}");
    }
}

/// Compares the tokenizer in a `llama` GGUF file with SentencePiece, the library used by Llama 2 and Gemma. Covers
/// tokenizers that add a leading space and tokenizers that do not.
#[test]
fn gguf_sentencepiece_matches_original_on_10000_lines() {
    let Some(python) = python() else { return };
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let lines = sample_lines();
    assert!(lines.len() > 10_000, "{}", lines.len());
    fs::write(path("lines.json"), serde_json::json!(lines).to_string()).unwrap();
    for prefix in [true, false] {
        let lines_file = path("lines.json");
        let out = path("made.json");
        let arguments =
            ["tools/sentence_piece.py", &lines_file, &out].into_iter().chain((!prefix).then_some("no-prefix"));
        run(&python, &arguments.collect::<Vec<_>>(), &[]);
        let model: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
        write_sentencepiece(&model, prefix, &path("t.gguf"));
        let ours = corpus::Tokenizer::load(path("t.gguf")).unwrap();
        let ids = model["ids"].as_array().unwrap();
        assert_eq!(ids.len(), lines.len());
        for (line, expected) in lines.iter().zip(ids) {
            let expected: Vec<u32> = serde_json::from_value(expected.clone()).unwrap();
            assert_eq!(ours.encode(line).unwrap(), expected, "leading space {prefix}: {line:?}");
        }
    }
}

/// Returns special cases and lines from the corpora. Some of the lines mix scripts and therefore contain words on which
/// the tokenizer was not trained.
fn sample_lines() -> Vec<String> {
    let mut lines: Vec<String> = [
        " two  spaces   and a tab\there ",
        "\u{4f60}\u{597d}, \u{1F600}\u{1F469}\u{200D}\u{1F680} \u{645}\u{631}\u{62D}\u{628}\u{627}",
        "x\u{301}\u{e9} 12345 3.14159 I'LL don't",
        "\r\n\r\n",
        "\u{2581}\u{2581}under",
        "",
    ]
    .map(str::to_owned)
    .into();
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tiny/corpora");
    for file in ["news-train", "web-train", "wiki-train"] {
        let texts = corpus::read_rows(corpora.join(format!("{file}.jsonl.gz")), None).unwrap();
        let file_lines = texts.iter().flat_map(|text| text.lines()).filter(|line| !line.is_empty());
        lines.extend(file_lines.enumerate().take(3600).map(|(at, line): (usize, &str)| match at % 5 {
            0 => line.chars().map(|c| if c == 'e' { '\u{435}' } else { c }).collect(),
            1 => line.replace(' ', "  "),
            _ => line.to_owned(),
        }));
    }
    lines
}

/// Writes a GGUF file with a SentencePiece tokenizer. If `prefix` is set, the tokenizer adds a leading space.
fn write_sentencepiece(model: &Value, prefix: bool, path: &str) {
    let list = |key: &str| model[key].as_array().unwrap().iter();
    let entries = [
        ("tokenizer.ggml.model", Entry::String("llama".into())),
        ("tokenizer.ggml.pre", Entry::String("default".into())),
        (
            "tokenizer.ggml.tokens",
            Entry::Array(list("tokens").map(|list| Entry::String(list.as_str().unwrap().into())).collect()),
        ),
        (
            "tokenizer.ggml.scores",
            Entry::Array(list("scores").map(|value| Entry::F32(value.as_f64().unwrap() as f32)).collect()),
        ),
        (
            "tokenizer.ggml.token_type",
            Entry::Array(list("kinds").map(|value| Entry::I32(value.as_i64().unwrap() as i32)).collect()),
        ),
        ("tokenizer.ggml.unknown_token_id", Entry::U32(0)),
        ("tokenizer.ggml.add_bos_token", Entry::Bool(false)),
        ("tokenizer.ggml.add_space_prefix", Entry::Bool(prefix)),
    ];
    let entries: Vec<(&str, &Entry)> = entries.iter().map(|(key, value)| (*key, value)).collect();
    gguf_file::write(&mut fs::File::create(path).unwrap(), &entries, &[]).unwrap();
}

#[test]
fn sharded_weights_match_those_of_one_file() {
    let Some(folder) = write_real_formats() else { return };
    let [single, sharded] = ["whole", "sharded"].map(|name| folder.path().join(name));
    let config = Config::read(&sharded).unwrap();
    check_weights(&config, &sharded).unwrap();
    assert_eq!(Weights::files(&sharded).unwrap().len(), 2);
    let one = Weights::open(&single).unwrap();
    let other = Weights::open(&sharded).unwrap();
    let bytes = fs::read(single.join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut seen = 0;
    for (name, tensor) in tensors.iter() {
        assert_eq!(one.take(name, tensor.shape()).unwrap(), other.take(name, tensor.shape()).unwrap(), "{name}");
        seen += 1;
    }
    assert!(seen > 10);
    // The error names the missing shard.
    fs::remove_file(sharded.join("model-00002-of-00002.safetensors")).unwrap();
    let error = check_weights(&config, &sharded).unwrap_err().to_string();
    assert!(error.contains("model-00002-of-00002.safetensors"), "{error}");
}
