//! A backbone's tokenizer as the tasks want it.

use serde_json::Value;

use crate::corpus::Tokenizer;
use crate::error::{Error, Result};
use crate::tasks::{Encoder, Prefix};

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
        let id = |name: &str| -> Result<Option<u32>> {
            // A token is written as its text, or as a map with the text as `content`.
            let text = &tokenizer_config[format!("{name}_token").as_str()];
            if let Some(text) = text.as_str().or_else(|| text["content"].as_str()) {
                return tokenizer.id(text).map(Some).ok_or_else(|| {
                    Error::bad_input("the tokenizer does not know its own special token")
                        .at(tokenizer.path().with_file_name("tokenizer_config.json").display().to_string())
                        .expected(format!("a `{name}_token` of tokenizer.json"))
                        .found(format!("`{text}`"))
                });
            }
            let number = &config[format!("{name}_token_id").as_str()];
            // Several end tokens are a list: the first is the main one.
            let number = number.as_u64().or_else(|| number[0].as_u64());
            let beyond = |id: u64| {
                Error::bad_input("a special token is beyond the vocabulary")
                    .at(format!("config.json, {name}_token_id"))
                    .expected(format!("an id below {}", tokenizer.vocab_size()))
                    .found(id.to_string())
            };
            number.map(|id| u32::try_from(id).map_err(|_| beyond(id))).transpose()
        };
        let prefix = match id("bos")? {
            Some(id) => Some(id),
            None => id("eos")?,
        };
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
