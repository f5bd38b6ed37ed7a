//! Engine tests for cases that the reference comparisons (`crates/core/tests`) do not cover: limited memory, half
//! precision and overflow.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use tempfile::TempDir;

use super::*;
use crate::evaluate::EvalSet;
use crate::evaluate::generation::GenerationEval;
use crate::generate::{Detokenizer, Prompt, Settings};
use crate::model::operator::Operator;
use crate::model::program::Program;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/arch").join(name)
}

fn load(folder: &Path, dtype: FloatType) -> CandleEngine {
    let placement = Placement { device: DeviceName::Cpu, dtype };
    CandleEngine::load(Config::read(folder).unwrap(), folder, placement, None).unwrap()
}

/// Builds a batch of windows, followed by a segment with three continuations.
fn batch() -> Batch {
    let windows = [sample_ids(1, 60), sample_ids(2, 60), sample_ids(3, 7), sample_ids(4, 90)];
    let mut batch = Batch::windows(windows.iter().map(Vec::as_slice));
    let parent = Some(batch.segments.len());
    batch.push(&sample_ids(5, 40), None);
    for seed in 6..9 {
        let start = batch.push(&sample_ids(seed, 5), parent);
        batch.targets.extend((start..start + 4).map(|row| crate::model::ScoredRow { row, token: 3 }));
    }
    batch
}

fn sample_ids(seed: u32, count: u32) -> Vec<u32> {
    (0..count).map(|i| (seed * 7919 + i * 31) % 317).collect::<Vec<u32>>()
}

fn programs() -> [Program; 2] {
    let operator = Operator::diagonal((0..64).map(|c| 0.8 + c as f32 / 200.0).collect()).unwrap();
    [Program::dense(4), Program::pruned(4, &[1, 2], |_| Some(operator.clone()))]
}

fn log_probabilities(engine: &CandleEngine) -> Vec<f32> {
    let outputs = engine.run(&Trie::new(&programs()), &batch(), &mut ()).unwrap();
    outputs.into_iter().flatten().flatten().map(|p| p.log_probability).collect()
}

#[test]
fn out_of_memory_reduces_the_piece_size_and_adds_notes() {
    for name in ["llama-gqa", "qwen3", "olmo2"] {
        let mut engine = load(&fixture(name), FloatType::F32);
        let all = log_probabilities(&engine);
        assert_eq!(engine.notes(), [""; 0]);
        // The batch has 272 rows, so it needs several pieces. Its longest tree, which must not be split, has 90 rows.
        engine.max_test_rows = 100;
        let piecewise = log_probabilities(&engine);
        assert_eq!(all.len(), piecewise.len());
        assert!(all.iter().zip(&piecewise).all(|(a, b)| (a - b).abs() < 1e-5), "{name}");
        let notes = engine.notes();
        assert!(!notes.is_empty() && notes.iter().all(|note| note.contains("out of device memory")), "{notes:?}");
        // The engine keeps the reduced piece size, so a second run adds no notes.
        assert_eq!(log_probabilities(&engine), piecewise);
        assert_eq!(engine.notes(), [""; 0]);
        engine.max_test_rows = 89;
        let error = engine.run(&Trie::new(&programs()), &batch(), &mut ()).err().unwrap();
        assert!(error.exit_code() == 3 && error.to_string().contains("90 tokens"), "{error}");
    }
}

#[test]
fn limited_memory_does_not_change_generated_tokens() {
    struct Numbers;
    impl Detokenizer for Numbers {
        fn decode(&self, ids: &[u32], _: bool) -> Result<String> {
            Ok(ids.iter().map(u32::to_string).collect())
        }
    }
    let prompts: Vec<Prompt> = (0..20)
        .map(|index| Prompt {
            identity: index.to_string(),
            ids: (0..7 + index % 3).map(|i| (index * 13 + i * 31) % 317).collect(),
        })
        .collect();
    let mut engine = load(&fixture("llama-gqa"), FloatType::F32);
    let trie = Trie::new(&programs());
    let generate = |engine: &CandleEngine| {
        let eval = GenerationEval::new(&prompts, Settings::greedy(6, 64), &Numbers);
        (0..2).map(|_| eval.run(engine, &trie, &[0], &mut vec![0.0; trie.len()])).collect::<Result<Vec<_>>>()
    };
    let all = generate(&engine).unwrap();
    // The prompts have 159 tokens in total and at most 9 each, so none of these capacities suffices for all prompts
    // together.
    for capacity in [158, 60, 9] {
        engine.max_test_rows = capacity;
        assert_eq!(generate(&engine).unwrap(), all, "capacity of {capacity} rows");
    }
    engine.max_test_rows = 8;
    let error = generate(&engine).err().unwrap();
    assert!(error.exit_code() == 3 && error.to_string().contains("a prompt of 15 tokens"), "{error}");
}

#[test]
fn steps_from_a_saved_stream_match_the_full_run() {
    struct Streams(Vec<HostRows>);
    impl Observer<dyn ResidualStream> for Streams {
        fn after_step(&mut self, _: usize, stream: Option<&dyn ResidualStream>, _: f64) -> Result<()> {
            self.0.extend(stream.map(ResidualStream::rows).transpose()?);
            Ok(())
        }
    }
    let engine = load(&fixture("olmo2"), FloatType::F32);
    let batch = batch();
    let mut streams = Streams(Vec::new());
    engine.run(&Trie::new(&[Program::dense(4)]), &batch, &mut streams).unwrap();
    let [input, expected] = [3, 6].map(|index| streams.0[index].values().unwrap().to_vec());
    let steps =
        [Step::Sublayer(Sublayer::Mlp, 1), Step::Sublayer(Sublayer::Attention, 2), Step::Sublayer(Sublayer::Mlp, 2)];
    // `input` is the stream after the embedding and the first three sublayers.
    assert_eq!(engine.run_steps(&batch, &steps, &input).unwrap().values().unwrap().to_vec(), expected);
}

#[test]
fn half_precision_is_close_but_not_equal_to_f32() {
    for name in ["llama-gqa", "llama3-rope", "qwen3", "olmo2", "mistral", "qwen2"] {
        let exact = log_probabilities(&load(&fixture(name), FloatType::F32));
        // The tolerances allow for rounding to 11 and 8 significant bits.
        for (dtype, tolerance) in [(FloatType::F16, 0.01), (FloatType::Bf16, 0.08)] {
            let engine = load(&fixture(name), dtype);
            assert_eq!(engine.id(), EngineId { name: "candle", dtype: dtype.name(), device: "cpu" });
            let ours = log_probabilities(&engine);
            let worst = ours.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst > 0.0 && worst < tolerance, "{name} {dtype:?}: {worst}");
            assert_eq!(engine.notes(), [""; 0]);
        }
    }
}

/// Writes a backbone whose down projection in layer 2 is multiplied by `factor`.
fn write_scaled_backbone(factor: f64) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("llama-gqa").join("config.json"), folder.path().join("config.json")).unwrap();
    let file = fixture("llama-gqa").join("model.safetensors");
    let mut weights: HashMap<String, Tensor> = candle_core::safetensors::load(file, &Device::Cpu).unwrap();
    let name = "model.layers.2.mlp.down_proj.weight";
    let scaled = (weights[name].to_dtype(DType::F32).unwrap() * factor).unwrap();
    weights.insert(name.into(), scaled);
    candle_core::safetensors::save(&weights, folder.path().join("model.safetensors")).unwrap();
    folder
}

#[test]
fn f16_overflow_is_noted_and_other_programs_stay_finite() {
    let folder = write_scaled_backbone(1e5);
    for dtype in FloatType::ALL {
        let engine = load(folder.path(), dtype);
        let ours = log_probabilities(&engine);
        let (dense, pruned) = ours.split_at(ours.len() / 2);
        let notes = engine.notes();
        if dtype != FloatType::F16 {
            assert!(ours.iter().all(|p| p.is_finite()) && notes.is_empty(), "{dtype:?} {notes:?}");
            continue;
        }
        assert!(dense.iter().any(|p| p.is_nan()), "{dense:?}");
        assert!(pruned.iter().all(|p| p.is_finite()), "the pruned program omits layer 2");
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].contains("MLP of layer 2") && notes[0].contains(" % of the stream"), "{notes:?}");
    }
    // A weight that overflows f16 is reported at load time.
    let folder = write_scaled_backbone(1e8);
    let placement = Placement { device: DeviceName::Cpu, dtype: FloatType::F16 };
    let error = CandleEngine::load(Config::read(folder.path()).unwrap(), folder.path(), placement, None).err().unwrap();
    let text = error.to_string();
    assert!(text.contains("overflows f16") && text.contains("layers.2.mlp.down_proj"), "{text}");
}
