//! Compares llama.cpp with transformers and with this program on exported GGUF files: logits, tokenization, generated
//! text, and perplexities of quantized files.
//!
//! Skipped with a message unless `GHOSTLAB_LLAMA_CPP` names an interpreter that has xllamacpp. `.ci/run` sets one up.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_macros,
    reason = "tests panic on setup errors, and print why they are skipped"
)]

use std::fs;
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::world::World;
use crate::common::{fixture, flat, json, relative_error, shared, tensors};
use candle_core::quantized::{GgmlDType, QTensor, gguf_file};
use candle_core::{DType, Device, Tensor};
use ghostlab::corpus::{Tokenizer, read_rows};
use ghostlab::model::{Batch, Decoder, Model, Program, Step};
use serde_json::{Value, json};

pub(crate) fn python() -> Option<PathBuf> {
    common::python::path_from_env("GHOSTLAB_LLAMA_CPP", "xllamacpp")
}

fn run_llama_cpp(python: &Path, arguments: &[&Path]) {
    common::python::run(&mut common::python::script(python, "llama_cpp.py", arguments));
}

/// Returns the logits that llama.cpp computes at all positions in the sequences.
pub(crate) fn llama_cpp_logits(python: &Path, world: &World, file: &Path, ids: &[Vec<u32>]) -> Vec<f64> {
    world.write("ids.json", json!(ids).to_string());
    run_llama_cpp(python, &[Path::new("logits"), file, &world.path("ids.json"), &world.path("logits.f32")]);
    let bytes = fs::read(world.path("logits.f32")).unwrap();
    bytes.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four).into()).collect()
}

pub(crate) fn run_successfully(world: &World, arguments: &[&str]) -> String {
    let output = world.ghostlab(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the prompt followed by `count` tokens that llama.cpp generates greedily.
pub(crate) fn llama_cpp_tokens(python: &Path, world: &World, file: &Path, prompt: &[u32], count: usize) -> Vec<u32> {
    world.write("prompt.json", json!(prompt).to_string());
    let [prompt, out] = ["prompt.json", "out.json"].map(|name| world.path(name));
    run_llama_cpp(python, &[Path::new("generate"), file, &prompt, Path::new(&count.to_string()), &out]);
    serde_json::from_value(json(&out)).unwrap()
}

fn read_ids(name: &str) -> Vec<Vec<u32>> {
    let ids = tensors(&fixture(&format!("arch/{name}/forward.safetensors")))["input_ids"].clone();
    ids.to_dtype(DType::U32).unwrap().to_vec2().unwrap()
}

/// Creates a world with a fixture backbone and a byte-level tokenizer.
fn create_world(backbone: &str) -> World {
    let world = World::new();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("arch").join(backbone).join(file), world.path("backbone").join(file)).unwrap();
    }
    world.write("backbone/tokenizer.json", small_tokenizer().to_string());
    world
}

/// Returns the bundled tokenizer, cut down to its first 300 tokens.
pub(crate) fn small_tokenizer() -> Value {
    let mut tokenizer = json(&Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tiny/llama/tokenizer.json"));
    let model = tokenizer["model"].as_object_mut().unwrap();
    model["vocab"].as_object_mut().unwrap().retain(|_, id| id.as_u64().unwrap() < 300);
    let vocab = model["vocab"].clone();
    model["merges"].as_array_mut().unwrap().retain(|merge| {
        let [left, right] = [0, 1].map(|part| merge[part].as_str().unwrap().to_owned());
        [format!("{left}{right}"), left, right].iter().all(|token| !vocab[token].is_null())
    });
    tokenizer
}

/// The expected logits come from transformers and are stored with the fixtures. llama.cpp sums in a different order
/// than our kernels, but both compute in f32.
#[test]
fn llama_cpp_matches_transformers_for_each_architecture() {
    let Some(python) = python() else { return };
    for name in ["llama-gqa", "llama3-rope", "qwen3", "olmo2", "qwen2"] {
        let world = create_world(name);
        // llama.cpp ignores the attention windows of Qwen2. The fixture's windows are shorter than its texts, so
        // disable them.
        let windowless = name == "qwen2";
        if windowless {
            world.change_config("use_sliding_window", json!(false));
            world.change_config("layer_types", Value::Null);
        }
        for (numbers, tolerance) in [("f32", 1e-4), ("f16", 2e-3), ("bf16", 1e-2), ("q8_0", 5e-2)] {
            let file = world.path(&format!("{numbers}.gguf"));
            run_successfully(
                &world,
                &["export", "grid.yaml", "dense", "--gguf", numbers, "--to", file.to_str().unwrap()],
            );
            let expected = match windowless {
                true => compute_logits(&world.path("backbone"), &read_ids(name)),
                false => flat(&tensors(&fixture(&format!("arch/{name}/forward.safetensors")))["logits"]),
            };
            let theirs = llama_cpp_logits(&python, &world, &file, &read_ids(name));
            let error = relative_error(&theirs, &expected);
            assert!(error <= tolerance, "{name} {numbers}: {error:e}");
            // Also compare with our logits on the same file. They differ slightly, because llama.cpp rounds activations
            // to the type of the weights before each product.
            let ours = compute_logits(&file, &read_ids(name));
            let error = relative_error(&theirs, &ours);
            let limit = if numbers == "f32" { 1e-5 } else { tolerance };
            println!("{name} {numbers}: {error:e}");
            assert!(error <= limit, "{name} {numbers}, compared with ours: {error:e}");
        }
    }
}

/// Writes a small backbone with random weights and the given config options.
fn write_random_model(world: &World, class: &str, layers: usize, options: &Value) {
    let gemma = class.starts_with("Gemma");
    let fused = class.starts_with("Phi");
    let [c, f, heads, kv, vocab] = [64_usize, 96, 4, 2, 300];
    // Phi-3 has no `head_dim`. Its head width is the number of channels divided by the number of heads.
    let width = if fused { c / heads } else { 24 };
    let mut config = json!({
        "architectures": [class], "hidden_size": c, "intermediate_size": f, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": width, "vocab_size": vocab,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
    });
    config.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
    let mut names: Vec<(String, Vec<usize>)> =
        vec![("model.embed_tokens.weight".into(), vec![vocab, c]), ("model.norm.weight".into(), vec![c])];
    for layer in 0..layers {
        let mut add =
            |part: &str, shape: &[usize]| names.push((format!("model.layers.{layer}.{part}.weight"), shape.to_vec()));
        match fused {
            true => {
                add("self_attn.qkv_proj", &[(heads + 2 * kv) * width, c]);
                add("mlp.gate_up_proj", &[2 * f, c]);
            }
            false => {
                add("self_attn.q_proj", &[heads * width, c]);
                ["k", "v"].iter().for_each(|name| add(&format!("self_attn.{name}_proj"), &[kv * width, c]));
                ["gate", "up"].iter().for_each(|name| add(&format!("mlp.{name}_proj"), &[f, c]));
            }
        }
        add("self_attn.o_proj", &[c, heads * width]);
        add("mlp.down_proj", &[c, f]);
        ["input_layernorm", "post_attention_layernorm"].iter().for_each(|name| add(name, &[c]));
        if gemma {
            ["pre_feedforward_layernorm", "post_feedforward_layernorm"].iter().for_each(|name| add(name, &[c]));
        }
        if class == "Gemma3ForCausalLM" {
            ["q_norm", "k_norm"].iter().for_each(|name| add(&format!("self_attn.{name}"), &[width]));
        }
    }
    let mut state = 7_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    let tensors: std::collections::HashMap<String, Tensor> = names
        .into_iter()
        .map(|(name, shape)| {
            let (middle, size) = match shape.len() {
                1 if gemma => (0.0, 0.3),
                1 => (1.0, 0.3),
                _ => (0.0, 0.3),
            };
            let values: Vec<f32> = (0..shape.iter().product()).map(|_| middle + size * uniform()).collect();
            (name, Tensor::from_vec(values, shape, &Device::Cpu).unwrap())
        })
        .collect();
    candle_core::safetensors::save(&tensors, world.path("backbone/model.safetensors")).unwrap();
    world.write("backbone/config.json", config.to_string());
    world.write("backbone/tokenizer.json", small_tokenizer().to_string());
}

/// Covers architectures for which no model is committed, with random weights. Other tests compare our logits for these
/// architectures with those of transformers. Windows are shorter than the texts so that a window in the wrong layer
/// changes the logits.
#[test]
fn llama_cpp_matches_our_logits_with_windows_and_rope_types() {
    let Some(python) = python() else { return };
    let ids: Vec<Vec<u32>> = (0..2).map(|row| (0..40).map(|at| (at * 37 + row * 11 + 5) % 300).collect()).collect();
    for (what, class, layers, options) in [
        (
            "gemma2",
            "Gemma2ForCausalLM",
            4,
            json!({"model_type": "gemma2", "sliding_window": 8, "query_pre_attn_scalar": 24}),
        ),
        (
            "gemma3",
            "Gemma3ForCausalLM",
            7,
            json!({"model_type": "gemma3_text", "sliding_window": 8, "query_pre_attn_scalar": 24, "rope_theta": 1e6,
                "rope_local_base_freq": 5000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "final_logit_softcapping": 20.0}),
        ),
        ("phi3", "Phi3ForCausalLM", 4, json!({"model_type": "phi3", "partial_rotary_factor": 0.5})),
        ("smollm3", "SmolLM3ForCausalLM", 5, json!({"model_type": "smollm3"})),
        ("linear", "LlamaForCausalLM", 4, llama_config_with(&json!({"rope_type": "linear", "factor": 4.0}))),
        (
            "yarn",
            "LlamaForCausalLM",
            4,
            llama_config_with(
                &json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 16.0}),
            ),
        ),
    ] {
        let world = World::new();
        write_random_model(&world, class, layers, &options);
        let expected = compute_logits(&world.path("backbone"), &ids);
        // ggml computes GELU with an f16 lookup table.
        let limit = if class.starts_with("Gemma") { 2e-3 } else { 1e-5 };
        for (numbers, tolerance) in [("f32", limit), ("q8_0", 5e-2)] {
            let file = world.path(&format!("{numbers}.gguf"));
            run_successfully(
                &world,
                &["export", "grid.yaml", "dense", "--gguf", numbers, "--to", file.to_str().unwrap()],
            );
            let theirs = llama_cpp_logits(&python, &world, &file, &ids);
            let file_logits = compute_logits(&file, &ids);
            // The weights in the folder are not rounded, so it can only be compared with the f32 file.
            let folder_logits = [("the folder's", &expected)].into_iter().filter(|_| numbers == "f32");
            for (whose, logits) in folder_logits.chain([("the file's", &file_logits)]) {
                let error = relative_error(&theirs, logits);
                println!("{what} {numbers}, compared with {whose}: {error:e}");
                assert!(error <= tolerance, "{what} {numbers}, compared with {whose}: {error:e}");
            }
        }
    }
}

fn llama_config_with(scaling: &Value) -> Value {
    json!({"model_type": "llama", "rope_theta": 10000.0, "rope_scaling": scaling})
}

/// Models that a GGUF file cannot represent are rejected before anything is written.
#[test]
fn export_unsupported_by_llama_cpp_is_rejected() {
    for (class, layers, options, found) in [
        (
            "Gemma2ForCausalLM",
            4,
            json!({"model_type": "gemma2", "sliding_window": 8, "query_pre_attn_scalar": 24,
                "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]}),
            "no sliding window in remaining layer 0",
        ),
        (
            "Gemma2ForCausalLM",
            4,
            json!({"model_type": "gemma2", "sliding_window": 8, "query_pre_attn_scalar": 16}),
            "attention scores scaled by",
        ),
        (
            "SmolLM3ForCausalLM",
            4,
            json!({"model_type": "smollm3", "no_rope_layers": [0, 1, 1, 0]}),
            "no rotary embedding in remaining layer 0",
        ),
        (
            "LlamaForCausalLM",
            4,
            json!({"model_type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0,
                "original_max_position_embeddings": 16}}),
            "`yarn`",
        ),
    ] {
        let world = World::new();
        write_random_model(&world, class, layers, &options);
        let to = world.path("a.gguf");
        let output = world.ghostlab(&["export", "grid.yaml", "dense", "--gguf", "f32", "--to", to.to_str().unwrap()]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(found) && !to.exists(), "{text}");
    }
}

/// Returns the logits that this program computes at all positions in the sequences.
fn compute_logits(backbone: &Path, ids: &[Vec<u32>]) -> Vec<f64> {
    let decoder = Decoder::load(backbone).unwrap();
    let trunk = Program::trunk(decoder.config().layers);
    let mut all = Vec::new();
    for row in ids {
        let batch = Batch::windows([row.as_slice()]);
        let mut stream = decoder.begin(&batch).unwrap();
        for step in trunk.0.iter().filter(|step| !matches!(step, Step::Embed | Step::Head)) {
            stream = decoder.advance(&batch, step, &stream).unwrap();
        }
        let logits = decoder.logits(&stream, &(0..row.len()).collect::<Vec<_>>()).unwrap();
        all.extend(flat(&logits));
    }
    all
}

/// Compares the tokenizers of the real and the bundled backbones, and every named pre-tokenizer, on more than 10,000
/// lines: hand-picked strings, and lines from real and bundled texts.
#[test]
fn llama_cpp_tokenizes_10000_lines_like_the_original() {
    let Some(python) = python() else { return };
    let Some(real) = shared("real") else { return };
    let mut lines: Vec<String> = vec!["a  b\n\n c".into(), "don't 12345 I'LL é\u{1F600}".into(), "\t\r\n tab ".into()];
    for file in ["c4-sample.jsonl.gz", "wikitext2-test.parquet"] {
        let texts = read_rows(real.join("corpora").join(file), None).unwrap();
        let file_lines = texts.iter().flat_map(|text| text.lines()).filter(|line| !line.is_empty());
        lines.extend(file_lines.take(5500).map(str::to_owned));
    }
    let embedded = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tiny");
    let texts = read_rows(embedded.join("corpora/web-train.jsonl.gz"), None).unwrap();
    lines.extend(
        texts.iter().flat_map(|text| text.lines()).filter(|line| !line.is_empty()).take(4000).map(str::to_owned),
    );
    assert!(lines.len() > 10_000, "{}", lines.len());
    let digits =
        json!({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, byte_level(true)]});
    let llama3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let tekken = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let world = World::new();
    world.write("lines.json", json!(lines).to_string());
    for (name, folder, pre_tokenizer, ignore) in [
        ("real", real.join("backbone"), byte_level(true), false),
        ("tiny-llama", embedded.join("llama"), byte_level(true), false),
        ("tiny-qwen3", embedded.join("qwen3"), byte_level(true), false),
        ("smollm", real.join("backbone"), digits, false),
        ("llama-bpe", real.join("backbone"), split_with_bytes(llama3), true),
        ("dbrx", real.join("backbone"), split_with_bytes(llama3), false),
        ("qwen2", real.join("backbone"), split_with_bytes(&llama3.replace("{1,3}", "")), false),
        ("tekken", real.join("backbone"), split_with_bytes(tekken), true),
    ] {
        let mut tokenizer = json(&folder.join("tokenizer.json"));
        tokenizer["pre_tokenizer"] = pre_tokenizer;
        tokenizer["model"]["ignore_merges"] = ignore.into();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(folder.join(file), world.path("backbone").join(file)).unwrap();
        }
        world.write("backbone/tokenizer.json", tokenizer.to_string());
        let file = world.path(&format!("{name}.gguf"));
        run_successfully(&world, &["export", "grid.yaml", "dense", "--gguf", "q8_0", "--to", file.to_str().unwrap()]);
        run_llama_cpp(&python, &[Path::new("tokens"), &file, &world.path("lines.json"), &world.path("tokens.json")]);
        let theirs: Vec<Vec<u32>> = serde_json::from_value(json(&world.path("tokens.json"))).unwrap();
        let original = Tokenizer::load(world.path("backbone/tokenizer.json")).unwrap();
        // Also check the tokenizer that this program reads back from the GGUF file.
        let tokenizer = Tokenizer::load(&file).unwrap();
        assert_eq!(theirs.len(), lines.len(), "{name}");
        for (line, theirs) in lines.iter().zip(&theirs) {
            let expected = original.encode(line).unwrap();
            assert_eq!(&expected, theirs, "{name}: {line:?}");
            assert_eq!(expected, tokenizer.encode(line).unwrap(), "{name}: {line:?}");
        }
    }
}

fn byte_level(regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex})
}

fn split_with_bytes(pattern: &str) -> Value {
    let step = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    json!({"type": "Sequence", "pretokenizers": [step, byte_level(false)]})
}

/// llama.cpp and this program must compute the same perplexity from a real model after it is exported and quantized.
#[test]
fn quantized_file_scores_and_tokens_match_llama_cpp() {
    let Some(python) = python() else { return };
    let Some(real) = shared("real") else { return };
    let world = World::new();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(real.join("backbone").join(file), world.path("backbone").join(file)).unwrap();
    }
    let full = world.path("whole.gguf");
    run_successfully(&world, &["export", "grid.yaml", "dense", "--gguf", "f16", "--to", full.to_str().unwrap()]);
    let texts = read_rows(real.join("corpora/wikitext2-test.parquet"), None).unwrap();
    world.write("text.jsonl", format!("{}\n", json!({"text": texts[..60].join("\n\n")})));
    let ids = Tokenizer::load(&full).unwrap().encode(&texts[..60].join("\n\n")).unwrap();
    let windows: Vec<Vec<u32>> = ids.chunks_exact(256).take(4).map(<[u32]>::to_vec).collect();
    assert_eq!(windows.len(), 4);
    for quantized in ["f16", "q8_0", "q4_0", "q4_k", "q5_k", "q6_k"] {
        let file = match quantized {
            "f16" => full.clone(),
            kind => quantize(&full, &world.path(&format!("{kind}.gguf")), kind),
        };
        let path = file.to_str().unwrap();
        let output = run_successfully(
            &world,
            &["score", path, "--perplexity", "text.jsonl@256", "--windows", "4", "--rule", "ptb", "--json"],
        );
        let document: Value = serde_json::from_str(&output).unwrap();
        let ours = document["answer"]["lm_eval"]["results"]["text@256"]["perplexity,none"].as_f64().unwrap();
        let theirs = perplexity(&llama_cpp_logits(&python, &world, &file, &windows), &windows, 4096);
        println!("{quantized}: {ours} in ghostlab, {theirs} in llama.cpp");
        // llama.cpp rounds activations to 8 bits before multiplying them with quantized weights.
        let tolerance = if quantized == "f16" { 1e-3 } else { 1e-2 };
        assert!((ours / theirs - 1.0).abs() <= tolerance, "{quantized}: {ours} in ghostlab, {theirs} in llama.cpp");
    }
    // Compare the greedy continuations that both programs generate from the same file.
    let count = 24_usize;
    let theirs = llama_cpp_tokens(&python, &world, &full, &windows[0][..24], count);
    let mut ids = windows[0][..24].to_vec();
    for _ in 0..count {
        let logits = compute_logits(&full, &[ids.clone()]);
        let last = &logits[logits.len() - 4096..];
        ids.push((0..4096_u32).max_by(|a, b| last[*a as usize].total_cmp(&last[*b as usize])).unwrap());
    }
    assert_eq!(ids, theirs);
}

/// Quantizes the matrices in a GGUF file with candle.
fn quantize(from: &Path, to: &Path, name: &str) -> PathBuf {
    let dtype = match name {
        "q8_0" => GgmlDType::Q8_0,
        "q4_0" => GgmlDType::Q4_0,
        "q4_k" => GgmlDType::Q4K,
        "q5_k" => GgmlDType::Q5K,
        _ => GgmlDType::Q6K,
    };
    let mut file = fs::File::open(from).unwrap();
    let content = gguf_file::Content::read(&mut file).unwrap();
    let mut tensors = Vec::new();
    for name in content.tensor_infos.keys() {
        let tensor = content.tensor(&mut file, name, &Device::Cpu).unwrap();
        let values = tensor.dequantize(&Device::Cpu).unwrap();
        let quantizable = values.dims().len() == 2 && values.dim(1).unwrap().is_multiple_of(dtype.block_size());
        tensors.push((name.as_str(), if quantizable { QTensor::quantize(&values, dtype).unwrap() } else { tensor }));
    }
    let entries: Vec<_> = content.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    gguf_file::write(&mut fs::File::create(to).unwrap(), &entries, &tensors).unwrap();
    to.to_owned()
}

/// Computes the perplexity as `score` does: the exponential of the mean loss over windows. The first token in each
/// window is not scored.
pub(crate) fn perplexity(logits: &[f64], windows: &[Vec<u32>], vocab: usize) -> f64 {
    let mut rows = logits.chunks_exact(vocab);
    (windows
        .iter()
        .map(|window| {
            let rows: Vec<&[f64]> = rows.by_ref().take(window.len()).collect();
            rows.iter()
                .zip(&window[1..])
                .map(|(row, &token)| {
                    let max_logit = row.iter().copied().fold(f64::MIN, f64::max);
                    max_logit + row.iter().map(|l| (l - max_logit).exp()).sum::<f64>().ln() - row[token as usize]
                })
                .sum::<f64>()
                / (window.len() - 1) as f64
        })
        .sum::<f64>()
        / windows.len() as f64)
        .exp()
}
