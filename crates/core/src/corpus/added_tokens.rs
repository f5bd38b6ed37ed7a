//! Tokens that the files next to a `tokenizer.json` add to it. They come from `added_tokens_decoder` and the lists of
//! special tokens in `tokenizer_config.json`, or from the older `added_tokens.json`. This module follows transformers 5
//! (`tokenization_utils_base.py`, `tokenization_utils_tokenizers.py`). The indices in these files only determine the
//! order of new tokens. Each new token gets the next free id.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::files::gguf::is_gguf;
use crate::files::regular;

pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const ADDED_TOKENS: &str = "added_tokens.json";
const SPECIAL_TOKENS: &str = "special_tokens_map.json";
/// Key for added tokens in `tokenizer_config.json`. If it is present, the two older files are ignored.
const ADDED_TOKENS_DECODER: &str = "added_tokens_decoder";
/// Keys that name the special token for each role.
const TOKEN_ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Added token in the format of `tokenizer.json`, without its id.
#[derive(Debug, Clone, PartialEq)]
struct AddedToken {
    content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

impl AddedToken {
    /// Parses a map with `content` and flags.
    fn from_map(map: &Value) -> Option<Self> {
        let content = map["content"].as_str()?.to_owned();
        let special = has_flag(map, "special");
        let normalized = map["normalized"].as_bool().unwrap_or(!special);
        let [single_word, lstrip, rstrip] = ["single_word", "lstrip", "rstrip"].map(|key| has_flag(map, key));
        Some(Self { content, single_word, lstrip, rstrip, normalized, special })
    }

    /// Creates a token with default flags.
    fn with_default_flags(content: &str, special: bool) -> Self {
        let [single_word, lstrip, rstrip] = [false; 3];
        Self { content: content.to_owned(), single_word, lstrip, rstrip, normalized: !special, special }
    }

    fn with_id(&self, id: u64) -> Value {
        let Self { content, single_word, lstrip, rstrip, normalized, special } = self;
        json!({"id": id, "content": content, "single_word": single_word, "lstrip": lstrip, "rstrip": rstrip,
            "normalized": normalized, "special": special})
    }
}

fn has_flag(token: &Value, key: &str) -> bool {
    token[key].as_bool().unwrap_or(false)
}

/// The `added_tokens` of a `tokenizer.json`. Other entries of the file are ignored.
#[derive(Deserialize)]
struct TokenizerAddedTokens {
    #[serde(default)]
    added_tokens: Vec<Value>,
}

/// Returns the existing files next to a `tokenizer.json` that define tokens and their roles.
pub fn files_beside(tokenizer: &Path) -> Vec<PathBuf> {
    let files = [TOKENIZER_CONFIG, ADDED_TOKENS, SPECIAL_TOKENS].map(|name| tokenizer.with_file_name(name));
    files.into_iter().filter(|file| file.is_file()).collect()
}

/// Reads a `tokenizer_config.json`, or returns null if it does not exist. Like transformers, reads token roles from the
/// older `special_tokens_map.json` unless the config has `added_tokens_decoder`.
///
/// # Errors
/// Fails if a file cannot be read or is not JSON.
pub fn tokenizer_config(file: &Path) -> Result<Value> {
    let mut config = read_json(file)?;
    if !config[ADDED_TOKENS_DECODER].is_null() {
        return Ok(config);
    }
    let Value::Object(roles) = read_json(&file.with_file_name(SPECIAL_TOKENS))? else { return Ok(config) };
    for (key, value) in roles.into_iter().filter(|(key, _)| TOKEN_ROLES.contains(&key.as_str())) {
        // Keep the config's entry if both files name the same token.
        if token_text(&config[&key]) != token_text(&value) {
            if config.is_null() {
                config = json!({});
            }
            config[&key] = value;
        }
    }
    Ok(config)
}

/// Returns the text of a special token, given as a string or a map with `content`.
pub(crate) fn token_text(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

fn read_json(file: &Path) -> Result<Value> {
    if !file.exists() {
        return Ok(Value::Null);
    }
    let text = regular::read(file)?;
    serde_json::from_slice(&text)
        .map_err(|error| Error::bad_input("the file is not JSON").at(file.display()).found(error.to_string()))
}

/// Returns the tokens that the files next to a `tokenizer.json` add or change, for use in cache keys. Returns `None` if
/// there are no such tokens.
///
/// # Errors
/// Fails if a file cannot be read or a neighboring file is not JSON.
pub fn added_beside(tokenizer: &Path) -> Result<Option<Value>> {
    if is_gguf(tokenizer) || files_beside(tokenizer).is_empty() {
        return Ok(None);
    }
    let bytes = regular::read(tokenizer)?;
    // A damaged file is reported when the tokenizer is loaded.
    let Ok(tokens) = serde_json::from_slice::<TokenizerAddedTokens>(&bytes) else { return Ok(None) };
    let added = find_tokens_to_add(&tokens.added_tokens, tokenizer)?;
    let added: Vec<Value> = added.iter().map(|token| token.with_id(0)).collect();
    Ok((!added.is_empty()).then(|| json!(added)))
}

/// Returns the id of an added token, or `None` if the file is not a `tokenizer.json` or does not list the token.
///
/// # Errors
/// Fails if the file cannot be read.
pub(super) fn added_token_id(tokenizer: &Path, content: &str) -> Result<Option<u32>> {
    if is_gguf(tokenizer) {
        return Ok(None);
    }
    let Ok(tokens) = serde_json::from_slice::<TokenizerAddedTokens>(&regular::read(tokenizer)?) else {
        return Ok(None);
    };
    let found = tokens.added_tokens.iter().find(|token| token["content"] == content);
    Ok(found.and_then(|token| u32::try_from(token["id"].as_u64()?).ok()))
}

/// Merges the tokens from neighboring files into the `tokenizer.json` in `bytes`. Skips new tokens whose id would
/// exceed an embedding with `rows` rows. Returns the merged file and the texts of the new tokens.
///
/// # Errors
/// Fails if a neighboring file cannot be read or is not JSON.
pub(super) fn merge_companion_tokens(bytes: Vec<u8>, tokenizer: &Path, rows: usize) -> Result<(Vec<u8>, Vec<String>)> {
    if files_beside(tokenizer).is_empty() {
        return Ok((bytes, Vec::new()));
    }
    let Ok(TokenizerAddedTokens { mut added_tokens }) = serde_json::from_slice(&bytes) else {
        return Ok((bytes, Vec::new()));
    };
    let added = find_tokens_to_add(&added_tokens, tokenizer)?;
    let Ok(mut file) = serde_json::from_slice::<Value>(&bytes) else { return Ok((bytes, Vec::new())) };
    if added.is_empty() || !file.is_object() {
        return Ok((bytes, Vec::new()));
    }
    let vocab = &file["model"]["vocab"];
    let size = vocab.as_object().map_or_else(|| vocab.as_array().map_or(0, Vec::len), Map::len) as u64;
    let highest = added_tokens.iter().filter_map(|token| token["id"].as_u64()).max();
    let mut next = highest.map_or(size, |id| size.max(id + 1));
    let mut new = Vec::new();
    for token in added {
        let known = added_tokens.iter().position(|entry| entry["content"] == token.content);
        let in_vocab = vocab[&token.content].as_u64().or_else(|| {
            let pieces = vocab.as_array()?;
            pieces.iter().position(|piece| piece[0] == token.content).map(|index| index as u64)
        });
        match (known, in_vocab) {
            (Some(index), _) => added_tokens[index] = token.with_id(added_tokens[index]["id"].as_u64().unwrap_or(next)),
            (None, Some(id)) => added_tokens.push(token.with_id(id)),
            (None, None) => {
                if next < rows as u64 {
                    added_tokens.push(token.with_id(next));
                    new.push(token.content);
                }
                next += 1;
            }
        }
    }
    file["added_tokens"] = Value::Array(added_tokens);
    Ok((file.to_string().into_bytes(), new))
}

/// Returns the tokens in neighboring files that the `tokenizer.json` lacks or lists with different flags, in the order
/// in which they are added. Tokens from lists of special tokens are returned only if missing. Empty tokens are skipped.
fn find_tokens_to_add(known_tokens: &[Value], tokenizer: &Path) -> Result<Vec<AddedToken>> {
    let config = tokenizer_config(&tokenizer.with_file_name(TOKENIZER_CONFIG))?;
    let extra = [&config["extra_special_tokens"], &config["additional_special_tokens"]];
    let extra = extra.into_iter().find_map(|list| list.as_array().filter(|list| !list.is_empty()));
    let extra: Vec<AddedToken> = extra.into_iter().flatten().filter_map(parse_special_token).collect();
    let roles: Vec<&str> = TOKEN_ROLES.iter().filter_map(|key| token_text(&config[*key])).collect();
    let mut listed: BTreeMap<u64, AddedToken> = BTreeMap::new();
    if let Some(decoder) = config[ADDED_TOKENS_DECODER].as_object() {
        let tokens =
            decoder.iter().filter_map(|(index, token)| Some((index.parse().ok()?, AddedToken::from_map(token)?)));
        listed.extend(tokens);
    } else if let Value::Object(older) = read_json(&tokenizer.with_file_name(ADDED_TOKENS))? {
        for (token, index) in &older {
            let is_special = roles.contains(&token.as_str()) || extra.iter().any(|known| known.content == *token);
            listed.extend(index.as_u64().map(|index| (index, AddedToken::with_default_flags(token, is_special))));
        }
        // `tokenizer.json` takes precedence over `added_tokens.json`.
        known_tokens.iter().filter_map(|token| token["id"].as_u64()).for_each(|id| _ = listed.remove(&id));
    }
    let known: Vec<AddedToken> = known_tokens.iter().filter_map(AddedToken::from_map).collect();
    let mut added: Vec<AddedToken> = listed.into_values().filter(|token| !known.contains(token)).collect();
    for token in &mut added {
        token.special |= roles.contains(&token.content.as_str());
    }
    for token in extra {
        if !known.iter().chain(&added).any(|known| known.content == token.content) {
            added.push(token);
        }
    }
    added.retain(|token| !token.content.is_empty());
    Ok(added)
}

/// Parses a special token given as a string or a map.
fn parse_special_token(token: &Value) -> Option<AddedToken> {
    match token {
        Value::String(content) => Some(AddedToken::with_default_flags(content, true)),
        map => AddedToken::from_map(map).map(|token| AddedToken { special: true, ..token }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::tokenizer::{Tokenizer, sample};
    use super::*;

    fn load_tokenizer(description: &Value, files: &[(&str, Value)]) -> (Tokenizer, Option<Value>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        fs::write(&path, description.to_string()).unwrap();
        for (name, file) in files {
            fs::write(folder.path().join(name), file.to_string()).unwrap();
        }
        (Tokenizer::load(&path).unwrap(), added_beside(&path).unwrap())
    }

    fn special_token_json(content: &str) -> Value {
        json!({"content": content, "lstrip": false, "normalized": false, "rstrip": false, "single_word": false, "special": true})
    }

    /// The expected ids come from `PreTrainedTokenizerFast.from_pretrained` in transformers 5.24, called with the same
    /// files.
    #[test]
    fn added_tokens_from_companion_files_encode_to_single_ids() {
        let description = sample::description();
        let text = "a <|end|> b";
        let [start, end] = ["<|start|>", "<|end|>"].map(special_token_json);
        let decoder = json!({"added_tokens_decoder": {"31": end, "30": start}});
        let older = json!({"<|end|>": 29, "<|start|>": 28});
        let list = json!({"additional_special_tokens": ["<|start|>", "<|end|>"]});
        for files in [
            vec![("tokenizer_config.json", decoder)],
            vec![("added_tokens.json", older.clone())],
            vec![("added_tokens.json", older.clone()), ("tokenizer_config.json", json!({}))],
            vec![("tokenizer_config.json", list)],
        ] {
            let (tokenizer, added) = load_tokenizer(&description, &files);
            assert_eq!(tokenizer.encode(text).unwrap(), [1, 2, 29, 3], "{files:?}");
            assert_eq!(tokenizer.vocab_size(), 28, "tokens that only neighboring files add need no embedding row");
            assert!(added.is_some(), "{files:?}");
        }
        let unknown_token_ids = [1, 2, 0, 3];
        for files in [
            vec![],
            vec![("tokenizer_config.json", json!({"added_tokens_decoder": {}}))],
            // An `added_tokens_decoder` disables `added_tokens.json`.
            vec![("added_tokens.json", older), ("tokenizer_config.json", json!({"added_tokens_decoder": {}}))],
            vec![("tokenizer_config.json", json!({"bos_token": "<s>"}))],
        ] {
            let (tokenizer, added) = load_tokenizer(&description, &files);
            assert_eq!(
                (tokenizer.encode(text).unwrap().as_slice(), added),
                (&unknown_token_ids[..], None),
                "{files:?}"
            );
        }
    }

    #[test]
    fn token_in_tokenizer_json_keeps_its_id() {
        let mut description = sample::description();
        description["added_tokens"] = json!([{"id": 28, "content": "<|end|>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}]);
        let same = json!({"added_tokens_decoder": {"28": special_token_json("<|end|>")}});
        let (tokenizer, added) = load_tokenizer(&description, &[("tokenizer_config.json", same)]);
        assert_eq!((tokenizer.encode("a<|end|>").unwrap(), added), (vec![1, 2, 28], None));
        // Changed flags take effect, and new tokens get the ids after the highest existing one.
        let mut strips = special_token_json("<|end|>");
        strips["lstrip"] = json!(true);
        let [new, z] = ["<|new|>", "z"].map(special_token_json);
        let other = json!({"added_tokens_decoder": {"28": strips, "31": new, "30": z}});
        let (tokenizer, added) = load_tokenizer(&description, &[("tokenizer_config.json", other)]);
        assert_eq!(tokenizer.encode("a <|end|> <|new|> z").unwrap(), [1, 2, 28, 29, 27]);
        assert_eq!(added.unwrap().as_array().unwrap().len(), 3);
        assert_eq!(tokenizer.limit_ids(29).encode("<|new|>").unwrap_err().exit_code(), 2);
    }

    #[test]
    fn special_tokens_map_is_read_as_in_transformers() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join(TOKENIZER_CONFIG);
        let roles = json!({"bos_token": {"content": "<s>", "special": true}, "eos_token": "</s>"});
        fs::write(folder.path().join(SPECIAL_TOKENS), roles.to_string()).unwrap();
        assert_eq!(tokenizer_config(&config).unwrap(), roles);
        for (tokenizer_config_json, expected) in [
            (json!({"bos_token": "<s>"}), json!({"bos_token": "<s>", "eos_token": "</s>"})),
            (json!({"bos_token": "<b>"}), roles),
            (json!({"added_tokens_decoder": {}}), json!({"added_tokens_decoder": {}})),
        ] {
            fs::write(&config, tokenizer_config_json.to_string()).unwrap();
            assert_eq!(tokenizer_config(&config).unwrap(), expected, "{tokenizer_config_json}");
        }
    }
}
