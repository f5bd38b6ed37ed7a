//! Answers that a variant generates for a task, one text per prompt.

use serde::{Deserialize, Serialize};

use super::{InputNames, Stage, from_json, scores, to_json};
use crate::error::Result;
use crate::generate::{End, Generation};
use ghostlab_store::{Key, ObjectKind, Store, StoredObject};

pub const KIND: ObjectKind = ObjectKind::new("generations", 1);

/// Stage of generated answers. The answers of each variant are stored separately, because the lengths of their texts
/// are not known in advance.
pub const STAGE: Stage = Stage {
    inodes: |_| 2,
    words: Some(InputNames {
        part: "generations",
        about: "Answers to a task.",
        what: "answers to",
        ..scores::INPUT_NAMES
    }),
    ..Stage::new(KIND)
};

/// Payload that contains the texts, in the order of the prompts.
const ANSWERS: &str = "answers.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GeneratedText {
    pub text: String,
    /// Number of tokens that were generated, including the stop sequence.
    pub tokens: usize,
    pub end: End,
}

impl From<&Generation> for GeneratedText {
    fn from(generation: &Generation) -> Self {
        Self { text: generation.text.clone(), tokens: generation.ids.len(), end: generation.end }
    }
}

/// Stores the generated texts of a variant.
///
/// # Errors
/// Fails if the store cannot be written.
pub fn store(store: &Store, key: &Key, seconds: f64, answers: &[Generation]) -> Result<()> {
    let answers: Vec<GeneratedText> = answers.iter().map(GeneratedText::from).collect();
    store.put(key, seconds, &[(ANSWERS, &to_json(&answers)?)]).map(drop)
}

/// Reads the generated texts of a variant.
///
/// # Errors
/// Fails if the object is damaged.
pub fn read(object: &StoredObject) -> Result<Vec<GeneratedText>> {
    from_json(object, ANSWERS)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ghostlab_store::{Key, Lookup, Store};
    use serde_json::json;

    use super::*;
    use crate::generate::{End, Generation};
    use crate::pipeline::identity::Identity;
    use crate::pipeline::stage::scores::variant_key_part;
    use crate::pipeline::stage::{BackboneKeyParts, STORE_WORDS, tokens};

    #[test]
    fn generations_round_trip_and_have_a_separate_kind() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), STORE_WORDS).unwrap();
        let dense = Identity::tiny();
        let backbone = BackboneKeyParts { name: "tiny", dense: &dense, batch_tokens: 64 };
        let tokens = Arc::new(Key::new(tokens::KIND, json!({"seed": 1}), []));
        let key = Key::new(KIND, variant_key_part(backbone, None), [("tokens", tokens)]);
        let answers = [
            Generation { ids: vec![1, 2], text: " a\u{e9}\"\n".to_owned(), end: End::Stop },
            Generation { ids: Vec::new(), text: String::new(), end: End::NotFinite },
        ];
        super::store(&store, &key, 1.5, &answers).unwrap();
        let Lookup::Intact(object) = store.get(&key) else { panic!("the object is not intact") };
        assert_eq!(read(&object).unwrap(), answers.iter().map(GeneratedText::from).collect::<Vec<_>>());
        assert_ne!(key.kind(), scores::KIND);
    }
}
