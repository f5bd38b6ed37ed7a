//! Measures how much time a fine-tuning step of an operator, which replaces removed layers, saves by reading the hidden
//! states before the operator and the dense model's top tokens instead of running the complete pruned and dense models.
//!
//! `cargo bench --bench distill [-- BACKBONE_FOLDER]`
#![allow(clippy::disallowed_macros, clippy::unwrap_used, reason = "a benchmark prints, and panics on setup errors")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use candle_core::{Device, Tensor};
use ghostlab::distill::{Checkpoint, Finetune, LayersAfter, Training, top_tokens};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Returns the best time of five rounds in milliseconds, because other processes can only slow a round down.
fn measure_milliseconds(mut work: impl FnMut()) -> f64 {
    work();
    (0..5)
        .map(|_| {
            let started = Instant::now();
            work();
            started.elapsed().as_secs_f64() * 1e3
        })
        .fold(f64::INFINITY, f64::min)
}

fn main() {
    let default = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/data/tiny/llama"));
    let folder = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map_or(default, PathBuf::from);
    let config = ghostlab::model::Config::read(&folder).unwrap();
    let layers = config.layers;
    let c = config.hidden;
    let length = 256;
    // The Ghosted Layers paper removes 7 of 32 layers and keeps the last two.
    let start = layers * 23 / 32;
    let end = layers - (layers / 16).max(1);
    let tail = load_layers(end, &config, &folder);
    let unpruned = load_layers(0, &config, &folder);
    let removed = load_layers(start, &config, &folder);
    let stream: Vec<f32> = (0..length * c).map(|index| (index as f32 * 12.9898).sin()).collect();
    let embedded = Tensor::from_slice(&stream, (length, c), &Device::Cpu).unwrap();
    let teacher = top_tokens(&unpruned.logits(&embedded).unwrap(), Finetune::TOP_TOKENS).unwrap();
    let identity: Vec<f32> = (0..c * c).map(|index| f32::from(u8::from(index % (c + 1) == 0))).collect();
    let mut training = Training::new(&tail, Checkpoint::start(identity)).unwrap();
    let step = measure_milliseconds(|| {
        training.step(&stream, &teacher).unwrap();
    });
    let [dense, behind] =
        [&unpruned, &removed].map(|tail| measure_milliseconds(|| drop(tail.logits(&embedded).unwrap())));
    // Time of the layers before the removed ones: the time of the dense pass minus that of the layers from `start` on.
    let before = (dense - behind).max(0.0);
    println!("{layers} layers, [{start}, {end}) removed, sequences of {length} tokens");
    println!("operator and the {} layers after it: {step:.1} ms per step", layers - end);
    println!("saved: {before:.1} ms for the student's {start} layers before it, and {dense:.1} ms for the teacher");
    println!("complete step relative to the reduced one: {:.1} ×", (step + before + dense) / step);
}

fn load_layers(first: usize, config: &ghostlab::model::Config, folder: &Path) -> LayersAfter {
    LayersAfter::load(config, folder, first, &Device::Cpu).unwrap()
}
