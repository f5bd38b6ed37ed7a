//! Everything that a cell is made from.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::plan::{BackbonePlan, ObjectState, Reason, Reasons, StoreState, Variant};
use ghostlab_store::{Key, Store};

/// What a cell is made from.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Explanation {
    /// Its name.
    pub(crate) cell: String,
    pub(crate) backbone: ExplainedBackbone,
    /// The layers that it lacks, counted from 0; null where that is not known yet, and for the dense cell.
    pub(crate) removed_layers: Option<Vec<usize>>,
    /// What it is made from, in the order in which it is made.
    pub(crate) artifacts: Vec<ExplainedObject>,
}

/// The backbone of a cell.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ExplainedBackbone {
    /// What the grid calls it.
    pub(crate) name: String,
    /// Its folder.
    #[serde(serialize_with = "crate::files::shown::path")]
    #[schemars(with = "String")]
    pub(crate) folder: PathBuf,
    /// SHA-256 of what of its config and weights is computed with, in hexadecimal digits.
    pub(crate) content: String,
}

/// Something that a cell is made from.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ExplainedObject {
    /// What it is, in words: `selection`, `scores on c4@2048`.
    pub(crate) what: String,
    /// The SHA-256 of its key, in hexadecimal digits.
    pub(crate) key: String,
    /// How it was made; null where it is not stored.
    pub(crate) stored: Option<Creation>,
    /// Why it is not stored; null where it is.
    pub(crate) reason: Option<Reason>,
    /// Where it lies, or would.
    #[serde(serialize_with = "crate::files::shown::path")]
    #[schemars(with = "String")]
    pub(crate) place: PathBuf,
    /// What its key is made of: settings by name, hashes of inputs, and keys of other artifacts as `{kind, version, of}`.
    pub(crate) of: Value,
}

/// How an artifact was made.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Creation {
    /// Its size, in bytes.
    pub(crate) bytes: u64,
    /// How long it took, in seconds.
    pub(crate) seconds: f64,
    /// The version of the program.
    pub(crate) ghostlab: Option<String>,
    /// The commit that the program was built from.
    pub(crate) commit: Option<String>,
    /// Whether there were uncommitted changes.
    pub(crate) dirty: bool,
    /// The command line.
    pub(crate) command: Vec<String>,
}

impl Explanation {
    pub(crate) fn of(
        cell: String,
        backbone: &BackbonePlan,
        variant: &Variant,
        state: &StoreState,
        reasons: &Reasons,
        store: &Store,
    ) -> Self {
        let mut artifacts = Vec::new();
        let mut add = |what: String, key: &Key| artifacts.push(explained(what, key, state, reasons, store));
        for (job, words, key) in backbone.parts(variant) {
            if let Some((tokens, key)) = (words.reads)(backbone, variant, job.place) {
                add(tokens, &key);
            }
            let on = (job.group.on)(backbone, job.place).map(|on| format!(" {on}"));
            add(format!("{}{}", words.what, on.unwrap_or_default()), key);
        }
        let selection = variant.selection.as_ref().and_then(|key| state.selection(key));
        let (name, folder) = (backbone.name.clone(), backbone.folder.clone());
        Self {
            cell,
            backbone: ExplainedBackbone { name, folder, content: backbone.content.clone() },
            removed_layers: selection.map(|selection| selection.removed.clone()),
            artifacts,
        }
    }
}

fn explained(what: String, key: &Key, state: &StoreState, reasons: &Reasons, store: &Store) -> ExplainedObject {
    let stored = match state.of(key) {
        ObjectState::Whole(artifact) => {
            let meta = artifact.meta();
            let by = |field: &str| meta.made[field].as_str().map(str::to_owned);
            let words = meta.made["command"].as_array().into_iter().flatten();
            Some(Creation {
                bytes: meta.bytes(),
                seconds: meta.seconds,
                ghostlab: by("ghostlab"),
                commit: by("commit"),
                dirty: meta.made["dirty"] == true,
                command: words.filter_map(Value::as_str).map(str::to_owned).collect(),
            })
        }
        _ => None,
    };
    let reason = if stored.is_some() { None } else { Some(reasons.of(key, state)) };
    let of = key.readable()["of"].take();
    ExplainedObject { what, key: key.hash().to_owned(), stored, reason, place: store.lies(key), of }
}
