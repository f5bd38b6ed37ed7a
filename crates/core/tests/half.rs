//! Half precision on a real backbone: bf16 and f16 within 0.5 % of the perplexity in f32, and the same answer chosen in at
//! least 98 of 100 documents of its six tasks. On candle's CPU device, which is slow: with the slow tests.
#![allow(clippy::unwrap_used, reason = "a test stops at what it lacks")]

mod common;

use std::path::Path;

use common::{json, shared};
use ghostlab_core::corpus::{Rule, Tokenizer, Windows, evaluation, read_rows};
use ghostlab_core::evaluate::choices::{MultipleChoiceEval, TokenisedChoice, scored};
use ghostlab_core::evaluate::perplexity::of as perplexity;
use ghostlab_core::evaluate::{TaskEncoder, score};
use ghostlab_core::model::{CandleEngine, Config, Decoder, DeviceName, Engine, FloatType, Placement, Program, Trie};
use ghostlab_core::tasks::{Bos, DocumentLimit, Items, Task, requests};

/// Windows of 512 tokens, and documents of each task: enough to see half a percent, and one answer in fifty.
const WINDOWS: usize = 8;
const DOCUMENTS: f64 = 25.0;

const TASKS: [&str; 6] =
    ["hellaswag.jsonl", "boolq.jsonl", "arc_easy.parquet", "openbookqa.parquet", "rte.jsonl", "copa.jsonl"];

/// The choices of a task's documents: input and continuation.
type Documents = Vec<Vec<(Vec<u32>, Vec<u32>)>>;

fn documents(folder: &Path, tokenizer: &Tokenizer, file: &str) -> Documents {
    let backbone = |name: &str| json(&folder.join("backbone").join(name));
    let encoder = TaskEncoder::new(tokenizer, &backbone("tokenizer_config.json"), &backbone("config.json")).unwrap();
    let task = Task::find(file.split('.').next().unwrap()).unwrap();
    let limit = Some(DocumentLimit::new(DOCUMENTS).unwrap());
    let items = Items::read(task, folder.join("tasks").join(file), limit).unwrap();
    let requests = requests(&items, &encoder, Bos::Tokenizer, 1024).unwrap();
    let of = requests.chunk_by(|a, b| a.document == b.document);
    of.map(|of| of.iter().map(|r| (r.input_ids.clone(), r.continuation_ids.clone())).collect()).collect()
}

/// Which choice of each document is the likeliest.
fn answers(engine: &dyn Engine, documents: &Documents) -> Vec<usize> {
    let choice = |(input, continuation)| TokenisedChoice { input, continuation };
    let borrowed: Vec<Vec<TokenisedChoice<'_>>> =
        documents.iter().map(|of| of.iter().map(|(a, b)| choice((&a[..], &b[..]))).collect()).collect();
    let exam = MultipleChoiceEval::new(&borrowed, 2048).unwrap();
    let trie = Trie::scoring(&[Program::dense(engine.config().layers)]);
    let values = score(&exam, engine, &trie, &mut vec![0.0; trie.len()], |_| Ok(())).unwrap().remove(0);
    let mut scores = scored(&values).into_iter().map(|of| of.log_likelihood);
    let of_document = |choices: &Vec<_>| {
        let all: Vec<f64> = scores.by_ref().take(choices.len()).collect();
        all.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0
    };
    documents.iter().map(of_document).collect()
}

#[test]
#[ignore = "slow: a real backbone in two float types by candle's CPU kernels"]
fn half_precision_is_within_half_a_percent_and_chooses_the_same_answers() {
    let Some(folder) = shared("real") else { return };
    let backbone = folder.join("backbone");
    let tokenizer = Tokenizer::load(backbone.join("tokenizer.json")).unwrap();
    let text = read_rows(folder.join("corpora/wikitext2-test.parquet"), None).unwrap();
    let windows: Windows = evaluation(Rule::Wikitext2, &text, &tokenizer, 512, Some(WINDOWS)).unwrap();
    let tasks: Vec<Documents> = TASKS.iter().map(|file| documents(&folder, &tokenizer, file)).collect();
    let config = Config::read(&backbone).unwrap();
    let dense = [Program::dense(config.layers)];
    let measure = |engine: &dyn Engine| {
        let answers: Vec<usize> = tasks.iter().flat_map(|documents| answers(engine, documents)).collect();
        (perplexity(engine, &dense, &windows).unwrap()[0], answers)
    };
    let (exact, chosen) = measure(&Decoder::load(&backbone).unwrap());
    assert_eq!(chosen.len(), TASKS.len() * DOCUMENTS as usize);
    for dtype in [FloatType::Bf16, FloatType::F16] {
        let at = Placement { device: DeviceName::Cpu, dtype };
        let (ours, answers) = measure(&CandleEngine::load(config.clone(), &backbone, at, None).unwrap());
        let same = answers.iter().zip(&chosen).filter(|(a, b)| a == b).count();
        println!("{}: perplexity {ours:.4}, in f32 {exact:.4}; {same} of {} answers", dtype.name(), chosen.len());
        assert!((ours / exact - 1.0).abs() <= 5e-3, "{}: {ours} against {exact}", dtype.name());
        assert!(100 * same >= 98 * chosen.len(), "{}: {same} of {}", dtype.name(), chosen.len());
    }
}
