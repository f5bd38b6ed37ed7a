//! The layers that a criterion picks, with its scores.

use std::sync::Arc;

use serde_json::json;

use super::payload::{from_json, to_json};
use super::{Check, KeyedBackbone, Stage, activations, scores};
use crate::criterion::{Criterion, PruneSpec, Selection};
use crate::error::Result;
use crate::identity::CutId;
use ghostlab_store::{Key, ObjectKind, Store, StoredObject};

// 3: keys name what the criterion looked at, and have every option filled in. 4: the bound of `cca` counts no rounding as a
// direction.
pub const KIND: ObjectKind = ObjectKind::new("selection", 5);

pub const STAGE: Stage = Stage { kind: KIND, check: Check::Whole, inodes: |_| 2, members: &[], here: false };

/// The layers and scores.
const LAYERS: &str = "selection.json";
/// What speaks against it, where anything does.
const NOTES: &str = "notes.json";

/// A selection's key has what the criterion looks at: similarities of activations, scores without some layers. Families
/// stand for them, as it is known only on the way which are read.
pub fn key(backbone: KeyedBackbone<'_>, cut: &CutId, rule: (&dyn Criterion, &PruneSpec<'_>), tokens: &Arc<Key>) -> Key {
    let CutId { criterion: name, version, options, depth, known } = cut;
    let mut of = json!({
        "backbone": backbone.content, "criterion": name, "criterion_version": version, "options": options.value(),
        "depth": depth,
    });
    if let Some(known) = known {
        of["known"] = known.value();
    }
    let (criterion, spec) = rule;
    let looks = !criterion.pairs(spec).is_empty() || !criterion.sites(spec).is_empty();
    let activations = looks.then(|| ("activations", activations::family(backbone, tokens).key()));
    let scores = (!criterion.trials(spec).is_empty()).then(|| ("scores", scores::trials(backbone, tokens).key()));
    let parents = activations.into_iter().chain(scores).map(|(name, key)| (name, Arc::new(key)));
    Key::new(KIND, of, parents).named(backbone.name)
}

/// Stores a selection with the notes on it.
///
/// # Errors
/// A store that cannot be written.
pub fn store(store: &Store, key: &Key, seconds: f64, selection: &Selection, notes: &[String]) -> Result<()> {
    let (layers, notes) = (to_json(selection)?, (!notes.is_empty()).then(|| to_json(&notes)).transpose()?);
    let payloads = [Some((LAYERS, layers.as_slice())), notes.as_deref().map(|of| (NOTES, of))];
    store.put(key, seconds, &payloads.into_iter().flatten().collect::<Vec<_>>()).map(drop)
}

/// A stored selection.
///
/// # Errors
/// Damage.
pub fn read(object: &StoredObject) -> Result<Selection> {
    from_json(object, LAYERS)
}

/// Why a selection tells nothing, a line each; empty where it does.
///
/// # Errors
/// Damage.
pub fn notes(object: &StoredObject) -> Result<Vec<String>> {
    let noted = object.payloads().any(|name| name == NOTES);
    if noted { from_json(object, NOTES) } else { Ok(Vec::new()) }
}
