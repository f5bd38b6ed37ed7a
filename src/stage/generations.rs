//! What a variant answers to a task: a text for each prompt.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::chunks::dense;
use super::payload::{from_json, to_json};
use super::{KeyedBackbone, Stage, Words, scores};
use crate::error::Result;
use crate::generate::{End, Generation};
use crate::identity::Identity;
use ghostlab_store::{Key, ObjectKind, Store, StoredObject};

pub const KIND: ObjectKind = ObjectKind::new("generations", 1);

/// Answers lie by themselves: they are as long as they are.
pub const STAGE: Stage = Stage {
    inodes: |_| 2,
    words: Some(Words { part: "generations", about: "Its answers to a task.", what: "answers to", ..scores::WORDS }),
    ..Stage::new(KIND)
};

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

/// The answers of a variant. Where it runs stands in its operator's key already.
pub fn key(backbone: KeyedBackbone<'_>, operator: Option<&Arc<Key>>, tokens: &Arc<Key>, what: &Arc<Identity>) -> Key {
    let of = operator.map_or_else(|| dense(backbone), |_| json!({"batch": backbone.batch_tokens}));
    let operator = operator.map(|operator| ("operator", Arc::clone(operator)));
    let parents = operator.into_iter().chain([("tokens", Arc::clone(tokens))]);
    Key::new(KIND, of, parents).named(backbone.name).about(what)
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

#[cfg(test)]
mod tests {
    use ghostlab_store::Lookup;

    use super::*;
    use crate::model::CPU;
    use crate::stage::{WORDS, tokens};

    #[test]
    fn answers_come_back_to_the_byte_and_are_no_scores() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), WORDS).unwrap();
        let backbone = KeyedBackbone { name: "tiny", content: "c0ffee", engine: CPU, batch_tokens: 64 };
        let tokens = Arc::new(Key::new(tokens::KIND, json!({"seed": 1}), []));
        let key = Key::new(KIND, dense(backbone), [("tokens", tokens)]);
        let answers = [
            Generation { ids: vec![1, 2], text: " a\u{e9}\"\n".to_owned(), end: End::Stop },
            Generation { ids: Vec::new(), text: String::new(), end: End::NotFinite },
        ];
        super::store(&store, &key, 1.5, &answers).unwrap();
        let Lookup::Whole(object) = store.get(&key) else { panic!("it was stored") };
        assert_eq!(read(&object).unwrap(), answers.iter().map(GeneratedText::from).collect::<Vec<_>>());
        assert_ne!(key.kind(), scores::KIND);
    }
}
