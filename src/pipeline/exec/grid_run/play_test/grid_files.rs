//! Fixture files for a grid with many small backbones.

use std::fs;
use std::path::Path;

use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};

use super::{CHANNELS, LENGTH};

const LAYERS: usize = 32;

#[derive(Clone, Copy)]
pub(super) struct GridDimensions {
    pub(super) backbones: usize,
    /// Number of ridge penalties (`alpha`). Each one adds a recovery.
    pub(super) ridges: usize,
    pub(super) depths: &'static str,
    pub(super) sequences: usize,
    /// Number of windows per text.
    pub(super) windows: usize,
    /// Number of simulated tokens per token in the test files.
    pub(super) scale: usize,
}

fn config(hidden: usize, heads: [usize; 3], intermediate: usize, vocab: usize) -> Value {
    let [heads, kv, dim] = heads;
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim, "intermediate_size": intermediate,
        "num_hidden_layers": LAYERS, "vocab_size": vocab, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192,
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}, "tie_word_embeddings": false,
        "attention_bias": false, "mlp_bias": false, "bos_token_id": 1, "eos_token_id": 2
    })
}

/// Returns placeholder weights, which differ between backbones.
fn weights(number: usize) -> Vec<u8> {
    let mut shapes =
        vec![("model.embed_tokens.weight".to_owned(), vec![300, 8]), ("lm_head.weight".into(), vec![300, 8])];
    shapes.push(("model.norm.weight".into(), vec![8]));
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", vec![8]),
            ("post_attention_layernorm", vec![8]),
            ("self_attn.q_proj", vec![8, 8]),
            ("self_attn.k_proj", vec![4, 8]),
            ("self_attn.v_proj", vec![4, 8]),
            ("self_attn.o_proj", vec![8, 8]),
            ("mlp.gate_proj", vec![16, 8]),
            ("mlp.up_proj", vec![16, 8]),
            ("mlp.down_proj", vec![8, 16]),
        ] {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    // Backbones are identified by their tensors, so the first value must differ.
    let mut zeros = vec![0; 4 * 300 * 8];
    zeros[..4].copy_from_slice(&(number as f32).to_le_bytes());
    let number = [("number".to_owned(), number.to_string())].into_iter().collect();
    safetensors::serialize(
        shapes.into_iter().map(|(name, shape)| {
            let bytes = &zeros[..4 * shape.iter().product::<usize>()];
            (name, TensorView::new(Dtype::F32, shape, bytes).unwrap())
        }),
        Some(number),
    )
    .unwrap()
}

/// Writes the files of a grid, including its backbones and texts, to a folder. `shape.json` has the dimensions of
/// Llama-3.1-8B, which determine the simulated times.
pub(super) fn write(folder: &Path, dimensions: GridDimensions) {
    let path = |name: &str| folder.join(name);
    let vocab: serde_json::Map<String, Value> = (0..300).map(|i| (format!("w{i}"), json!(i))).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}
    });
    let mut names = Vec::new();
    for number in 0..dimensions.backbones {
        let name = format!("b{number}");
        fs::create_dir(path(&name)).unwrap();
        let file = |file: &str| path(&name).join(file);
        fs::write(file("config.json"), config(CHANNELS, [2, 1, 4], 16, 300).to_string()).unwrap();
        fs::write(file("tokenizer.json"), tokenizer.to_string()).unwrap();
        fs::write(file("model.safetensors"), weights(number)).unwrap();
        names.push(name);
    }
    fs::write(path("shape.json"), config(4096, [32, 8, 128], 14336, 128_256).to_string()).unwrap();
    for (text, step) in [("one.txt", 31), ("two.txt", 37)] {
        let words: Vec<String> = (0..4000).map(|i| format!("w{}", i * step % 299)).collect();
        fs::write(path(text), words.join(" ")).unwrap();
    }
    let backbones: String = names.iter().map(|name| format!("  {name}: {{path: {name}}}\n")).collect();
    let ridges: String =
        (0..dimensions.ridges).map(|i| format!("  - {{name: replaceme-ls, alpha: {}}}\n", i + 1)).collect();
    let grid = format!(
        "backbones:\n{backbones}corpora:\n  one: {{path: one.txt, rule: wikitext2, limit: {windows}}}\n  \
         two: {{path: two.txt, rule: wikitext2, limit: {windows}}}\nbackbone: [{names}]\n\
         criterion: [llm-streamline]\ndepth: [{depths}]\nrecovery:\n  - none\n  - prune-and-comp\n  \
         - linearpatch-diag\n  - ghosted\n  - {{name: ghosted, solver: svd}}\n{ridges}\
         calibration: [{{corpus: one, sequences: {sequences}, length: {LENGTH}}}]\n\
         evaluate:\n  perplexity: [{{corpus: one, length: {LENGTH}}}, {{corpus: two, length: {LENGTH}}}]\n",
        windows = dimensions.windows,
        names = names.join(", "),
        depths = dimensions.depths,
        sequences = dimensions.sequences,
    );
    fs::write(path("grid.yaml"), grid).unwrap();
}
