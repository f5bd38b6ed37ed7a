//! Compares multiple-choice scores with those of lm-evaluation-harness (`shared/oracles/lm_eval`, log-likelihoods
//! within 1e-4), and checks invariants that hold for every backbone.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::path::Path;

use crate::common;
use crate::common::{engines, engines_of, fixture, shared};
use ghostlab::error::Result;
use ghostlab::evaluate::choices::{MultipleChoiceEval, TokenizedChoice};
use ghostlab::evaluate::{EvalSet, score};
use ghostlab::model::{Config, Decoder, Engine, LongRope, Operator, Products, Program, Rope, Scaling, Trie};
use ghostlab::results::harness_files;
use ghostlab::tasks::Score;
use serde_json::Value;

/// Choices for a document, as (input, continuation) pairs.
type Document = Vec<(Vec<u32>, Vec<u32>)>;

fn score_documents(
    engine: &dyn Engine,
    programs: &[Program],
    documents: &[Document],
    budget: usize,
) -> Vec<Vec<Vec<Score>>> {
    let borrowed: Vec<Vec<TokenizedChoice<'_>>> = documents
        .iter()
        .map(|choices| choices.iter().map(|(input, continuation)| TokenizedChoice { input, continuation }).collect())
        .collect();
    let trie = Trie::for_scoring(programs);
    let mut tokens = 0;
    let mut seconds = vec![0.0; trie.len()];
    let exam = MultipleChoiceEval::new(borrowed, engine.config(), budget).unwrap();
    let program_values = score(&exam, engine, &trie, &mut seconds, |batch_tokens| -> Result<()> {
        tokens += batch_tokens;
        Ok(())
    })
    .unwrap();
    assert_eq!(tokens, (0..exam.chunks()).map(|chunk| exam.tokens(chunk)).sum::<usize>());
    program_values
        .into_iter()
        .map(|values| {
            let mut scores = ghostlab::evaluate::choices::scores_of_choices(&values).into_iter();
            documents.iter().map(|choices| scores.by_ref().take(choices.len()).collect()).collect()
        })
        .collect()
}

/// Reads the reference requests, grouped by document. Each comes with its log-likelihood and greedy flag from
/// lm-evaluation-harness.
fn read_golden(path: &Path) -> (Vec<Document>, Vec<Vec<(f64, bool)>>) {
    let text = std::fs::read_to_string(path).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let document_rows = rows.chunk_by(|a, b| a["doc_id"] == b["doc_id"]);
    document_rows
        .map(|rows| {
            let choices =
                rows.iter().map(|row| (token_ids(&row["input_ids"]), token_ids(&row["continuation_ids"]))).collect();
            let expected: Vec<(f64, bool)> = rows
                .iter()
                .map(|row| (row["logprob"].as_f64().unwrap(), row["is_greedy"].as_bool().unwrap()))
                .collect();
            (choices, expected)
        })
        .unzip::<Document, Vec<(f64, bool)>, Vec<_>, Vec<_>>()
}

fn token_ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn log_likelihoods_match_the_harness() {
    let Some(folder) = shared("oracles/lm_eval") else { return };
    let engines = engines(&folder.join("model"));
    let mut requests = vec![0; engines.len()];
    for part in ["requests", "nobos/requests", "requests_legacy"] {
        for entry in std::fs::read_dir(folder.join(part)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|kind| kind != "jsonl") {
                continue;
            }
            let (documents, expected) = read_golden(&path);
            for (engine, requests) in engines.iter().zip(&mut requests) {
                let name = engine.id().name;
                let ours = &score_documents(&**engine, &[Program::dense(engine.config().layers)], &documents, 512)[0];
                for (document, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
                    for (ours, (log_likelihood, greedy)) in ours.iter().zip(expected) {
                        let difference = (ours.log_likelihood - log_likelihood).abs();
                        let label = format!("{name}: {} document {document}", path.display());
                        assert!(difference <= 1e-4, "{label}: {difference:e}");
                        assert_eq!(ours.greedy, *greedy, "{label}");
                        *requests += 1;
                    }
                }
            }
        }
    }
    // There are 180 requests with BOS, 180 without, and 20 for the older version of RACE.
    assert_eq!(requests, [380; 2]);
}

#[test]
fn grid_accuracies_match_the_harness_exactly() {
    use ghostlab::grid::Grid;
    use ghostlab::pipeline::exec::{self, RunEnv};
    use ghostlab::pipeline::stage;
    use ghostlab_store::Store;
    let Some(folder) = shared("oracles/lm_eval") else { return };
    let world = tempfile::tempdir().unwrap();
    std::fs::write(world.path().join("text.txt"), "The dog likes to run in the park. ".repeat(50)).unwrap();
    let names = ["arc_easy", "arc_challenge", "hellaswag", "winogrande", "boolq", "openbookqa", "rte", "copa", "race"];
    let grid = format!(
        "backbones:\n  tiny: {{path: {}}}\ncorpora:\n  text: {{path: text.txt, rule: wikitext2}}\ntasks:\n{}\
         backbone: tiny\ncriterion: [{{name: explicit, layers: [1]}}]\ndepth: 1\nrecovery: ghosted\n\
         calibration: [{{corpus: text, sequences: 4, length: 32}}]\nevaluate:\n  tasks:\n{}",
        folder.join("model").display(),
        names
            .map(|name| format!("  {name}: {{path: {}}}\n", folder.join(format!("docs/{name}.jsonl")).display()))
            .concat(),
        names.map(|name| format!("    - {name}\n    - {{name: {name}, bos: never}}\n")).concat()
    );
    std::fs::write(world.path().join("grid.yaml"), grid).unwrap();
    let grid = Grid::load(&world.path().join("grid.yaml"), None, &[]).unwrap();
    let store = Store::open(&world.path().join("store"), stage::STORE_WORDS).unwrap();
    let outcome = exec::run(&grid, RunEnv::new(&store)).unwrap();
    assert_eq!(outcome.failed_count(), 0);
    let files = harness_files(&grid, &outcome.cells[0], "cell").unwrap();
    for (ours, golden) in files.iter().zip(["results.json", "nobos/results.json"]) {
        let golden = common::json(&folder.join(golden));
        for name in names {
            for (key, value) in golden["results"][name].as_object().unwrap() {
                assert_eq!(&ours["results"][name][key], value, "{name} {key}");
            }
        }
    }
    assert_eq!(files.len(), 2);
    assert_ne!(harness_files(&grid, &outcome.cells[1], "cell").unwrap()[0]["results"], files[0]["results"]);
}

/// Returns documents whose choices share a context, have equal inputs, share no tokens, or have inputs that are
/// prefixes of each other.
fn documents(vocab: u32) -> Vec<Document> {
    let text =
        |seed: u32, length: u32| -> Vec<u32> { (0..length).map(|i| (seed * 7919 + i * i * 31) % vocab).collect() };
    let context = text(1, 90);
    vec![
        (0..4).map(|i| request([&context[..], &text(10 + i, 3 + i * 9)].concat(), 3 + i as usize, i)).collect(),
        vec![request(text(2, 70), 1, 5), request(text(2, 70), 1, 6)],
        vec![request(text(3, 20), 4, 1), request(text(4, 33), 9, 2)],
        vec![request(text(5, 40), 6, 1), request([&text(5, 40)[..], &[3]].concat(), 1, 2), request(text(5, 44), 2, 3)],
        vec![request(text(6, 1), 1, 9)],
        // The branches have more rows than fit into one query block.
        (0..9).map(|i| request([text(7, 5), text(20 + i, 30)].concat(), 30, i)).collect(),
    ]
}

fn request(input: Vec<u32>, scored: usize, last: u32) -> (Vec<u32>, Vec<u32>) {
    let mut continuation = input[input.len() - scored + 1..].to_vec();
    continuation.push(last);
    (input, continuation)
}

fn programs(engine: &dyn Engine) -> Vec<Program> {
    let layers = engine.config().layers;
    let channels = engine.config().hidden;
    let scale = Operator::diagonal((0..channels).map(|c| 0.9 + c as f32 / 300.0).collect()).unwrap();
    vec![
        Program::dense(layers),
        Program::pruned(layers, &[1, 2], |_| None),
        Program::pruned(layers, &[1, 2], |_| Some(scale.clone())),
    ]
}

/// Covers all architecture fixtures, both unchanged and with RoPE types that depend on the sequence length.
///
/// On the CPU engine, the scores of a document are bit-identical whatever other documents are in the batch. This holds
/// in f32 and bf16, and also if weights are loaded on demand. A choice that shares a prefix with others has the same
/// score up to rounding, because attention over the prefix and attention over the remaining tokens are summed
/// separately.
#[test]
fn document_score_is_independent_of_its_batch() {
    let mut models: Vec<_> = std::fs::read_dir(fixture("arch")).unwrap().map(|entry| entry.unwrap().path()).collect();
    models.sort();
    assert!(models.len() >= 6, "{models:?}");
    for folder in models {
        for config in length_dependent_configs(&folder) {
            let rope = config.rope.scaling.as_ref().map_or("default", Scaling::name);
            let what = format!("{}, {rope}", folder.display());
            for (products, memory) in [(Products::F32, u64::MAX), (Products::Bf16, u64::MAX), (Products::F32, 0)] {
                let engine = Decoder::load_within(config.clone(), &folder, products, memory).unwrap();
                assert_same_bits_alone(&format!("{what}, {products:?}"), &engine);
            }
            for engine in engines_of(config, &folder) {
                assert_near_alone(&format!("{what}, {}", engine.id()), &*engine);
            }
        }
    }
}

/// Returns a model's config, and copies of it with RoPE frequencies that change beyond 40 tokens.
fn length_dependent_configs(folder: &Path) -> Vec<Config> {
    let config = Config::read(folder).unwrap();
    let pairs = config.rotary_width / 2;
    let [short, long] = [1.0, 2.0].map(|from| (0..pairs).map(|pair| from + 0.3 * pair as f64).collect());
    let longrope = LongRope { short, long, original_max_position_embeddings: 40, attention: 1.1 };
    let dynamic = Scaling::Dynamic { factor: 4.0, positions: 40 };
    let ropes = [config.rope.scaling.clone(), Some(Scaling::LongRope(longrope)), Some(dynamic)];
    ropes.map(|scaling| Config { rope: Rope { scaling, ..config.rope.clone() }, ..config.clone() }).into()
}

/// Returns the test documents, followed by a document with all of their choices. In the last one, every choice starts
/// with the same token, as it would with BOS.
fn documents_with_common_prefix(vocab: u32) -> Vec<Document> {
    let mut documents = documents(vocab);
    documents.push(
        documents
            .iter()
            .flatten()
            .map(|(input, continuation)| ([&[1], &input[..]].concat(), continuation.clone()))
            .collect(),
    );
    documents
}

/// Asserts that each document in a batch gets bit-identical scores when it is scored alone.
fn assert_same_bits_alone(what: &str, engine: &dyn Engine) {
    let documents = documents_with_common_prefix(engine.config().vocab as u32);
    let dense = [Program::dense(engine.config().layers)];
    let together = score_documents(engine, &dense, &documents, 512).remove(0);
    for (index, (document, together)) in documents.iter().zip(&together).enumerate() {
        let alone = score_documents(engine, &dense, std::slice::from_ref(document), 512).remove(0).remove(0);
        assert_eq!(alone, *together, "{what}, document {index}");
    }
}

/// Asserts that each choice in a batch gets the same score up to rounding when it is scored alone.
fn assert_near_alone(what: &str, engine: &dyn Engine) {
    let documents = documents_with_common_prefix(engine.config().vocab as u32);
    let dense = [Program::dense(engine.config().layers)];
    let together = score_documents(engine, &dense, &documents, 512).remove(0);
    let choices = documents.iter().flatten().zip(together.iter().flatten());
    for (index, (choice, together)) in choices.enumerate() {
        let alone = score_documents(engine, &dense, &[vec![choice.clone()]], 512)[0][0][0];
        let difference = (alone.log_likelihood - together.log_likelihood).abs();
        assert!(difference <= 1e-4, "{what}, choice {index}: {alone:?} alone, {together:?} together");
        assert_eq!(alone.greedy, together.greedy, "{what}, choice {index}");
    }
}

#[test]
fn shared_contexts_and_programs_do_not_change_scores() {
    for name in ["llama-gqa", "llama3-rope", "qwen3", "olmo2", "mistral", "qwen2"] {
        for engine in engines(&fixture(&format!("arch/{name}"))) {
            let documents = documents(engine.config().vocab as u32);
            let programs = programs(&*engine);
            let together = score_documents(&*engine, &programs, &documents, 512);
            for (program, together) in programs.iter().zip(&together) {
                for (document, together) in documents.iter().zip(together) {
                    for (choice, together) in document.iter().zip(together) {
                        // A batch with a single program and a single choice has no branches.
                        let alone =
                            score_documents(&*engine, std::slice::from_ref(program), &[vec![choice.clone()]], 512)[0]
                                [0][0];
                        let difference = (alone.log_likelihood - together.log_likelihood).abs();
                        assert!(difference <= 1e-4, "{name}: {alone:?} {together:?}");
                        assert_eq!(alone.greedy, together.greedy);
                    }
                }
            }
        }
    }
}

#[test]
fn token_budget_changes_only_the_rounding_of_scores() {
    for engine in engines(&fixture("arch/llama-gqa")) {
        let documents = documents(engine.config().vocab as u32);
        let programs = programs(&*engine);
        let first = score_documents(&*engine, &programs, &documents, 64);
        assert_eq!(first, score_documents(&*engine, &programs, &documents, 64));
        for budget in [1, 512, 4096] {
            let other = score_documents(&*engine, &programs, &documents, budget);
            for (a, b) in first.iter().flatten().flatten().zip(other.iter().flatten().flatten()) {
                assert!((a.log_likelihood - b.log_likelihood).abs() <= 1e-4, "{budget}: {a:?} {b:?}");
            }
        }
    }
}

#[test]
fn only_the_most_likely_continuation_is_greedy() {
    for engine in engines(&fixture("arch/llama-gqa")) {
        let dense = [Program::dense(engine.config().layers)];
        let vocab = engine.config().vocab as u32;
        let mut text = vec![3, 1, 4, 1, 5];
        for _ in 0..4 {
            let all: Document = (0..vocab).map(|token| (text.clone(), vec![token])).collect();
            let scores = &score_documents(&*engine, &dense, &[all], 2048)[0][0];
            let greedy: Vec<usize> = (0..scores.len()).filter(|&token| scores[token].greedy).collect();
            let best = scores.iter().map(|s| s.log_likelihood).fold(f64::NEG_INFINITY, f64::max);
            assert_eq!(greedy.len(), 1);
            assert_eq!(scores[greedy[0]].log_likelihood, best);
            text.push(greedy[0] as u32);
        }
        let input = text[..text.len() - 1].to_vec();
        let continuation = text[5..].to_vec();
        let mut other = continuation.clone();
        other[3] = (other[3] + 1) % vocab;
        let scores = score_documents(&*engine, &dense, &[vec![(input.clone(), continuation), (input, other)]], 2048);
        assert_eq!(scores[0][0].iter().map(|s| s.greedy).collect::<Vec<_>>(), [true, false]);
    }
}
