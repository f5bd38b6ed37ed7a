//! What a GPU does otherwise than this machine's processor: many threads on one device, little memory, the precision of its
//! products. Skipped where there is none; the oracles of the other tests run on it too where there is one.
#![allow(clippy::unwrap_used, reason = "a test stops at what it lacks")]

mod common;

use candle_core::{DType, Device, Tensor};
use common::{candle, fixture, flat, gpu, relative_error};
use ghostlab_core::model::candle::ops;
use ghostlab_core::model::{Batch, Engine, FloatType, Program, ScoredRow, Trie};

fn some(seed: usize, shape: (usize, usize)) -> Tensor {
    let values = (0..shape.0 * shape.1).map(|i| ((seed * 31 + i) as f32 * 12.9898).sin()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn on_this_machine(x: &Tensor) -> Vec<f64> {
    flat(&x.to_device(&Device::Cpu).unwrap())
}

#[test]
fn a_gpu_tells_its_name_and_is_one_device_however_often_it_is_opened() {
    let Some(device) = gpu() else { return };
    assert!(device.open().unwrap().same_device(&device.open().unwrap()));
    if device.class() == "cuda" {
        let gpu = device.gpu().unwrap();
        assert!(gpu.model.is_some_and(|model| !model.is_empty()) && gpu.serial.is_some());
    }
}

#[test]
fn products_in_f32_are_not_rounded_to_what_tensor_cores_take() {
    let Some(device) = gpu() else { return };
    let device = device.open().unwrap();
    let (x, weight) = (some(1, (256, 1024)), some(2, (512, 1024)));
    let wide = |x: &Tensor| x.to_dtype(DType::F64).unwrap();
    let exact = flat(&ops::linear(&wide(&x), &wide(&weight)).unwrap());
    let [x, weight] = [&x, &weight].map(|x| x.to_device(&device).unwrap());
    // TF32 is off by 3e-4, f16 likewise; sums of 1024 products in f32 by less than 1e-6.
    let error = relative_error(&on_this_machine(&ops::linear(&x, &weight).unwrap()), &exact);
    assert!(error < 5e-6, "{error:e}");
}

#[test]
fn what_one_thread_makes_another_one_reads_when_it_is_whole() {
    let Some(device) = gpu() else { return };
    let device = device.open().unwrap();
    let x = some(3, (2048, 2048));
    let expected = flat(&(&x * 1024.0).unwrap());
    for round in 0..20 {
        let doubled = std::thread::scope(|scope| {
            let made = scope.spawn(|| {
                let there = x.to_device(&device).unwrap();
                (0..10).fold(there, |x, _| (&x + &x).unwrap())
            });
            made.join().unwrap()
        });
        assert_eq!(on_this_machine(&doubled), expected, "round {round}");
    }
}

/// Windows, each of whose tokens is predicted.
fn batch(vocab: usize) -> Batch {
    let ids: Vec<Vec<u32>> = (0..40).map(|w| (0..97).map(|i| ((w * 7919 + i * 31) % vocab) as u32).collect()).collect();
    let mut batch = Batch::windows(ids.iter().map(Vec::as_slice));
    batch.targets = (0..batch.tokens()).map(|row| ScoredRow { row, token: (row % vocab) as u32 }).collect();
    batch
}

fn log_probabilities(engine: &dyn Engine) -> Vec<f64> {
    let trie = Trie::scoring(&[Program::dense(engine.config().layers), Program::pruned(4, &[1, 2], |_| None)]);
    let batches = [batch(engine.config().vocab)];
    let outputs = engine.score(&trie, &batches, &mut vec![0.0; trie.len()]).unwrap();
    outputs.into_iter().flatten().flatten().flatten().map(|of| f64::from(of.log_probability)).collect()
}

#[test]
fn layers_that_are_read_when_they_are_needed_are_the_layers_that_stay() {
    let Some(device) = gpu() else { return };
    for name in ["llama-gqa", "qwen3", "olmo2"] {
        let folder = fixture("arch").join(name);
        for dtype in FloatType::ALL {
            let expected = log_probabilities(&*candle(&folder, device, dtype, None));
            let bounded = candle(&folder, device, dtype, Some(0));
            // Threads race in some rounds and not in others.
            for round in 0..10 {
                let error = relative_error(&log_probabilities(&*bounded), &expected);
                assert!(error < 1e-6, "{name} {dtype:?}, round {round}: {error:e}");
            }
        }
    }
}
