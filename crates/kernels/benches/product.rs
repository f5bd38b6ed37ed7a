//! Benchmark of matrix products with prepacked weights of each storage type, at the shapes of real layers.
//!
//! Run with `cargo bench -p ghostlab-kernels --bench product [-- THREADS]`. As in a forward pass, each thread
//! multiplies its own rows by the same weights. The benchmark reports the fastest repetition, because other
//! processes can only slow a run down.
#![allow(clippy::disallowed_macros, reason = "a benchmark prints")]

use std::time::{Duration, Instant};

use ghostlab_kernels::linalg::amx::{AmxStatus, status};
use ghostlab_kernels::linalg::bf16::Bf16;
use ghostlab_kernels::linalg::bf16_split::Bf16Split;
use ghostlab_kernels::linalg::float32::F32;
use ghostlab_kernels::linalg::gemm::{MatrixView, Update};
use ghostlab_kernels::linalg::panels::{PackedFormat, Panels, matmul};
use rayon::prelude::*;

/// The allocator of the program, which aligns large buffers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `(inner, outer)` shapes of layers and output heads in models with 256, 576 and 4,096 channels.
const SHAPES: [(usize, usize); 8] =
    [(256, 512), (256, 1408), (704, 256), (576, 3072), (4096, 4096), (4096, 28_672), (14_336, 4096), (4096, 128_256)];
const REPETITIONS: usize = 5;
const MIN_TIME: Duration = Duration::from_millis(500);

fn main() {
    let threads = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let threads = threads.unwrap_or_else(rayon::current_num_threads);
    println!("{threads} threads; GFLOP/s per thread");
    println!(
        "{:>8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "inner", "outer", "f32", "bf16", "bf16 amx", "bf16x3", "bf16x6"
    );
    for (inner, outer) in SHAPES {
        let mut rates = vec![measure_rate::<F32>(threads, inner, outer), measure_rate::<Bf16>(threads, inner, outer)];
        if status() == AmxStatus::Ready {
            rates.push(measure_rate::<Bf16Split<1>>(threads, inner, outer));
            rates.push(measure_rate::<Bf16Split<2>>(threads, inner, outer));
            rates.push(measure_rate::<Bf16Split<3>>(threads, inner, outer));
        }
        let rates: String = rates.iter().map(|rate| format!(" {rate:>9.1}")).collect();
        println!("{inner:>8} {outer:>8}{rates}");
    }
}

/// Returns the throughput of one shape in GFLOP/s per thread.
fn measure_rate<K: PackedFormat>(threads: usize, inner: usize, outer: usize) -> f64 {
    let panels = random_panels::<K>(inner, outer);
    let rows = panels.max_task_rows();
    let x = noise(threads * rows * inner);
    let mut out = vec![0.0; threads * rows * outer];
    let mut fastest = Duration::MAX;
    let benchmark_started = Instant::now();
    for repetition in 0.. {
        if repetition >= REPETITIONS && benchmark_started.elapsed() >= MIN_TIME {
            break;
        }
        let started = Instant::now();
        let tasks = x.par_chunks(rows * inner).zip(out.par_chunks_mut(rows * outer));
        tasks.for_each(|(x, out)| matmul(out, Update::Replace, MatrixView::rows(x, rows, inner), &panels));
        fastest = fastest.min(started.elapsed());
    }
    (2 * rows * inner * outer) as f64 / fastest.as_secs_f64() / 1e9
}

/// Returns packed weights in which all columns are the same random column.
fn random_panels<K: PackedFormat>(inner: usize, outer: usize) -> Panels<K> {
    let mut words = Panels::<K>::allocate(inner, outer);
    let column = noise(inner);
    for panel in words.chunks_exact_mut(Panels::<K>::panel_words(inner)) {
        (0..K::lanes()).for_each(|lane| K::pack_column(&column, lane, panel));
    }
    Panels::new(words, inner, outer)
}

/// Returns deterministic pseudo-random numbers between −0.5 and 0.5.
fn noise(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 7919 % 10_007) as f32 / 10_007.0 - 0.5).collect()
}
