//! What splits words before merges, under llama.cpp's names.

use serde_json::{Value, json};

/// What splits a text before its merges, by the name that `tokenizer.ggml.pre` has for it.
pub(super) struct Splitter {
    /// The first is written; all are read.
    pub(super) names: &'static [&'static str],
    /// Alternatives of the regular expression; none is GPT-2's own, which the byte-level step has.
    pub(super) pattern: Option<&'static str>,
    /// Whether each digit stands for itself first.
    pub(super) digits: bool,
    /// Whether a whole word of the vocabulary is one token, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Whether the model's own tokenizer composes characters first; llama.cpp does not.
    pub(super) nfc: bool,
    /// Whether a text begins with the token of its beginning where the file does not say.
    pub(super) bos: bool,
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const PLAIN: Splitter =
    Splitter { names: &["gpt-2"], pattern: None, digits: false, ignore_merges: false, nfc: false, bos: false };
pub(super) static SPLITTERS: [Splitter; 6] = [
    Splitter { names: &["gpt-2", "olmo", "mpt"], ..PLAIN },
    Splitter { names: &["smollm"], digits: true, ..PLAIN },
    Splitter {
        names: &["llama-bpe", "llama3", "llama-v3"],
        pattern: Some(LLAMA3),
        ignore_merges: true,
        bos: true,
        ..PLAIN
    },
    Splitter { names: &["dbrx"], pattern: Some(LLAMA3), ..PLAIN },
    Splitter { names: &["qwen2", "deepseek-r1-qwen"], pattern: Some(QWEN2), nfc: true, ..PLAIN },
    Splitter { names: &["tekken"], pattern: Some(TEKKEN), ignore_merges: true, bos: true, ..PLAIN },
];

impl Splitter {
    pub(super) fn pre_tokenizer(&self) -> Value {
        let bytes = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
        match self.pattern {
            None if self.digits => json!({"type": "Sequence", "pretokenizers":
                [{"type": "Digits", "individual_digits": true}, bytes(true)]}),
            None => bytes(true),
            Some(pattern) => json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}, bytes(false)]}),
        }
    }
}
