//! Tests for the built-in tasks. The tasks are compared with reference answers from lm-evaluation-harness, run on real
//! data if it is available, and fuzzed (in `tasks/`).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

mod random_input;
mod rows;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::{fixture, json, shared};
use ghostlab::error::{Error, Result};
use ghostlab::grid::TaskSettings;
use ghostlab::pipeline::outcome::TaskScores;
use ghostlab::results::{add_task, empty_file};
use ghostlab::tasks::{
    AccuracyKind, Bos, DocumentLimit, DocumentResult, Encoder, Measure, Prefix, Score, ScoredTask, Split, TASKS, Task,
    TokenizedRequest, average, max_length,
};
use ghostlab_definitions::tokens::tokenize_requests;
use ghostlab_definitions::{FileRows, PromptSettings, Request, RequestKind, Rows, builtin};
use serde_json::{Value, json};

/// Tokenizer read from a `tokenizer.json`. Its BOS token has the id 0.
struct Reference {
    tokenizer: tokenizers::Tokenizer,
    prefix: Prefix,
}

impl Reference {
    fn load(path: &Path) -> Self {
        let tokenizer = tokenizers::Tokenizer::from_file(path).unwrap();
        let prefix = Prefix { id: 0, text: tokenizer.decode(&[0], false).unwrap() };
        Self { tokenizer, prefix }
    }
}

impl Encoder for Reference {
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode_fast(text, add_special);
        Ok(encoding.map_err(|error| Error::bad_input(error.to_string()))?.get_ids().to_vec())
    }

    fn prefix(&self) -> Option<&Prefix> {
        Some(&self.prefix)
    }
}

fn load_golden_encoder() -> (Reference, usize) {
    let encoder = Reference::load(&fixture("lm_eval/model/tokenizer.json"));
    let length = max_length(
        &json(&fixture("lm_eval/model/config.json")),
        Some(&json(&fixture("lm_eval/model/tokenizer_config.json"))),
    );
    (encoder, length.unwrap())
}

/// Returns the file with the golden documents for a task. Both versions of RACE use the same file.
fn documents_of(task: &Task) -> PathBuf {
    fixture(&format!("lm_eval/docs/{}.jsonl", task.name.trim_end_matches("_v2")))
}

/// Documents of a task, with the requests for them.
struct TokenizedTask {
    task: ghostlab_definitions::Task,
    requests: Vec<Request>,
    tokens: Vec<Vec<TokenizedRequest>>,
}

impl TokenizedTask {
    fn new(task: ghostlab_definitions::Task, encoder: &impl Encoder, bos: Bos, length: usize) -> Result<Self> {
        let requests = task.requests(&FileRows::default(), &PromptSettings::default())?;
        let tokens = tokenize_requests(&task, &requests, encoder, bos, length)?;
        Ok(Self { task, requests, tokens })
    }

    fn golden(known: &Task, bos: Bos) -> Self {
        let (encoder, length) = load_golden_encoder();
        Self::new(builtin::task(known, &documents_of(known), None).unwrap(), &encoder, bos, length).unwrap()
    }

    fn judge(&self, known: &'static Task, scores: Vec<Score>) -> Result<ScoredTask> {
        ScoredTask::new(&Arc::new(builtin::solutions(known, &self.task, &self.tokens)?), scores)
    }

    fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.requests.iter().map(|request| match &request.kind {
            RequestKind::LogLikelihood { context, continuation } => (context.as_str(), continuation.as_str()),
            other => panic!("{other:?}"),
        })
    }
}

fn read_json_lines(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn whole_numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

fn assert_same_request(ours: (&Request, (&str, &str), &TokenizedRequest), golden: &Value) {
    let (request, (context, continuation), tokens) = ours;
    let label = format!("{} {} {}", golden["task"], golden["doc_id"], golden["idx"]);
    assert_eq!(
        (request.document, request.index),
        (golden_number(golden, "doc_id"), golden_number(golden, "idx")),
        "{label}: order"
    );
    assert_eq!(context, golden["context"], "{label}: context");
    assert_eq!(continuation, golden["continuation"], "{label}: continuation");
    assert_eq!(tokens.continuation_ids, golden_ids(golden, "continuation_ids"), "{label}: continuation_ids");
    assert_eq!(tokens.input_ids, golden_ids(golden, "input_ids"), "{label}: input_ids");
    assert_eq!(tokens.cut_ids.len(), golden_number(golden, "truncated_left"), "{label}: truncated_left");
    let full = [tokens.cut_ids.as_slice(), &tokens.input_ids].concat();
    assert_eq!(
        full[..=full.len() - tokens.continuation_ids.len()],
        golden_ids(golden, "context_ids"),
        "{label}: context_ids"
    );
}

fn golden_number(golden: &Value, key: &str) -> usize {
    golden[key].as_u64().unwrap() as usize
}

fn golden_ids(golden: &Value, key: &str) -> Vec<u32> {
    whole_numbers(&golden[key]).into_iter().map(|id| id as u32).collect::<Vec<_>>()
}

/// Compares all requests with the golden requests in `folder`, for every task that has some. Returns the number of
/// requests compared.
fn compare_requests(folder: &str, bos: Bos) -> usize {
    let mut compared = 0;
    for task in TASKS {
        let path = fixture(&format!("lm_eval/{folder}/{}.jsonl", task.name));
        if !path.exists() {
            continue;
        }
        let ours = TokenizedTask::golden(task, bos);
        let golden = read_json_lines(&path);
        let all: Vec<_> = ours.requests.iter().zip(ours.texts()).zip(ours.tokens.iter().flatten()).collect();
        assert_eq!(all.len(), golden.len(), "{}", task.name);
        for (((request, texts), tokens), golden) in all.into_iter().zip(&golden) {
            assert_same_request((request, texts, tokens), golden);
        }
        compared += golden.len();
    }
    compared
}

#[test]
fn requests_match_the_harness() {
    for (folder, bos, count) in [
        ("requests", Bos::Tokenizer, 180),
        // The tokenizer adds a BOS token itself, so requesting one changes nothing.
        ("requests", Bos::Always, 180),
        ("nobos/requests", Bos::Never, 180),
        // The older version of RACE was recorded with a harness version of that time.
        ("requests_legacy", Bos::Tokenizer, 20),
    ] {
        assert_eq!(compare_requests(folder, bos), count, "{folder}, {bos:?}");
    }
}

#[test]
fn golden_requests_cover_trailing_spaces_and_truncation() {
    let (_, length) = load_golden_encoder();
    let [openbookqa, race] =
        ["openbookqa", "race"].map(|name| TokenizedTask::golden(Task::find(name).unwrap(), Bos::Tokenizer));
    assert!(openbookqa.texts().any(|(context, _)| context.ends_with(' ')));
    let mut race = race.tokens.into_iter().flatten();
    assert!(race.any(|tokens| !tokens.cut_ids.is_empty() && tokens.input_ids.len() == length));
}

/// Answers a task using the golden log-likelihoods in `folder`.
fn answer_task(task: &'static Task, folder: &str, bos: Bos) -> ScoredTask {
    let scores: Vec<Score> = read_json_lines(&fixture(&format!("lm_eval/{folder}/{}.jsonl", task.name)))
        .iter()
        .map(|golden| Score {
            log_likelihood: golden["logprob"].as_f64().unwrap(),
            greedy: golden["is_greedy"].as_bool().unwrap(),
        })
        .collect();
    TokenizedTask::golden(task, bos).judge(task, scores).unwrap()
}

/// Builds a results file from the answers to several tasks.
fn build_results_file(answers: Vec<ScoredTask>) -> Value {
    let mut file = empty_file("tiny");
    for answered in answers {
        let definition = builtin::definition(answered.key().task).unwrap();
        add_task(&mut file, definition, &TaskSettings::default(), &TaskScores::builtin(String::new(), answered));
    }
    file
}

const FOLDERS: [(&str, Bos); 2] = [("", Bos::Tokenizer), ("nobos/", Bos::Never)];

#[test]
fn predictions_and_lengths_match_the_harness() {
    for (folder, bos) in FOLDERS {
        for task in &TASKS[..9] {
            let golden = read_json_lines(&fixture(&format!("lm_eval/{folder}doc_results/{}.jsonl", task.name)));
            let ours: Vec<_> = answer_task(task, &format!("{folder}requests"), bos).documents().collect();
            assert_eq!(ours.len(), golden.len());
            for (ours, golden) in ours.iter().zip(&golden) {
                let label = format!("{folder}{} {}", task.name, golden["doc_id"]);
                assert_eq!(json!(ours.id), golden["doc_id"], "{label}");
                assert_eq!(json!(ours.gold), golden["gold"], "{label}: gold");
                assert_eq!(prediction(ours, AccuracyKind::Acc), golden["pred"], "{label}: pred");
                assert_eq!(prediction(ours, AccuracyKind::AccNorm), golden["pred_norm"], "{label}: pred_norm");
                for metric in task.metrics {
                    let right = f64::from(u8::from(ours.is_correct(*metric)));
                    assert_eq!(json!(right), golden[metric.name()], "{label}: {}", metric.name());
                }
                let lengths =
                    |length: &dyn Fn(usize) -> usize| json!((0..ours.choices.len()).map(length).collect::<Vec<_>>());
                assert_eq!(lengths(&|i| ours.choices[i].characters), golden["char_lens"], "{label}: characters");
                assert_eq!(lengths(&|i| ours.choices[i].bytes), golden["byte_lens"], "{label}: bytes");
            }
        }
    }
}

fn prediction(document: &DocumentResult, metric: AccuracyKind) -> Value {
    json!(document.prediction(metric).unwrap())
}

#[test]
fn choices_match_the_harness() {
    for task in &TASKS[..9] {
        let ours = builtin::task(task, &documents_of(task), None).unwrap();
        let golden = read_json_lines(&fixture(&format!("lm_eval/doc_results/{}.jsonl", task.name)));
        assert_eq!(ours.documents.len(), golden.len());
        for (at, golden) in golden.iter().enumerate() {
            assert_eq!(json!(ours.solution(at).unwrap().0), golden["choices"], "{} {at}", task.name);
        }
    }
}

/// Compares a results file with a golden file. Skips `configs`, which the golden file does not contain, and `config`,
/// which contains settings of torch.
fn assert_same_file(ours: &Value, path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    // The JSON parser rounds the last digit of some numbers incorrectly, so parse our file with it too.
    let again: Value = serde_json::from_str(&ours.to_string()).unwrap();
    for part in ["results", "versions", "n-shot", "n-samples", "higher_is_better", "group_subtasks"] {
        assert_eq!(again[part], golden[part], "{part}");
    }
    // Also compare each number with its text in the golden file, so that no JSON parser rounds it.
    let mut task = String::new();
    let mut compared = 0;
    for line in text.lines() {
        let Some((key, value)) = line.trim().trim_end_matches(',').split_once(": ") else { continue };
        let key = key.trim_matches('"');
        if value == "{" {
            task = key.to_owned();
        } else if key.ends_with(",none") {
            assert_eq!(ours["results"][&task][key].as_f64(), value.parse().ok(), "{task} {key}");
            compared += 1;
        }
    }
    assert!(compared >= 2);
}

#[test]
fn results_file_matches_the_harness_exactly() {
    for (folder, bos) in FOLDERS {
        let answers: Vec<_> =
            TASKS[..9].iter().map(|task| answer_task(task, &format!("{folder}requests"), bos)).collect();
        let results = answers.clone();
        assert_same_file(&build_results_file(answers), &fixture(&format!("lm_eval/{folder}results.json")));
        let unanswered: Vec<usize> = results.iter().map(|result| result.unanswered).collect();
        assert_eq!(unanswered, [0, 0, 0, 0, 1, 0, 0, 0, 0], "boolq must have one unanswered document");
        assert!(results.iter().all(|result| result.non_finite == 0));
        assert_eq!(results[8].truncated, 4, "wrong number of truncated requests of race");
        let columns: Vec<Measure> = results.iter().map(ScoredTask::paper_accuracy).collect();
        let sum: f64 = columns.iter().map(|column| column.value).sum();
        assert_eq!(average(&columns).unwrap().value, sum / 9.0);
        assert_eq!(columns[0], results[0].accuracy(AccuracyKind::AccNorm));
    }
}

#[test]
fn race_v2_results_file_matches_the_legacy_harness() {
    let task = Task::find("race_v2").unwrap();
    let answered = answer_task(task, "requests_legacy", Bos::Tokenizer);
    assert_same_file(&build_results_file(vec![answered]), &fixture("lm_eval/requests_legacy/race_v2_results.json"));
}

#[test]
fn nonfinite_scores_are_counted_and_missing_ones_rejected() {
    let task = Task::find("arc_easy").unwrap();
    let mut tokenized = TokenizedTask::golden(task, Bos::Tokenizer);
    for nonfinite in [f64::NAN, f64::NEG_INFINITY] {
        let scores = vec![Score { log_likelihood: nonfinite, greedy: false }; tokenized.requests.len()];
        let result = tokenized.judge(task, scores).unwrap();
        assert_eq!((result.non_finite, result.acc.value, result.acc_norm.value), (8, 0.0, 0.0));
    }
    let few = vec![Score { log_likelihood: -1.0, greedy: false }; tokenized.requests.len() - 1];
    assert_eq!(tokenized.judge(task, few.clone()).unwrap_err().exit_code(), 4);
    tokenized.tokens[1].pop();
    assert_eq!(tokenized.judge(task, few.clone()).unwrap_err().exit_code(), 4, "mismatched tokens were accepted");
    tokenized.tokens.pop();
    assert_eq!(tokenized.judge(task, few).unwrap_err().exit_code(), 4);
}

/// Adds decoys in all splits except the scored one. In a folder, only files named after the task's split may be read. A
/// single file that is named after another split must be rejected.
#[test]
fn documents_of_other_splits_are_never_scored() {
    let (encoder, length) = load_golden_encoder();
    for task in TASKS {
        let folder = tempfile::tempdir().unwrap();
        let decoy = documents_of(task).with_extension("decoy.jsonl");
        let (scored, other) = match task.split {
            Split::Test => ("test", "validation"),
            Split::Validation => ("validation", "test"),
        };
        std::fs::copy(documents_of(task), folder.path().join(format!("{scored}.jsonl"))).unwrap();
        for split in ["train", other] {
            let path = folder.path().join(format!("{split}.jsonl"));
            std::fs::copy(&decoy, &path).unwrap();
            let message = builtin::task(task, &path, None).unwrap_err().to_string();
            assert!(message.contains("another split") && message.contains(task.name), "{message}");
        }
        let read = builtin::task(task, folder.path(), None).unwrap();
        assert_eq!(read.documents.len(), read_json_lines(&documents_of(task)).len(), "{}", task.name);
        let all = TokenizedTask::new(read, &encoder, Bos::Tokenizer, length).unwrap();
        assert!(all.texts().all(|(context, _)| !context.contains("DECOY")), "{}", task.name);
        std::fs::remove_file(folder.path().join(format!("{scored}.jsonl"))).unwrap();
        assert_eq!(builtin::task(task, folder.path(), None).unwrap_err().exit_code(), 2, "{}", task.name);
    }
}

#[test]
fn document_limit_selects_the_first_requests() {
    let (encoder, length) = load_golden_encoder();
    let task = Task::find("hellaswag").unwrap();
    let all = |limit: Option<f64>| {
        let limit = limit.map(|limit| DocumentLimit::new(limit).unwrap());
        let read = builtin::task(task, &documents_of(task), limit).unwrap();
        assert_eq!(read.original, 8);
        TokenizedTask::new(read, &encoder, Bos::Tokenizer, length).unwrap()
    };
    let all_tasks = all(None);
    for (limit, documents) in [(3.0, 3), (0.3, 3), (50.0, 8)] {
        let some = all(Some(limit));
        assert_eq!(some.requests, all_tasks.requests[..documents * 4]);
        assert_eq!(some.tokens, all_tasks.tokens[..documents]);
    }
}

/// Reads real data in the hub's schema, both as JSON Lines and as Parquet with nested columns.
#[test]
fn every_real_document_becomes_requests() {
    let Some(folder) = shared("real/tasks") else { return };
    let Some(backbone) = shared("real/backbone") else { return };
    let encoder = Reference::load(&backbone.join("tokenizer.json"));
    let length = max_length(&json(&backbone.join("config.json")), None).unwrap();
    for (file, documents, total) in [
        ("arc_easy.parquet", 2376, true),
        ("openbookqa.parquet", 500, true),
        ("boolq.jsonl", 3270, true),
        ("rte.jsonl", 277, true),
        ("copa.jsonl", 100, true),
        ("hellaswag.jsonl", 1000, false),
    ] {
        let task = Task::find(file.split('.').next().unwrap()).unwrap();
        let read = builtin::task(task, &folder.join(file), None).unwrap();
        assert_eq!(read.documents.len(), documents, "{file}");
        let mut golds = BTreeSet::new();
        for at in 0..documents {
            let (choices, gold) = read.solution(at).unwrap();
            let gold = gold.as_int().unwrap();
            assert!((0..choices.len() as i64).contains(&gold), "{file}: an answer is unknown");
            golds.insert(gold);
        }
        let all = TokenizedTask::new(read, &encoder, Bos::Tokenizer, length).unwrap();
        let mut inputs = all.tokens.iter().flatten().map(|tokens| tokens.input_ids.len());
        assert!(inputs.all(|input| (1..=length).contains(&input)), "{file}");
        assert_eq!(builtin::solutions(task, &all.task, &all.tokens).unwrap().documents(), all.task.original, "{file}");
        assert_eq!(all.task.original == task.documents, total, "{file}");
        assert!(golds.len() > 1, "{file}");
    }
}

#[test]
fn parquet_and_json_lines_yield_the_same_rows() {
    let Some(folder) = shared("real/tasks") else { return };
    let definition = builtin::definition(Task::find("arc_easy").unwrap()).unwrap();
    let read = |file: PathBuf| {
        let split = definition.evaluated_split();
        FileRows { splits: [(split.to_owned(), vec![file])].into() }.rows(&definition.data, split).unwrap()
    };
    let rows = read(folder.join("arc_easy.parquet"));
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("arc_easy.jsonl");
    let text: String = rows.iter().map(|row| format!("{}\n", row.value.json(None))).collect();
    std::fs::write(&path, text).unwrap();
    let again = read(path);
    assert_eq!(rows.len(), again.len());
    assert!(rows.iter().zip(&again).all(|(row, again)| row.value == again.value));
}
