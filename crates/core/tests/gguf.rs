//! Compares GGUF backbones with the folders from which they were converted. The tests write the files with candle's
//! writer, and permute the query and key rows as llama.cpp does.
#![allow(clippy::panic, reason = "a test panics on unknown names")]
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::{fixture, flat, relative_error, tensors};
use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use ghostlab_core::corpus::Tokenizer;
use ghostlab_core::model::{
    Batch, Config, Decoder, Engine, Observer, Products, Program, ResidualStream, Scaling, Trie, WeightType, content,
    gguf_config, tensor_hashes,
};
use serde_json::json;

/// Computes the logits `[tokens, vocab]` for the given ids.
fn logits(engine: &dyn Engine, ids: &[Vec<u32>]) -> Vec<f64> {
    #[derive(Default)]
    struct LastStream(Vec<f32>);
    impl Observer<dyn ResidualStream> for LastStream {
        fn after_step(
            &mut self,
            _: usize,
            stream: Option<&dyn ResidualStream>,
            _: f64,
        ) -> ghostlab_core::error::Result<()> {
            self.0 = stream.unwrap().rows()?.values()?.to_vec();
            Ok(())
        }
    }
    let batch = Batch::windows(ids.iter().map(Vec::as_slice));
    let mut last = LastStream::default();
    engine.run(&Trie::new(&[Program::trunk(engine.config().layers)]), &batch, &mut last).unwrap();
    let rows: Vec<usize> = (0..batch.tokens()).collect();
    engine.logits(&last.0, &rows).unwrap().values().unwrap().iter().map(|&v| v.into()).collect()
}

/// Implements llama.cpp's `LlamaModel.permute`: reorders rows `(heads, 2, D/2)` to `(heads, D/2, 2)`.
fn permute_rows(x: &Tensor, head_dim: usize) -> Tensor {
    let rows = x.dim(0).unwrap();
    let rest = x.elem_count() / x.dim(0).unwrap();
    let by_halves = x.reshape((rows / head_dim, 2, head_dim / 2, rest)).unwrap();
    by_halves.transpose(1, 2).unwrap().contiguous().unwrap().reshape(x.shape()).unwrap()
}

/// Returns the GGUF name of a tensor.
fn gguf_name(tensor: &str, olmo: bool) -> String {
    let Some((layer, part)) = tensor.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) else {
        return match tensor {
            "model.embed_tokens.weight" => "token_embd.weight",
            "model.norm.weight" => "output_norm.weight",
            "lm_head.weight" => "output.weight",
            other => panic!("{other}"),
        }
        .to_owned();
    };
    let (part, kind) = part.rsplit_once('.').unwrap();
    let part = match part {
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" if olmo => "post_attention_norm",
        "post_attention_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        other => panic!("{other}"),
    };
    format!("blk.{layer}.{part}.{kind}")
}

/// Returns the architecture name that GGUF files use for a model class.
fn architecture_name(class: &str) -> &'static str {
    match class {
        "LlamaForCausalLM" | "MistralForCausalLM" => "llama",
        "Qwen2ForCausalLM" => "qwen2",
        "Qwen3ForCausalLM" => "qwen3",
        "Olmo2ForCausalLM" => "olmo2",
        other => panic!("{other}"),
    }
}

/// Writes a folder's backbone as a GGUF file. Matrices whose row length is a multiple of the block size are quantized
/// to `dtype`. Also writes the dequantized weights to the folder `rounded`.
fn write_gguf(from: &Path, to: &Path, dtype: GgmlDType, more: &[(&str, Value)]) -> PathBuf {
    let config = Config::read(from).unwrap();
    let arch = architecture_name(config.architecture.class);
    let mut rounded = HashMap::new();
    let mut written = Vec::new();
    for (tensor, values) in tensors(&from.join("model.safetensors")) {
        let values = values.to_dtype(DType::F32).unwrap();
        let is_permuted = ["q_proj", "k_proj"].iter().any(|projection| tensor.contains(projection)) && arch == "llama";
        let values = if is_permuted { permute_rows(&values, config.head_dim) } else { values };
        let quantized = quantize(&values, dtype);
        let back = quantized.dequantize(&Device::Cpu).unwrap();
        rounded.insert(tensor.clone(), if is_permuted { unpermute_rows(&back, config.head_dim) } else { back });
        written.push((gguf_name(&tensor, arch == "olmo2"), quantized));
    }
    if let Some(factors) = rope_factors(&config) {
        written.push(("rope_freqs.weight".to_owned(), QTensor::quantize(&factors, GgmlDType::F32).unwrap()));
    }
    let mut entries = metadata_entries(&config, arch);
    entries.extend(more.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    let entries: Vec<(&str, &Value)> = entries.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let written: Vec<(&str, &QTensor)> = written.iter().map(|(name, projection)| (name.as_str(), projection)).collect();
    let path = to.join("model.gguf");
    gguf_file::write(&mut fs::File::create(&path).unwrap(), &entries, &written).unwrap();
    write_folder(&to.join("rounded"), from, &config, &rounded);
    path
}

/// Inverts [`permute_rows`]: reorders rows `(heads, D/2, 2)` to `(heads, 2, D/2)`.
fn unpermute_rows(x: &Tensor, head_dim: usize) -> Tensor {
    let rows = x.dim(0).unwrap();
    let rest = x.elem_count() / rows;
    let pairs = x.reshape((rows / head_dim, head_dim / 2, 2, rest)).unwrap();
    pairs.transpose(1, 2).unwrap().contiguous().unwrap().reshape(x.shape()).unwrap()
}

/// Quantizes a matrix to `dtype`. If the row length is not a multiple of the block size, the matrix becomes F16, as in
/// llama.cpp. Vectors become F32.
fn quantize(values: &Tensor, dtype: GgmlDType) -> QTensor {
    let is_matrix = values.dims().len() == 2;
    let dtype = if is_matrix && values.dim(1).unwrap().is_multiple_of(dtype.block_size()) {
        dtype
    } else if is_matrix && dtype.block_size() > 1 {
        GgmlDType::F16
    } else {
        GgmlDType::F32
    };
    QTensor::quantize(values, dtype).unwrap()
}

/// Returns the divisors for the rotary frequencies, as in llama.cpp's conversion/llama.py.
fn rope_factors(config: &Config) -> Option<Tensor> {
    let Some(Scaling::Llama3(scaling)) = &config.rope.scaling else { return None };
    let head_dim = config.head_dim;
    let factors = (0..head_dim / 2).map(|i| {
        let frequency = config.rope.theta.powf(-2.0 * i as f64 / head_dim as f64);
        let wavelength = std::f64::consts::TAU / frequency;
        let low = scaling.low_freq_factor;
        let high = scaling.high_freq_factor;
        let context = scaling.original_max_position_embeddings;
        if wavelength < context / high {
            1.0
        } else if wavelength > context / low {
            scaling.factor as f32
        } else {
            let smooth = (context / wavelength - low) / (high - low);
            (1.0 / ((1.0 - smooth) / scaling.factor + smooth)) as f32
        }
    });
    Some(Tensor::from_vec(factors.collect::<Vec<_>>(), head_dim / 2, &Device::Cpu).unwrap())
}

/// Returns the GGUF metadata for a config.
fn metadata_entries(config: &Config, arch: &str) -> Vec<(String, Value)> {
    let mut entries: Vec<(String, Value)> = [
        ("block_count", count_value(config.layers)),
        ("context_length", count_value(config.max_positions.unwrap())),
        ("embedding_length", count_value(config.hidden)),
        ("feed_forward_length", count_value(config.intermediate)),
        ("attention.head_count", count_value(config.heads)),
        ("attention.head_count_kv", count_value(config.kv_heads)),
        ("attention.key_length", count_value(config.head_dim)),
        ("attention.layer_norm_rms_epsilon", Value::F32(config.norm_eps)),
        ("rope.freq_base", Value::F32(config.rope.theta as f32)),
    ]
    .into_iter()
    .map(|(key, value)| (format!("{arch}.{key}"), value))
    .collect();
    entries.push(("general.architecture".to_owned(), Value::String(arch.to_owned())));
    entries
}

/// Writes a folder with the given weights and the config from `from`.
fn write_folder(folder: &Path, from: &Path, config: &Config, weights: &HashMap<String, Tensor>) {
    fs::create_dir_all(folder).unwrap();
    // llama.cpp does not support sliding windows for these architectures, so the GGUF file has no windows.
    let mut config_entries = common::json(&from.join("config.json"));
    if !config.windows.iter().all(Option::is_none) {
        config_entries["use_sliding_window"] = false.into();
        config_entries["layer_types"] = serde_json::Value::Null;
    }
    fs::write(folder.join("config.json"), config_entries.to_string()).unwrap();
    candle_core::safetensors::save(weights, folder.join("model.safetensors")).unwrap();
}

fn count_value(n: usize) -> Value {
    Value::U32(n as u32)
}

fn read_ids(name: &str) -> Vec<Vec<u32>> {
    let ids = tensors(&fixture(&format!("arch/{name}/forward.safetensors")))["input_ids"].clone();
    ids.to_dtype(DType::U32).unwrap().to_vec2().unwrap()
}

#[test]
fn gguf_of_each_architecture_matches_its_folder() {
    for name in ["llama-gqa", "llama3-rope", "qwen3", "olmo2", "qwen2"] {
        for dtype in [GgmlDType::F32, GgmlDType::F16, GgmlDType::BF16, GgmlDType::Q8_0, GgmlDType::Q4_0] {
            let temp = tempfile::tempdir().unwrap();
            let file = write_gguf(&fixture(&format!("arch/{name}")), temp.path(), dtype, &[]);
            let from_file = common::engines(&file);
            let from_folder = common::engines(&temp.path().join("rounded"));
            for (ours, theirs) in from_file.iter().zip(&from_folder) {
                assert_eq!(
                    logits(&**ours, &read_ids(name)),
                    logits(&**theirs, &read_ids(name)),
                    "{name} {dtype:?} {}",
                    ours.id().name
                );
            }
            if dtype == GgmlDType::F32 && name != "qwen2" {
                let expected = flat(&tensors(&fixture(&format!("arch/{name}/forward.safetensors")))["logits"]);
                let error = relative_error(&logits(&*from_file[0], &read_ids(name)), &expected);
                assert!(error <= 1e-5, "{name}: {error:e}");
            }
        }
    }
}

#[test]
fn gguf_of_a_llama_with_biases_matches_its_folder() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("biased");
    let plain = fixture("arch/llama-gqa");
    fs::create_dir(&folder).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(plain.join(file), folder.join(file)).unwrap();
    }
    common::add_biases(&folder);
    let file = write_gguf(&folder, temp.path(), GgmlDType::F32, &[]);
    let ids = read_ids("llama-gqa");
    let [from_file, from_folder, without] = [&file, &folder, &plain]
        .map(|path| common::engines(path).iter().map(|one| logits(&**one, &ids)).collect::<Vec<_>>());
    assert_eq!(from_file, from_folder);
    assert_ne!(from_folder, without, "the biases must change the logits");
}

/// Weights that are rounded while they are read are bit-identical to those in a file that is already quantized. This
/// holds on every engine, even with layers loaded on demand.
#[test]
fn rounding_on_load_matches_a_quantized_file() {
    for name in ["llama-gqa", "llama3-rope", "qwen3", "olmo2", "qwen2"] {
        let temp = tempfile::tempdir().unwrap();
        let from = fixture(&format!("arch/{name}"));
        let file = write_gguf(&from, temp.path(), GgmlDType::Q8_0, &[]);
        let folder = temp.path().join("rounded");
        // Combine the original weights with the written config. Like the GGUF file, this config has no sliding windows.
        fs::copy(from.join("model.safetensors"), folder.join("model.safetensors")).unwrap();
        let mut config = Config::read(&folder).unwrap();
        let plain = logits(&*common::engines_of(config.clone(), &folder)[0], &read_ids(name));
        config.rounded = Some(WeightType::Q8_0);
        let rounded = common::engines_of(config.clone(), &folder);
        for (ours, theirs) in rounded.iter().zip(&common::engines(&file)) {
            let rounded_logits = logits(&**ours, &read_ids(name));
            assert!(rounded_logits == logits(&**theirs, &read_ids(name)), "{name} {}", ours.id().name);
            assert!(rounded_logits != plain, "{name}: no weight was rounded");
        }
        let on_demand = Decoder::load_within(config, &folder, Products::F32, 0).unwrap();
        assert!(logits(&on_demand, &read_ids(name)) == logits(&*rounded[0], &read_ids(name)), "{name}");
    }
}

/// Compares weights quantized on load with tensors that candle quantizes as a whole. The output projection, or the
/// embedding tied to it, may have a different quantization type from the other matrices.
#[test]
fn quantization_type_depends_on_tensor_role_and_row_length() {
    let Some(real) = common::shared("real/backbone") else { return };
    let config = Config::read(&real).unwrap();
    for to in WeightType::ALL {
        let mut rounded = std::collections::HashMap::new();
        for (tensor, values) in tensors(&real.join("model.safetensors")) {
            let values = values.to_dtype(DType::F32).unwrap();
            let head = tensor == "lm_head.weight" || config.tied_embeddings && tensor == "model.embed_tokens.weight";
            let back = match values.dims() {
                [_, row] => {
                    QTensor::quantize(&values, to.ggml_dtype(*row, head)).unwrap().dequantize(&Device::Cpu).unwrap()
                }
                _ => values,
            };
            rounded.insert(tensor, back);
        }
        let temp = tempfile::tempdir().unwrap();
        fs::copy(real.join("config.json"), temp.path().join("config.json")).unwrap();
        candle_core::safetensors::save(&rounded, temp.path().join("model.safetensors")).unwrap();
        let ids = [(0..60_u32).map(|i| i * 67 % 4096).collect::<Vec<_>>()];
        let ours = Config { rounded: Some(to), ..config.clone() };
        let ours = logits(&*common::engines_of(ours, &real)[0], &ids);
        assert!(ours == logits(&*common::engines(temp.path())[0], &ids), "{to:?}");
    }
}

/// Uses rows of at least 256 elements, the block size of the k-quants.
#[test]
fn quantized_blocks_are_dequantized_as_in_candle() {
    let Some(real) = common::shared("real/backbone") else { return };
    let ids = [(0..60_u32).map(|i| i * 67 % 4096).collect::<Vec<_>>()];
    for dtype in [GgmlDType::Q4K, GgmlDType::Q5K, GgmlDType::Q6K, GgmlDType::Q8_0, GgmlDType::Q5_0] {
        let temp = tempfile::tempdir().unwrap();
        let file = write_gguf(&real, temp.path(), dtype, &[]);
        let [ours, theirs] =
            [&file, &temp.path().join("rounded")].map(|folder| logits(&*common::engines(folder)[0], &ids));
        assert_eq!(ours, theirs, "{dtype:?}");
    }
}

#[test]
fn gguf_content_hash_covers_tensors_but_not_unused_metadata() {
    let [one, two, three] = [0, 1, 2].map(|_| tempfile::tempdir().unwrap());
    let from = fixture("arch/qwen3");
    let plain = content_of_file(&write_gguf(&from, one.path(), GgmlDType::F32, &[]));
    let named = content_of_file(&write_gguf(
        &from,
        two.path(),
        GgmlDType::F32,
        &[("general.name", Value::String("other".into()))],
    ));
    assert_eq!(plain, named, "unused metadata must not change the content hash");
    assert_ne!(plain, content_of_file(&write_gguf(&from, three.path(), GgmlDType::F16, &[])));
    // Without quantization and permutation, the content hash equals that of the folder.
    assert_eq!(plain, content_of_file(&one.path().join("rounded")));
    let permuted_folder = tempfile::tempdir().unwrap();
    let file = write_gguf(&fixture("arch/llama-gqa"), permuted_folder.path(), GgmlDType::F32, &[]);
    assert_ne!(
        content_of_file(&file),
        content_of_file(&permuted_folder.path().join("rounded")),
        "permuted rows must change the content hash"
    );
}

fn content_of_file(path: &Path) -> String {
    content(&Config::read(path).unwrap(), path, tensor_hashes).unwrap()
}

#[test]
fn unsupported_gguf_entries_are_rejected_with_their_value() {
    for (key, value, found) in [
        ("qwen2.attention.sliding_window", Value::U32(16), "16"),
        ("qwen2.expert_count", Value::U32(8), "8"),
        ("qwen2.rope.dimension_count", Value::U32(4), "4"),
        ("qwen2.attention.scale", Value::F32(0.5), "0.5"),
        ("qwen2.rope.scaling.type", Value::String("spiral".into()), "spiral"),
        ("split.count", Value::U16(2), "2 parts"),
        ("qwen2.block_count", Value::U32(3), "model.layers.3"),
        ("qwen2.block_count", Value::String("four".into()), "four"),
        ("general.architecture", Value::String("bert".into()), "bert"),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let path = write_gguf(&fixture("arch/qwen2"), temp.path(), GgmlDType::F32, &[(key, value)]);
        let error = Config::read(&path).and_then(|config| ghostlab_core::model::check_weights(&config, &path));
        let error = error.unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let text = error.to_string();
        assert!(text.contains(found) && text.contains("model.gguf"), "{key}: {text}");
    }
}

/// Round-trips the tokenizer of a bundled model with several of llama.cpp's pre-tokenizer types.
#[test]
fn tokenizer_round_trips_through_gguf_metadata() {
    use ghostlab_core::corpus::to_gguf;
    let tokenizer_json = common::json(&common::checkout().join("data/tiny/llama/tokenizer.json"));
    let mut lines = read_lines();
    lines.extend(
        ["", " ", "a  b\n\n c", "don't 12345 I'LL x\u{301}é\u{1F600}", "<|endoftext|>x", "\t\r\n tab"]
            .map(str::to_owned),
    );
    let digits = serde_json::json!({"type": "Digits", "individual_digits": true});
    let llama3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let qwen2 = llama3.replace(r"\p{N}{1,3}", r"\p{N}");
    for (pre, pre_tokenizer, ignore, nfc) in [
        ("gpt-2", byte_level(true), false, false),
        ("smollm", pre_tokenizer_sequence(&digits, true), false, false),
        ("llama-bpe", pre_tokenizer_sequence(&split_pattern(llama3), false), true, false),
        ("dbrx", pre_tokenizer_sequence(&split_pattern(llama3), false), false, false),
        ("qwen2", pre_tokenizer_sequence(&split_pattern(&qwen2), false), false, true),
    ] {
        let mut description = tokenizer_json.clone();
        description["pre_tokenizer"] = pre_tokenizer;
        description["model"]["ignore_merges"] = ignore.into();
        if nfc {
            description["normalizer"] = serde_json::json!({"type": "NFC"});
        }
        let temp = tempfile::tempdir().unwrap();
        let json = temp.path().join("tokenizer.json");
        fs::write(&json, description.to_string()).unwrap();
        let written = to_gguf(&description, 2060, &[("bos", Some(0)), ("eos", Some(0))]).unwrap();
        assert_eq!(written.notes.len(), usize::from(nfc), "{:?}", written.notes);
        let pre_entry = written.entries.iter().find(|(key, _)| key == "tokenizer.ggml.pre").unwrap();
        assert_eq!(pre_entry.1.to_string().unwrap(), pre);
        let entries: Vec<(&str, &Value)> = written.entries.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let gguf = temp.path().join("t.gguf");
        gguf_file::write(&mut fs::File::create(&gguf).unwrap(), &entries, &[]).unwrap();
        let [one, two] = [&json, &gguf].map(|path| Tokenizer::load(path).unwrap());
        for line in &lines {
            assert_eq!(one.encode(line).unwrap(), two.encode(line).unwrap(), "{pre}: {line:?}");
        }
        let tokens = one.encode(&lines[3]).unwrap();
        assert_eq!(one.decode_all(&tokens, false).unwrap(), two.decode_all(&tokens, false).unwrap());
    }
    assert!(lines.len() > 10_000, "{}", lines.len());
}

fn byte_level(regex: bool) -> serde_json::Value {
    serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex})
}

fn split_pattern(pattern: &str) -> serde_json::Value {
    serde_json::json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn read_lines() -> Vec<String> {
    use ghostlab_core::corpus::read_rows;
    let folder = common::checkout().join("data/tiny/corpora");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|path| path.unwrap().path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(".jsonl.gz"));
    files.sort();
    files
        .iter()
        .flat_map(|file| -> Vec<String> {
            let texts = read_rows(file, None).unwrap();
            let lines = texts.iter().flat_map(|text| text.lines()).filter(|line| !line.is_empty());
            lines.take(1500).map(str::to_owned).collect()
        })
        .collect()
}

#[test]
fn gguf_end_tokens_list_eos_first() {
    let temp = tempfile::tempdir().unwrap();
    for (more, expected) in [
        (&[("eos", 2)][..], json!(2)),
        (&[("eos", 2), ("eot", 2)], json!(2)),
        (&[("eot", 7), ("eos", 2), ("eom", 9)], json!([2, 7, 9])),
        (&[("eot", 7)], json!(7)),
    ] {
        assert_eq!(
            {
                let more: Vec<(String, Value)> = more
                    .iter()
                    .map(|(name, id)| (format!("tokenizer.ggml.{name}_token_id"), Value::U32(*id)))
                    .collect();
                let more: Vec<(&str, Value)> = more.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
                let path = write_gguf(&fixture("arch/llama-gqa"), temp.path(), GgmlDType::F32, &more);
                gguf_config(&path).unwrap()["eos_token_id"].clone()
            },
            expected,
            "{more:?}"
        );
    }
}

fn pre_tokenizer_sequence(first: &serde_json::Value, regex: bool) -> serde_json::Value {
    serde_json::json!({"type": "Sequence", "pretokenizers": [first, byte_level(regex)]})
}
