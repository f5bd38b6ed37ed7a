//! Fuzz targets for the configs, tokenizers and weights of backbones.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ghostlab::checkpoint::{GgufMetadata, GgufType, Layout};
use ghostlab::corpus::{Tokenizer, to_gguf};
use ghostlab::model::{Config, Decoder, Program, Scaling, check_weights, deploy};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{assert_user_error, checkout, read_file, with_file};

pub(super) fn config_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = ["llama-gqa", "llama3-rope", "olmo2", "qwen3", "mistral", "qwen2"]
        .map(|name| read_file(&format!("tests/fixtures/arch/{name}/config.json")))
        .to_vec();
    seeds.push(read_file("data/tiny/llama/config.json"));
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
    for (key, value) in
        [("rope_scaling", llama3), ("num_hidden_layers", json!(10_000_000)), ("rms_norm_eps", json!(1e39))]
    {
        let mut config: Value = serde_json::from_slice(&seeds[0]).unwrap();
        config[key] = value;
        seeds.push(config.to_string().into_bytes());
    }
    let mut ours: Value = serde_json::from_slice(&seeds[0]).unwrap();
    ours["architectures"] = json!(["GhostedLlamaForCausalLM"]);
    ours["hidden_act"] = json!("none that there is");
    ours["ghostlab"] =
        json!({"operators": [dense_attachment(1, "before"), dense_attachment(1, "after")], "activation": "silu"});
    seeds.push(ours.to_string().into_bytes());
    seeds
}

/// Returns the config entry of an exported operator, which is applied before or after a layer.
fn dense_attachment(layer: usize, at: &str) -> Value {
    json!({"layer": layer, "at": at, "form": "dense", "bias": true})
}

pub(super) fn fuzz_config(data: &[u8]) {
    with_file("config.json", data, |path| match Config::read_with_attachments(path.parent().unwrap()) {
        Err(error) => assert_user_error(&error),
        Ok(config) => {
            assert!(config.heads % config.kv_heads == 0 && config.head_dim % 2 == 0);
            assert!(config.norm_eps > 0.0 && config.norm_eps.is_finite() && config.rope.theta.is_finite());
            assert!(match &config.rope.scaling {
                Some(Scaling::Llama3(scaling)) =>
                    scaling.high_freq_factor > scaling.low_freq_factor && scaling.factor >= 1.0,
                Some(Scaling::Linear { factor } | Scaling::Dynamic { factor, .. }) =>
                    factor.is_finite() && *factor > 0.0,
                Some(Scaling::Yarn(scaling)) => scaling.factor.is_finite() && scaling.attention.is_finite(),
                Some(Scaling::LongRope(scaling)) =>
                    scaling.short.iter().chain(&scaling.long).all(|scaling| scaling.is_finite() && *scaling > 0.0),
                None => true,
            });
            let positions: BTreeSet<String> = config
                .attachments
                .iter()
                .map(|attachment| format!("{} {}", attachment.layer, attachment.place.name()))
                .collect();
            assert!(positions.len() == config.attachments.len(), "two operators at the same position");
            assert!(config.attachments.iter().all(|attachment| attachment.layer < config.layers));
            // The fixture's weights need not match this config, but a mismatch must be reported as a user error.
            let folder = checkout("tests/fixtures/arch/llama-gqa");
            if let Err(error) = check_weights(&config, &folder) {
                assert_user_error(&error);
            }
        }
    });
}

pub(super) fn tokenizer_seeds() -> Vec<Vec<u8>> {
    let words = json!({"<unk>": 0, "<s>": 1, "a": 2, "b": 3, "##a": 4, "ab": 5, "Ġ": 6});
    let template = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}});
    let bpe =
        json!({"type": "BPE", "vocab": words, "merges": [["a", "b"]], "byte_fallback": false, "unk_token": "<unk>"});
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    vec![
        tokenizer_json(
            Value::Null,
            json!({"type": "WhitespaceSplit"}),
            template.clone(),
            Value::Null,
            json!({"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}),
        ),
        tokenizer_json(json!({"type": "NFC"}), level.clone(), level.clone(), level, bpe.clone()),
        tokenizer_json(
            json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}),
            Value::Null,
            template.clone(),
            json!({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}),
            bpe,
        ),
        tokenizer_json(
            json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
                "lowercase": true}),
            json!({"type": "BertPreTokenizer"}),
            json!({"type": "BertProcessing", "sep": ["b", 3], "cls": ["a", 2]}),
            json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
            json!({"type": "WordPiece", "vocab": words, "unk_token": "<unk>", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100}),
        ),
        tokenizer_json(
            json!({"type": "Precompiled", "precompiled_charsmap": "/////wAAAAA="}),
            json!({"type": "Metaspace",
                "replacement": "▁", "prepend_scheme": "always", "split": true}),
            template,
            Value::Null,
            json!({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["▁b", -2.5]], "byte_fallback": false}),
        ),
    ]
}

#[allow(clippy::needless_pass_by_value, reason = "callers pass literals")]
fn tokenizer_json(normalizer: Value, split: Value, post: Value, decoder: Value, model: Value) -> Vec<u8> {
    json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": normalizer, "pre_tokenizer": split,
            "post_processor": post, "decoder": decoder, "model": model,
            "added_tokens": [{"id": 1, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}]})
    .to_string()
    .into_bytes()
}

pub(super) fn fuzz_tokenizer(data: &[u8]) {
    with_file("tokenizer.json", data, |path| {
        let tokenizer = match Tokenizer::load(path) {
            Ok(tokenizer) => tokenizer,
            Err(error) => return assert_user_error(&error),
        };
        for text in ["", "a", "ab b  a\n\né中 <s> 1.", "\u{0}\u{feff}\u{1f600}a\u{301}"] {
            match tokenizer.encode(text) {
                Ok(ids) => assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size())),
                Err(error) => assert_user_error(&error),
            }
        }
        for id in [0, 3, u32::MAX] {
            if let Err(error) = tokenizer.decode(id) {
                assert_user_error(&error);
            }
        }
    });
}

pub(super) fn weights_seeds() -> Vec<Vec<u8>> {
    vec![
        read_file("tests/fixtures/arch/llama-gqa/model.safetensors"),
        safetensors_file(&json!({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}), 24),
        safetensors_file(
            &json!({"a": {"dtype": "F16", "shape": [1_u64 << 40, 1_u64 << 40], "data_offsets": [0, 8]}}),
            8,
        ),
        [&u64::MAX.to_le_bytes()[..], b"{}"].concat(),
    ]
}

fn safetensors_file(json: &Value, bytes: usize) -> Vec<u8> {
    let text = json.to_string();
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &vec![0; bytes]].concat()
}

pub(super) fn fuzz_weights(data: &[u8]) {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("model.safetensors"), data).unwrap();
    let config = Config::read(&checkout("tests/fixtures/arch/llama-gqa")).unwrap();
    match check_weights(&config, folder.path()) {
        Err(error) => assert_user_error(&error),
        // `check_weights` accepted the header, so loading may only fail because of a non-finite number.
        Ok(()) => {
            if let Err(error) = Decoder::load_with(config, folder.path()) {
                assert_user_error(&error);
                assert!(error.to_string().contains("not a finite number"), "{error}");
            }
        }
    }
}

/// Returns an exported backbone with a byte tokenizer, and small files with unusual or invalid headers.
pub(super) fn gguf_seeds() -> Vec<Vec<u8>> {
    let folder = checkout("tests/fixtures/arch/qwen3");
    let config = Config::read(&folder).unwrap();
    let dense = deploy(&Program::dense(config.layers), &config);
    let layout = Layout::plan(&config, &folder, &dense, None).unwrap();
    let vocab: serde_json::Map<String, Value> = (b'a'..=b'z')
        .chain(b'A'..=b'Z')
        .enumerate()
        .map(|(id, byte)| (char::from(byte).to_string(), json!(id)))
        .collect();
    let tokenizer = json!({
        "added_tokens": [{"id": 60, "content": "<s>", "special": true}], "normalizer": null, "post_processor": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": false}
    });
    let entries = to_gguf(&tokenizer, config.vocab, &[("bos", Some(60))]).unwrap().entries;
    let text = GgufMetadata { name: "seed".to_owned(), entries };
    let mut bytes = Vec::new();
    layout.write_gguf(&config, GgufType::Q8_0, &text, Path::new("seed"), &mut bytes, &mut |_| Ok(())).unwrap();
    vec![
        bytes,
        gguf_header(3, 0, 0),
        gguf_header(3, u64::MAX, 1),
        gguf_header(9, 0, 0),
        [gguf_header(3, 0, 1), gguf_entry("general.alignment", 4, &0_u32.to_le_bytes())].concat(),
        [gguf_header(2, 0, 1), gguf_entry("a", 9, &[&8_u32.to_le_bytes()[..], &(1_u64 << 40).to_le_bytes()].concat())]
            .concat(),
    ]
}

fn gguf_entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), &kind.to_le_bytes(), value].concat()
}

fn gguf_header(version: u32, tensors: u64, entries: u64) -> Vec<u8> {
    [&b"GGUF"[..], &version.to_le_bytes(), &tensors.to_le_bytes(), &entries.to_le_bytes()].concat()
}

pub(super) fn fuzz_gguf(data: &[u8]) {
    with_file("m.gguf", data, |path| {
        if let Err(error) = Tokenizer::load(path).and_then(|tokenizer| tokenizer.encode("a bc <s>")) {
            assert_user_error(&error);
        }
        let read = Config::read(path).and_then(|config| check_weights(&config, path).map(|()| config));
        match read {
            Err(error) => assert_user_error(&error),
            // `check_weights` accepted the header, so loading may only fail because of a non-finite number.
            Ok(config) => {
                if let Err(error) = Decoder::load_with(config, path) {
                    assert_user_error(&error);
                    assert!(error.to_string().contains("not a finite number"), "{error}");
                }
            }
        }
    });
}
