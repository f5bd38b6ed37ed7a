//! Benchmark of matrix products with prepacked f32 weights, at the shapes of real layers.
//!
//! Run with `cargo bench -p ghostlab-kernels --bench product [-- THREADS]`. As in a forward pass, each thread
//! multiplies its own block of rows by the same weights. The fastest repetition counts, because interference from other
//! processes only slows a run down.
#![allow(clippy::disallowed_macros, reason = "a benchmark prints")]

use std::time::{Duration, Instant};

use ghostlab_kernels::forward::BLOCK_ROWS;
use ghostlab_kernels::linalg::float32::F32;
use ghostlab_kernels::linalg::gemm::{MatrixView, Update};
use ghostlab_kernels::linalg::panels::{Kind, Panels, product};
use rayon::prelude::*;

/// `(inner, outer)` of layers and output heads of models with 256, 576 and 4,096 channels.
const SHAPES: [(usize, usize); 8] =
    [(256, 512), (256, 1408), (704, 256), (576, 3072), (4096, 4096), (4096, 28_672), (14_336, 4096), (4096, 128_256)];
const REPETITIONS: usize = 5;
const MIN_TIME: Duration = Duration::from_millis(500);

fn main() {
    let threads = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let threads = threads.unwrap_or_else(rayon::current_num_threads);
    println!("{threads} threads, {BLOCK_ROWS} rows on each");
    println!("{:>8} {:>8} {:>10} {:>22}", "inner", "outer", "GFLOP/s", "GFLOP/s of a thread");
    for (inner, outer) in SHAPES {
        let rate = rate(threads, inner, outer);
        println!("{inner:>8} {outer:>8} {rate:>10.1} {:>22.1}", rate / threads as f64);
    }
}

/// Measures the throughput of one shape in GFLOP/s.
fn rate(threads: usize, inner: usize, outer: usize) -> f64 {
    let panels = Panels::<F32>::new(noise(Panels::<F32>::panel(inner) * outer.div_ceil(F32::lanes())), inner, outer);
    let x = noise(threads * BLOCK_ROWS * inner);
    let mut out = vec![0.0; threads * BLOCK_ROWS * outer];
    let mut fastest = Duration::MAX;
    let begun = Instant::now();
    for repetition in 0.. {
        if repetition >= REPETITIONS && begun.elapsed() >= MIN_TIME {
            break;
        }
        let started = Instant::now();
        let blocks = x.par_chunks(BLOCK_ROWS * inner).zip(out.par_chunks_mut(BLOCK_ROWS * outer));
        blocks.for_each(|(x, out)| product(out, Update::Replace, MatrixView::rows(x, BLOCK_ROWS, inner), &panels));
        fastest = fastest.min(started.elapsed());
    }
    (2 * threads * BLOCK_ROWS * inner * outer) as f64 / fastest.as_secs_f64() / 1e9
}

/// Returns deterministic numbers between −0.5 and 0.5.
fn noise(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 7919 % 10_007) as f32 / 10_007.0 - 0.5).collect()
}
