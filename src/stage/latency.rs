//! How long a variant takes over one prompt, on one machine.

use std::sync::Arc;

use serde_json::json;

use super::payload::from_json;
use super::{Check, Cost, KeyedBackbone, Stage};
use crate::error::Result;
use crate::identity::{Identity, MeasureId};
use crate::latency::{LatencyResult, Rounds, passes};
use crate::model::{Config, Load, Trie};
use ghostlab_store::{Key, ObjectKind, StoredObject};

// 2: a tied table counts once where it is one, and operators in f32. 4: rounds go on until they are quiet, and ten of them
// count.
pub const KIND: ObjectKind = ObjectKind::new("latency", 4);

pub const STAGE: Stage = Stage { kind: KIND, check: Check::Whole, inodes: |_| 2, members: &[], here: true };

/// Times and bytes.
pub const LATENCY: &str = "latency.json";

/// Those of a prompt are measured together, so that each key says among which others, and on which machine: no other one's
/// times stand for its own. `what` is measured by `measure`, a prefill.
pub fn key(
    backbone: KeyedBackbone<'_>,
    operator: Option<&Arc<Key>>,
    measure: &MeasureId,
    among: &str,
    what: &Arc<Identity>,
) -> Key {
    let mut of = backbone.on_engine();
    if let MeasureId::Prefill { length, batch, warmups, rounds, machine, .. } = measure {
        of["machine"] = machine.value();
        for (name, value) in [("length", length), ("batch", batch), ("warmups", warmups), ("rounds", rounds)] {
            of[name] = json!(value);
        }
        of["among"] = json!(among);
    }
    let operator = operator.map(|key| ("operator", Arc::clone(key)));
    Key::new(KIND, of, operator).named(backbone.name).about(what)
}

/// Each variant alone, and all of a comparison anew where one lacks.
pub fn cost(config: &Config, all: &Trie, prompt: &Load, left: bool) -> Cost {
    let rounds = passes(1, Rounds::PAPER) as f64 * all.flops(config, prompt).separate;
    Cost { separate: rounds, shared: rounds, left: if left { rounds } else { 0.0 }, ..Cost::default() }
}

/// What was stored of a variant.
///
/// # Errors
/// Damage.
pub fn read(object: &StoredObject) -> Result<LatencyResult> {
    from_json(object, LATENCY)
}
