//! Compares distillation with the reference implementation (key `distill` of the reference data `stories260k`, whose
//! README gives the tolerance). On each architecture, also compares logits with the engine and gradients with finite
//! differences.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use crate::common;
use crate::common::stories::{oracle, perplexities, recovery};
use crate::common::{flat, numbers, relative_error, tensors};
use candle_core::Device;
use ghostlab_core::calibrate::{HookPoint, in_memory};
use ghostlab_core::corpus::{Start, Windows};
use ghostlab_core::distill::{Checkpoint, Finetune, LayersAfter, TopTokens, Training, top_tokens};
use ghostlab_core::model::{Batch, Config, Decoder, Model, Operator, Program, Step, Sublayer};
use serde_json::json;

fn to_f64(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// Returns, for each window, the residual stream at a layer boundary, `[positions, C]`, and the teacher's top tokens.
fn training_examples(
    decoder: &Decoder,
    tail: &LayersAfter,
    windows: &Windows,
    boundary: usize,
) -> Vec<(Vec<f32>, TopTokens)> {
    let layers = decoder.config().layers;
    let sites = [HookPoint::Stream(boundary), HookPoint::Stream(layers)];
    let collected = in_memory(decoder, windows, sites).unwrap();
    (0..windows.count())
        .map(|index| {
            let logits = tail.project_rows(collected.rows(sites[1], window_rows(index, windows)).unwrap()).unwrap();
            let top = top_tokens(&logits, Finetune::TOP_TOKENS).unwrap();
            (collected.rows(sites[0], window_rows(index, windows)).unwrap().to_vec(), top)
        })
        .collect()
}

fn window_rows(index: usize, windows: &Windows) -> std::ops::Range<usize> {
    index * windows.length..(index + 1) * windows.length
}

#[test]
fn sixteen_distillation_steps_match_the_reference() {
    let Some(oracle) = oracle() else { return };
    let decoder = oracle.decoder();
    let windows = oracle.calibration_windows();
    let calibration = oracle.calibration(&decoder);
    let solved = recovery("ghosted", json!({})).solve(&calibration.boundary(&decoder, 2, 3)).unwrap();
    let tail = LayersAfter::load(decoder.config(), &oracle.folder, 3, &Device::Cpu).unwrap();
    let start = Checkpoint::start(solved.repair.operator().unwrap().to_dense().unwrap());
    let mut training = Training::new(&tail, start).unwrap();
    let expected = numbers(&oracle.values["distill"]["kl"]);
    for (step, ((stream, teacher), expected)) in
        training_examples(&decoder, &tail, &windows, 2).iter().zip(&expected).enumerate()
    {
        let loss = training.step(stream, teacher).unwrap();
        assert!((loss - expected).abs() <= 1e-3 * expected, "step {}: {loss} {expected}", step + 1);
    }
    assert_eq!(training.steps(), expected.len());
    let theirs = tensors(&oracle.folder.join("stories260k_distill.safetensors"));
    let error = relative_error(&to_f64(&training.state().matrix), &flat(&theirs["W_after"]));
    assert!(error <= 1e-3, "{error:e}");
    let operator = Operator::dense(decoder.config().hidden, training.state().matrix.clone()).unwrap();
    let program = Program::pruned(decoder.config().layers, &[2], |_| Some(operator.clone()));
    let perplexity = perplexities(&decoder, &[program], &oracle.evaluation_windows())[0];
    let expected = oracle.number("/distill/ppl_after");
    assert!((perplexity - expected).abs() <= 1e-3 * expected, "{perplexity} {expected}");
}

/// Runs a test on a random backbone for each architecture, with two windows.
fn for_each_architecture(test: impl Fn(&str, &Decoder, &LayersAfter, &Windows)) {
    for name in ["llama-gqa", "llama3-rope", "qwen3", "olmo2", "mistral", "qwen2"] {
        let folder = common::fixture(&format!("arch/{name}"));
        let decoder = Decoder::load(&folder).unwrap();
        let tail = LayersAfter::load(&Config::read(&folder).unwrap(), &folder, 2, &Device::Cpu).unwrap();
        let vocab = decoder.config().vocab as u32;
        let starts = vec![Start { document: 0, token: 0 }; 2];
        // Use texts that are longer than the models' sliding windows of 24 and 40 tokens.
        let length = if decoder.config().windows.iter().any(Option::is_some) { 48 } else { 12 };
        let ids = (0..2 * length as u32).map(|position| position * 37 % vocab).collect();
        test(name, &decoder, &tail, &Windows { ids, length, starts, corpus_tokens: 2 * length, bytes: 0 });
    }
}

#[test]
fn differentiable_layers_give_the_logits_of_the_engine() {
    for_each_architecture(|name, decoder, tail, windows| {
        let batch = Batch::windows(windows.iter().take(1));
        let mut x = decoder.begin(&batch).unwrap();
        for layer in 0..decoder.config().layers {
            if layer == 2 {
                // Compare the differentiable layers with the engine from this layer on.
                let ours = tail.logits(&x).unwrap();
                for layer in 2..decoder.config().layers {
                    x = decoder.advance(&batch, &Step::Sublayer(Sublayer::Attention, layer), &x).unwrap();
                    x = decoder.advance(&batch, &Step::Sublayer(Sublayer::Mlp, layer), &x).unwrap();
                }
                let theirs = decoder.logits(&x, &(0..batch.tokens()).collect::<Vec<_>>()).unwrap();
                let error = relative_error(&flat(&ours), &flat(&theirs));
                // The tolerance equals that in arch.rs.
                assert!(error <= 1e-5, "{name}: {error:e}");
                return;
            }
            x = decoder.advance(&batch, &Step::Sublayer(Sublayer::Attention, layer), &x).unwrap();
            x = decoder.advance(&batch, &Step::Sublayer(Sublayer::Mlp, layer), &x).unwrap();
        }
    });
}

#[test]
fn matrix_gradient_matches_finite_differences() {
    for_each_architecture(|name, decoder, tail, windows| {
        let (stream, teacher) = training_examples(decoder, tail, windows, 1).remove(0);
        let c = decoder.config().hidden;
        let matrix: Vec<f32> = (0..c * c)
            .map(|index| if index % (c + 1) == 0 { 1.0 } else { 0.02 * (index as f32 * 0.7).sin() })
            .collect();
        let training_at = |matrix: Vec<f32>| Training::new(tail, Checkpoint::start(matrix)).unwrap();
        let (_, gradient) = training_at(matrix.clone()).loss_and_gradient(&stream, &teacher).unwrap();
        // Check directional derivatives, because a single element changes the loss by less than the precision of f32.
        for seed in 0..3 {
            let mut direction: Vec<f32> =
                (0..c * c).map(|index| ((index * 7 + seed * 13) as f32 * 12.9898).sin()).collect();
            let length = direction.iter().map(|d| d * d).sum::<f32>().sqrt();
            direction.iter_mut().zip(&gradient).for_each(|(d, g)| *d = *d / length + g);
            let size = direction.iter().map(|d| d * d).sum::<f32>().sqrt();
            let step = 2e-2 / size;
            let [forward, back] = [step, -step].map(|step| {
                let moved = matrix.iter().zip(&direction).map(|(w, d)| w + step * d).collect();
                training_at(moved).loss_and_gradient(&stream, &teacher).unwrap().0
            });
            let difference = (forward - back) / (2.0 * f64::from(step));
            let exact: f64 = gradient.iter().zip(&direction).map(|(g, d)| f64::from(g * d)).sum();
            assert!((difference - exact).abs() <= 1e-2 * exact.abs(), "{name}: {difference} {exact}");
        }
    });
}

#[test]
fn interrupted_training_resumes_to_identical_bytes() {
    for_each_architecture(|name, decoder, tail, windows| {
        let examples = training_examples(decoder, tail, windows, 1);
        let c = decoder.config().hidden;
        let identity = (0..c * c).map(|index| f32::from(u8::from(index % (c + 1) == 0))).collect();
        let mut uninterrupted = Training::new(tail, Checkpoint::start(identity)).unwrap();
        let mut saved = None;
        for (step, (stream, teacher)) in examples.iter().enumerate() {
            if step == 1 {
                saved = Some(uninterrupted.state().clone());
            }
            uninterrupted.step(stream, teacher).unwrap();
        }
        let mut resumed = Training::new(tail, Checkpoint::from_bytes(&saved.unwrap().to_bytes()).unwrap()).unwrap();
        resumed.step(&examples[1].0, &examples[1].1).unwrap();
        assert_eq!(uninterrupted.state(), resumed.state(), "{name}");
    });
}
