//! Tests for the rules in `RULES.md`, which describe lm-eval at commit `4e7e0d4`. `tests/harness.rs` in this crate and
//! `tests/lm_eval.rs` in the main crate compare with lm-eval itself.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

mod metric;
mod request;

use ghostlab_core::error::Result;
use ghostlab_definitions::aggregate::{Aggregation, GroupMetric, Item, TaskScore, aggregate_group};
use ghostlab_definitions::definition::Data;
use ghostlab_definitions::results::{Score, score_task};
use ghostlab_definitions::yaml::parse;
use ghostlab_definitions::{
    Answer, ChatTemplate, Definition, PromptSettings, Request, RequestKind, Row, Rows, Task, Value,
};

/// Rows from a JSON list. Every split has the same rows, plus a column `s` with the split name.
struct ListRows(&'static str);

impl Rows for ListRows {
    fn rows(&self, _: &Data, split: &str) -> Result<Vec<Row>> {
        let rows: Vec<Value> = serde_json::from_str(self.0).unwrap();
        Ok(rows
            .into_iter()
            .enumerate()
            .map(|(index, mut value)| {
                value.set("s", Value::from(split));
                Row { location: format!("{split}.jsonl:{}", index + 1), value }
            })
            .collect())
    }
}

const ROWS: &str = r#"[{"q": "one", "c": ["a", "b"], "n": 0, "d": "1"}, {"q": "two", "c": ["c", "d"], "n": 1, "d": "0"},
    {"q": "six", "c": ["e", "f"], "n": 1, "d": "1"}]"#;

/// Builds a multiple-choice definition. `more` overrides its keys.
fn multiple_choice(more: &str) -> String {
    format!(
        "task: t\ndataset_path: x\ntraining_split: train\ntest_split: test\noutput_type: multiple_choice\n\
         doc_to_text: q\ndoc_to_choice: c\ndoc_to_target: n\n{more}\n"
    )
}

fn task_of(text: &str, rows: &'static str) -> Result<Task> {
    Task::new(Definition::read(&parse(text, "t.yaml")?)?, &ListRows(rows))
}

fn requests_of(text: &str, settings: &PromptSettings<'_>) -> Vec<Request> {
    task_of(text, ROWS).unwrap().requests(&ListRows(ROWS), settings).unwrap()
}

/// Computes the scores for the answers to all requests. `draws` is the number of bootstrap samples.
fn scores(task: &Task, requests: &[Request], answers: &[Answer], draws: usize) -> Result<Vec<Score>> {
    assert_eq!(requests.len(), answers.len());
    let mut rest = answers;
    let documents: Vec<Vec<Answer>> = requests
        .chunk_by(|a, b| a.document == b.document)
        .map(|requests| {
            let (document_answers, later) = rest.split_at(requests.len());
            rest = later;
            document_answers.to_vec()
        })
        .collect();
    let scored = score_task(task, &documents, &|aggregation, items| aggregation.error(items, draws))?;
    Ok(scored.into_iter().map(|scored| scored.score).collect())
}

fn with_shots(count: usize) -> PromptSettings<'static> {
    PromptSettings { shots: Some(count), ..PromptSettings::default() }
}

/// Returns the context and continuation of each request.
fn request_texts(text: &str, settings: &PromptSettings<'_>) -> Vec<(String, String)> {
    requests_of(text, settings)
        .into_iter()
        .map(|request| match request.kind {
            RequestKind::LogLikelihood { context, continuation } => (context, continuation),
            RequestKind::Rolling { text } => (text, String::new()),
            RequestKind::Generate { context, .. } => (context, String::new()),
        })
        .collect()
}

fn first_request_texts(text: &str, settings: &PromptSettings<'_>) -> (String, String) {
    request_texts(text, settings).swap_remove(0)
}

fn pair(context: &str, continuation: &str) -> (String, String) {
    (context.to_owned(), continuation.to_owned())
}
