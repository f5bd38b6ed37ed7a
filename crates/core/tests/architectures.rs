//! Compares every architecture and RoPE type with transformers' forward pass and greedy tokens, on random models from
//! tools/arch_models.py. The models cover grouped-query attention with an unusual head width, windows shorter and
//! longer than the text, tied and untied output projections, and experts in all or some layers. The tolerance is a
//! relative Frobenius error of 1e-5, as for the committed models (arch.rs).
//!
//! The test is skipped with a message if `GHOSTLAB_PYTHON` does not name an interpreter with transformers. `.ci/run`
//! creates one.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]
#![allow(clippy::disallowed_macros, reason = "tests print why they are skipped")]

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::{flat, relative_error, tensors};
use candle_core::{DType, Device, Tensor};
use ghostlab_core::distill::{Checkpoint, Finetune, LayersAfter, Training, top_tokens};
use ghostlab_core::error::Result;
use ghostlab_core::generate::{Detokenizer, Prompt, Settings, generate};
use ghostlab_core::model::architecture::ARCHITECTURES;
use ghostlab_core::model::{
    Batch, CandleReference, Config, Decoder, Engine, Observer, Products, Program, ResidualStream, Trie,
};
use half::bf16;
use tempfile::TempDir;

const TOLERANCE: f64 = 1e-5;
/// Margin between the two largest logits below which tokens are not compared, because the order of f32 summation may
/// decide which logit is larger.
const TIE_TOLERANCE: f64 = 1e-4;
/// Number of prompts per model, as in tools/arch_models.py.
const PROMPTS: usize = 3;
/// Number of new tokens per prompt.
const NEW_TOKENS: usize = 12;

/// Creates the models with tools/arch_models.py. Returns their folder, or `None` if there is no Python interpreter.
fn create_models() -> Option<TempDir> {
    let python = common::python::python("transformers")?;
    let out = tempfile::tempdir().unwrap();
    common::python::run(&mut common::python::script(&python, "arch_models.py", [out.path()]));
    Some(out)
}

fn folders(out: &TempDir) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(out.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
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

/// Computes the input to each layer, and the logits.
fn forward(engine: &dyn Engine, batch: &Batch) -> (Vec<Vec<f64>>, Vec<f64>) {
    let layers = engine.config().layers;
    let mut streams = Streams::default();
    engine.run(&Trie::new(&[Program::trunk(layers)]), batch, &mut streams).unwrap();
    let inputs = streams.0.iter().step_by(2).take(layers).map(|stream| to_f64(stream)).collect();
    let rows: Vec<usize> = (0..batch.tokens()).collect();
    let logits = engine.logits(&streams.0[2 * layers], &rows).unwrap();
    (inputs, to_f64(&logits.values().unwrap()))
}

/// Compares layer inputs and logits with transformers, for each text alone and for both texts in one batch. Covers each
/// f32 engine, both config formats, and weights loaded on demand. Returns the number of engines compared.
fn compare(folder: &Path) -> usize {
    let name = folder.file_name().unwrap().to_string_lossy().into_owned();
    let expected = tensors(&folder.join("forward.safetensors"));
    let texts: Vec<Vec<u32>> =
        (0..2).map(|text| expected[&format!("ids.{text}")].to_dtype(DType::U32).unwrap().to_vec1().unwrap()).collect();
    let mut engines = common::engines(folder);
    if !name.ends_with("own-head") {
        // The config of `own-head` models ties the embeddings, so only the weights show that the head differs.
        engines.extend(common::engines_with(&folder.join("config.hub-style.json"), folder));
    }
    let on_demand_engine = Decoder::load_within(Config::read(folder).unwrap(), folder, Products::F32, 0).unwrap();
    engines.push(Box::new(on_demand_engine));
    for (index, engine) in engines.iter().enumerate() {
        let what = format!("{name}, engine {index} ({})", engine.id().name);
        let compare_values = |kind: &str, ours: &[f64], text: usize| {
            let key = match kind.strip_prefix("layer_input.") {
                Some(layer) => format!("layer_input.{text}.{layer}"),
                None => format!("{kind}.{text}"),
            };
            let error = relative_error(ours, &flat(&expected[&key]));
            assert!(error <= TOLERANCE, "{what}: {key}: {error:e}");
        };
        for (text, ids) in texts.iter().enumerate() {
            let (inputs, logits) = forward(&**engine, &window_batch(&[ids]));
            inputs
                .iter()
                .enumerate()
                .for_each(|(layer, key)| compare_values(&format!("layer_input.{layer}"), key, text));
            compare_values("logits", &logits, text);
        }
        let both = forward(&**engine, &window_batch(&[&texts[0], &texts[1]])).1;
        let first = both.len() / (texts[0].len() + texts[1].len()) * texts[0].len();
        compare_values("logits", &both[..first], 0);
        compare_values("logits", &both[first..], 1);
    }
    engines.len()
}

fn window_batch(texts: &[&Vec<u32>]) -> Batch {
    Batch::windows(texts.iter().map(|text| text.as_slice()))
}

/// Compares the logits of the differentiable layers with those of transformers, and the gradient of the distillation
/// loss with a finite difference along that gradient.
fn compare_distillation(folder: &Path) {
    let name = folder.display();
    let expected = tensors(&folder.join("forward.safetensors"));
    let config = Config::read(folder).unwrap();
    let tail = LayersAfter::load(&config, folder, 1, &Device::Cpu).unwrap();
    for text in 0..2 {
        let ours = tail.logits(&expected[&format!("layer_input.{text}.1")]).unwrap();
        let error = relative_error(&flat(&ours), &flat(&expected[&format!("logits.{text}")]));
        assert!(error <= TOLERANCE, "{name}: logits of text {text} from layer 1 on: {error:e}");
    }
    let c = config.hidden;
    let stream: Vec<f32> = expected["layer_input.0.1"].flatten_all().unwrap().to_vec1().unwrap();
    let teacher = top_tokens(&expected["logits.0"], Finetune::TOP_TOKENS).unwrap();
    let matrix: Vec<f32> =
        (0..c * c).map(|index| if index % (c + 1) == 0 { 1.1 } else { 0.01 * (index as f32 * 0.7).sin() }).collect();
    let start_at = |matrix: Vec<f32>| {
        Training::new(&tail, Checkpoint::start(matrix)).unwrap().loss_and_gradient(&stream, &teacher).unwrap()
    };
    let (loss, gradient) = start_at(matrix.clone());
    let size = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
    // Use a step that changes the loss by about one percent. Such a change is far above the precision of f32, but still
    // nearly linear in the step.
    let step = (0.01 * loss / size / size) as f32;
    let [(forward, _), (back, _)] =
        [step, -step].map(|step| start_at(matrix.iter().zip(&gradient).map(|(w, g)| w + step * g).collect()));
    let difference = (forward - back) / (2.0 * f64::from(step));
    assert!((difference - size * size).abs() <= 2e-2 * size * size, "{name}: {difference} {}", size * size);
}

/// Compares half precision with f32. Rounding may change which experts are selected, so models with experts have a
/// loose bound.
fn compare_float_types(folder: &Path) {
    let expected = tensors(&folder.join("forward.safetensors"));
    let ids: Vec<u32> = expected["ids.1"].to_dtype(DType::U32).unwrap().to_vec1().unwrap();
    for engine in common::engines_of_all_types(folder) {
        let logits = forward(&*engine, &Batch::windows([ids.as_slice()])).1;
        let error = relative_error(&logits, &flat(&expected["logits.1"]));
        // The tolerance allows for dozens of roundings to 8 significant bits.
        let max = if engine.config().experts.is_some() { 1.0 } else { 0.1 };
        assert!(error < max, "{} {}: {error:e}", engine.id(), folder.display());
    }
}

/// Detokenizer that returns empty texts, because the tests compare only token IDs.
struct Ids;

impl Detokenizer for Ids {
    fn decode(&self, _: &[u32], _: bool) -> Result<String> {
        Ok(String::new())
    }
}

/// Compares greedy tokens with transformers up to the first tie in each answer. Returns the number of tokens compared
/// on one engine.
fn compare_greedy(folder: &Path) -> usize {
    let expected = tensors(&folder.join("forward.safetensors"));
    let prompts: Vec<Prompt> = (0..PROMPTS)
        .map(|index| Prompt { identity: index.to_string(), ids: read_ids(&format!("prompt.{index}"), &expected) })
        .collect();
    let mut compared = 0;
    for engine in common::engines(folder) {
        let program = [Program::dense(engine.config().layers)];
        let settings = Settings::greedy(NEW_TOKENS, 200);
        let ours = generate(&*engine, &Trie::new(&program), &prompts, &settings, &Ids, &mut ()).unwrap();
        compared = 0;
        for (index, ours) in ours.iter().enumerate() {
            let margins = flat(&expected[&format!("margins.{index}")]);
            let compared_len = margins.iter().position(|margin| *margin < TIE_TOLERANCE).unwrap_or(NEW_TOKENS);
            let greedy = read_ids(&format!("greedy.{index}"), &expected);
            assert_eq!(
                ours[0].ids[..compared_len],
                greedy[..compared_len],
                "{}, {}, prompt {index}",
                engine.id(),
                folder.display()
            );
            compared += compared_len;
        }
    }
    compared
}

fn read_ids(key: &str, expected: &HashMap<String, Tensor>) -> Vec<u32> {
    expected[key].to_dtype(DType::U32).unwrap().to_vec1().unwrap()
}

/// Compares the logits with those of candle-transformers on a text no longer than the shortest attention window.
/// Returns the model type, or an error if candle-transformers does not support the model.
fn compare_with_candle_transformers(folder: &Path) -> std::result::Result<&'static str, String> {
    let config = Config::read(folder).unwrap();
    let candle_model = CandleReference::load(&config, folder).map_err(|error| error.one_line())?;
    let mut ids: Vec<u32> =
        tensors(&folder.join("forward.safetensors"))["ids.1"].to_dtype(DType::U32).unwrap().to_vec1().unwrap();
    ids.truncate(config.windows.iter().flatten().copied().min().unwrap_or(ids.len()));
    let logits = forward(&Decoder::load(folder).unwrap(), &Batch::windows([ids.as_slice()])).1;
    let error = relative_error(&logits[logits.len() - config.vocab..], &to_f64(&candle_model.logits(&ids).unwrap()));
    assert!(error <= TOLERANCE, "{}: {error:e}", folder.display());
    Ok(config.architecture.model_type)
}

#[test]
fn every_architecture_and_rope_type_matches_transformers() {
    let Some(out) = create_models() else { return };
    let mut seen = BTreeSet::new();
    let mut candle_classes = BTreeSet::new();
    let mut models = 0;
    let mut tokens = 0;
    for folder in folders(&out).iter().filter(|folder_path| !folder_path.ends_with("gemma2-bf16")) {
        assert!(compare(folder) >= 3);
        compare_distillation(folder);
        compare_float_types(folder);
        tokens += compare_greedy(folder);
        match compare_with_candle_transformers(folder) {
            Ok(class) => _ = candle_classes.insert(class),
            Err(reason) => println!("{}: {reason}", folder.display()),
        }
        models += 1;
        seen.insert(Config::read(folder).unwrap().architecture.model_type);
    }
    println!("{models} models, {tokens} greedy tokens");
    // If ties were frequent, too few tokens would be compared.
    assert!(tokens * 10 >= 9 * PROMPTS * NEW_TOKENS * models, "{tokens} tokens of {models} models");
    let known: BTreeSet<&str> = ARCHITECTURES.iter().map(|architecture| architecture.model_type).collect();
    assert_eq!(seen, known, "every architecture needs a test model");
    let without: Vec<_> = known.difference(&candle_classes).collect();
    assert_eq!(without, [&"gemma3_text"], "candle-transformers must support all other architectures");
    check_scaled_embedding(&out.path().join("gemma2-bf16"));
}

/// Compares the scaled embeddings bit by bit. transformers rounds the factor √C to bf16 for bf16 weights.
fn check_scaled_embedding(folder: &Path) {
    let expected = tensors(&folder.join("forward.safetensors"));
    let ids: Vec<u32> = expected["ids.0"].to_dtype(DType::U32).unwrap().to_vec1().unwrap();
    for engine in common::engines(folder) {
        let ours = forward(&*engine, &Batch::windows([ids.as_slice()])).0.swap_remove(0);
        let rounded: Vec<f64> = ours.iter().map(|&x| bf16::from_f64(x).to_f64()).collect();
        assert_eq!(rounded, flat(&expected["layer_input.0.0"]), "{}", engine.id().name);
        assert_ne!(rounded, ours, "the scaled embedding must not be exact in bf16");
    }
}
