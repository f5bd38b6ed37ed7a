//! Scores and generated texts as they are stored, and the names under which they are made.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::Result;
use crate::files::sha256;
use crate::generate::{End, Generation};
use crate::grid::Draw;
use crate::stage::KeyedBackbone;
use crate::stage::payload::{from_json, to_json};
use ghostlab_store::{Key, ObjectKind, Store, StoredObject};

// 2: the softmax divides last, which rounds otherwise. 3: as does a row that is multiplied alone. 4: in half precision candle
// rounds no logits.
pub const KIND: ObjectKind = ObjectKind::new("scores", 5);

/// One or two numbers a window or choice, as `f64` in little-endian order.
pub(super) const VALUES: &str = "values.f64";

pub(in crate::stage) fn dense(backbone: KeyedBackbone<'_>) -> Value {
    let mut of = backbone.on_engine();
    of["batch"] = json!(backbone.batch_tokens);
    of
}

/// The same of a variant. With an operator what it runs on stands in that one's key, but for weights that are rounded after it
/// was solved.
pub(in crate::stage) fn scored(backbone: KeyedBackbone<'_>, operator: Option<&Arc<Key>>) -> Value {
    if operator.is_none() {
        return dense(backbone);
    }
    let mut of = json!({"batch": backbone.batch_tokens});
    if let Some(weights) = backbone.weights {
        of["weights"] = json!(weights.name());
    }
    of
}

/// The name of the journal, and of the claims, of what is scored on some tokens, or on a part of them.
pub fn journal(backbone: KeyedBackbone<'_>, tokens: &Key, draw: Option<Draw>) -> String {
    let KeyedBackbone { content, batch_tokens, .. } = backbone;
    let draw = draw.map_or_else(String::new, |draw| format!(" {draw}"));
    sha256::of_bytes(format!("{content} {} {batch_tokens}{}{draw}", tokens.hash(), backbone.other_engine()))
}

/// Whether a claim is of a chunk: a journal's name and a number.
pub(in crate::stage) fn is_claim(name: &str) -> bool {
    name.split_once('-').is_some_and(|(journal, _)| journal.len() == 64)
}

/// Files of so many scores that are stored together.
pub(in crate::stage) fn files(scores: usize) -> u64 {
    scores.div_ceil(Store::TOGETHER) as u64
}

/// The values of stored scores.
///
/// # Errors
/// Damage.
pub fn read(object: &StoredObject) -> Result<Vec<f64>> {
    let bits = bytemuck::pod_collect_to_vec::<u8, u64>(&object.read(VALUES)?);
    Ok(bits.into_iter().map(|bits| f64::from_bits(u64::from_le(bits))).collect())
}

/// The payload that [`read`] reads.
pub(super) fn bytes(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_bits().to_le_bytes()).collect()
}

/// Text by text, in the order of the prompts.
const ANSWERS: &str = "answers.json";

/// A generated text, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GeneratedText {
    pub text: String,
    /// How many tokens were generated, those of what ended it among them.
    pub tokens: usize,
    pub end: End,
}

impl From<&Generation> for GeneratedText {
    fn from(of: &Generation) -> Self {
        Self { text: of.text.clone(), tokens: of.ids.len(), end: of.end }
    }
}

/// Stores the texts that a variant answered.
///
/// # Errors
/// A store that cannot be written.
pub fn store_texts(store: &Store, key: &Key, seconds: f64, answers: &[Generation]) -> Result<()> {
    let answers: Vec<GeneratedText> = answers.iter().map(GeneratedText::from).collect();
    store.put(key, seconds, &[(ANSWERS, &to_json(&answers)?)]).map(drop)
}

/// The texts of a stored variant.
///
/// # Errors
/// Damage.
pub fn texts(object: &StoredObject) -> Result<Vec<GeneratedText>> {
    from_json(object, ANSWERS)
}
