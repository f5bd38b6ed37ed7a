//! The payloads of small artifacts: what stands in them, and how it is read back.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::criterion::Selection;
use crate::error::{Error, Result};
use crate::model::Load;
use ghostlab_store::StoredObject;

/// Of a selection: the layers and scores.
pub const SELECTION: &str = "selection.json";
/// Of a selection: what speaks against it, where anything does.
pub const NOTES: &str = "notes.json";
/// Of an operator: what is known of each boundary.
pub const FIGURES: &str = "figures.json";
/// Of tokens: how much text they are.
pub const LOAD: &str = "load.json";
/// Of scores: one or two numbers a window or choice, as `f64` in little-endian order.
pub const VALUES: &str = "values.f64";

/// Of a latency: its times and bytes.
pub const LATENCY: &str = "latency.json";

/// A payload as JSON bytes.
pub fn to_json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::job("an artifact has no JSON form").found(error.to_string()))
}

/// A payload from JSON.
///
/// # Errors
/// Damage.
pub fn from_json<T: DeserializeOwned>(artifact: &StoredObject, name: &str) -> Result<T> {
    serde_json::from_slice(&artifact.read(name)?).map_err(|error| {
        Error::damaged("a stored artifact cannot be read")
            .at(artifact.folder().join(name).display().to_string())
            .found(error.to_string())
    })
}

/// The selection in an artifact.
///
/// # Errors
/// Damage.
pub fn selection(artifact: &StoredObject) -> Result<Selection> {
    from_json(artifact, SELECTION)
}

/// Why a selection tells nothing, a line each; empty where it does.
///
/// # Errors
/// Damage.
pub fn selection_notes(artifact: &StoredObject) -> Result<Vec<String>> {
    let noted = artifact.payloads().any(|name| name == NOTES);
    if noted { from_json(artifact, NOTES) } else { Ok(Vec::new()) }
}

/// How much text stored tokens are.
///
/// # Errors
/// Damage.
pub fn load(artifact: &StoredObject) -> Result<Load> {
    let [tokens, scored, length] = from_json::<[usize; 3]>(artifact, LOAD)?;
    Ok(Load { tokens, scored, length })
}

/// The payload that [`load`] reads.
pub fn load_bytes(load: &Load) -> Vec<u8> {
    json!([load.tokens, load.scored, load.length]).to_string().into_bytes()
}

/// The values in a scores artifact.
///
/// # Errors
/// Damage.
pub fn values(artifact: &StoredObject) -> Result<Vec<f64>> {
    Ok(bytemuck::pod_collect_to_vec::<u8, u64>(&artifact.read(VALUES)?)
        .into_iter()
        .map(|bits| f64::from_bits(u64::from_le(bits)))
        .collect())
}

/// The payload that [`values`] reads.
pub fn value_bytes(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_bits().to_le_bytes()).collect()
}
