//! A backbone's tokenizer as the tasks want it.

use std::path::Path;

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
    /// The prefix token is the BOS, or else the EOS, that `tokenizer_config.json` names, or else `config.json`.
    ///
    /// # Errors
    /// A file that is not JSON, or a token that the tokenizer does not know.
    pub fn new(tokenizer: &'a Tokenizer, folder: &Path) -> Result<Self> {
        let named = json(&folder.join("tokenizer_config.json"))?;
        let numbered = json(&folder.join("config.json"))?;
        let id = |name: &str| -> Result<Option<u32>> {
            // A token is written as its text, or as a map with the text as `content`.
            let text = &named[format!("{name}_token").as_str()];
            if let Some(text) = text.as_str().or_else(|| text["content"].as_str()) {
                return tokenizer.id(text).map(Some).ok_or_else(|| {
                    Error::bad_input("the tokenizer does not know its own special token")
                        .at(folder.join("tokenizer_config.json").display().to_string())
                        .expected(format!("a `{name}_token` of tokenizer.json"))
                        .found(format!("`{text}`"))
                });
            }
            let number = &numbered[format!("{name}_token_id").as_str()];
            // Several end tokens are a list: the first is the main one.
            let number = number.as_u64().or_else(|| number[0].as_u64());
            Ok(number.and_then(|id| u32::try_from(id).ok()))
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

/// A JSON file; null where there is none.
pub fn json(path: &Path) -> Result<Value> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Value::Null),
        Err(error) => return Err(Error::io("read", path, &error)),
    };
    serde_json::from_slice(&text).map_err(|error| {
        Error::bad_input("the file is not JSON").at(path.display().to_string()).found(error.to_string())
    })
}
