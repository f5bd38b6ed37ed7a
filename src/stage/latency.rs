//! How long a variant takes over one prompt, on one machine.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::payload::from_json;
use super::{Check, Cost, KeyedBackbone, Stage};
use crate::error::Result;
use crate::identity::{Identity, MeasureId};
use crate::latency::{Rounds, Speedup, TimeSpread, passes};
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

/// What a variant took over one prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatencyResult {
    /// Milliseconds of each round, every operator of the stream a full product; none where memory did not suffice.
    pub times: Option<Vec<f64>>,
    /// The same with a diagonal operator as one multiplication a channel; none where it has none.
    pub by_channel: Option<Vec<f64>>,
    /// The dense backbone's times in the same rounds, where it was among them.
    pub dense: Option<Vec<f64>>,
    /// The first of the rounds that count, as many as the protocol has: those before it, or behind them, were noise.
    pub first: usize,
    /// Bytes of the weights that it needs, its operator among them.
    pub weight_bytes: u64,
    /// The most bytes of intermediates at a time; none where they lie in another memory, or were not counted.
    pub intermediate_bytes: Option<u64>,
    /// The dense backbone's weights and intermediates.
    pub dense_bytes: Option<u64>,
}

impl LatencyResult {
    /// The rounds that count, of all.
    pub fn counted<'t>(&self, times: &'t [f64]) -> &'t [f64] {
        let end = times.len().min(self.first + Rounds::PAPER.timed);
        times.get(self.first..end).unwrap_or(times)
    }

    pub fn spread(&self) -> Option<TimeSpread> {
        TimeSpread::of(self.counted(self.times.as_deref()?))
    }

    /// The spread of its diagonal operator as one multiplication a channel.
    pub fn spread_by_channel(&self) -> Option<TimeSpread> {
        TimeSpread::of(self.counted(self.by_channel.as_deref()?))
    }

    pub fn speedup(&self) -> Option<Speedup> {
        Speedup::of(self.counted(self.dense.as_deref()?), self.counted(self.times.as_deref()?))
    }

    /// The high-water mark: weights and intermediates.
    pub fn bytes(&self) -> Option<u64> {
        Some(self.weight_bytes + self.intermediate_bytes?)
    }

    /// The high-water mark in percent of the dense backbone's.
    pub fn memory_percent(&self) -> Option<f64> {
        Some(100.0 * self.bytes()? as f64 / self.dense_bytes? as f64)
    }
}
