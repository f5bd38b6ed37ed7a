//! Conversion between the tokenizer in a GGUF header and a `tokenizer.json`. Both directions follow llama.cpp
//! (`src/llama-vocab.cpp`) and transformers' GGUF converters.

mod read;
mod write;

use std::collections::HashMap;

use serde_json::{Value, json};

pub(in crate::corpus) use read::tokenizer_from_gguf;
pub use write::{GgufTokenizer, to_gguf};

/// Token types (`tokenizer.ggml.token_type`).
const NORMAL: u32 = 1;
const UNKNOWN: u32 = 2;
const CONTROL: u32 = 3;
const USER_DEFINED: u32 = 4;
const UNUSED: u32 = 5;
const BYTE: u32 = 6;
/// Replacement for a space in SentencePiece vocabularies.
const SPACE: &str = "▁";

/// Returns all pairs of tokens whose concatenation is a normal token. The pairs are sorted by the score of that token,
/// highest first, because llama.cpp merges them in this order.
fn derive_merges<'a>(tokens: &[&'a str], token_types: &[u32], scores: &[f64]) -> Vec<[&'a str; 2]> {
    let known = tokens.iter().enumerate().filter(|(id, _)| matches!(token_types[*id], NORMAL | BYTE));
    let ids: HashMap<&str, usize> = known.map(|(id, token)| (*token, id)).collect();
    let mut merges: Vec<(f64, usize, usize)> = Vec::new();
    for (id, token) in tokens.iter().enumerate().filter(|(id, _)| token_types[*id] == NORMAL) {
        let cuts = token.char_indices().skip(1).map(|(index, _)| token.split_at(index));
        let parts = cuts.filter_map(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?)));
        merges.extend(parts.map(|(left, right)| (scores[id], left, right)));
    }
    merges.sort_by(|one, other| other.0.total_cmp(&one.0).then_with(|| (one.1, one.2).cmp(&(other.1, other.2))));
    merges.into_iter().map(|(_, left, right)| [tokens[left], tokens[right]]).collect()
}

/// Pre-tokenizer that `tokenizer.ggml.pre` identifies by name.
struct Splitter {
    /// Names accepted when reading. The first one is used when writing.
    names: &'static [&'static str],
    /// Regular expression, or `None` for GPT-2's, which is built into the byte-level step.
    pattern: Option<&'static str>,
    /// Whether each digit is first split into a separate piece.
    digits: bool,
    /// Whether a word that is in the vocabulary becomes one token without applying merges.
    ignore_merges: bool,
    /// Whether the original tokenizer applies NFC normalization, which llama.cpp does not.
    nfc: bool,
    /// Whether BOS is added by default.
    bos: bool,
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const GPT2: Splitter =
    Splitter { names: &["gpt-2"], pattern: None, digits: false, ignore_merges: false, nfc: false, bos: false };
static SPLITTERS: [Splitter; 6] = [
    Splitter { names: &["gpt-2", "olmo", "mpt"], ..GPT2 },
    Splitter { names: &["smollm"], digits: true, ..GPT2 },
    Splitter {
        names: &["llama-bpe", "llama3", "llama-v3"],
        pattern: Some(LLAMA3),
        ignore_merges: true,
        bos: true,
        ..GPT2
    },
    Splitter { names: &["dbrx"], pattern: Some(LLAMA3), ..GPT2 },
    Splitter { names: &["qwen2", "deepseek-r1-qwen"], pattern: Some(QWEN2), nfc: true, ..GPT2 },
    Splitter { names: &["tekken"], pattern: Some(TEKKEN), ignore_merges: true, bos: true, ..GPT2 },
];

impl Splitter {
    fn build_pre_tokenizer(&self) -> Value {
        match self.pattern {
            None if self.digits => json!({"type": "Sequence", "pretokenizers":
                [{"type": "Digits", "individual_digits": true}, byte_level_step(true)]}),
            None => byte_level_step(true),
            Some(pattern) => json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
                byte_level_step(false)]}),
        }
    }
}

fn byte_level_step(regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex})
}
