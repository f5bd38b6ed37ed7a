//! Helpers that the integration tests of all crates share: paths to reference data, and comparisons of vectors.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    dead_code,
    unreachable_pub,
    reason = "each test file uses only some helpers, which panic on setup errors"
)]

pub mod python;
pub mod stories;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use ghostlab_core::criterion::{Trial, TrialMetric};
use ghostlab_core::error::Result;
use ghostlab_core::model::{
    CandleEngine, Config, Decoder, DeviceName, Engine, FloatType, KernelFamily, Placement, Products,
};

/// Returns the root of the checkout.
pub fn checkout() -> PathBuf {
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    if manifest_dir.ends_with("crates/core") { manifest_dir.join("../..") } else { manifest_dir.to_owned() }
}

/// Returns a path in the shared folder next to the checkout. If the path does not exist, panics in CI. Elsewhere,
/// prints a message and returns `None`, so that the caller skips the test.
pub fn shared(relative: &str) -> Option<PathBuf> {
    let path = checkout().join("../shared").join(relative);
    if path.exists() {
        return Some(path);
    }
    let in_ci = std::env::var("CI").is_ok_and(|value| !value.is_empty());
    assert!(!in_ci, "{} is missing: CI must not skip the reference tests", path.display());
    #[allow(clippy::disallowed_macros)]
    {
        eprintln!("skipped: {} is missing", path.display());
    }
    None
}

/// Panics when called. Tests pass it to criteria that need no trials.
pub fn no_trials(_: TrialMetric, _: &[Trial]) -> Result<Vec<f64>> {
    panic!("the criterion must not request trials")
}

/// Returns the path of a committed fixture.
pub fn fixture(relative: &str) -> PathBuf {
    checkout().join("tests/fixtures").join(relative)
}

pub fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

pub fn tensors(path: &Path) -> HashMap<String, Tensor> {
    candle_core::safetensors::load(path, &Device::Cpu).unwrap()
}

/// Adds a bias to every projection of the Llama backbone in a folder.
pub fn add_biases(folder: &Path) {
    let path = folder.join("model.safetensors");
    let mut all: BTreeMap<String, Tensor> = tensors(&path).into_iter().collect();
    let projections: Vec<(String, usize)> = all
        .iter()
        .filter_map(|(name, weight)| Some((name.strip_suffix("_proj.weight")?.to_owned(), weight.dims()[0])))
        .collect();
    for (position, (projection, width)) in projections.into_iter().enumerate() {
        let values: Vec<f32> = (0..width).map(|row| 0.1 * ((31 * position + row) as f32 * 12.9898).sin()).collect();
        all.insert(format!("{projection}_proj.bias"), Tensor::from_vec(values, width, &Device::Cpu).unwrap());
    }
    candle_core::safetensors::save(&all.into_iter().collect::<HashMap<_, _>>(), path).unwrap();
    let mut config = json(&folder.join("config.json"));
    ["attention_bias", "mlp_bias"].iter().for_each(|key| config[*key] = true.into());
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

/// Returns the GPU that this build uses. If there is none, prints a message and returns `None`, so that the test is
/// skipped. With `GHOSTLAB_GPU=require`, panics instead.
pub fn gpu() -> Option<DeviceName> {
    let found = Some(DeviceName::detect()).filter(|device| *device != DeviceName::Cpu);
    let required = std::env::var("GHOSTLAB_GPU").is_ok_and(|value| value == "require");
    assert!(found.is_some() || !required, "GHOSTLAB_GPU=require is set, but this build finds no GPU");
    #[allow(clippy::disallowed_macros)]
    if found.is_none() {
        eprintln!("skipped: this build finds no GPU");
    }
    found
}

/// Loads a backbone with the candle engine, either with all weights in memory or within `memory` bytes.
pub fn candle(folder: &Path, device: DeviceName, dtype: FloatType, memory: Option<u64>) -> Box<dyn Engine> {
    let config = Config::read(folder).unwrap();
    Box::new(CandleEngine::load(config, folder, Placement { device, dtype }, memory).unwrap())
}

/// Loads a backbone with every f32 engine. Tests compare all of them with the same reference data at the same
/// tolerances.
pub fn engines(folder: &Path) -> Vec<Box<dyn Engine>> {
    engines_of(Config::read(folder).unwrap(), folder)
}

/// Loads a backbone with every f32 engine, using the config at another path.
pub fn engines_with(config: &Path, folder: &Path) -> Vec<Box<dyn Engine>> {
    engines_of(Config::read_file(config).unwrap(), folder)
}

pub fn engines_of(config: Config, folder: &Path) -> Vec<Box<dyn Engine>> {
    let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(Decoder::load_with(config.clone(), folder).unwrap())];
    engines.extend([Some(DeviceName::Cpu), gpu()].into_iter().flatten().map(|device| {
        let placement = Placement { device, dtype: FloatType::F32 };
        Box::new(CandleEngine::load(config.clone(), folder, placement, None).unwrap()) as Box<dyn Engine>
    }));
    engines
}

/// Loads a backbone with every engine in every float type, with all weights in memory. For f32, also adds engines that
/// load weights on demand.
pub fn engines_of_all_types(folder: &Path) -> Vec<Box<dyn Engine>> {
    let mut engines: Vec<Box<dyn Engine>> =
        vec![load_decoder(Products::F32, u64::MAX, folder), load_decoder(Products::F32, 0, folder)];
    engines.push(load_decoder(Products::Bf16, u64::MAX, folder));
    if KernelFamily::detect() == KernelFamily::Amx {
        let products = [Products::Bf16Amx, Products::Bf16x3, Products::Bf16x6];
        engines.extend(products.map(|products| load_decoder(products, u64::MAX, folder)));
    }
    for device in [Some(DeviceName::Cpu), gpu()].into_iter().flatten() {
        engines.push(candle(folder, device, FloatType::F32, Some(0)));
        engines.extend(FloatType::ALL.map(|dtype| candle(folder, device, dtype, None)));
    }
    engines
}

pub fn load_decoder(products: Products, memory: u64, folder: &Path) -> Box<dyn Engine> {
    Box::new(Decoder::load_within(Config::read(folder).unwrap(), folder, products, memory).unwrap())
}

pub fn flat(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Computes ‖ours − expected‖ / ‖expected‖.
pub fn relative_error(ours: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(ours.len(), expected.len(), "different lengths");
    norm(ours.iter().zip(expected).map(|(a, b)| a - b)) / norm(expected.iter().copied())
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum::<f64>().sqrt()
}

/// Asserts that two numbers agree to within a relative tolerance.
pub fn assert_close(what: &str, ours: f64, expected: f64, relative: f64) {
    let error = ((ours - expected) / expected).abs();
    assert!(error <= relative, "{what}: ours {ours}, expected {expected}, relative error {error:e} > {relative:e}");
}

/// Compares the Frobenius norm of a matrix, and two sums of its elements, with the reference data. The tolerance is
/// relative to the norm.
pub fn compare_matrix(what: &str, values: &[f64], expected: &serde_json::Value, tolerance: f64) {
    let norm = values.iter().map(|v| v * v).sum::<f64>().sqrt();
    let expected_norm = expected["frobenius"].as_f64().unwrap();
    assert_close(what, norm, expected_norm, tolerance);
    let cosine_sum: f64 = values.iter().enumerate().map(|(index, v)| v * (index as f64).cos()).sum();
    for (sum, key) in [(values.iter().sum::<f64>(), "sum"), (cosine_sum, "cosine_sum")] {
        let off = (sum - expected[key].as_f64().unwrap()).abs() / expected_norm;
        assert!(off <= tolerance, "{what}: {key} differs by {off:e} of the norm");
    }
}

/// Converts a JSON array of numbers to a vector.
pub fn numbers(value: &serde_json::Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}
