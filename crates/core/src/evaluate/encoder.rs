//! Encoder for task prompts, built from a backbone's tokenizer.

use std::fmt::Display;

use serde::Serialize;
use serde_json::Value;

use crate::corpus::{Tokenizer, token_text};
use crate::error::{Error, Result};
use crate::tasks::{Encoder, Prefix};

/// Special token as specified in a backbone's files, by text or id.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(untagged)]
pub enum SpecialToken<'a> {
    Text(&'a str),
    Id(u64),
}

/// Default BOS and EOS of the tokenizer classes in transformers 5. They are used if `tokenizer_config.json` does not
/// set them.
const CLASS_DEFAULTS: [(&str, Option<&str>, &str); 7] = [
    ("CodeLlamaTokenizer", Some("<s>"), "</s>"),
    ("CohereTokenizer", Some("<BOS_TOKEN>"), "<|END_OF_TURN_TOKEN|>"),
    ("GPT2Tokenizer", Some("<|endoftext|>"), "<|endoftext|>"),
    ("GPTNeoXTokenizer", Some("<|endoftext|>"), "<|endoftext|>"),
    ("GemmaTokenizer", Some("<bos>"), "<eos>"),
    ("LlamaTokenizer", Some("<s>"), "</s>"),
    ("Qwen2Tokenizer", None, "<|endoftext|>"),
];

/// Token that is used in place of an empty context.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefixToken<'a> {
    /// Role of the token, `bos` or `eos`.
    pub role: &'static str,
    pub token: SpecialToken<'a>,
    /// Whether only `config.json` names the token.
    is_from_config: bool,
}

impl PrefixToken<'_> {
    /// Returns a note if only `config.json` names the token.
    pub fn note(&self) -> Option<String> {
        let (Self { role, .. }, SpecialToken::Id(id)) = (self, self.token) else { return None };
        self.is_from_config.then(|| {
            format!(
                "the tokenizer files define neither BOS nor EOS: using token {id}, the {role}_token_id of config.json, for empty \
                 contexts"
            )
        })
    }
}

/// Returns the token that is used in place of an empty context. Like lm-evaluation-harness, uses the tokenizer's BOS,
/// or its EOS if there is no BOS. Falls back to `config.json` if the tokenizer's files name neither. `id_of` returns
/// the id of a token.
///
/// # Errors
/// Propagates errors from `id_of`.
pub fn prefix_token<'a>(
    tokenizer_config: &'a Value,
    config: &'a Value,
    id_of: impl Fn(&str) -> Result<Option<u32>>,
) -> Result<Option<PrefixToken<'a>>> {
    if let Some(bos) = token_text(&tokenizer_config["bos_token"]) {
        return tokenizer_prefix("bos", SpecialToken::Text(bos));
    }
    // If `eos_token_id` is a list, use its first token.
    let [bos_id, eos_id] =
        ["bos_token_id", "eos_token_id"].map(|key| config[key].as_u64().or_else(|| config[key][0].as_u64()));
    let class = tokenizer_config["tokenizer_class"].as_str().map(|class| class.trim_end_matches("Fast"));
    let class_defaults = CLASS_DEFAULTS.iter().find(|(name, ..)| Some(*name) == class);
    let class_bos = class_defaults.and_then(|(_, bos, _)| *bos).filter(|_| is_absent("bos_token", tokenizer_config));
    let class_eos = class_defaults.map(|(.., eos)| *eos).filter(|_| is_absent("eos_token", tokenizer_config));
    let eos = token_text(&tokenizer_config["eos_token"]);
    for (role, text) in [("bos", class_bos), ("eos", eos), ("eos", class_eos)] {
        let Some(text) = text else { continue };
        let known = id_of(text)?.map(u64::from);
        return match bos_id {
            // If config.json gives the id of this token, return the id, because existing cache keys contain it.
            Some(id) if known == Some(id) => tokenizer_prefix("bos", SpecialToken::Id(id)),
            _ if known.is_some() || eos == Some(text) => tokenizer_prefix(role, SpecialToken::Text(text)),
            _ => continue,
        };
    }
    let config_token = bos_id.map(|id| ("bos", id)).or_else(|| eos_id.map(|id| ("eos", id)));
    Ok(config_token.map(|(role, id)| PrefixToken { role, token: SpecialToken::Id(id), is_from_config: true }))
}

fn is_absent(key: &str, tokenizer_config: &Value) -> bool {
    tokenizer_config.get(key).is_none()
}

/// Creates a prefix token from a token in the tokenizer files.
fn tokenizer_prefix<'a>(role: &'static str, token: SpecialToken<'a>) -> Result<Option<PrefixToken<'a>>> {
    Ok(Some(PrefixToken { role, token, is_from_config: false }))
}

/// Returns the end-of-text tokens in a backbone's files: those in `config.json` and the EOS in `tokenizer_config.json`.
pub fn end_of_text<'a>(tokenizer_config: &'a Value, config: &'a Value) -> [&'a Value; 2] {
    [&config["eos_token_id"], &tokenizer_config["eos_token"]]
}

/// Adds the EOS in `tokenizer_config.json` to the tokens that end a generation. Also returns the text of the EOS.
///
/// # Errors
/// Fails if the token is not in the vocabulary.
pub fn end_tokens(
    tokenizer: &Tokenizer,
    tokenizer_config: &Value,
    mut ids: Vec<u32>,
) -> Result<(Vec<u32>, Option<String>)> {
    let text = token_text(&tokenizer_config["eos_token"]);
    if let Some(text) = text {
        let id = tokenizer.id(text).ok_or_else(|| unknown_token_error(tokenizer, "an `eos_token`", text))?;
        ids.extend((!ids.contains(&id)).then_some(id));
    }
    Ok((ids, text.map(str::to_owned)))
}

fn unknown_token_error(tokenizer: &Tokenizer, token: &str, text: &str) -> Error {
    Error::bad_input("the vocabulary does not contain the special token")
        .at(tokenizer.path().with_file_name("tokenizer_config.json").display())
        .expected(format!("{token} that tokenizer.json contains"))
        .found(format!("`{text}`"))
}

fn token_id_error(tokenizer: &Tokenizer, name: &str, id: impl Display) -> Error {
    Error::bad_input("a special token is outside the vocabulary")
        .at(format!("config.json, {name}_token_id"))
        .expected(format!("an id below {}", tokenizer.vocab_size()))
        .found(id)
}

/// Encoder for task prompts, with a prefix token for empty contexts.
pub struct TaskEncoder<'a> {
    tokenizer: &'a Tokenizer,
    prefix: Option<Prefix>,
}

impl<'a> TaskEncoder<'a> {
    /// Creates an encoder that uses the result of [`prefix_token`]. Pass null for a file that does not exist.
    ///
    /// # Errors
    /// Fails if the prefix token is not in the vocabulary.
    pub fn new(tokenizer: &'a Tokenizer, tokenizer_config: &Value, config: &Value) -> Result<Self> {
        let prefix = prefix_token(tokenizer_config, config, |text| Ok(tokenizer.id(text)))?;
        let prefix = prefix.map(|PrefixToken { role, token, .. }| match token {
            SpecialToken::Text(text) => {
                tokenizer.id(text).ok_or_else(|| unknown_token_error(tokenizer, &format!("a `{role}_token`"), text))
            }
            SpecialToken::Id(id) => u32::try_from(id).map_err(|_| token_id_error(tokenizer, role, id)),
        });
        let prefix = prefix.transpose()?;
        let prefix = prefix.map(|id| tokenizer.decode(id).map(|text| Prefix { id, text })).transpose()?;
        Ok(Self { tokenizer, prefix })
    }
}

impl Encoder for TaskEncoder<'_> {
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.tokenizer.encode_with(text, add_special)
    }

    fn prefix(&self) -> Option<&Prefix> {
        self.prefix.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The expected tokens are `HFLM.prefix_token_id` from lm-evaluation-harness 0.4.13 with transformers 5.24. Cases
    /// that use only config.json follow the fallback in [`prefix_token`]. `</s>` is token 2, and `<s>` is token 1.
    #[test]
    fn prefix_prefers_tokenizer_bos_then_eos_then_config() {
        let ids = json!({"bos_token_id": 1, "eos_token_id": [2, 7]});
        let one = json!({"bos_token_id": 2, "eos_token_id": 2});
        let only_eos = json!({"eos_token_id": [2, 7]});
        let fast = "PreTrainedTokenizerFast";
        for (tokenizer, config, expected, noted) in [
            (json!({"bos_token": "<s>", "eos_token": "</s>"}), &ids, json!("<s>"), false),
            (json!({"bos_token": {"content": "<s>"}}), &ids, json!("<s>"), false),
            (json!({"bos_token": null, "eos_token": "</s>"}), &ids, json!("</s>"), false),
            (json!({"eos_token": "</s>", "tokenizer_class": fast}), &ids, json!("</s>"), false),
            // The cache key of a base model whose BOS and EOS are the same token must not change.
            (json!({"bos_token": null, "eos_token": "</s>"}), &one, json!(2), false),
            (json!({"eos_token": "</s>"}), &only_eos, json!("</s>"), false),
            (json!({"eos_token": "</s>", "tokenizer_class": "LlamaTokenizerFast"}), &ids, json!(1), false),
            (json!({"eos_token": "</s>", "tokenizer_class": "LlamaTokenizer"}), &only_eos, json!("<s>"), false),
            (
                json!({"bos_token": null, "eos_token": "</s>", "tokenizer_class": "LlamaTokenizer"}),
                &ids,
                json!("</s>"),
                false,
            ),
            (json!({"tokenizer_class": fast}), &ids, json!(1), true),
            (json!({"tokenizer_class": "GPT2Tokenizer"}), &only_eos, json!(2), true),
            (json!(null), &ids, json!(1), true),
            (json!({"bos_token": null, "eos_token": null}), &only_eos, json!(2), true),
        ] {
            let found = prefix_token(&tokenizer, config, sample_id).unwrap().unwrap();
            assert_eq!((json!(found.token), found.note().is_some()), (expected, noted), "{tokenizer} {config}");
        }
        assert_eq!(prefix_token(&json!({}), &json!({}), sample_id).unwrap(), None);
    }

    fn sample_id(text: &str) -> Result<Option<u32>> {
        Ok(["<unk>", "<s>", "</s>"].iter().position(|token| *token == text).map(|id| id as u32))
    }
}
