//! What a variant answers to a task: a text for each prompt.

use std::sync::Arc;

pub use super::answers::{GeneratedEnd, GeneratedText, read, store};
use super::chunks::scored;
use super::{KeyedBackbone, Stage, Words, scores};
use crate::identity::Identity;
use ghostlab_store::{Key, ObjectKind};

pub const KIND: ObjectKind = ObjectKind::new("generations", 1);

/// Answers lie by themselves: they are as long as they are.
pub const STAGE: Stage = Stage {
    inodes: |_| 2,
    words: Some(Words { part: "generations", about: "Its answers to a task.", what: "answers to", ..scores::WORDS }),
    ..Stage::new(KIND)
};

/// The answers of a variant.
pub fn key(backbone: KeyedBackbone<'_>, operator: Option<&Arc<Key>>, tokens: &Arc<Key>, what: &Arc<Identity>) -> Key {
    let of = scored(backbone, operator);
    let operator = operator.map(|operator| ("operator", Arc::clone(operator)));
    let parents = operator.into_iter().chain([("tokens", Arc::clone(tokens))]);
    Key::new(KIND, of, parents).named(backbone.name).about(what)
}

#[cfg(test)]
mod tests {
    use ghostlab_store::{Lookup, Store};
    use serde_json::json;

    use super::*;
    use crate::generate::{End, Generation};
    use crate::model::CPU;
    use crate::stage::{WORDS, tokens};

    #[test]
    fn answers_come_back_to_the_byte_and_are_no_scores() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), WORDS).unwrap();
        let backbone = KeyedBackbone { name: "tiny", content: "c0ffee", engine: CPU, weights: None, batch_tokens: 64 };
        let tokens = Arc::new(Key::new(tokens::KIND, json!({"seed": 1}), []));
        let key = Key::new(KIND, scored(backbone, None), [("tokens", tokens)]);
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
