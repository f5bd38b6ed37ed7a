//! A backbone's tokenizer as the tasks want it.

use std::fmt::Display;

use serde::Serialize;
use serde_json::Value;

use crate::corpus::Tokenizer;
use crate::error::{Error, Result};
use crate::tasks::{Encoder, Prefix};

/// A special token as a backbone's files write it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(untagged)]
pub enum SpecialToken<'a> {
    Text(&'a str),
    Id(u64),
}

/// What stands before an empty context, `bos` or `eos`: see [`TaskEncoder::new`]. All that tasks read of these files beside
/// the length of a context.
pub fn prefix_token<'a>(tokenizer_config: &'a Value, config: &'a Value) -> Option<(&'static str, SpecialToken<'a>)> {
    let token = |name: &'static str| {
        // A token is written as its text, or as a map with the text as `content`.
        let text = &tokenizer_config[format!("{name}_token").as_str()];
        let text = text.as_str().or_else(|| text["content"].as_str()).map(SpecialToken::Text);
        let number = &config[format!("{name}_token_id").as_str()];
        // Several end tokens are a list: the first is the main one.
        let number = || number.as_u64().or_else(|| number[0].as_u64()).map(SpecialToken::Id);
        Some((name, text.or_else(number)?))
    };
    token("bos").or_else(|| token("eos"))
}

/// The tokens that end a text, as a backbone's files write them: those of `config.json`, and the EOS of
/// `tokenizer_config.json`.
pub fn end_of_text<'a>(tokenizer_config: &'a Value, config: &'a Value) -> [&'a Value; 2] {
    [&config["eos_token_id"], &tokenizer_config["eos_token"]]
}

/// Adds the EOS of `tokenizer_config.json` to the end tokens of a generation, and returns its text.
///
/// # Errors
/// An id beyond the vocabulary, a token that the tokenizer does not know.
pub fn end_tokens(
    tokenizer: &Tokenizer,
    tokenizer_config: &Value,
    mut ids: Vec<u32>,
) -> Result<(Vec<u32>, Option<String>)> {
    let text = token_text(&tokenizer_config["eos_token"]);
    if let Some(text) = text {
        let id = tokenizer.id(text).ok_or_else(|| unknown(tokenizer, "an `eos_token`", text))?;
        ids.extend((!ids.contains(&id)).then_some(id));
    }
    Ok((ids, text.map(str::to_owned)))
}

fn unknown(tokenizer: &Tokenizer, token: &str, text: &str) -> Error {
    Error::bad_input("the tokenizer does not know its own special token")
        .at(tokenizer.path().with_file_name("tokenizer_config.json").display())
        .expected(format!("{token} of tokenizer.json"))
        .found(format!("`{text}`"))
}

fn beyond(tokenizer: &Tokenizer, name: &str, id: impl Display) -> Error {
    Error::bad_input("a special token is beyond the vocabulary")
        .at(format!("config.json, {name}_token_id"))
        .expected(format!("an id below {}", tokenizer.vocab_size()))
        .found(id)
}

/// Tokenises for tasks: with or without special tokens, and with a token that stands for an empty context.
pub struct TaskEncoder<'a> {
    tokenizer: &'a Tokenizer,
    prefix: Option<Prefix>,
}

impl<'a> TaskEncoder<'a> {
    /// The prefix token is the BOS, or else the EOS, that `tokenizer_config.json` names, or else `config.json`; null
    /// stands for a file that there is not.
    ///
    /// # Errors
    /// A token that the tokenizer does not know.
    pub fn new(tokenizer: &'a Tokenizer, tokenizer_config: &Value, config: &Value) -> Result<Self> {
        let id = |(name, token): (&str, SpecialToken<'_>)| match token {
            SpecialToken::Text(text) => {
                tokenizer.id(text).ok_or_else(|| unknown(tokenizer, &format!("a `{name}_token`"), text))
            }
            SpecialToken::Id(id) => u32::try_from(id).map_err(|_| beyond(tokenizer, name, id)),
        };
        let prefix = prefix_token(tokenizer_config, config).map(id).transpose()?;
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
