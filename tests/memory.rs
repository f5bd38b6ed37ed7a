//! Tests for memory limits. `plan` predicts the peak, layers loaded on demand stay within the limit, and runs that
//! cannot fit are rejected before the system kills them.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::fs::File;
use std::io::Write;
use std::process::{Command, Output};

use crate::common::world::World;
use serde_json::{Map, Value, json};

const C: usize = 1024;
const F: usize = 8192;
const VOCAB: usize = 320;
/// Size of one f32 layer in bytes, without its norms.
const LAYER: u64 = 4 * (4 * C * C + 3 * C * F) as u64;

/// Replaces the world's backbone with one that has wide layers, and its grid with one that removes a single layer and
/// repairs nothing. The weights are zeros in a sparse file, because the scores do not matter.
fn write_wide_backbone(world: &World, layers: usize) {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "attention_bias": false,
        "hidden_size": C, "intermediate_size": F, "num_hidden_layers": layers, "num_attention_heads": 16,
        "num_key_value_heads": 16, "head_dim": 64, "vocab_size": VOCAB, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "tie_word_embeddings": false,
    });
    world.write("backbone/config.json", config.to_string());
    let mut tensors = vec![("model.embed_tokens".to_owned(), vec![VOCAB, C]), ("lm_head".to_owned(), vec![VOCAB, C])];
    tensors.push(("model.norm".to_owned(), vec![C]));
    for layer in 0..layers {
        let square = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
        let norms = ["input_layernorm", "post_attention_layernorm"];
        let parts = square.map(|part| (part, vec![C, C])).into_iter();
        let parts = parts.chain(norms.map(|part| (part, vec![C])));
        let mlp = [("mlp.gate_proj", vec![F, C]), ("mlp.up_proj", vec![F, C]), ("mlp.down_proj", vec![C, F])];
        tensors.extend(parts.chain(mlp).map(|(part, shape)| (format!("model.layers.{layer}.{part}"), shape)));
    }
    let mut header = Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let begin = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(format!("{name}.weight"), json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}));
    }
    let header = Value::Object(header).to_string();
    let mut file = File::create(world.path("backbone/model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len((8 + header.len() + end) as u64).unwrap();
    world.write(
        "grid.yaml",
        "backbones:\n  tiny: {path: backbone}\n\
         corpora:\n  train: {path: train.txt, rule: wikitext2}\n  test: {path: test.jsonl, rule: ptb, limit: 8}\n\
         backbone: [tiny]\ncriterion: [{name: explicit, layers: [1]}]\ndepth: [1]\nrecovery: [none]\n\
         calibration:\n  - {corpus: train, sequences: 8, length: 64}\n\
         evaluate:\n  perplexity:\n    - {corpus: test, length: 64}\n",
    );
}

/// Returns the peak memory in bytes that `plan` predicts.
fn predicted_peak(world: &World, limits: &[&str]) -> f64 {
    let output = world.ghostlab(&[&["plan", "grid.yaml"], limits].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let words = text.split("memory: about ").nth(1).unwrap_or_else(|| unreachable!("no memory in {text}"));
    let mut words = words.split_whitespace();
    let number: f64 = words.next().unwrap().parse().unwrap();
    number
        * [("kB", 1e3), ("MB", 1e6), ("GB", 1e9)].iter().find(|(unit, _)| words.clone().next() == Some(unit)).unwrap().1
}

/// Runs the grid. Returns its peak memory in bytes as measured by the system.
fn measured_peak(world: &World, limits: &[&str]) -> f64 {
    world.run_ok(limits);
    let text = std::fs::read_to_string(world.path("results/grid/run.json")).unwrap();
    let value = text.split("\"peak_memory_bytes\":").nth(1).unwrap();
    value.trim().split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[test]
fn planned_peak_memory_is_within_a_quarter_of_the_measured() {
    let small = World::large();
    let in_memory = World::new();
    write_wide_backbone(&in_memory, 4);
    let by_need = World::new();
    write_wide_backbone(&by_need, 6);
    let limit = format!("{:.3}", (4 * LAYER) as f64 / 1e9);
    let cases: [(&str, &World, &[&str]); 3] = [
        ("a small backbone", &small, &[]),
        ("all of 4 wide layers", &in_memory, &[]),
        ("6 wide layers in the memory of 4", &by_need, &["--memory", &limit]),
    ];
    for (what, world, limits) in cases {
        let estimate = predicted_peak(world, limits);
        let measured = measured_peak(world, limits);
        assert!((estimate / measured - 1.0).abs() <= 0.25, "{what}: estimated {estimate:.3e}, used {measured:.3e}");
    }
    let measured = measured_peak(&by_need, &["--memory", &limit]);
    assert!(measured < 4.0 * LAYER as f64 * 1.05, "used {measured:.3e} with a limit of {limit} GB");
}

fn run_with_address_limit(world: &World, bytes: u64) -> Output {
    let program = env!("CARGO_BIN_EXE_ghostlab");
    let script = format!("ulimit -v {}; exec {program} run grid.yaml --threads 2", bytes / 1024);
    Command::new("sh").current_dir(world.folder.path()).args(["-c", &script]).output().unwrap()
}

#[test]
fn job_above_process_limits_is_rejected_not_killed() {
    let world = World::new();
    write_wide_backbone(&world, 2);
    // The allocator reserves 1 GiB of address space if the limit allows it, and the program needs another 0.3 GB to
    // start. A layer takes 117 MB.
    let output = run_with_address_limit(&world, 1_400_000_000);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{text}");
    for words in ["a job exceeds the memory limit", "for the weights", "free"] {
        assert!(text.contains(words), "`{words}` is not in {text}");
    }
    assert!(!world.path("results/grid/results.csv").exists());
    let output = run_with_address_limit(&world, 4_000_000_000);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}
