//! Tests for half precision on a real backbone. In bf16 and f16, the perplexity must be within 0.5 % of the f32 value,
//! and at least 98 % of the answers on six tasks must be the same. The test on candle's CPU device is slow and is
//! ignored by default.
#![allow(
    clippy::disallowed_macros,
    clippy::unwrap_used,
    reason = "tests print their results, and panic on setup errors"
)]

use std::path::{Path, PathBuf};

use crate::common::{candle, gpu, json, shared};
use ghostlab::corpus::{Tokenizer, WindowRule, Windows, evaluation_windows, read_rows};
use ghostlab::evaluate::choices::{MultipleChoiceEval, TokenizedChoice, scores_of_choices};
use ghostlab::evaluate::perplexity::of as perplexity;
use ghostlab::evaluate::{TaskEncoder, score};
use ghostlab::model::{Config, Decoder, DeviceName, Engine, FloatType, Products, Program, Trie};
use ghostlab::tasks::{Bos, DocumentLimit, Task};
use ghostlab_definitions::tokens::tokenize_requests;
use ghostlab_definitions::{FileRows, PromptSettings, builtin};

/// Number of windows of 512 tokens. With `DOCUMENTS` documents per task, this is enough to detect a perplexity
/// difference of 0.5 % and a change of one answer in fifty.
const WINDOWS: usize = 8;
const DOCUMENTS: f64 = 25.0;

const TASKS: [&str; 6] =
    ["hellaswag.jsonl", "boolq.jsonl", "arc_easy.parquet", "openbookqa.parquet", "rte.jsonl", "copa.jsonl"];

/// Choices for the documents of a task, as (input, continuation) pairs.
type Documents = Vec<Vec<(Vec<u32>, Vec<u32>)>>;

fn read_documents(folder: &Path, tokenizer: &Tokenizer, file: &str) -> Documents {
    let [tokenizer_config, config] =
        ["tokenizer_config.json", "config.json"].map(|name| json(&folder.join("backbone").join(name)));
    let encoder = TaskEncoder::new(tokenizer, &tokenizer_config, &config).unwrap();
    let task = Task::find(file.split('.').next().unwrap()).unwrap();
    let limit = Some(DocumentLimit::new(DOCUMENTS).unwrap());
    let read = builtin::task(task, &folder.join("tasks").join(file), limit).unwrap();
    let requests = read.requests(&FileRows::default(), &PromptSettings::default()).unwrap();
    let all = tokenize_requests(&read, &requests, &encoder, Bos::Tokenizer, 1024).unwrap();
    all.into_iter()
        .map(|requests| requests.into_iter().map(|one| (one.input_ids, one.continuation_ids)).collect())
        .collect()
}

/// Returns the index of the most likely choice for each document.
fn predict_answers(engine: &dyn Engine, documents: &Documents) -> Vec<usize> {
    let borrowed: Vec<Vec<TokenizedChoice<'_>>> = documents
        .iter()
        .map(|document| document.iter().map(|(input, continuation)| TokenizedChoice { input, continuation }).collect())
        .collect();
    let exam = MultipleChoiceEval::new(borrowed, engine.config(), 2048).unwrap();
    let trie = Trie::for_scoring(&[Program::dense(engine.config().layers)]);
    let values = score(&exam, engine, &trie, &mut vec![0.0; trie.len()], |_| Ok(())).unwrap().remove(0);
    let mut scores = scores_of_choices(&values).into_iter().map(|score| score.log_likelihood);
    documents
        .iter()
        .map(|choices| {
            let all: Vec<f64> = scores.by_ref().take(choices.len()).collect();
            all.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0
        })
        .collect()
}

/// Windows and tasks on which half precision is compared with f32.
struct Exam {
    backbone: PathBuf,
    config: Config,
    windows: Windows,
    tasks: Vec<Documents>,
}

impl Exam {
    fn read() -> Option<Self> {
        let folder = shared("real")?;
        let backbone = folder.join("backbone");
        let tokenizer = Tokenizer::load(backbone.join("tokenizer.json")).unwrap();
        let text = read_rows(folder.join("corpora/wikitext2-test.parquet"), None).unwrap();
        let windows = evaluation_windows(WindowRule::Wikitext2, &text, &tokenizer, 512, Some(WINDOWS)).unwrap();
        let tasks = TASKS.iter().map(|file| read_documents(&folder, &tokenizer, file)).collect();
        Some(Self { config: Config::read(&backbone).unwrap(), backbone, windows, tasks })
    }

    fn measure(&self, engine: &dyn Engine) -> (f64, Vec<usize>) {
        let dense = [Program::dense(self.config.layers)];
        let answers: Vec<usize> = self.tasks.iter().flat_map(|documents| predict_answers(engine, documents)).collect();
        (perplexity(engine, &dense, &self.windows).unwrap()[0], answers)
    }

    fn assert_candle_close_to_f32(&self, device: DeviceName, types: &[FloatType]) {
        let engines: Vec<_> = types.iter().map(|&dtype| candle(&self.backbone, device, dtype, None)).collect();
        self.assert_close_to_f32(&engines.iter().map(|engine| &**engine).collect::<Vec<_>>());
    }

    fn assert_close_to_f32(&self, engines: &[&dyn Engine]) {
        let (exact, chosen) = self.measure(&Decoder::load(&self.backbone).unwrap());
        assert_eq!(chosen.len(), TASKS.len() * DOCUMENTS as usize);
        for engine in engines {
            let (ours, answers) = self.measure(*engine);
            let same = answers.iter().zip(&chosen).filter(|(a, b)| a == b).count();
            let id = engine.id();
            println!("{id}: perplexity {ours:.4}, in f32 {exact:.4}; {same} of {} answers", chosen.len());
            assert!(ours != exact && (ours / exact - 1.0).abs() <= 5e-3, "{id}: {ours} instead of {exact}");
            assert!(100 * same >= 98 * chosen.len(), "{id}: {same} of {}", chosen.len());
        }
    }
}

#[test]
fn bf16_products_are_within_half_a_percent_of_f32() {
    let Some(exam) = Exam::read() else { return };
    let portable = load(&exam, Products::Bf16);
    assert_eq!(portable.id().dtype, "bf16");
    exam.assert_close_to_f32(&[&portable]);
    match Products::Bf16Amx.check() {
        Ok(()) => exam.assert_close_to_f32(&[&load(&exam, Products::Bf16Amx)]),
        Err(error) => eprintln!("skipped on AMX: {}", error.one_line()),
    }
}

fn load(exam: &Exam, products: Products) -> Decoder {
    Decoder::load_within(exam.config.clone(), &exam.backbone, products, u64::MAX).unwrap()
}

#[test]
#[ignore = "slow: a real backbone in two float types by candle's CPU kernels"]
fn candle_half_precision_is_within_half_a_percent_of_f32() {
    let Some(exam) = Exam::read() else { return };
    exam.assert_candle_close_to_f32(DeviceName::Cpu, &[FloatType::Bf16, FloatType::F16]);
}

#[test]
fn gpu_results_are_within_half_a_percent_of_f32() {
    let (Some(device), Some(exam)) = (gpu(), Exam::read()) else { return };
    exam.assert_candle_close_to_f32(device, &FloatType::ALL);
}
