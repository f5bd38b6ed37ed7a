//! What a calibration pass keeps: the residual stream at sites, and sums of similarities, some sequences at a time.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{Check, Cost, Family, KeyedBackbone, Member, Stage};
use crate::calibrate::{ActivationShape, HookPoint, Pair};
use crate::files::sha256;
use crate::model::{Config, Load, Program, Trie};
use ghostlab_store::{Key, ObjectKind, StoredObject};

// 3: as with scores' 3. 4: a shard each.
pub const KIND: ObjectKind = ObjectKind::new("activations", 5);

pub const STAGE: Stage = Stage {
    kind: KIND,
    check: Check::Never,
    inodes: |_| 6,
    members: &[Member::Of(&[SITE, SEQUENCES]), Member::Of(&[PAIRS, SEQUENCES])],
    here: false,
};

/// The fields that tell one site's activations, or the sums of some similarities, over some sequences from the pass.
const SITE: &str = "site";
const PAIRS: &str = "pairs";
const SEQUENCES: &str = "sequences";

/// A site's rows of f32.
pub const ROWS: &str = "rows.f32";
/// The sums of some similarities, in the order of their pairs.
pub const SUMS: &str = "sums.f64";

/// A calibration pass: the activations at all sites. Which of them are read is known only when the layers are chosen.
pub(super) fn family(backbone: KeyedBackbone<'_>, tokens: &Arc<Key>) -> Family {
    Family::new(KIND, backbone.on_engine(), tokens, backbone)
}

/// The residual stream at one site over some sequences of a calibration's tokens.
pub fn rows(backbone: KeyedBackbone<'_>, tokens: &Arc<Key>, site: HookPoint, sequences: &Range<usize>) -> Key {
    family(backbone, tokens).member([(SITE, json!(site.to_string())), (SEQUENCES, range(sequences))])
}

/// The sums of some similarities over some sequences of a calibration's tokens.
pub fn sums(backbone: KeyedBackbone<'_>, tokens: &Arc<Key>, pairs: &BTreeSet<Pair>, sequences: &Range<usize>) -> Key {
    family(backbone, tokens).member([(PAIRS, json!(pairs)), (SEQUENCES, range(sequences))])
}

pub(super) fn range(sequences: &Range<usize>) -> Value {
    json!([sequences.start, sequences.end])
}

/// What the claim of a calibration begins with.
const CALIBRATING: &str = "calibrate-";

/// What a process claims that makes a backbone's repairs on one calibration.
pub fn claim(backbone: KeyedBackbone<'_>, tokens: &Key) -> String {
    let work = format!("{} {}{}", backbone.content, tokens.hash(), backbone.other_engine());
    format!("{CALIBRATING}{}", sha256::of_bytes(work))
}

/// Whether a claim is one of these.
pub(super) fn is_claim(name: &str) -> bool {
    name.starts_with(CALIBRATING)
}

/// Floating-point operations of a pass through all layers.
pub fn pass_flops(config: &Config, load: &Load) -> f64 {
    Trie::new(&[Program::trunk(config.layers)]).flops(config, load).shared
}

/// Bytes of one site.
pub fn site_bytes(config: &Config, load: &Load) -> u64 {
    (4 * load.tokens * config.hidden) as u64
}

/// What it takes to keep some sites, and to write others for a while.
pub fn cost(config: &Config, shape: ActivationShape, load: &Load, [kept, spooled]: [usize; 2]) -> Cost {
    let inodes = (kept + spooled) as u64 * shape.shard_count() as u64 * (STAGE.inodes)(false);
    Cost { disk: kept as u64 * site_bytes(config, load), inodes, ..Cost::default() }
}

/// Stored sums, if they are as many as there are pairs.
pub fn read_sums(object: &StoredObject, pairs: usize) -> Option<Vec<f64>> {
    let sums: Vec<f64> = object.read(SUMS).ok()?.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
    (sums.len() == pairs).then_some(sums)
}
