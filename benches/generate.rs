//! Measures decoding speed by batch size, in tokens per second and relative to memory bandwidth. The latter divides the
//! weight bytes read per second by the copy bandwidth of all threads.
//!
//! `cargo bench --bench generate [-- BACKBONE_FOLDER]`. For realistic widths, write a backbone with `ghostlab-tiny
//! random --like llama-3.1-8b --layers 2 FOLDER`. Copying and decoding alternate, so that load from other processes
//! slows both.
#![allow(clippy::disallowed_macros, clippy::unwrap_used, reason = "a benchmark prints, and panics on setup errors")]

use std::path::PathBuf;
use std::time::Instant;

use ghostlab::model::{Config, Decoder, Engine, Products, Program, SequenceInput, Trie};
use rayon::prelude::*;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PROMPT_TOKENS: usize = 32;

fn main() {
    let default = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/real/backbone"));
    let folder = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map_or(default, PathBuf::from);
    if !folder.exists() {
        println!("skipped: there is no backbone at {}", folder.display());
        return;
    }
    let config = Config::read(&folder).unwrap();
    let wide = config.hidden >= 2048;
    let (steps, rounds) = if wide { (2, 4) } else { (32, 5) };
    println!(
        "{:>6} {:>6} {:>12} {:>12} {:>12} {:>8}",
        "type", "rows", "tokens/s", "weights GB/s", "copy GB/s", "share"
    );
    for products in [Products::F32, Products::Bf16] {
        let decoder = Decoder::load_within(config.clone(), &folder, products, u64::MAX).unwrap();
        let bytes = weight_bytes(&config, products);
        let trie = Trie::new(&[Program::dense(config.layers)]);
        for rows in [1, 2, 4, 8, 16, 32] {
            let mut best = 0.0f64;
            let mut copied = 0.0f64;
            for _ in 0..rounds {
                copied = copied.max(measure_copy_rate());
                best = best.max(rows as f64 * steps as f64 / time_decoding(&decoder, &trie, rows, steps));
            }
            let read = best / rows as f64 * bytes as f64 / 1e9;
            let fraction = read / copied;
            println!("{:>6} {rows:>6} {best:>12.1} {read:>12.1} {copied:>12.1} {fraction:>8.2}", products.name());
        }
    }
}

/// Returns the size in bytes of the weights that a decoding step reads (layers and head).
fn weight_bytes(config: &Config, products: Products) -> u64 {
    let c = config.hidden as u64;
    let heads = ((config.heads + 2 * config.kv_heads) * config.head_dim) as u64;
    let layer_weights = c * heads + (config.heads * config.head_dim) as u64 * c + 3 * c * config.intermediate as u64;
    let size = if products == Products::F32 { 4 } else { 2 };
    (config.layers as u64 * layer_weights + c * config.vocab as u64) * size
}

/// Returns the seconds for `steps` decoding steps after the prompts, each with one token per sequence.
fn time_decoding(decoder: &Decoder, trie: &Trie, rows: usize, steps: usize) -> f64 {
    let mut decoding = decoder.start_decoding(trie).unwrap();
    let vocab = decoder.config().vocab;
    let prompts: Vec<SequenceInput> = (0..rows)
        .map(|row| {
            build_sequence(
                row,
                (0..PROMPT_TOKENS).map(|position| sample_id(row * 31 + position, vocab)).collect(),
                steps,
            )
        })
        .collect();
    decoding.run(&prompts).unwrap();
    let started = Instant::now();
    for step in 0..steps {
        let next: Vec<SequenceInput> =
            (0..rows).map(|row| build_sequence(row, vec![sample_id(row + step, vocab)], steps)).collect();
        decoding.run(&next).unwrap();
    }
    started.elapsed().as_secs_f64()
}

fn build_sequence(block: usize, ids: Vec<u32>, steps: usize) -> SequenceInput {
    SequenceInput { ids, programs: vec![0], context: Vec::new(), block, capacity: PROMPT_TOKENS + steps }
}

fn sample_id(index: usize, vocab: usize) -> u32 {
    (index * 7919 % vocab) as u32
}

/// Returns the memory bandwidth of a copy by all threads, in GB per second. The arrays are larger than the caches.
fn measure_copy_rate() -> f64 {
    const FLOATS: usize = 1 << 26;
    let from = vec![1.0f32; FLOATS];
    let mut to = vec![0.0f32; FLOATS];
    let chunk_len = FLOATS.div_ceil(rayon::current_num_threads());
    let copy = |to: &mut [f32]| {
        to.par_chunks_mut(chunk_len).zip(from.par_chunks(chunk_len)).for_each(|(to, from)| to.copy_from_slice(from));
    };
    copy(&mut to);
    let started = Instant::now();
    copy(&mut to);
    let seconds = started.elapsed().as_secs_f64();
    assert!(std::hint::black_box(&to)[FLOATS / 2] > 0.0);
    2.0 * size_of::<f32>() as f64 * FLOATS as f64 / seconds / 1e9
}
