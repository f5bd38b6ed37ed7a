//! Tests behavior that differs between GPU and CPU: concurrent threads on one device, limited memory, and the precision
//! of products. The tests are skipped without a GPU. If there is one, the reference tests run on it too.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::path::Path;

use crate::common::{candle, fixture, flat, gpu, relative_error};
use candle_core::{DType, Device, Tensor};
use ghostlab_core::error::Result;
use ghostlab_core::model::architecture::Activation;
use ghostlab_core::model::candle::ops;
use ghostlab_core::model::{Batch, DeviceName, Engine, FloatType, Program, ScoredRow, Trie};

fn sample_tensor(seed: usize, shape: (usize, usize)) -> Tensor {
    let values = (0..shape.0 * shape.1).map(|i| ((seed * 31 + i) as f32 * 12.9898).sin()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn to_host_values(x: &Tensor) -> Vec<f64> {
    flat(&x.to_device(&Device::Cpu).unwrap())
}

#[test]
fn reopened_gpu_is_the_same_device_and_has_a_name() {
    let Some(device) = gpu() else { return };
    assert!(device.open().unwrap().same_device(&device.open().unwrap()));
    if device.class() == "cuda" {
        let gpu = device.gpu().unwrap();
        assert!(gpu.model.is_some_and(|model| !model.is_empty()) && gpu.serial.is_some());
    }
}

#[test]
fn f32_products_on_the_gpu_do_not_use_tf32() {
    let Some(device) = gpu() else { return };
    let device = device.open().unwrap();
    let x = sample_tensor(1, (256, 1024));
    let weight = sample_tensor(2, (512, 1024));
    let exact = flat(&ops::linear(&to_f64(&x), &to_f64(&weight)).unwrap());
    let [x, weight] = [&x, &weight].map(|x| x.to_device(&device).unwrap());
    // TF32 and f16 would be off by 3e-4, whereas f32 sums of 1024 products are off by less than 1e-6.
    let error = relative_error(&to_host_values(&ops::linear(&x, &weight).unwrap()), &exact);
    assert!(error < 5e-6, "{error:e}");
}

fn to_f64(x: &Tensor) -> Tensor {
    x.to_dtype(DType::F64).unwrap()
}

/// Compares an operation on the GPU in f32, bf16 and f16 with the same operation in f64 on the CPU. Both operations get
/// the same rounded inputs. `tolerances` lists the tolerance for each type.
fn assert_gpu_matches_f64(
    name: &str,
    shapes: &[&[usize]],
    tolerances: [f64; 3],
    operation: impl Fn(&[Tensor], &Tensor) -> Result<Tensor>,
) {
    let Some(device) = gpu() else { return };
    let device = device.open().unwrap();
    for (dtype, tolerance) in [DType::F32, DType::BF16, DType::F16].into_iter().zip(tolerances) {
        let inputs: Vec<Tensor> = (1..)
            .zip(shapes)
            .map(|(seed, shape)| {
                let rows = sample_tensor(seed, (1, shape.iter().product()));
                rows.reshape(*shape).unwrap().to_dtype(dtype).unwrap()
            })
            .collect();
        let table = sample_tensor(9, (96, 40)).broadcast_gt(&Tensor::new(0.3f32, &Device::Cpu).unwrap()).unwrap();
        // Each of the 96 queries sees some, but not all, of the 40 keys.
        let hidden = Tensor::new(f32::NEG_INFINITY, &Device::Cpu).unwrap().broadcast_as((96, 40)).unwrap();
        let mask = table.where_cond(&hidden, &hidden.zeros_like().unwrap()).unwrap();
        let exact: Vec<Tensor> = inputs.iter().map(|x| x.to_dtype(DType::F64).unwrap()).collect();
        let exact = flat(&operation(&exact, &mask.to_dtype(DType::F64).unwrap()).unwrap());
        let on_device: Vec<Tensor> = inputs.iter().map(|x| x.to_device(&device).unwrap()).collect();
        let found = operation(&on_device, &mask.to_device(&device).unwrap()).unwrap();
        assert_eq!(found.dtype(), dtype, "{name}");
        let error = relative_error(&to_host_values(&found), &exact);
        assert!(error < tolerance, "{name} in {dtype:?}: {error:e}");
    }
}

#[test]
fn gpu_operations_match_f64_results_up_to_rounding() {
    // Results are rounded once to bf16 or f16, by at most half a unit in the last place (2^-9 or 2^-12). For f32, the
    // tolerance covers the rounding of sums.
    let once = [1e-6, 2e-3, 2.5e-4];
    for width in [24, 300, 4096] {
        assert_gpu_matches_f64("norm", &[&[37, width], &[width]], once, |x, _| {
            ops::rms_norm(&x[0], &to_vector_dtype(&x[1])?, 1e-5)
        });
    }
    assert_gpu_matches_f64("rotary embedding", &[&[37, 3, 16], &[37, 8], &[37, 8]], once, |x, _| {
        ops::rotate(&x[0], &to_vector_dtype(&x[1])?, &to_vector_dtype(&x[2])?)
    });
    assert_gpu_matches_f64("gate", &[&[37, 41], &[37, 41]], once, |x, _| ops::gated(&x[0], &x[1], Activation::Silu));
    for cap in [None, Some(0.5)] {
        // The tolerances are larger because scores and attention weights are rounded too.
        assert_gpu_matches_f64(
            "attention",
            &[&[2, 96, 6, 8], &[2, 40, 2, 8], &[2, 40, 2, 8]],
            [1e-6, 1e-2, 1e-3],
            |x, mask| ops::attention(&x[0], &x[1], &x[2], mask, ops::Scores { scale: 0.35, cap }),
        );
    }
}

fn to_vector_dtype(x: &Tensor) -> candle_core::Result<Tensor> {
    x.to_dtype(if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 })
}

#[test]
fn gpu_tensor_is_complete_when_read_by_another_thread() {
    let Some(device) = gpu() else { return };
    let device = device.open().unwrap();
    let x = sample_tensor(3, (2048, 2048));
    let expected = flat(&(&x * 1024.0).unwrap());
    for round in 0..20 {
        let doubled = std::thread::scope(|scope| {
            let handle = scope.spawn(|| {
                let on_device = x.to_device(&device).unwrap();
                (0..10).fold(on_device, |x, _| (&x + &x).unwrap())
            });
            handle.join().unwrap()
        });
        assert_eq!(to_host_values(&doubled), expected, "round {round}");
    }
}

/// Builds windows in which every token is predicted. They fit into one pass even with little memory. With several
/// passes, the products would have other shapes and therefore round differently on a GPU (f16 log-probabilities differ
/// by 2e-5).
fn sample_batch(vocab: usize) -> Batch {
    let ids: Vec<Vec<u32>> = (0..10).map(|w| (0..97).map(|i| ((w * 7919 + i * 31) % vocab) as u32).collect()).collect();
    let mut batch = Batch::windows(ids.iter().map(Vec::as_slice));
    batch.targets = (0..batch.tokens()).map(|row| ScoredRow { row, token: (row % vocab) as u32 }).collect();
    batch
}

fn log_probabilities(engine: &dyn Engine, batch: Batch) -> Vec<f64> {
    let trie = Trie::for_scoring(&[Program::dense(engine.config().layers), Program::pruned(4, &[1, 2], |_| None)]);
    let batches = [batch];
    let outputs = engine.score(&trie, &batches, &mut vec![0.0; trie.len()]).unwrap();
    outputs.into_iter().flatten().flatten().flatten().map(|prediction| f64::from(prediction.log_probability)).collect()
}

#[test]
fn layers_loaded_on_demand_match_resident_layers() {
    let Some(device) = gpu() else { return };
    for name in ["llama-gqa", "qwen3", "olmo2"] {
        let folder = fixture("arch").join(name);
        for dtype in FloatType::ALL {
            let resident = candle(&folder, device, dtype, None);
            let batch = || sample_batch(resident.config().vocab);
            let expected = log_probabilities(&*resident, batch());
            let bounded = candle(&folder, device, dtype, Some(0));
            // Repeat, because a race between threads may not occur in every round.
            for round in 0..10 {
                let error = relative_error(&log_probabilities(&*bounded, batch()), &expected);
                assert!(error < 1e-6, "{name} {dtype:?}, round {round}: {error:e}");
            }
        }
    }
}

/// Builds windows longer and shorter than a kernel's block, and contexts with several continuations each.
fn windows_and_trees(vocab: usize) -> Batch {
    let windows =
        [sample_ids(1, 250, vocab), sample_ids(2, 70, vocab), sample_ids(3, 70, vocab), sample_ids(4, 1, vocab)];
    let mut batch = Batch::windows(windows.iter().map(Vec::as_slice));
    for context in [90, 40] {
        let parent = Some(batch.segments.len());
        batch.push(&sample_ids(context, context, vocab), None);
        for seed in 0..5 {
            batch.push(&sample_ids(seed, 3 + 17 * seed, vocab), parent);
        }
    }
    batch.targets = (0..batch.tokens()).map(|row| ScoredRow { row, token: (row % vocab) as u32 }).collect();
    batch
}

fn sample_ids(seed: usize, count: usize, vocab: usize) -> Vec<u32> {
    (0..count).map(|i| ((seed * 7919 + i * 31) % vocab) as u32).collect::<Vec<_>>()
}

#[test]
fn gpu_attention_on_windows_and_trees_matches_the_cpu() {
    let Some(device) = gpu() else { return };
    for name in ["llama-gqa", "llama3-rope", "mistral", "olmo2", "qwen2", "qwen3"] {
        let folder = fixture("arch").join(name);
        let exact = run_on(DeviceName::Cpu, FloatType::F32, &folder);
        for dtype in FloatType::ALL {
            let error = relative_error(&run_on(device, dtype, &folder), &exact);
            // In half precision, rounding differs between devices, but the errors are of the same magnitude.
            let max = match dtype {
                FloatType::F32 => 1e-6,
                half => 1.5 * relative_error(&run_on(DeviceName::Cpu, half, &folder), &exact),
            };
            assert!(error < max, "{name} {dtype:?}: error {error:e} exceeds {max:e}");
        }
    }
}

fn run_on(device: DeviceName, dtype: FloatType, folder: &Path) -> Vec<f64> {
    let engine = candle(folder, device, dtype, None);
    log_probabilities(&*engine, windows_and_trees(engine.config().vocab))
}
