//! Compares requests byte for byte with those of lm-evaluation-harness. Uses the task definitions from the `lm_eval`
//! package and synthetic rows from `tools/golden_requests.py`.
//!
//! The tests are skipped with a message unless `GHOSTLAB_PYTHON` names an interpreter that has the package `lm_eval`.
//! `.ci/run` installs it.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]
#![allow(clippy::disallowed_macros, reason = "tests print what they compared")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::python;
use ghostlab_core::error::{Error, Result};
use ghostlab_core::tasks::DocumentLimit;
use ghostlab_definitions::definition::Data;
use ghostlab_definitions::rows::table;
use ghostlab_definitions::{
    ChatTemplate, Library, PromptSettings, Request, RequestKind, Row, Rows, Task, edits, translation,
};

/// Rows from `test.jsonl` or `test.json` files in a folder, or in a subfolder named after the dataset.
struct LocalRows {
    folder: PathBuf,
}

impl Rows for LocalRows {
    fn rows(&self, data: &Data, split: &str) -> Result<Vec<Row>> {
        let folder =
            [data.path.as_str(), data.name.as_deref().unwrap_or("")].iter().fold(self.folder.clone(), |path, part| {
                let inner = path.join(part);
                if !part.is_empty() && !part.contains("..") && inner.is_dir() { inner } else { path }
            });
        let path =
            ["jsonl", "json"].map(|end| folder.join(format!("{split}.{end}"))).into_iter().find(|path| path.is_file());
        let path = path.ok_or_else(|| {
            Error::missing(format!("the dataset has no split `{split}`"))
                .at(folder.display().to_string())
                .expected(format!("{split}.jsonl or {split}.json"))
        })?;
        table(&path, data.columns())
    }
}

/// Converts a request to the type and arguments that `golden_requests.py` writes.
fn request_fields(request: &Request) -> (&'static str, Vec<serde_json::Value>) {
    match &request.kind {
        RequestKind::LogLikelihood { context, continuation } => {
            ("loglikelihood", vec![context.as_str().into(), continuation.as_str().into()])
        }
        RequestKind::Rolling { text } => ("loglikelihood_rolling", vec![text.as_str().into()]),
        RequestKind::Generate { context, settings } => {
            ("generate_until", vec![context.as_str().into(), serde_json::from_str(&settings.json(None)).unwrap()])
        }
    }
}

/// Runs `golden_requests.py` and returns its output folder, or `None` if Python is not available.
fn run_golden_requests() -> Option<tempfile::TempDir> {
    let python = python::python("lm_eval")?;
    let out = tempfile::tempdir().unwrap();
    python::run(&mut python::script(&python, "golden_requests.py", [out.path()]));
    Some(out)
}

#[test]
fn requests_match_lm_eval_and_scores_match_sacrebleu() {
    let Some(out) = run_golden_requests() else { return };
    compare_translations(out.path());
    compare_requests(out.path());
}

fn compare_translations(out: &Path) {
    let text = std::fs::read_to_string(out.join("translated.json")).unwrap();
    let corpora: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    for (index, corpus) in corpora.iter().enumerate() {
        let pairs: Vec<(String, String)> = serde_json::from_value(corpus["pairs"].clone()).unwrap();
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(one, two)| (one.as_str(), two.as_str())).collect();
        for (metric_index, metric) in [translation::bleu, translation::chrf, edits::ter].into_iter().enumerate() {
            let ours = metric(&pairs);
            let theirs = corpus["scores"][metric_index].as_f64().unwrap();
            // Python adds the terms in a different order, so rounding differs.
            assert!(
                (ours - theirs).abs() <= 1e-9 * theirs.abs().max(1.0),
                "corpus {index}, {metric_index}: {ours}, {theirs}"
            );
        }
    }
    println!("{} corpora compared", corpora.len());
}

fn compare_requests(out: &Path) {
    let rows = LocalRows { folder: out.join("rows") };
    let golden: serde_json::Value = serde_json::from_str(&read_output("golden.json", out)).unwrap();
    let library = Library::from_folders(&[Path::new(&read_output("tasks", out))]).unwrap();
    let chat = ChatTemplate::new(golden["chat"].as_str().unwrap(), Vec::new(), "the test").unwrap();
    let limit = DocumentLimit::new(5.0).unwrap();
    let mut definitions = BTreeSet::new();
    let mut compared = 0;
    let mut failed = Vec::new();
    for asked in golden["asked"].as_array().unwrap() {
        let name = asked["task"].as_str().unwrap();
        let with_chat = asked["chat"].as_bool().unwrap();
        let shots = usize::try_from(asked["shots"].as_u64().unwrap()).unwrap();
        let case = format!("{name}, {shots} shots{}", if with_chat { ", chat" } else { "" });
        let settings = PromptSettings {
            shots: Some(shots),
            system: with_chat.then(|| golden["system"].as_str().unwrap().to_owned()),
            chat: with_chat.then_some(&chat),
            ..PromptSettings::default()
        };
        let requests = library
            .select(&[name])
            .and_then(|selected| Task::with_limit(selected.tasks.into_iter().next().unwrap(), &rows, Some(limit)))
            .and_then(|task| task.requests(&rows, &settings));
        let requests = match requests {
            Ok(requests) => requests,
            Err(error) => {
                failed.push(format!("{case}: {}", error.one_line()));
                continue;
            }
        };
        let expected = asked["requests"].as_array().unwrap();
        definitions.insert(name);
        if requests.len() != expected.len() {
            failed.push(format!("{case}: {} requests, the harness has {}", requests.len(), expected.len()));
            continue;
        }
        for (ours, theirs) in requests.iter().zip(expected) {
            compared += 1;
            let (kind, arguments) = request_fields(ours);
            let same = kind == theirs["kind"]
                && ours.document as u64 == theirs["document"]
                && ours.index as u64 == theirs["index"]
                && serde_json::Value::from(arguments.clone()) == theirs["arguments"];
            if !same {
                failed.push(format!(
                    "{case}, document {}, {}: {kind} {arguments:#?}\nthe harness: {theirs:#}",
                    ours.document, ours.index
                ));
                break;
            }
        }
    }
    println!("{compared} requests of {} definitions compared", definitions.len());
    assert!(failed.is_empty(), "{} request lists differ:\n{}", failed.len(), failed[..failed.len().min(6)].join("\n"));
    assert!(definitions.len() >= 40, "{}", definitions.len());
}

fn read_output(name: &str, out: &Path) -> String {
    std::fs::read_to_string(out.join(name)).unwrap()
}
