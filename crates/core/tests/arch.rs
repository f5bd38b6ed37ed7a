//! Compares random models of six architectures with transformers and, for equal weights, with candle-transformers.
//! `tests/fixtures/arch` contains the models and the outputs of transformers. tools/arch_fixtures.py wrote those for
//! Mistral and Qwen2. The tolerance is a relative Frobenius error of 1e-5.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use crate::common;
use crate::common::{fixture, flat, relative_error, tensors};
use candle_core::{DType, Device, Tensor};
use ghostlab_core::error::Result;
use ghostlab_core::model::{Batch, CandleReference, Config, Decoder, Engine, Observer, Program, ResidualStream, Trie};

const TOLERANCE: f64 = 1e-5;
const MODELS: [&str; 6] = ["llama-gqa", "llama3-rope", "qwen3", "olmo2", "mistral", "qwen2"];

/// Reads the two input sequences of a fixture, as a batch and as a tensor of token IDs.
fn read_batch(name: &str) -> (Batch, Tensor) {
    let ids = tensors(&fixture(&format!("arch/{name}/forward.safetensors")))["input_ids"].clone();
    let rows: Vec<Vec<u32>> = ids.to_dtype(DType::U32).unwrap().to_vec2().unwrap();
    (Batch::windows(rows.iter().map(Vec::as_slice)), ids)
}

fn load_engines(name: &str, config: &str) -> Vec<Box<dyn Engine>> {
    let folder = fixture(&format!("arch/{name}"));
    common::engines_with(&folder.join(config), &folder)
}

/// Observer that records the residual stream after the embedding and after every sublayer.
#[derive(Default)]
struct Streams(Vec<Vec<f32>>);

impl Observer<dyn ResidualStream> for Streams {
    fn after_step(&mut self, _: usize, stream: Option<&dyn ResidualStream>, _: f64) -> Result<()> {
        self.0.push(stream.unwrap().rows()?.values()?.to_vec());
        Ok(())
    }
}

fn to_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| v.into()).collect()
}

/// Computes the input to each layer, `[tokens, C]`, and the logits, `[tokens, vocab]`.
fn forward(engine: &dyn Engine, batch: &Batch) -> (Vec<Vec<f64>>, Vec<f64>) {
    let layers = engine.config().layers;
    let mut streams = Streams::default();
    engine.run(&Trie::new(&[Program::trunk(layers)]), batch, &mut streams).unwrap();
    assert_eq!(streams.0.len(), 1 + 2 * layers, "expected the embedding and one step per sublayer");
    let inputs = streams.0.iter().step_by(2).take(layers).map(|stream| to_f64(stream)).collect();
    let rows: Vec<usize> = (0..batch.tokens()).collect();
    let logits = engine.logits(&streams.0[2 * layers], &rows).unwrap();
    (inputs, to_f64(&logits.values().unwrap()))
}

#[test]
fn architectures_match_transformers_in_both_config_formats() {
    for name in MODELS {
        let expected = tensors(&fixture(&format!("arch/{name}/forward.safetensors")));
        for config in ["config.json", "config.hub-style.json"] {
            for engine in load_engines(name, config) {
                let (inputs, logits) = forward(&*engine, &read_batch(name).0);
                let what = format!("{} {name} {config}", engine.id().name);
                for (layer, input) in inputs.iter().enumerate() {
                    let error = relative_error(input, &flat(&expected[&format!("layer_input.{layer}")]));
                    assert!(error <= TOLERANCE, "{what}: input of layer {layer}: {error:e}");
                }
                let error = relative_error(&logits, &flat(&expected["logits"]));
                assert!(error <= TOLERANCE, "{what}: logits: {error:e}");
            }
        }
    }
}

#[test]
fn target_log_probabilities_match_log_softmax() {
    let (batch, _) = read_batch("llama-gqa");
    for engine in load_engines("llama-gqa", "config.json") {
        let logits = forward(&*engine, &batch).1;
        let ours = engine.run(&Trie::new(&[Program::dense(4)]), &batch, &mut ()).unwrap().remove(0).unwrap();
        assert_eq!(ours.len(), 2 * 95);
        for (target, ours) in batch.targets.iter().zip(ours) {
            let row = &logits[target.row * 320..(target.row + 1) * 320];
            let expected = row[target.token as usize] - row.iter().map(|l| l.exp()).sum::<f64>().ln();
            assert!((f64::from(ours.log_probability) - expected).abs() < 1e-5, "{}", engine.id().name);
        }
    }
}

fn compare_last_logits(name: &str, engines: &[Box<dyn Engine>], mut last_logits: impl FnMut(&Tensor) -> Tensor) {
    let (_, ids) = read_batch(name);
    for (sequence, length) in [(0, 1), (0, 40), (1, 96)] {
        let ids = ids.narrow(0, sequence, 1).unwrap().narrow(1, 0, length).unwrap().to_dtype(DType::U32).unwrap();
        let row: Vec<u32> = ids.flatten_all().unwrap().to_vec1().unwrap();
        let expected = flat(&last_logits(&ids.contiguous().unwrap()));
        for engine in engines {
            let (_, ours) = forward(&**engine, &Batch::windows([row.as_slice()]));
            let error = relative_error(&ours[(length - 1) * expected.len()..], &expected);
            assert!(error <= TOLERANCE, "{} {name} at {length} tokens: {error:e}", engine.id().name);
        }
    }
}

fn candle_weights(name: &str) -> candle_nn::VarBuilder<'static> {
    let weights = tensors(&fixture(&format!("arch/{name}/model.safetensors")));
    candle_nn::VarBuilder::from_tensors(weights, DType::F32, &Device::Cpu)
}

#[test]
fn models_without_windows_match_candle_transformers() {
    for name in ["llama-gqa", "llama3-rope", "qwen3", "olmo2"] {
        let folder = fixture(&format!("arch/{name}"));
        for config in ["config.json", "config.hub-style.json"] {
            let candle_model =
                CandleReference::load(&Config::read_file(&folder.join(config)).unwrap(), &folder).unwrap();
            compare_last_logits(name, &load_engines(name, config), |ids| {
                let ids: Vec<u32> = ids.flatten_all().unwrap().to_vec1().unwrap();
                Tensor::new(candle_model.logits(&ids).unwrap(), &Device::Cpu).unwrap()
            });
        }
    }
}

/// Copies a fixture's `config.hub-style.json` with some entries changed. Returns the temporary file and its parsed
/// content.
fn change_config(name: &str, changes: &serde_json::Value) -> (tempfile::NamedTempFile, serde_json::Value) {
    let mut config = common::json(&fixture(&format!("arch/{name}/config.hub-style.json")));
    changes.as_object().unwrap().iter().for_each(|(key, value)| config[key] = value.clone());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config.to_string()).unwrap();
    (file, config)
}

/// candle's window includes one more key than transformers' window. A query at `i` sees the key at `j` if
/// `i − j ≤ sliding_window` in candle, but only if `i − j < sliding_window` in transformers.
#[test]
fn mistral_matches_candle_transformers_with_and_without_window() {
    use candle_transformers::models::mistral::{Config, Model};
    for (ours, theirs) in [(Some(24), Some(23)), (Some(1), Some(0)), (Some(96), Some(95)), (None, None)] {
        let (file, mut config) = change_config("mistral", &serde_json::json!({"sliding_window": ours}));
        config["sliding_window"] = serde_json::json!(theirs);
        let config: Config = serde_json::from_value(config).unwrap();
        let engines = common::engines_with(file.path(), &fixture("arch/mistral"));
        compare_last_logits("mistral", &engines, |ids| {
            Model::new(&config, candle_weights("mistral")).unwrap().forward(ids, 0).unwrap()
        });
    }
}

/// candle's Qwen2 applies its window in every layer and ignores `use_sliding_window`.
#[test]
fn qwen2_matches_candle_transformers_with_and_without_windows() {
    use candle_transformers::models::qwen2::{Config, ModelForCausalLM};
    for (ours, theirs) in [(Some(40), 39), (Some(7), 6), (None, 1000)] {
        let (file, mut config) = change_config(
            "qwen2",
            &serde_json::json!({
                "use_sliding_window": ours.is_some(), "sliding_window": ours, "max_window_layers": 0
            }),
        );
        config["sliding_window"] = serde_json::json!(theirs);
        let config: Config = serde_json::from_value(config).unwrap();
        let engines = common::engines_with(file.path(), &fixture("arch/qwen2"));
        compare_last_logits("qwen2", &engines, |ids| {
            ModelForCausalLM::new(&config, candle_weights("qwen2")).unwrap().forward(ids, 0).unwrap()
        });
    }
}

#[test]
fn missing_or_extra_bias_error_names_the_tensor() {
    let folder = tempfile::tempdir().unwrap();
    for (config, weights, message) in [
        // Loading the biased weights without their biases would silently give wrong logits.
        ("llama-gqa", "qwen2", "self_attn.k_proj.bias"),
        ("qwen2", "llama-gqa", "self_attn.q_proj.bias"),
    ] {
        let mut config = common::json(&fixture(&format!("arch/{config}/config.json")));
        config["tie_word_embeddings"] = serde_json::json!(weights == "qwen2");
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let source = fixture(&format!("arch/{weights}/model.safetensors"));
        std::fs::copy(source, folder.path().join("model.safetensors")).unwrap();
        let error = Decoder::load(folder.path()).err().unwrap().to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// Writes the fixture's weights in the given float type, either as two shards with an index or as one file.
fn rewrite_weights(name: &str, folder: &std::path::Path, dtype: DType, sharded: bool) {
    let weights = tensors(&fixture(&format!("arch/{name}/model.safetensors")));
    std::fs::copy(fixture(&format!("arch/{name}/config.json")), folder.join("config.json")).unwrap();
    let mut shards = [std::collections::HashMap::new(), std::collections::HashMap::new()];
    let mut index = serde_json::Map::new();
    for (name, tensor) in weights {
        let shard = usize::from(sharded && name.contains("layers.2"));
        index.insert(name.clone(), format!("model-{shard}.safetensors").into());
        shards[shard].insert(name, tensor.to_dtype(dtype).unwrap());
    }
    if !sharded {
        return candle_core::safetensors::save(&shards[0], folder.join("model.safetensors")).unwrap();
    }
    for (i, shard) in shards.iter().enumerate() {
        candle_core::safetensors::save(shard, folder.join(format!("model-{i}.safetensors"))).unwrap();
    }
    let index = serde_json::json!({"weight_map": index});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

#[test]
fn half_precision_shards_match_logits_of_rounded_weights() {
    let (batch, _) = read_batch("qwen3");
    for dtype in [DType::F16, DType::BF16] {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        rewrite_weights("qwen3", folders[0].path(), dtype, false);
        rewrite_weights("qwen3", folders[1].path(), dtype, true);
        let [one, sharded] = folders.map(|f| forward(&Decoder::load(f.path()).unwrap(), &batch).1);
        assert_eq!(one, sharded);
        // Weights rounded to 11 or 8 significant bits give logits that are close, but not equal, to the f32 logits.
        let exact = forward(&Decoder::load(&fixture("arch/qwen3")).unwrap(), &batch).1;
        let error = relative_error(&one, &exact);
        assert!(error > 1e-6 && error < 3e-2, "{dtype:?}: {error:e}");
    }
}

#[test]
fn tied_embeddings_use_the_embedding_as_head() {
    let folder = tempfile::tempdir().unwrap();
    let mut weights = tensors(&fixture("arch/llama-gqa/model.safetensors"));
    weights.insert("lm_head.weight".into(), weights["model.embed_tokens.weight"].clone());
    let mut config = common::json(&fixture("arch/llama-gqa/config.json"));
    let mut logits = Vec::new();
    for tied in [false, true] {
        config["tie_word_embeddings"] = tied.into();
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        candle_core::safetensors::save(&weights, folder.path().join("model.safetensors")).unwrap();
        logits.extend(
            common::engines(folder.path()).iter().map(|engine| forward(&**engine, &read_batch("llama-gqa").0).1),
        );
        weights.remove("lm_head.weight");
    }
    // Both lists contain the same engines: two on the CPU, and the GPU if there is one. On a GPU, rounding depends on
    // the memory layout of the matrix.
    let (untied, tied) = logits.split_at(logits.len() / 2);
    assert_eq!(untied[..2], tied[..2]);
    assert!(untied.iter().zip(tied).all(|(untied, tied)| relative_error(tied, untied) < 1e-6));
}

/// Expects the behavior of transformers 5.23.0 (`tie_weights` in modeling_utils.py). Even with `tie_word_embeddings`,
/// an `lm_head.weight` that differs from the embedding is used. If only one of the two tensors exists, it serves as
/// both.
#[test]
fn untied_head_is_used_even_if_config_ties_it() {
    let folder = tempfile::tempdir().unwrap();
    let plain = fixture("arch/llama-gqa");
    let mut weights = tensors(&plain.join("model.safetensors"));
    assert!(weights.contains_key("lm_head.weight"));
    let expected: Vec<Vec<f64>> =
        common::engines(&plain).iter().map(|engine| forward(&**engine, &read_batch("llama-gqa").0).1).collect();
    let mut config = common::json(&plain.join("config.json"));
    config["tie_word_embeddings"] = true.into();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let (config, logits) = save_and_compute_logits(folder.path(), &weights);
    assert!(!config.tied_embeddings && config.notes.iter().any(|note| note.contains("lm_head.weight")), "{config:?}");
    assert_eq!(logits, expected);
    let head = weights.remove("lm_head.weight").unwrap();
    let (config, embedding) = save_and_compute_logits(folder.path(), &weights);
    assert!(config.tied_embeddings && embedding != expected);
    // Store the only embedding table under the name of the head.
    let table = weights.remove("model.embed_tokens.weight").unwrap();
    weights.insert("lm_head.weight".into(), table);
    let (config, alone) = save_and_compute_logits(folder.path(), &weights);
    assert!(config.tied_embeddings);
    assert_eq!(alone, embedding);
    drop(head);
}

#[test]
fn index_naming_a_missing_shard_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    rewrite_weights("llama-gqa", folder.path(), DType::F32, true);
    std::fs::remove_file(folder.path().join("model-1.safetensors")).unwrap();
    let error = Decoder::load(folder.path()).err().unwrap();
    assert_eq!(error.exit_code(), 3);
    assert!(error.to_string().contains("model-1.safetensors"), "{error}");
}

/// Saves the weights, and returns the configuration and the logits of each engine.
fn save_and_compute_logits(
    folder: &std::path::Path,
    weights: &std::collections::HashMap<String, Tensor>,
) -> (Config, Vec<Vec<f64>>) {
    candle_core::safetensors::save(weights, folder.join("model.safetensors")).unwrap();
    let config = Config::read(folder).unwrap();
    (config, common::engines(folder).iter().map(|engine| forward(&**engine, &read_batch("llama-gqa").0).1).collect())
}
