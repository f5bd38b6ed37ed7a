//! Measures the throughput of the dense forward pass including the head, in f32 and with bf16 products, in tokens per
//! second. Also measures the fraction of time spent in matrix products.
//!
//! `cargo bench --bench forward [-- BACKBONE_FOLDER]`. For realistic widths, `ghostlab-tiny random --like llama-3.1-8b
//! --layers 2 FOLDER` writes a two-layer backbone. Such a backbone needs 6 GB of memory, and is measured in one round
//! of 2,048 tokens instead of three of 8,192.
#![allow(clippy::disallowed_macros, clippy::unwrap_used, reason = "a benchmark prints, and panics on setup errors")]

use std::path::PathBuf;
use std::time::Instant;

use ghostlab::linalg::gemm::profile;
use ghostlab::model::{Batch, Config, Decoder, KernelFamily, Load, Products, Program, Trie};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let default = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/real/backbone"));
    let folder = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map_or(default, PathBuf::from);
    if !folder.exists() {
        println!("skipped: there is no backbone at {}", folder.display());
        return;
    }
    let config = Config::read(&folder).unwrap();
    let mut all = vec![Products::F32, Products::Bf16];
    all.extend((KernelFamily::detect() == KernelFamily::Amx).then_some(Products::Bf16Amx));
    let decoders: Vec<Decoder> = all
        .iter()
        .map(|&products| Decoder::load_within(config.clone(), &folder, products, u64::MAX).unwrap())
        .collect();
    let trie = Trie::new(&[Program::dense(config.layers)]);
    let wide = config.hidden >= 2048;
    let (tokens, rounds) = if wide { (2048, 1) } else { (8192, 3) };
    let ids: Vec<u32> = (0..tokens).map(|i| (i * 7919 % config.vocab) as u32).collect();
    let head = ["window", "batch", "type", "tokens/s", "GFLOP/s", "inside matrix products"];
    println!("{:>8} {:>8} {:>13} {:>12} {:>10} {:>26}", head[0], head[1], head[2], head[3], head[4], head[5]);
    for (window, batch) in [(128, 2048), (512, 512), (512, 1024), (512, 2048), (512, 4096), (2048, 2048)] {
        if batch > tokens {
            continue;
        }
        let batches: Vec<Batch> = ids.chunks(batch).map(|ids| Batch::windows(ids.chunks(window))).collect();
        // Take the best round, because other processes can only slow a round down.
        let load = Load::windows(ids.len(), window);
        let flops = trie.flops(&config, &load).shared;
        let mut best = vec![(f64::INFINITY, 0.0); all.len()];
        for _ in 0..rounds {
            for (decoder, best) in decoders.iter().zip(&mut best) {
                trie.run(decoder, &batches[0], &mut ()).unwrap();
                *best = [*best, {
                    let started = Instant::now();
                    profile::enable();
                    for batch in &batches {
                        trie.run(decoder, batch, &mut ()).unwrap();
                    }
                    let inside = profile::disable() / rayon::current_num_threads() as f64;
                    (started.elapsed().as_secs_f64(), inside)
                }]
                .into_iter()
                .min_by(|a, b| a.0.total_cmp(&b.0))
                .unwrap();
            }
        }
        for (products, (seconds, inside)) in all.iter().zip(best) {
            println!(
                "{window:>8} {batch:>8} {:>13} {:>12.0} {:>10.0} {:>24.0} %",
                format!("{} {}", products.name(), products.kernels()),
                ids.len() as f64 / seconds,
                flops / seconds / 1e9,
                100.0 * inside / seconds
            );
        }
    }
}
