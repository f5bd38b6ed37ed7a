//! The tokenizer in a GGUF file's header as a `tokenizer.json`, and the other way round. Rules are those of llama.cpp
//! (`src/llama-vocab.cpp`) and of transformers' converters of such files.

use std::collections::HashMap;

mod read;
mod splitter;
mod write;

pub(in crate::corpus) use read::of_gguf;
pub use write::{GgufTokenizer, to_gguf};

/// The kinds of tokens (`tokenizer.ggml.token_type`).
const NORMAL: u32 = 1;
const UNKNOWN: u32 = 2;
const CONTROL: u32 = 3;
const USER_DEFINED: u32 = 4;
const UNUSED: u32 = 5;
const BYTE: u32 = 6;
/// What stands for a space in SentencePiece's vocabularies.
const SPACE: &str = "▁";

/// Every way to make a normal token of two, the highest score first, as llama.cpp joins its pieces.
fn merges<'a>(tokens: &[&'a str], kinds: &[u32], scores: &[f64]) -> Vec<[&'a str; 2]> {
    let known = tokens.iter().enumerate().filter(|(id, _)| matches!(kinds[*id], NORMAL | BYTE));
    let ids: HashMap<&str, usize> = known.map(|(id, token)| (*token, id)).collect();
    let mut merges: Vec<(f64, usize, usize)> = Vec::new();
    for (id, token) in tokens.iter().enumerate().filter(|(id, _)| kinds[*id] == NORMAL) {
        let cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        let parts = cuts.filter_map(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?)));
        merges.extend(parts.map(|(left, right)| (scores[id], left, right)));
    }
    merges.sort_by(|one, other| other.0.total_cmp(&one.0).then_with(|| (one.1, one.2).cmp(&(other.1, other.2))));
    merges.into_iter().map(|(_, left, right)| [tokens[left], tokens[right]]).collect()
}
