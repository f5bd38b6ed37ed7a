//! Measures the throughput of loading stored weights into a decoder, in GB per second, compared with a naive loader.
//! The naive loader reads each tensor completely, converts it to f32, checks for non-finite values, and transposes it
//! row by row.
//!
//! Writes two layers of random bf16 weights with C = 4096, F = 14336, 32 query heads and 8 key/value heads of width 128
//! to a temporary folder, so that the file is in the page cache. The vocabulary has only 4,096 entries, because the
//! layers dominate. On a shared machine, CPU time is more reliable than wall time.
//!
//! `cargo bench --bench load [-- BACKBONE_FOLDER]`. If a folder is given, only the weights of that backbone are loaded.
#![allow(clippy::disallowed_macros, clippy::unwrap_used, reason = "a benchmark prints, and panics on setup errors")]

use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;

use ghostlab::model::Decoder;
use half::bf16;
use rayon::prelude::*;
use serde_json::{Map, Value, json};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const LAYERS: usize = 2;
const C: usize = 4096;
const F: usize = 14336;
const KEY_CHANNELS: usize = 1024;
const VOCAB: usize = 4096;

fn main() {
    if let Some(folder) = std::env::args().skip(1).find(|argument| !argument.starts_with('-')) {
        let bytes: u64 = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|extension| extension == "safetensors") {
                    path.metadata().unwrap().len()
                } else {
                    0
                }
            })
            .sum();
        let started = Instant::now();
        let cpu_start = cpu_seconds();
        drop(Decoder::load(Path::new(&folder)).unwrap());
        let seconds = started.elapsed().as_secs_f64();
        let cpu_time = cpu_seconds() - cpu_start;
        println!("{seconds:>8.2} s {:>8.2} GB/s {cpu_time:>8.2} CPU s", bytes as f64 / 1e9 / seconds);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let tensors = tensor_shapes();
    let bytes = write_backbone(folder.path(), &tensors);
    println!("{:.2} GB of bf16, {} threads", bytes as f64 / 1e9, rayon::current_num_threads());
    let file = folder.path().join("model.safetensors");
    // Take the best of three rounds, because other processes can only slow a round down.
    let ways: [(&str, &dyn Fn()); 2] = [
        ("decoder", &|| drop(Decoder::load(folder.path()).unwrap())),
        ("naive loader", &|| drop(load_naively(&file, bytes, &tensors))),
    ];
    for (name, load) in ways {
        let (seconds, cpu_time) = {
            (0..3)
                .map(|_| {
                    let started = Instant::now();
                    let cpu_start = cpu_seconds();
                    load();
                    (started.elapsed().as_secs_f64(), cpu_seconds() - cpu_start)
                })
                .min_by(|a, b| a.0.total_cmp(&b.0))
                .unwrap()
        };
        let rate = bytes as f64 / 1e9 / seconds;
        println!("{name:>14} {seconds:>8.2} s {rate:>8.2} GB/s {cpu_time:>8.2} CPU s");
    }
}

/// Returns the CPU time that all threads of this process have used, in seconds, or NaN if unknown.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let times = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    let ticks: Vec<f64> = times.filter_map(|ticks| ticks.parse().ok()).collect();
    if ticks.len() == 2 { (ticks[0] + ticks[1]) / 100.0 } else { f64::NAN }
}

/// Returns the name and stored shape of each tensor in file order.
fn tensor_shapes() -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![("model.embed_tokens".to_owned(), vec![VOCAB, C])];
    for layer in 0..LAYERS {
        let parts = [
            ("input_layernorm", vec![C]),
            ("post_attention_layernorm", vec![C]),
            ("self_attn.q_proj", vec![C, C]),
            ("self_attn.k_proj", vec![KEY_CHANNELS, C]),
            ("self_attn.v_proj", vec![KEY_CHANNELS, C]),
            ("self_attn.o_proj", vec![C, C]),
            ("mlp.gate_proj", vec![F, C]),
            ("mlp.up_proj", vec![F, C]),
            ("mlp.down_proj", vec![C, F]),
        ];
        tensors.extend(parts.map(|(part, shape)| (format!("model.layers.{layer}.{part}"), shape)));
    }
    tensors.extend([("model.norm".to_owned(), vec![C]), ("lm_head".to_owned(), vec![VOCAB, C])]);
    tensors
}

/// Writes the config and the weights, and returns the size of the weights in bytes.
fn write_backbone(folder: &Path, tensors: &[(String, Vec<usize>)]) -> usize {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "attention_bias": false,
        "hidden_size": C, "intermediate_size": F, "num_hidden_layers": LAYERS, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": VOCAB, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "tie_word_embeddings": false,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut header = Map::new();
    let mut bytes = 0;
    for (name, shape) in tensors {
        let end = bytes + 2 * shape.iter().product::<usize>();
        header.insert(format!("{name}.weight"), json!({"dtype": "BF16", "shape": shape, "data_offsets": [bytes, end]}));
        bytes = end;
    }
    let header = Value::Object(header).to_string();
    let mut file = BufWriter::new(File::create(folder.join("model.safetensors")).unwrap());
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let mut state = 1u32;
    let mut block = vec![0u8; 1 << 20];
    for first in (0..bytes).step_by(block.len()) {
        for number in block.as_chunks_mut::<2>().0 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *number = bf16::from_f32((state >> 8) as f32 / (1 << 24) as f32 - 0.5).to_le_bytes();
        }
        file.write_all(&block[..(bytes - first).min(1 << 20)]).unwrap();
    }
    file.flush().unwrap();
    bytes
}

fn load_naively(file: &Path, bytes: usize, tensors: &[(String, Vec<usize>)]) -> Vec<Vec<f32>> {
    let mut file = File::open(file).unwrap();
    let mut position = file.metadata().unwrap().len() - bytes as u64;
    let mut weights = Vec::new();
    for (_, shape) in tensors {
        let mut values = vec![0.0f32; shape.iter().product()];
        file.seek(SeekFrom::Start(position)).unwrap();
        let mut buffer = vec![0; 2 * values.len().min(1 << 22)];
        for block in values.chunks_mut(1 << 22) {
            let buffer = &mut buffer[..2 * block.len()];
            file.read_exact(buffer).unwrap();
            let numbers = block.par_iter_mut().zip(buffer.par_chunks_exact(2));
            numbers.for_each(|(v, b)| *v = bf16::from_le_bytes([b[0], b[1]]).to_f32());
        }
        assert!(values.par_iter().position_first(|v| !v.is_finite()).is_none());
        position += 2 * values.len() as u64;
        if let [outer, inner] = shape[..] {
            let mut out = vec![0.0; values.len()];
            for (row, values) in values.chunks_exact(inner).enumerate() {
                for (column, &value) in values.iter().enumerate() {
                    out[column * outer + row] = value;
                }
            }
            values = out;
        }
        weights.push(values);
    }
    weights
}
