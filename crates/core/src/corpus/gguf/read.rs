//! Conversion of a GGUF header to a `tokenizer.json`.

use serde_json::{Map, Value, json};

use super::{CONTROL, NORMAL, SPACE, SPLITTERS, Splitter, UNKNOWN, UNUSED, USER_DEFINED, derive_merges};
use crate::error::{Error, Result};
use crate::files::gguf::Gguf;

struct GgufVocabulary<'a> {
    file: &'a Gguf,
    tokens: Vec<&'a str>,
    token_types: Vec<u32>,
}

/// Builds a `tokenizer.json` from the tokenizer in a GGUF file.
///
/// # Errors
/// Fails if the file has no tokenizer, its type or pre-tokenizer is unsupported, or its lists have different lengths.
pub(in crate::corpus) fn tokenizer_from_gguf(file: &Gguf) -> Result<Value> {
    let key = "tokenizer.ggml.tokens";
    let tokens = file
        .texts(key)?
        .filter(|tokens_found| !tokens_found.is_empty())
        .ok_or_else(|| invalid_entry_error(key, "a list of tokens", file))?;
    let key = "tokenizer.ggml.token_type";
    let token_types = match file.numbers(key)? {
        Some(token_types) if token_types.len() == tokens.len() => {
            token_types.into_iter().map(|token_type| token_type as u32).collect()
        }
        Some(_) => return Err(invalid_entry_error(key, &format!("a list of {} token types", tokens.len()), file)),
        None => vec![NORMAL; tokens.len()],
    };
    let vocabulary = GgufVocabulary { file, tokens, token_types };
    let key = "tokenizer.ggml.model";
    let pre = "tokenizer.ggml.pre";
    match file.text(key)? {
        Some("gpt2") => {
            let name = file.text(pre)?;
            let splitter = SPLITTERS.iter().find(|splitter| name.is_some_and(|name| splitter.names.contains(&name)));
            let splitter = splitter.ok_or_else(|| {
                invalid_entry_error(
                    pre,
                    &(SPLITTERS.iter().flat_map(|splitter| splitter.names).copied().collect::<Vec<_>>().join(", ")),
                    file,
                )
            })?;
            let key = "tokenizer.ggml.merges";
            let merges = file.texts(key)?.ok_or_else(|| invalid_entry_error(key, "a list of merges", file))?;
            vocabulary.build_byte_level(splitter, &merges)
        }
        Some("llama") => {
            let key = "tokenizer.ggml.scores";
            let scores = file.numbers(key)?.filter(|numbers| numbers.len() == vocabulary.tokens.len());
            let scores = scores.ok_or_else(|| {
                invalid_entry_error(key, &format!("a list of {} scores", vocabulary.tokens.len()), file)
            })?;
            vocabulary.build_sentence_piece(&scores)
        }
        _ => Err(invalid_entry_error(key, "gpt2 (byte-level merges) or llama (SentencePiece)", file)),
    }
}

fn invalid_entry_error(key: &str, expected: &str, file: &Gguf) -> Error {
    Error::bad_input("cannot read the tokenizer of a GGUF file")
        .at(file.location(key))
        .expected(expected)
        .found(file.describe_entry(key))
        .hint("put a tokenizer.json next to the GGUF file; it takes precedence")
}

impl GgufVocabulary<'_> {
    /// Builds a byte-level BPE tokenizer like GPT-2's.
    fn build_byte_level(&self, splitter: &Splitter, merges: &[&str]) -> Result<Value> {
        let bos = self.file.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(splitter.bos);
        let merges: Vec<Vec<&str>> = merges.iter().map(|merge| merge.splitn(2, ' ').collect()).collect();
        if let Some(merge) = merges.iter().find(|merge| merge.len() != 2) {
            return Err(Error::bad_input("invalid merge in a GGUF file")
                .at(self.file.location("tokenizer.ggml.merges"))
                .expected("two tokens separated by a space")
                .found(format!("`{}`", merge.concat())));
        }
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": self.list_added_tokens(),
            "normalizer": splitter.nfc.then(|| json!({"type": "NFC"})),
            "pre_tokenizer": splitter.build_pre_tokenizer(),
            "post_processor": self.build_post_processor(bos)?,
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": splitter.ignore_merges, "vocab": self.build_vocab(), "merges": merges},
        }))
    }

    /// Builds a SentencePiece BPE tokenizer with byte fallback. Merges are derived from the token scores.
    fn build_sentence_piece(&self, scores: &[f64]) -> Result<Value> {
        let bos = self.file.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(true);
        let prefix = self.file.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        let unknown = self.read_special_token_id("unknown")?.map(|id| self.tokens[id]);
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
        let normalizers = match prefix {
            true => vec![json!({"type": "Prepend", "prepend": SPACE}), replace],
            false => vec![replace],
        };
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if prefix {
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": self.list_added_tokens(),
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": null,
            "post_processor": self.build_post_processor(bos)?,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {"type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
                "vocab": self.build_vocab(), "merges": derive_merges(&self.tokens, &self.token_types, scores)},
        }))
    }

    /// Maps tokens to ids. Skips unused tokens, which only pad the embedding.
    fn build_vocab(&self) -> Map<String, Value> {
        let used = self.tokens.iter().enumerate().filter(|(id, _)| self.token_types[*id] != UNUSED);
        // The first of several equal tokens wins, as in llama.cpp.
        let mut vocab = Map::new();
        used.for_each(|(id, token)| _ = vocab.entry((*token).to_owned()).or_insert_with(|| id.into()));
        vocab
    }

    /// Returns the nonempty added tokens, which are matched before pre-tokenization.
    fn list_added_tokens(&self) -> Vec<Value> {
        self.tokens
            .iter()
            .enumerate()
            .filter(|(_, token)| !token.is_empty())
            .filter_map(|(id, token)| {
                let token_type = self.token_types[id];
                matches!(token_type, CONTROL | USER_DEFINED | UNKNOWN).then(|| {
                    json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": token_type != USER_DEFINED})
                })
            })
            .collect()
    }

    /// Returns the id of a special token, if the file defines it.
    fn read_special_token_id(&self, name: &str) -> Result<Option<usize>> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = self.file.count(&key)? else { return Ok(None) };
        let fits = usize::try_from(id).ok().filter(|id| *id < self.tokens.len());
        fits.map(Some).ok_or_else(|| {
            Error::bad_input("invalid special token in a GGUF file")
                .at(self.file.location(&key))
                .expected(format!("an id below {}", self.tokens.len()))
                .found(id)
        })
    }

    /// Builds the post-processor that adds special tokens around a text.
    fn build_post_processor(&self, bos: bool) -> Result<Value> {
        let eos = self.file.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
        let [before, after] = [("bos", bos), ("eos", eos)].map(|(name, is_on)| match is_on {
            true => self.read_special_token_id(name),
            false => Ok(None),
        });
        let before = before?;
        let after = after?;
        if before.is_none() && after.is_none() {
            return Ok(Value::Null);
        }
        let [first, last] =
            [before, after].map(|id| id.map(|id| json!({"SpecialToken": {"id": self.tokens[id], "type_id": 0}})));
        let [single, pair] = [vec![sequence_piece("A")], vec![sequence_piece("A"), sequence_piece("B")]]
            .map(|pieces| first.clone().into_iter().chain(pieces).chain(last.clone()).collect::<Vec<Value>>());
        let special: Map<String, Value> = [before, after]
            .into_iter()
            .flatten()
            .map(|id| {
                let token = self.tokens[id];
                (token.to_owned(), json!({"id": token, "ids": [id], "tokens": [token]}))
            })
            .collect();
        Ok(json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}))
    }
}

fn sequence_piece(id: &str) -> Value {
    json!({"Sequence": {"id": id, "type_id": 0}})
}
