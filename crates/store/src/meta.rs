//! Record of a stored object: its key, its origin, and the hashes of its payloads.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::disk::Disk;
use super::key::{DESCRIPTION_FIELD, canonical};
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::sha256;

pub(super) const META: &str = "meta.json";

/// Content of `meta.json`. The file includes a checksum of its other fields so that a record that lost a payload entry
/// is detected as damaged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// Key, including the description of the object.
    pub key: Value,
    /// Compute time in seconds.
    pub seconds: f64,
    /// Origin: program, commit, command line and machine.
    #[serde(rename = "made")]
    pub provenance: Value,
    pub(super) payloads: BTreeMap<String, StoredFile>,
}

impl Meta {
    /// Returns the description of the object, or null.
    pub fn description(&self) -> &Value {
        &self.key[DESCRIPTION_FIELD]
    }

    /// Returns the total payload size in bytes.
    pub fn bytes(&self) -> u64 {
        self.payloads.values().map(|stored| stored.bytes).sum()
    }

    /// Returns the offset in bytes of a payload in a pack, where an object's payloads are sorted by name.
    pub(super) fn offset_of(&self, name: &str) -> u64 {
        self.payloads.iter().take_while(|(payload, _)| payload.as_str() < name).map(|(_, stored)| stored.bytes).sum()
    }

    /// Serializes the record as the content of `meta.json`.
    pub(super) fn to_text(&self) -> Result<Vec<u8>> {
        let mut record = serde_json::to_value(self).map_err(record_error)?;
        record[CHECK] = checksum(&record).into();
        serde_json::to_vec_pretty(&record).map_err(record_error)
    }

    /// Parses the content of `meta.json`.
    ///
    /// # Errors
    /// Fails with a description of the damage.
    pub(super) fn from_text(text: &[u8]) -> Result<Self, String> {
        let mut record: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let check = record.as_object_mut().and_then(|fields| fields.remove(CHECK));
        if check != Some(checksum(&record).into()) {
            return Err("checksum mismatch".to_string());
        }
        serde_json::from_value(record).map_err(|error| error.to_string())
    }
}

fn record_error(error: serde_json::Error) -> Error {
    Error::job("cannot serialize the metadata of a stored object").found(error)
}

/// Name of the checksum field.
const CHECK: &str = "check";

fn checksum(record: &Value) -> String {
    sha256::of_bytes(canonical(record))
}

/// Size and hash of a payload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredFile {
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

impl StoredFile {
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len() as u64, sha256: sha256::of_bytes(bytes) }
    }

    /// Computes the size and hash of a file on disk.
    pub(super) fn read(disk: &dyn Disk, path: &Path) -> std::io::Result<Self> {
        sha256::of_reader(&mut disk.reader(path)?).map(|(sha256, bytes)| Self { bytes, sha256 })
    }
}
