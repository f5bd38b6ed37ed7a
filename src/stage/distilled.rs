//! A variant's operator after its training, and the checkpoints on the way there.

use std::sync::Arc;

use serde_json::json;

use super::operator::{self, BoundaryResult};
use super::{Cost, KeyedBackbone, Member, Stage, activations, teacher};
use crate::calibrate::ActivationShape;
use crate::distill::Finetune;
use crate::error::Result;
use crate::identity::Identity;
use crate::model::{CPU, Config, Load, Operator};
use ghostlab_store::{Key, ObjectKind, Store, StoredObject};

pub const KIND: ObjectKind = ObjectKind::new("distilled", 2);

pub const STAGE: Stage = Stage {
    kind: KIND,
    check: operator::STAGE.check,
    inodes: operator::STAGE.inodes,
    members: &[Member::Toward(TRAINED)],
    here: false,
};

/// The parent of a checkpoint: what it is on the way to.
const TRAINED: &str = "trained";

/// The losses of a training, one a step; beside them lies what an operator has.
const LOSSES: &str = "losses.f64";
/// The payload of a checkpoint.
pub const STATE: &str = "state.bin";

/// A trained operator's key has the operator that the training begins with, and its text.
pub fn key(backbone: KeyedBackbone<'_>, operator: &Arc<Key>, text: &Arc<Key>, what: &Arc<Identity>) -> Key {
    let of = json!({
        "learning_rate": Finetune::LEARNING_RATE, "weight_decay": Finetune::WEIGHT_DECAY,
        // Whatever engine made what it reads, a training runs on the CPU in f32.
        "likeliest": Finetune::TOP_TOKENS, "dtype": CPU.dtype, "device": CPU.device,
    });
    let teacher = Arc::new(teacher::family(backbone, text).key());
    let activations = Arc::new(activations::family(backbone, text).key());
    let parents = [("operator", Arc::clone(operator)), ("teacher", teacher), ("activations", activations)];
    Key::new(KIND, of, parents).about(what)
}

/// A training after so many steps: what it goes on from when it was killed.
pub fn checkpoint(trained: &Arc<Key>, steps: usize) -> Key {
    Key::new(KIND, json!({"checkpoint": steps}), [(TRAINED, Arc::clone(trained))])
}

/// What a training on a text takes: forwards and backwards through what stands after the boundary, taken to be a quarter of
/// the layers. `pass` is what a token takes through all of them.
pub fn cost(config: &Config, pass: f64, text: &Load, left: bool) -> Cost {
    let tokens = text.tokens as f64;
    let steps = 3.0 * (pass / 4.0 + 2.0 * config.hidden as f64 * config.vocab as f64) * tokens;
    Cost { separate: steps, shared: steps, left: if left { steps } else { 0.0 }, ..Cost::default() }
}

/// What it takes to make what all trainings at one boundary read: stream and teacher of a text.
pub fn lessons_cost(config: &Config, pass: f64, text: &Load, shape: ActivationShape) -> Cost {
    Cost {
        left: pass * text.tokens as f64,
        disk: (4 * config.hidden + 8 * Finetune::TOP_TOKENS) as u64 * text.tokens as u64,
        inodes: 2 * shape.shard_count() as u64 * (teacher::STAGE.inodes)(false),
        ..Cost::default()
    }
}

/// Stores a trained operator.
///
/// # Errors
/// Figures that are not finite, or a store that cannot be written.
pub fn store(
    store: &Store,
    key: &Key,
    seconds: f64,
    results: &[BoundaryResult],
    operator: &Operator,
    losses: &[f64],
) -> Result<()> {
    let (name, matrix) = operator::payload(0, operator)?;
    let losses: Vec<u8> = losses.iter().flat_map(|loss| loss.to_le_bytes()).collect();
    let figures = operator::figures_payload(results)?;
    let payloads = [(name.as_str(), &*matrix), (operator::FIGURES, &*figures), (LOSSES, &*losses)];
    store.put(key, seconds, &payloads).map(drop)
}

/// The loss of each step of a stored training.
///
/// # Errors
/// Damage.
pub fn losses(object: &StoredObject) -> Result<Vec<f64>> {
    Ok(object.read(LOSSES)?.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect())
}
