//! Half precision on a real backbone: perplexity within 0.5 % of f32, and the same choice on 98 % of the documents of each
//! float type.
#![allow(clippy::unwrap_used, reason = "a test stops at what it lacks")]

mod common;

use std::path::Path;

use common::{json, shared};
use ghostlab_core::corpus::{Rule, Tokenizer, evaluation, read_rows};
use ghostlab_core::evaluate::choices::{MultipleChoiceEval, TokenisedChoice, scored};
use ghostlab_core::evaluate::{TaskEncoder, perplexity, score};
use ghostlab_core::model::{CandleEngine, Config, Decoder, DeviceName, Engine, FloatType, Placement, Program, Trie};
use ghostlab_core::tasks::{Bos, DocumentLimit, Items, Task, requests};

/// The CPU engine, then candle's in every float type.
fn engines(folder: &Path) -> Vec<Box<dyn Engine>> {
    let candle = |dtype| {
        let at = Placement { device: DeviceName::Cpu, dtype };
        Box::new(CandleEngine::load(Config::read(folder).unwrap(), folder, at, None).unwrap()) as Box<dyn Engine>
    };
    let cpu: Box<dyn Engine> = Box::new(Decoder::load(folder).unwrap());
    [cpu].into_iter().chain(FloatType::ALL.map(candle)).collect()
}

#[test]
#[ignore = "slow: a hundred windows of 512 tokens, four times"]
fn perplexity_in_half_precision_is_within_half_a_percent_of_f32() {
    let Some(folder) = shared("real") else { return };
    let tokenizer = Tokenizer::load(folder.join("backbone/tokenizer.json")).unwrap();
    let rows = read_rows(folder.join("corpora/wikitext2-test.parquet"), None).unwrap();
    let windows = evaluation(Rule::Wikitext2, &rows, &tokenizer, 512, Some(100)).unwrap();
    let of = |engine: &dyn Engine| {
        let layers = engine.config().layers;
        let programs = [Program::dense(layers), Program::pruned(layers, &[8, 9, 10], |_| None)];
        let found = perplexity::of(engine, &programs, &windows).unwrap();
        assert_eq!(engine.notes(), [""; 0]);
        found
    };
    let engines = engines(&folder.join("backbone"));
    let all: Vec<Vec<f64>> = engines.iter().map(|engine| of(&**engine)).collect();
    for (engine, ours) in engines.iter().zip(&all) {
        // As far as f32 is from f32, and 0.5 % in half precision.
        let tolerance = if engine.id().dtype == "f32" { 1e-4 } else { 5e-3 };
        for (ours, exact) in ours.iter().zip(&all[0]) {
            common::assert_close(&engine.id().to_string(), *ours, *exact, tolerance);
        }
    }
    assert!(all[2] != all[1] && all[3] != all[1], "half precision rounds: {all:?}");
}

#[test]
#[ignore = "slow: six tasks of up to 100 documents, four times"]
fn choices_in_half_precision_are_those_of_f32_on_98_percent_of_the_documents() {
    let Some(folder) = shared("real") else { return };
    let backbone = folder.join("backbone");
    let tokenizer = Tokenizer::load(backbone.join("tokenizer.json")).unwrap();
    let encoder = TaskEncoder::new(
        &tokenizer,
        &json(&backbone.join("tokenizer_config.json")),
        &json(&backbone.join("config.json")),
    )
    .unwrap();
    let engines = engines(&backbone);
    let (mut documents, mut agreeing) = (0, vec![0; engines.len()]);
    for file in ["hellaswag.jsonl", "boolq.jsonl", "arc_easy.parquet", "openbookqa.parquet", "rte.jsonl", "copa.jsonl"]
    {
        let task = Task::find(file.split('.').next().unwrap()).unwrap();
        let limit = Some(DocumentLimit::new(100.0).unwrap());
        let items = Items::read(task, folder.join("tasks").join(file), limit).unwrap();
        let requests = requests(&items, &encoder, Bos::Tokenizer, 1024).unwrap();
        let choices: Vec<Vec<TokenisedChoice<'_>>> = requests
            .chunk_by(|a, b| a.document == b.document)
            .map(|of| {
                of.iter().map(|r| TokenisedChoice { input: &r.input_ids, continuation: &r.continuation_ids }).collect()
            })
            .collect();
        let eval_set = MultipleChoiceEval::new(&choices, 2048).unwrap();
        let tops = |engine: &dyn Engine| -> Vec<usize> {
            let trie = Trie::new(&[Program::dense(engine.config().layers)]);
            let scores = score(&eval_set, engine, &trie, &mut vec![0.0; trie.len()], |_| Ok(())).unwrap();
            let mut scores = scored(&scores[0]).into_iter().map(|of| of.log_likelihood);
            let top = |of: &Vec<TokenisedChoice<'_>>| {
                let own: Vec<f64> = scores.by_ref().take(of.len()).collect();
                (0..own.len()).max_by(|&a, &b| own[a].total_cmp(&own[b])).unwrap()
            };
            choices.iter().map(top).collect()
        };
        let all: Vec<Vec<usize>> = engines.iter().map(|engine| tops(&**engine)).collect();
        documents += all[0].len();
        for (agreeing, ours) in agreeing.iter_mut().zip(&all) {
            *agreeing += ours.iter().zip(&all[0]).filter(|(a, b)| a == b).count();
        }
    }
    assert_eq!(documents, 600);
    for (engine, agreeing) in engines.iter().zip(agreeing) {
        let least = if engine.id().dtype == "f32" { 0.998 } else { 0.98 };
        let share = agreeing as f64 / documents as f64;
        assert!(share >= least, "{}: {share}", engine.id());
    }
}
