//! Measures throughput on multiple-choice tasks in documents per second. Compares the CPU engine with the method of
//! common harnesses, which score one padded row per choice in batches of 16 and compute logits at every position. Both
//! use the same backbone and kernels and run in interleaved rounds. Also times nine programs (layer sequences), one
//! dense and eight pruned, relative to the dense one.
//!
//! `cargo bench --bench choices [-- DOCUMENTS]` (default: the first 100 documents of each task)
#![allow(clippy::disallowed_macros, clippy::unwrap_used, reason = "a benchmark prints, and panics on setup errors")]

use std::path::Path;
use std::time::Instant;

use ghostlab::corpus::Tokenizer;
use ghostlab::evaluate::choices::{MultipleChoiceEval, TokenizedChoice, scores_of_choices};
use ghostlab::evaluate::{EvalSet, TaskEncoder, score};
use ghostlab::linalg::gemm::profile;
use ghostlab::model::{Batch, Decoder, Operator, Program, ScoredRow, Trie};
use ghostlab::tasks::{Bos, DocumentLimit, Score, Task};
use ghostlab_definitions::tokens::tokenize_requests;
use ghostlab_definitions::{FileRows, PromptSettings, builtin};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROWS_PER_BATCH: usize = 16;
const BATCH_TOKENS: usize = 2048;

fn main() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/real");
    if !shared.exists() {
        println!("skipped: there is no shared/real next to the checkout");
        return;
    }
    let count = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(100.0);
    let decoder = Decoder::load(&shared.join("backbone")).unwrap();
    let tokenizer = Tokenizer::load(shared.join("backbone/tokenizer.json")).unwrap();
    let encoder =
        TaskEncoder::new(&tokenizer, &read_json("tokenizer_config.json", &shared), &read_json("config.json", &shared))
            .unwrap();
    let dense = [Program::dense(decoder.config().layers)];
    let nine = build_programs(&decoder);
    println!(
        "{:>12} {:>10} {:>8} {:>14} {:>14} {:>7} {:>18} {:>16}",
        "task", "documents", "tokens", "padded docs/s", "ours docs/s", "ratio", "in products", "nine / dense"
    );
    for file in ["hellaswag.jsonl", "boolq.jsonl", "arc_easy.parquet", "openbookqa.parquet", "rte.jsonl", "copa.jsonl"]
    {
        let task = Task::find(file.split('.').next().unwrap()).unwrap();
        let limit = Some(DocumentLimit::new(count).unwrap());
        let read = builtin::task(task, &shared.join("tasks").join(file), limit).unwrap();
        let requests = read.requests(&FileRows::default(), &PromptSettings::default()).unwrap();
        let tokens = tokenize_requests(&read, &requests, &encoder, Bos::Tokenizer, 1024).unwrap();
        let documents: Vec<Vec<TokenizedChoice<'_>>> = tokens
            .iter()
            .map(|rows| {
                rows.iter()
                    .map(|r| TokenizedChoice { input: &r.input_ids, continuation: &r.continuation_ids })
                    .collect()
            })
            .collect();
        let times = Times::measure(&decoder, &documents, &dense, &nine);
        let n = documents.len() as f64;
        let exam = MultipleChoiceEval::new(documents.clone(), decoder.config(), BATCH_TOKENS).unwrap();
        let tokens: usize = (0..exam.chunks()).map(|chunk| exam.tokens(chunk)).sum();
        println!(
            "{:>12} {:>10} {:>8} {:>14.1} {:>14.1} {:>7.2} {:>16.0} % {:>16.2}",
            task.name,
            documents.len(),
            tokens,
            n / times.padded,
            n / times.ours,
            times.padded / times.ours,
            100.0 * times.in_products,
            times.nine / times.ours
        );
    }
}

/// Best times in seconds for scoring a task's documents.
struct Times {
    padded: f64,
    ours: f64,
    /// Fraction of `ours` that is spent in matrix products.
    in_products: f64,
    /// Time to score the documents with all nine programs.
    nine: f64,
}

impl Times {
    /// Returns the best times of three interleaved rounds, because other processes can only slow a round down.
    fn measure(decoder: &Decoder, documents: &[Vec<TokenizedChoice<'_>>], dense: &[Program], nine: &[Program]) -> Self {
        let mut best = Self { padded: f64::INFINITY, ours: f64::INFINITY, in_products: 0.0, nine: f64::INFINITY };
        for _ in 0..3 {
            let (seconds, expected) = score_padded_rows(decoder, documents);
            best.padded = best.padded.min(seconds);
            profile::enable();
            let (seconds, scores) = score_with_engine(decoder, documents, dense);
            let inside = profile::disable() / (seconds * rayon::current_num_threads() as f64);
            if seconds < best.ours {
                best.ours = seconds;
                best.in_products = inside;
            }
            for (a, b) in scores_of_choices(&scores[0]).iter().zip(&expected) {
                assert!((a.log_likelihood - b.log_likelihood).abs() < 1e-3, "{a:?} {b:?}");
            }
            best.nine = best.nine.min(score_with_engine(decoder, documents, nine).0);
        }
        best
    }
}

/// Scores documents with the CPU engine. Returns the elapsed seconds and each program's scores.
fn score_with_engine(
    decoder: &Decoder,
    documents: &[Vec<TokenizedChoice<'_>>],
    programs: &[Program],
) -> (f64, Vec<Vec<f64>>) {
    let trie = Trie::for_scoring(programs);
    let mut seconds = vec![0.0; trie.len()];
    let started = Instant::now();
    let exam = MultipleChoiceEval::new(documents.to_vec(), decoder.config(), BATCH_TOKENS).unwrap();
    let scores = score(&exam, decoder, &trie, &mut seconds, |_| Ok(())).unwrap();
    (started.elapsed().as_secs_f64(), scores)
}

fn read_json(name: &str, shared: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(shared.join("backbone").join(name)).unwrap()).unwrap()
}

/// Returns the dense program and, for each of two removed ranges of layers, one program without an operator, one with a
/// diagonal operator and two with dense operators.
fn build_programs(decoder: &Decoder) -> Vec<Program> {
    let layers = decoder.config().layers;
    let channels = decoder.config().hidden;
    let mut programs = vec![Program::dense(layers)];
    for end in [11, 13] {
        let removed: Vec<usize> = (8..end).collect();
        programs.push(Program::pruned(layers, &removed, |_| None));
        programs.push(Program::pruned(layers, &removed, |_| Operator::diagonal(vec![1.1; channels]).ok()));
        for scale in [1.0, 1.2] {
            let mut matrix = vec![0.001; channels * channels];
            matrix.iter_mut().step_by(channels + 1).for_each(|v| *v = scale);
            let operator = Operator::dense(channels, matrix).unwrap();
            programs.push(Program::pruned(layers, &removed, |_| Some(operator.clone())));
        }
    }
    programs
}

/// Scores one row per choice, in batches of 16 rows sorted by length and padded to the longest. Returns the elapsed
/// seconds and the scores.
fn score_padded_rows(decoder: &Decoder, documents: &[Vec<TokenizedChoice<'_>>]) -> (f64, Vec<Score>) {
    let trie = Trie::new(&[Program::dense(decoder.config().layers)]);
    let all: Vec<TokenizedChoice<'_>> = documents.iter().flatten().copied().collect();
    let started = Instant::now();
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(all[index].input.len()));
    let mut scores = vec![Score { log_likelihood: 0.0, greedy: true }; all.len()];
    for members in order.chunks(ROWS_PER_BATCH) {
        let longest = all[members[0]].input.len();
        let mut batch = Batch::default();
        for &index in members {
            let choice = all[index];
            let mut ids = choice.input.to_vec();
            ids.resize(longest, 0);
            let start = batch.push(&ids, None);
            // Compute logits at every position, as harnesses do, although most are not needed.
            let mut tokens = vec![0; longest];
            let first = choice.input.len() - choice.continuation.len();
            tokens[first..choice.input.len()].copy_from_slice(choice.continuation);
            batch.targets.extend(tokens.into_iter().zip(start..).map(|(token, row)| ScoredRow { row, token }));
        }
        let outputs = trie.run(decoder, &batch, &mut ()).unwrap();
        let predictions: Vec<_> = outputs.into_iter().flatten().flatten().collect();
        for (&index, predictions) in members.iter().zip(predictions.chunks(longest)) {
            let input = all[index].input.len();
            let count = all[index].continuation.len();
            for prediction in &predictions[input - count..input] {
                scores[index].log_likelihood += f64::from(prediction.log_probability);
                scores[index].greedy &= prediction.is_greedy;
            }
        }
    }
    (started.elapsed().as_secs_f64(), scores)
}
