//! A stored artifact: its record and its payloads.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::key::Key;
use crate::error::{Error, Result};
use crate::files::sha256;

pub(super) const META: &str = "meta.json";

/// What `meta.json` holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// The key in words.
    pub key: Value,
    /// How long the artifact took to make.
    pub seconds: f64,
    pub(super) payloads: BTreeMap<String, Stored>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored {
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

/// An artifact whose payloads are what was written.
#[derive(Debug, Clone)]
pub struct Artifact {
    folder: PathBuf,
    meta: Meta,
}

impl Artifact {
    /// Reads the record and checks every payload against it.
    pub(super) fn open(folder: PathBuf, key: &Key) -> Result<Self> {
        let artifact = Self::open_unchecked(folder, key)?;
        let payloads: Vec<(&String, &Stored)> = artifact.meta.payloads.iter().collect();
        payloads.into_par_iter().try_for_each(|(name, stored)| verify(&artifact.folder.join(name), stored))?;
        Ok(artifact)
    }

    /// For an artifact that this process has just written.
    pub(super) fn open_unchecked(folder: PathBuf, key: &Key) -> Result<Self> {
        let path = folder.join(META);
        let text = fs::read(&path).map_err(|error| damaged(&path).found(error.to_string()))?;
        let meta: Meta = serde_json::from_slice(&text).map_err(|error| damaged(&path).found(error.to_string()))?;
        if meta.key != *key.readable() {
            return Err(damaged(&path).expected("the key that its folder is named after").found("another key"));
        }
        Ok(Self { folder, meta })
    }

    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The names of the payloads, sorted.
    pub fn payloads(&self) -> impl Iterator<Item = &str> {
        self.meta.payloads.keys().map(String::as_str)
    }

    /// Where a payload lies.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn path(&self, name: &str) -> Result<PathBuf> {
        if self.meta.payloads.contains_key(name) {
            return Ok(self.folder.join(name));
        }
        Err(damaged(&self.folder).expected(format!("a payload `{name}`")).found("none of that name"))
    }
}

fn damaged(path: &Path) -> Error {
    Error::job("a stored artifact is damaged")
        .at(path.display().to_string())
        .hint("it is not used; a run makes it anew")
}

impl Stored {
    /// Size and hash of a file as it lies on the disk.
    pub(super) fn of(path: &Path) -> std::io::Result<Self> {
        sha256::of_file(path).map(|(sha256, bytes)| Self { bytes, sha256 })
    }
}

fn verify(path: &Path, stored: &Stored) -> Result<()> {
    let failed = |error: std::io::Error| damaged(path).found(error.to_string());
    // The size is cheap to compare and says more.
    let bytes = fs::metadata(path).map_err(failed)?.len();
    if bytes != stored.bytes {
        return Err(damaged(path).expected(format!("{} bytes", stored.bytes)).found(bytes.to_string()));
    }
    let found = Stored::of(path).map_err(failed)?;
    if found != *stored {
        return Err(damaged(path).expected(format!("SHA-256 {}", stored.sha256)).found(found.sha256));
    }
    Ok(())
}
