//! Payloads of small objects as JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use ghostlab_store::StoredObject;

/// A payload as JSON bytes.
///
/// # Errors
/// Kind `Job`: what JSON has no form for.
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
