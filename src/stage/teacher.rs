//! The likeliest tokens that a whole backbone predicts for some sequences of a text.

use std::ops::Range;
use std::sync::Arc;

use serde_json::json;

use super::activations::range;
use super::{Check, Family, KeyedBackbone, Member, Stage};
use crate::distill::{Finetune, TopTokens};
use crate::error::{Error, Result};
use ghostlab_store::{Key, ObjectKind, StoredObject};

// 2: as with scores' 4.
pub const KIND: ObjectKind = ObjectKind::new("teacher", 3);

pub const STAGE: Stage =
    Stage { kind: KIND, check: Check::Never, inodes: |_| 6, members: &[Member::Of(&[SEQUENCES])], here: false };

const SEQUENCES: &str = "sequences";

/// The likeliest tokens of a shard's positions, and their logits.
const TOKENS: &str = "likeliest.u32";
const LOGITS: &str = "logits.f32";

/// What it predicts for all of a text.
pub(super) fn family(backbone: KeyedBackbone<'_>, tokens: &Arc<Key>) -> Family {
    let mut of = backbone.on_engine();
    of["likeliest"] = json!(Finetune::TOP_TOKENS);
    Family::new(KIND, of, tokens, backbone)
}

/// What it predicts for some sequences.
pub fn shard(backbone: KeyedBackbone<'_>, tokens: &Arc<Key>, sequences: &Range<usize>) -> Key {
    family(backbone, tokens).member([(SEQUENCES, range(sequences))])
}

/// The claim of a shard, for all that train on the text.
pub fn claim(backbone: KeyedBackbone<'_>, tokens: &Arc<Key>, sequences: &Range<usize>) -> String {
    format!("teach-{}", shard(backbone, tokens, sequences).hash())
}

/// The payloads of a shard.
pub fn payloads<'a>(tokens: &'a [u32], logits: &'a [f32]) -> [(&'static str, &'a [u8]); 2] {
    [(TOKENS, bytemuck::cast_slice(tokens)), (LOGITS, bytemuck::cast_slice(logits))]
}

/// What is predicted at some `positions` of a shard that has `all`.
///
/// # Errors
/// Damage.
pub fn read(object: &StoredObject, positions: Range<usize>, all: usize) -> Result<TopTokens> {
    let (tokens, logits) = (object.read(TOKENS)?, object.read(LOGITS)?);
    let kept = tokens.len() / (4 * all).max(1);
    let range = 4 * positions.start * kept..4 * positions.end * kept;
    let damaged = || Error::damaged("a teacher's shard has another length");
    let (tokens, logits) = (tokens.get(range.clone()).ok_or_else(damaged)?, logits.get(range).ok_or_else(damaged)?);
    Ok(TopTokens {
        kept,
        tokens: tokens.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect(),
        logits: logits.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect(),
    })
}
