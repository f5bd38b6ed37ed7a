//! Tests loading weights on demand within a memory budget. It must not change results, and invalid weights must be
//! reported when they are loaded.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::path::Path;

use crate::common::{checkout, fixture, tensors};
use candle_core::{DType, Device, Tensor};
use ghostlab_core::calibrate::{HookPoint, in_memory};
use ghostlab_core::corpus::{Start, Windows};
use ghostlab_core::evaluate::perplexity::PerplexityEval;
use ghostlab_core::evaluate::{EvalSet, score};
use ghostlab_core::model::{
    CandleEngine, Config, Decoder, DeviceName, Engine, FloatType, Operator, Placement, Products, Program, Trie,
};

fn sample_windows(vocab: usize, count: usize, length: usize) -> Windows {
    let ids: Vec<u32> = (0..count * length).map(|i| (i * 7919 % vocab) as u32).collect();
    let starts = (0..count).map(|window| Start { document: 0, token: window * length }).collect();
    Windows { corpus_tokens: ids.len(), ids, length, starts, bytes: 0 }
}

/// Scores a dense, a pruned and a repaired program, and records the activations at every layer boundary. Returns the
/// bits of both.
fn compute_scores(engine: &dyn Engine) -> (Vec<u64>, Vec<u32>) {
    let config = engine.config();
    let patch = Operator::diagonal((0..config.hidden).map(|c| 0.8 + c as f32 / 500.0).collect()).unwrap();
    let programs = [
        Program::dense(config.layers),
        Program::pruned(config.layers, &[1], |_| None),
        Program::pruned(config.layers, &[1], |_| Some(patch.clone())),
    ];
    let trie = Trie::new(&programs);
    let text = sample_windows(config.vocab, 13, 32);
    let scores = [(512, 1), (64, 7)].map(|(batch, chunks)| {
        let eval_set = PerplexityEval::new(&text, batch);
        assert_eq!(eval_set.chunks(), chunks, "wrong number of chunks");
        score(&eval_set, engine, &trie, &mut vec![0.0; trie.len()], |_| Ok(())).unwrap().concat()
    });
    let sites: Vec<HookPoint> = (0..=config.layers).map(HookPoint::Stream).collect();
    let activations = in_memory(engine, &sample_windows(config.vocab, 10, 16), sites.iter().copied()).unwrap();
    let rows = sites.iter().flat_map(|&site| activations.rows(site, 0..10).unwrap().to_vec());
    (scores.concat().into_iter().map(f64::to_bits).collect(), rows.map(f32::to_bits).collect())
}

/// Loads a backbone with a weight budget of `layers` layers.
fn load_within_budget(folder: &Path, layers: u64) -> Decoder {
    let config = Config::read(folder).unwrap();
    let budget = layers * config.layer_bytes(Products::F32);
    Decoder::load_within(config, folder, Products::F32, budget).unwrap()
}

fn load_cpu(folder: &Path, budget: u64) -> Box<dyn Engine> {
    Box::new(Decoder::load_within(Config::read(folder).unwrap(), folder, Products::F32, budget).unwrap())
}

fn load_cpu_bf16(folder: &Path, budget: u64) -> Box<dyn Engine> {
    Box::new(Decoder::load_within(Config::read(folder).unwrap(), folder, Products::Bf16, budget).unwrap())
}

fn load_candle(folder: &Path, budget: u64) -> Box<dyn Engine> {
    let config = Config::read(folder).unwrap();
    let placement = Placement { device: DeviceName::Cpu, dtype: FloatType::F32 };
    Box::new(CandleEngine::load(config, folder, placement, Some(budget)).unwrap())
}

type Load = fn(&Path, u64) -> Box<dyn Engine>;
const LOADERS: [(Load, Products); 3] =
    [(load_cpu, Products::F32), (load_cpu_bf16, Products::Bf16), (load_candle, Products::F32)];

#[test]
fn scores_are_independent_of_weight_memory() {
    let mut folders: Vec<_> = ["llama-gqa", "llama3-rope", "qwen3", "olmo2", "mistral", "qwen2"]
        .map(|name| fixture(&format!("arch/{name}")))
        .into();
    folders.push(checkout().join("data/tiny/llama"));
    for folder in folders {
        let config = Config::read(&folder).unwrap();
        for (load, products) in LOADERS {
            let layer = config.layer_bytes(products);
            let total = config.weight_bytes(products);
            assert!(total > 3 * layer);
            let all = compute_scores(&*load(&folder, u64::MAX));
            assert!(all.0.len() == 6 * 13 && all.0[..13] != all.0[13..26] && all.0[13..26] != all.0[26..39]);
            // A budget of `total - 1` is almost large enough for the weights, but part of it is reserved for residual
            // streams.
            for budget in [3 * layer, 0, total - 1] {
                let engine = load(&folder, budget);
                let what = format!("{} {}: a budget of {budget} bytes", engine.id(), folder.display());
                assert!(compute_scores(&*engine) == all, "{what}");
            }
        }
    }
}

#[test]
fn nonfinite_weight_is_reported_when_its_layer_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("arch/llama-gqa/config.json"), folder.path().join("config.json")).unwrap();
    let mut weights = tensors(&fixture("arch/llama-gqa/model.safetensors"));
    let name = "model.layers.2.mlp.down_proj.weight";
    let shape = weights[name].dims().to_vec();
    let mut values: Vec<f32> = weights[name].to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    values[11] = f32::NAN;
    weights.insert(name.into(), Tensor::from_vec(values, shape, &Device::Cpu).unwrap());
    candle_core::safetensors::save(&weights, folder.path().join("model.safetensors")).unwrap();
    let decoder = load_within_budget(folder.path(), 2);
    let text = sample_windows(320, 2, 32);
    let run = |removed: &[usize]| {
        let trie = Trie::new(&[Program::pruned(4, removed, |_| None)]);
        score(&PerplexityEval::new(&text, 2048), &decoder, &trie, &mut vec![0.0; trie.len()], |_| Ok(()))
    };
    for _ in 0..2 {
        let error = run(&[]).unwrap_err();
        let text = error.to_string();
        assert!(error.exit_code() == 2 && text.contains("not a finite number"), "{text}");
        assert!(text.contains(name) && text.contains("element 11"), "{text}");
    }
    assert!(run(&[2]).is_ok(), "a removed layer must not be loaded");
}

#[test]
fn changed_weight_file_error_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("arch/llama-gqa").join(name), folder.path().join(name)).unwrap();
    }
    let decoder = load_within_budget(folder.path(), 2);
    let text = sample_windows(320, 2, 32);
    let trie = Trie::new(&[Program::dense(4)]);
    let run = || score(&PerplexityEval::new(&text, 2048), &decoder, &trie, &mut vec![0.0; trie.len()], |_| Ok(()));
    run().unwrap();
    let path = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].fill(0);
    // Modify the file in place, so that the file that the engine has open changes.
    std::fs::write(&path, &bytes).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(5)).unwrap();
    let error = run().unwrap_err();
    let text = error.to_string();
    assert!(error.exit_code() == 2 && text.contains("changed after it was opened"), "{text}");
    assert!(text.contains("model.safetensors"), "{text}");
}
