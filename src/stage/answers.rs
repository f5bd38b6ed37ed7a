//! Generated texts as they are stored.

use serde::{Deserialize, Serialize};

use super::payload::{from_json, to_json};
use crate::error::Result;
use crate::generate::{End, Generation};
use ghostlab_store::{Key, Store, StoredObject};

/// Text by text, in the order of the prompts.
const ANSWERS: &str = "answers.json";

/// A generated text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GeneratedText {
    pub text: String,
    /// How many tokens were generated, those of what ended it among them.
    pub tokens: usize,
    pub end: GeneratedEnd,
}

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GeneratedEnd {
    EndOfText,
    Stop,
    Length,
    /// The next token's logits were no numbers.
    NotFinite,
}

impl From<&Generation> for GeneratedText {
    fn from(of: &Generation) -> Self {
        let end = match of.end {
            End::EndOfText => GeneratedEnd::EndOfText,
            End::Stop => GeneratedEnd::Stop,
            End::Length => GeneratedEnd::Length,
            End::NotFinite => GeneratedEnd::NotFinite,
        };
        Self { text: of.text.clone(), tokens: of.ids.len(), end }
    }
}

/// Stores the answers of a variant.
///
/// # Errors
/// A store that cannot be written.
pub fn store(store: &Store, key: &Key, seconds: f64, answers: &[Generation]) -> Result<()> {
    let answers: Vec<GeneratedText> = answers.iter().map(GeneratedText::from).collect();
    store.put(key, seconds, &[(ANSWERS, &to_json(&answers)?)]).map(drop)
}

/// Stored answers.
///
/// # Errors
/// Damage.
pub fn read(object: &StoredObject) -> Result<Vec<GeneratedText>> {
    from_json(object, ANSWERS)
}
