//! Measures the throughput of the CPU engine ([`Decoder`]) and of the candle engine on the CPU in tokens per second,
//! for each dtype that they support. Runs the dense forward pass including the head, in interleaved rounds. Also
//! profiles the candle operations of one layer.
//!
//! `cargo bench --bench engines [-- BACKBONE_FOLDER]`
#![allow(clippy::disallowed_macros, clippy::unwrap_used, reason = "a benchmark prints, and panics on setup errors")]

use std::path::PathBuf;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use ghostlab::corpus::{Start, Windows};
use ghostlab::evaluate::perplexity::PerplexityEval;
use ghostlab::evaluate::score;
use ghostlab::model::candle::ops;
use ghostlab::model::{
    CandleEngine, Config, Decoder, DeviceName, Engine, FloatType, Placement, Products, Program, Trie,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TOKENS: usize = 8192;
/// Number of tokens per batch for the candle engine on the CPU.
const CANDLE_BATCH_TOKENS: usize = 512;

fn main() {
    let default = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/real/backbone"));
    let folder = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map_or(default, PathBuf::from);
    if !folder.exists() {
        println!("skipped: there is no backbone at {}", folder.display());
        return;
    }
    let config = Config::read(&folder).unwrap();
    let own_engines = [Products::F32, Products::Bf16].map(|products| {
        Box::new(Decoder::load_within(config.clone(), &folder, products, u64::MAX).unwrap()) as Box<dyn Engine>
    });
    let engines: Vec<Box<dyn Engine>> = own_engines
        .into_iter()
        .chain(FloatType::ALL.map(|dtype| {
            let placement = Placement { device: DeviceName::Cpu, dtype };
            Box::new(CandleEngine::load(config.clone(), &folder, placement, None).unwrap()) as Box<dyn Engine>
        }))
        .collect();
    println!("{:>8} {:>24} {:>12} {:>8}", "window", "engine", "tokens/s", "share");
    for window in [128, 512] {
        // Take the best of three interleaved rounds, because other processes can only slow a round down.
        let mut best = vec![f64::INFINITY; engines.len()];
        for _ in 0..3 {
            for (best, engine) in best.iter_mut().zip(&engines) {
                *best = best.min(time_scoring(&**engine, window));
            }
        }
        for (engine, seconds) in engines.iter().zip(&best) {
            let name = engine.id().to_string();
            let rate = TOKENS as f64 / seconds;
            println!("{window:>8} {name:>24} {rate:>12.0} {:>6.0} %", 100.0 * best[0] / seconds);
        }
    }
    profile_operations(&config);
}

/// Returns the seconds that the dense backbone takes to score windows of `window` tokens for perplexity.
fn time_scoring(engine: &dyn Engine, window: usize) -> f64 {
    let ids: Vec<u32> = (0..TOKENS).map(|i| (i * 7919 % engine.config().vocab) as u32).collect();
    let starts = (0..TOKENS / window).map(|i| Start { document: 0, token: i * window }).collect();
    let windows = Windows { corpus_tokens: TOKENS, ids, length: window, starts, bytes: 0 };
    let trie = Trie::new(&[Program::dense(engine.config().layers)]);
    let eval_set = PerplexityEval::new(&windows, 2048);
    let started = Instant::now();
    score(&eval_set, engine, &trie, &mut vec![0.0; trie.len()], |_| Ok(())).unwrap();
    started.elapsed().as_secs_f64()
}

/// Times the operations of one layer on one window, and prints the fraction of the total time that each takes.
fn profile_operations(config: &Config) {
    let c = config.hidden;
    let f = config.intermediate;
    let d = config.head_dim;
    let h = config.heads;
    let k = config.kv_heads;
    let x = random_tensor(&[CANDLE_BATCH_TOKENS, c]);
    let weight = random_tensor(&[c]);
    let [query, key, output] = [[h * d, c], [k * d, c], [c, h * d]].map(|shape| random_tensor(&shape));
    let [gate, down] = [[f, c], [c, f]].map(|shape| random_tensor(&shape));
    let wide = random_tensor(&[CANDLE_BATCH_TOKENS, h * d]);
    let hidden = random_tensor(&[CANDLE_BATCH_TOKENS, f]);
    let [turned, turned_keys] = [h, k].map(|count| random_tensor(&[CANDLE_BATCH_TOKENS, count, d]));
    let cos = random_tensor(&[CANDLE_BATCH_TOKENS, d / 2]);
    let sin = random_tensor(&[CANDLE_BATCH_TOKENS, d / 2]);
    let queries = turned.unsqueeze(0).unwrap();
    let keys = turned_keys.unsqueeze(0).unwrap();
    let mask = Tensor::zeros((CANDLE_BATCH_TOKENS, CANDLE_BATCH_TOKENS), DType::F32, &Device::Cpu).unwrap();
    let scores = random_tensor(&[h, CANDLE_BATCH_TOKENS, CANDLE_BATCH_TOKENS]);
    let score_settings = ops::Scores::from_config(config);
    let all = [
        time_operation("products of the layer", &|| {
            for (x, weight) in
                [(&x, &query), (&x, &key), (&x, &key), (&wide, &output), (&x, &gate), (&x, &gate), (&hidden, &down)]
            {
                ops::linear(x, weight).unwrap();
            }
        }),
        time_operation("attention, softmax included", &|| {
            drop(ops::attention(&queries, &keys, &keys, &mask, score_settings).unwrap());
        }),
        time_operation("softmax by itself (candle's own)", &|| drop(ops::softmax(&scores).unwrap())),
        time_operation("rotary embedding", &|| {
            ops::rotate(&turned, &cos, &sin).unwrap();
            ops::rotate(&turned_keys, &cos, &sin).unwrap();
        }),
        time_operation("two norms", &|| {
            for _ in 0..2 {
                ops::rms_norm(&x, &weight, 1e-5).unwrap();
            }
        }),
        time_operation("silu and product", &|| drop(ops::gated(&hidden, &hidden, config.activation).unwrap())),
        time_operation("two residual additions", &|| {
            for _ in 0..2 {
                ops::sum(&x, &x).unwrap();
            }
        }),
    ];
    let total: f64 = all.iter().filter(|(name, _)| !name.contains("by itself")).map(|(_, seconds)| seconds).sum();
    println!("\n{:>32} {:>12} {:>8}", format!("a layer on {CANDLE_BATCH_TOKENS} tokens"), "ms", "share");
    for (name, seconds) in all {
        println!("{name:>32} {:>12.2} {:>6.0} %", 1e3 * seconds, 100.0 * seconds / total);
    }
}

fn random_tensor(shape: &[usize]) -> Tensor {
    Tensor::rand(-1f32, 1.0, shape, &Device::Cpu).unwrap()
}

fn time_operation(name: &'static str, run: &dyn Fn()) -> (&'static str, f64) {
    run();
    let best = (0..5).map(|_| {
        let started = Instant::now();
        run();
        started.elapsed().as_secs_f64()
    });
    (name, best.fold(f64::INFINITY, f64::min))
}
