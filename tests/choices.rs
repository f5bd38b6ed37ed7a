//! Multiple-choice scores: against lm-evaluation-harness' own (oracle `lm_eval`: log-likelihoods within 1e-3), and what
//! has to hold on any backbone.
#![allow(clippy::unwrap_used, reason = "a test stops at what it lacks")]

mod common;

use std::path::Path;

use common::{fixture, shared};
use ghostlab::error::Result;
use ghostlab::evaluate::choices::{Choice, Scored, score};
use ghostlab::model::{Decoder, Operator, Program, Trie};
use serde_json::Value;

/// A document's choices: input, continuation.
type Document = Vec<(Vec<u32>, Vec<u32>)>;

fn scored(decoder: &Decoder, programs: &[Program], documents: &[Document], budget: usize) -> Vec<Vec<Vec<Scored>>> {
    let borrowed: Vec<Vec<Choice<'_>>> = documents
        .iter()
        .map(|choices| choices.iter().map(|(input, continuation)| Choice { input, continuation }).collect())
        .collect();
    let trie = Trie::new(programs);
    let mut tokens = 0;
    let mut seconds = vec![0.0; trie.len()];
    let progress = |of_batch| -> Result<()> {
        tokens += of_batch;
        Ok(())
    };
    let scores = score(decoder, &trie, programs.len(), &borrowed, budget, &mut seconds, progress).unwrap();
    assert_eq!(tokens, ghostlab::evaluate::choices::load(&borrowed).tokens);
    scores
}

/// Golden requests, document by document, with the harness' log-likelihood and greedy flag.
fn golden(path: &Path) -> (Vec<Document>, Vec<Vec<(f64, bool)>>) {
    let text = std::fs::read_to_string(path).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ids = |value: &Value| value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let of_documents = rows.chunk_by(|a, b| a["doc_id"] == b["doc_id"]);
    of_documents
        .map(|rows| {
            let choices = rows.iter().map(|row| (ids(&row["input_ids"]), ids(&row["continuation_ids"]))).collect();
            let expected = |row: &Value| (row["logprob"].as_f64().unwrap(), row["is_greedy"].as_bool().unwrap());
            let expected: Vec<(f64, bool)> = rows.iter().map(expected).collect();
            (choices, expected)
        })
        .unzip::<Document, Vec<(f64, bool)>, Vec<_>, Vec<_>>()
}

#[test]
fn log_likelihoods_equal_the_harness() {
    let Some(folder) = shared("oracles/lm_eval") else { return };
    let decoder = Decoder::load(&folder.join("model")).unwrap();
    let mut requests = 0;
    for part in ["requests", "nobos/requests", "requests_legacy"] {
        for entry in std::fs::read_dir(folder.join(part)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|kind| kind != "jsonl") {
                continue;
            }
            let (documents, expected) = golden(&path);
            let ours = &scored(&decoder, &[Program::dense(decoder.config().layers)], &documents, 512)[0];
            for (document, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
                for (ours, (log_likelihood, greedy)) in ours.iter().zip(expected) {
                    let difference = (ours.log_likelihood - log_likelihood).abs();
                    assert!(difference <= 1e-3, "{} document {document}: {difference:e}", path.display());
                    assert_eq!(ours.greedy, *greedy, "{} document {document}", path.display());
                    requests += 1;
                }
            }
        }
    }
    // 180 with BOS, 180 without, 20 of the older race.
    assert_eq!(requests, 380);
}

/// Documents of every shape: shared contexts, equal inputs, nothing shared, an input that is another one's prefix.
fn documents(vocab: u32) -> Vec<Document> {
    let text =
        |seed: u32, length: u32| -> Vec<u32> { (0..length).map(|i| (seed * 7919 + i * i * 31) % vocab).collect() };
    let joined = |parts: &[&[u32]]| parts.concat();
    let context = text(1, 90);
    let request = |input: Vec<u32>, scored: usize, last: u32| {
        let mut continuation = input[input.len() - scored + 1..].to_vec();
        continuation.push(last);
        (input, continuation)
    };
    vec![
        (0..4).map(|i| request(joined(&[&context, &text(10 + i, 3 + i * 9)]), 3 + i as usize, i)).collect(),
        vec![request(text(2, 70), 1, 5), request(text(2, 70), 1, 6)],
        vec![request(text(3, 20), 4, 1), request(text(4, 33), 9, 2)],
        vec![request(text(5, 40), 6, 1), request(joined(&[&text(5, 40), &[3]]), 1, 2), request(text(5, 44), 2, 3)],
        vec![request(text(6, 1), 1, 9)],
        // More branch rows than a block of queries.
        (0..9).map(|i| request(joined(&[&text(7, 5), &text(20 + i, 30)]), 30, i)).collect(),
    ]
}

fn programs(decoder: &Decoder) -> Vec<Program> {
    let (layers, channels) = (decoder.config().layers, decoder.config().hidden);
    let scale = Operator::diagonal((0..channels).map(|c| 0.9 + c as f32 / 300.0).collect()).unwrap();
    vec![
        Program::dense(layers),
        Program::pruned(layers, &[1, 2], |_| None),
        Program::pruned(layers, &[1, 2], |_| Some(scale.clone())),
    ]
}

#[test]
fn shared_contexts_and_variants_change_nothing() {
    for name in ["llama-gqa", "llama3-rope", "qwen3", "olmo2"] {
        let decoder = Decoder::load(&fixture(&format!("arch/{name}"))).unwrap();
        let documents = documents(decoder.config().vocab as u32);
        let programs = programs(&decoder);
        let together = scored(&decoder, &programs, &documents, 512);
        for (program, together) in programs.iter().zip(&together) {
            for (document, together) in documents.iter().zip(together) {
                for (choice, together) in document.iter().zip(together) {
                    // Alone: one program, one choice, no branch.
                    let alone = scored(&decoder, std::slice::from_ref(program), &[vec![choice.clone()]], 512)[0][0][0];
                    let difference = (alone.log_likelihood - together.log_likelihood).abs();
                    assert!(difference <= 1e-4, "{name}: {alone:?} {together:?}");
                    assert_eq!(alone.greedy, together.greedy);
                }
            }
        }
    }
}

#[test]
fn the_budget_changes_nothing_but_rounding_and_a_repeat_nothing_at_all() {
    let decoder = Decoder::load(&fixture("arch/llama-gqa")).unwrap();
    let (documents, programs) = (documents(decoder.config().vocab as u32), programs(&decoder));
    let first = scored(&decoder, &programs, &documents, 64);
    assert_eq!(first, scored(&decoder, &programs, &documents, 64));
    for budget in [1, 512, 4096] {
        let other = scored(&decoder, &programs, &documents, budget);
        for (a, b) in first.iter().flatten().flatten().zip(other.iter().flatten().flatten()) {
            assert!((a.log_likelihood - b.log_likelihood).abs() <= 1e-4, "{budget}: {a:?} {b:?}");
        }
    }
}
