//! Tokenization with the backbone's `tokenizer.json`. This module is the only user of the `tokenizers` library, which
//! panics on some damaged files. Such panics are converted into errors that name the file.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tokenizers::Encoding;

use super::{added_tokens, gguf, tokenizer_file};
use crate::error::{Error, Result};
use crate::files::gguf::{Gguf, is_gguf};
use crate::files::{panics, parts, regular};

/// Maximum number of tokens per byte of text, in addition to [`MAX_EXTRA_TOKENS`]. A tokenizer that returns more tokens
/// is rejected.
const MAX_TOKENS_PER_BYTE: usize = 64;
const MAX_EXTRA_TOKENS: usize = 4096;

/// Tokenizer of a backbone, read from its `tokenizer.json` and the neighboring files that add tokens, or from a GGUF
/// header.
///
/// Special tokens are added by the file's post-processor (usually one BOS at the start). The file's truncation and
/// padding settings are ignored, because a corpus is tokenized as a whole and then cut into windows.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    path: PathBuf,
    vocab_size: usize,
    /// Exclusive upper bound on the ids in an encoded text.
    id_limit: usize,
}

impl Tokenizer {
    /// Loads a tokenizer from a `tokenizer.json` or GGUF file.
    ///
    /// # Errors
    /// Fails if the file is absent or unreadable, or is not a tokenizer in the Hugging Face format.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let (bytes, added_tokens) = read_tokenizer_json(path, usize::MAX)?;
        let file: Value =
            serde_json::from_slice(&bytes).map_err(|error| malformed_tokenizer_error(error.to_string(), path))?;
        if let Some(problem) = tokenizer_file::find_problem(&file) {
            return Err(malformed_tokenizer_error(problem, path));
        }
        drop(file);
        let read = panics::catch(|| {
            let mut inner = tokenizers::Tokenizer::from_bytes(&bytes)?;
            inner.with_truncation(None)?;
            inner.with_padding(None);
            let highest = inner
                .get_vocab(true)
                .into_iter()
                .filter(|(token, _)| !added_tokens.contains(token))
                .map(|(_, id)| id)
                .max();
            Ok::<_, tokenizers::Error>((inner, highest))
        });
        let read = read.map_err(|panic| malformed_tokenizer_error(format!("the reader panicked: {panic}"), path))?;
        let (inner, highest) = read.map_err(|error| malformed_tokenizer_error(error.to_string(), path))?;
        let Some(highest) = highest else {
            return Err(malformed_tokenizer_error("an empty vocabulary".to_owned(), path));
        };
        let mut tokenizer = Self { inner, path: path.to_owned(), vocab_size: usize::MAX, id_limit: usize::MAX };
        // The post-processor may add tokens that are not in the vocabulary, but the embedding needs rows for them.
        let special = tokenizer.encode("")?.into_iter().max();
        tokenizer.vocab_size = special.map_or(highest, |special| special.max(highest)) as usize + 1;
        let added = added_tokens.iter().filter_map(|token| Some(tokenizer.id(token)? as usize + 1)).max();
        tokenizer.id_limit = added.unwrap_or(0).max(tokenizer.vocab_size);
        Ok(tokenizer)
    }

    /// Makes encoding fail for ids outside an embedding with `rows` rows.
    #[must_use]
    pub fn limit_ids(self, rows: usize) -> Self {
        Self { id_limit: self.id_limit.min(rows), ..self }
    }

    /// Encodes a text, with special tokens.
    ///
    /// # Errors
    /// Fails if the tokenizer panics, has no token for a part of the text, or returns implausibly many tokens or an id
    /// outside the vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_with(text, true)
    }

    /// Encodes a text, with or without the special tokens of the post-processor.
    ///
    /// # Errors
    /// See [`encode`](Self::encode).
    pub fn encode_with(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        // `encode_fast` gives the same ids but skips the offsets.
        self.encode_checked(text, || self.inner.encode_fast(text, add_special))
            .map(|encoding| encoding.get_ids().to_vec())
    }

    /// Encodes a text. Also returns the end of each token as a byte offset in the text, or 0 for tokens without text.
    ///
    /// # Errors
    /// See [`encode`](Self::encode).
    pub fn encode_with_ends(&self, text: &str) -> Result<(Vec<u32>, Vec<usize>)> {
        let encoding = self.encode_checked(text, || self.inner.encode(text, true))?;
        Ok((encoding.get_ids().to_vec(), encoding.get_offsets().iter().map(|(_, end)| *end).collect()))
    }

    /// Calls `encode` and rejects panics, implausibly many tokens, and ids that are not in the vocabulary.
    fn encode_checked(&self, text: &str, encode: impl FnOnce() -> tokenizers::Result<Encoding>) -> Result<Encoding> {
        let encoding = panics::catch(encode)
            .map_err(|panic| self.encoding_error(&format!("the tokenizer panicked: {panic}")))?
            .map_err(|error| self.encoding_error(&error.to_string()))?;
        let ids = encoding.get_ids();
        if ids.len() > text.len().saturating_mul(MAX_TOKENS_PER_BYTE).saturating_add(MAX_EXTRA_TOKENS) {
            return Err(self.encoding_error(&format!("{} tokens for {} bytes", ids.len(), text.len())));
        }
        match ids.iter().find(|id| **id as usize >= self.id_limit) {
            Some(id) => Err(self.encoding_error(&format!("id {id}, but the vocabulary has {} ids", self.id_limit))),
            None => Ok(encoding),
        }
    }

    fn encoding_error(&self, found: &str) -> Error {
        Error::bad_input("cannot tokenize the text")
            .at(self.path.display())
            .expected("tokens for the whole text, with ids in the vocabulary")
            .found(found)
    }

    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Decodes one id, including special tokens.
    ///
    /// # Errors
    /// Fails if the id is not in the vocabulary or the decoder fails.
    pub fn decode(&self, id: u32) -> Result<String> {
        if self.inner.id_to_token(id).is_none() {
            return Err(self.decoding_error(id, "not in the vocabulary"));
        }
        panics::catch(|| self.inner.decode(&[id], false))
            .map_err(|panic| self.decoding_error(id, &format!("the decoder panicked: {panic}")))?
            .map_err(|error| self.decoding_error(id, &error.to_string()))
    }

    fn decoding_error(&self, id: u32, found: &str) -> Error {
        Error::bad_input("cannot decode a token").at(self.path.display()).found(format!("id {id}: {found}"))
    }

    /// Decodes ids, with or without special tokens.
    ///
    /// # Errors
    /// See [`Self::decode`].
    pub fn decode_all(&self, ids: &[u32], keep_special: bool) -> Result<String> {
        let decode_error =
            |found: String| Error::bad_input("cannot decode tokens").at(self.path.display()).found(found);
        panics::catch(|| self.inner.decode(ids, !keep_special))
            .map_err(|panic| decode_error(format!("the decoder panicked: {panic}")))?
            .map_err(|error| decode_error(error.to_string()))
    }

    /// Returns one more than the highest id of the vocabulary and the added tokens, which is the minimum number of
    /// embedding rows. It can exceed the number of tokens because ids may have gaps. Tokens that only neighboring files
    /// add are ignored, because many embeddings have no row for them.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn malformed_tokenizer_error(found: String, path: &Path) -> Error {
    Error::bad_input("cannot read the tokenizer")
        .at(path.display())
        .expected("a tokenizer.json in the Hugging Face format")
        .found(found)
        .hint("download the file again, or save it with `tokenizer.save_pretrained`")
}

/// Returns the tokenizer as one `tokenizer.json` that includes the tokens of neighboring files, except those outside an
/// embedding with `rows` rows.
///
/// # Errors
/// Fails if a file cannot be read or a GGUF tokenizer is of an unsupported type.
pub fn tokenizer_json(path: &Path, rows: usize) -> Result<Vec<u8>> {
    read_tokenizer_json(path, rows).map(|(bytes, _)| bytes)
}

/// Returns the id of a token. Avoids loading the tokenizer if the file lists the token as an added token.
///
/// # Errors
/// See [`Tokenizer::load`].
pub fn token_id(path: &Path, token: &str) -> Result<Option<u32>> {
    match added_tokens::added_token_id(path, token)? {
        Some(id) => Ok(Some(id)),
        None => Ok(Tokenizer::load(path)?.id(token)),
    }
}

/// Like [`tokenizer_json`], but also returns the texts of the tokens that only neighboring files add.
fn read_tokenizer_json(path: &Path, rows: usize) -> Result<(Vec<u8>, Vec<String>)> {
    if is_gguf(path) {
        return Ok((gguf::tokenizer_from_gguf(&Gguf::open(path)?)?.to_string().into_bytes(), Vec::new()));
    }
    if path.ends_with("tokenizer.json") && !path.exists() {
        return Err(parts::missing_tokenizer_error(path));
    }
    added_tokens::merge_companion_tokens(regular::read(path)?, path, rows)
}

/// Test tokenizer with one token per word `a` to `z` (ids 2 to 27), split at whitespace, with BOS (id 1) at the start.
#[cfg(test)]
pub(super) mod sample {
    use serde_json::{Value, json};

    use super::Tokenizer;

    pub(crate) fn description() -> Value {
        let letters = ('a'..='z').zip(2_u32..).map(|(letter, id)| (letter.to_string(), json!(id)));
        let special = [("<unk>".to_owned(), json!(0)), ("<s>".to_owned(), json!(1))];
        let vocab: serde_json::Map<String, Value> = special.into_iter().chain(letters).collect();
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
            },
            "decoder": null,
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}
        })
    }

    pub(crate) fn load(description: &Value) -> crate::error::Result<Tokenizer> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, description.to_string()).unwrap();
        Tokenizer::load(path)
    }

    pub(crate) fn words() -> Tokenizer {
        load(&description()).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bos_token_is_added_once_at_the_start() {
        let tokenizer = sample::words();
        assert_eq!(tokenizer.encode("a b\n\nz ?").unwrap(), [1, 2, 3, 27, 0]);
        assert_eq!(tokenizer.encode("").unwrap(), [1]);
        assert_eq!(tokenizer.vocab_size(), 28);
        assert!(tokenizer.path().ends_with("tokenizer.json"));
    }

    #[test]
    fn vocab_size_includes_added_token_after_id_gap() {
        let mut description = sample::description();
        description["model"]["vocab"]["<far>"] = json!(99);
        description["added_tokens"] = json!([{"id": 99, "content": "<far>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}]);
        assert_eq!(sample::load(&description).unwrap().vocab_size(), 100);
    }

    #[test]
    fn truncation_and_padding_of_the_file_are_ignored() {
        let mut description = sample::description();
        description["truncation"] =
            json!({"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0});
        description["padding"] = json!({"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"});
        let tokenizer = sample::load(&description).unwrap();
        assert_eq!(tokenizer.encode("a b c d").unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!(tokenizer.encode("a").unwrap(), [1, 2]);
    }

    #[test]
    fn missing_and_malformed_tokenizers_have_different_exit_codes() {
        let folder = tempfile::tempdir().unwrap();
        let absent = Tokenizer::load(folder.path().join("tokenizer.json")).unwrap_err();
        assert_eq!(absent.exit_code(), 3);
        let path = folder.path().join("broken.json");
        std::fs::write(&path, "{\"version\": \"1.0\", \"model\": ").unwrap();
        let broken = Tokenizer::load(&path).unwrap_err();
        assert_eq!(broken.exit_code(), 2);
        assert!(broken.to_string().contains("broken.json"), "{broken}");
        let mut description = sample::description();
        description["model"]["vocab"] = json!({});
        description["post_processor"] = json!(null);
        assert_eq!(sample::load(&description).unwrap_err().exit_code(), 2);
    }

    /// Each of these files makes `tokenizers` panic or return out-of-range ids.
    #[test]
    fn damaged_tokenizer_error_names_the_file() {
        assert_eq!(sample_with("post_processor", template_with_ids(&json!([4000]))).unwrap().vocab_size(), 4001);
        let fixed = sample_with("pre_tokenizer", json!({"type": "FixedLength", "length": 0})).unwrap();
        // A trie with a single unit that points out of bounds.
        let precompiled =
            sample_with("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="}));
        let nothing = template_with_ids(&json!([]));
        let no_special = json!({"type": "TemplateProcessing", "single": nothing["single"], "pair": nothing["pair"], "special_tokens": {}});
        for result in [
            fixed.encode("a b").map(drop),
            precompiled.and_then(|tokenizer| tokenizer.encode("a b")).map(drop),
            sample_with("post_processor", no_special).and_then(|tokenizer| tokenizer.encode("a")).map(drop),
            sample_with("decoder", json!({"type": "Strip", "content": "a", "start": 5, "stop": 1_u64 << 60}))
                .and_then(|tokenizer| tokenizer.decode(2))
                .map(drop),
            sample::words().decode(99).map(drop),
        ] {
            let error = result.unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains("tokenizer.json"), "{error}");
        }
    }

    fn template_with_ids(ids: &Value) -> Value {
        json!({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": ids, "tokens": ["<s>"]}}})
    }

    fn sample_with(key: &str, value: Value) -> Result<Tokenizer> {
        let mut description = sample::description();
        description[key] = value;
        sample::load(&description)
    }

    #[test]
    fn text_without_matching_token_is_rejected() {
        let mut description = sample::description();
        description["model"]["unk_token"] = json!("absent");
        let error = sample::load(&description).unwrap().encode("a ?").unwrap_err();
        assert_eq!(error.exit_code(), 2);
    }
}
