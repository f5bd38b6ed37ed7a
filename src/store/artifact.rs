//! A stored artifact: its record and its payloads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::disk::{Disk, Mapped};
use super::key::{ABOUT, Key, canonical};
use crate::error::{Error, Result};
use crate::files::sha256;

pub(super) const META: &str = "meta.json";

/// What `meta.json` holds, beside a checksum of itself: a record that lost a payload's entry must not count as whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// The key in words, and what was made.
    pub key: Value,
    /// How long the artifact took to make.
    pub seconds: f64,
    /// Who made it: program, commit, command line, machine.
    pub made: Value,
    pub(super) payloads: BTreeMap<String, StoredFile>,
}

impl Meta {
    /// What was made, as its maker says it; null where it did not.
    pub fn about(&self) -> &Value {
        &self.key[ABOUT]
    }

    /// Bytes of all payloads.
    pub fn bytes(&self) -> u64 {
        self.payloads.values().map(|stored| stored.bytes).sum()
    }

    /// The text of `meta.json`.
    pub(super) fn to_text(&self) -> serde_json::Result<Vec<u8>> {
        let mut record = serde_json::to_value(self)?;
        record[CHECK] = checksum(&record).into();
        serde_json::to_vec_pretty(&record)
    }

    /// # Errors
    /// What is wrong with the text.
    fn from_text(text: &[u8]) -> Result<Self, String> {
        let mut record: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let check = record.as_object_mut().and_then(|fields| fields.remove(CHECK));
        if check != Some(checksum(&record).into()) {
            return Err("its own checksum does not fit".to_string());
        }
        serde_json::from_value(record).map_err(|error| error.to_string())
    }
}

/// The name of the checksum in the record.
const CHECK: &str = "check";

fn checksum(record: &Value) -> String {
    sha256::of_bytes(canonical(record))
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredFile {
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

/// An artifact with a sound record, whose payloads have the right sizes.
#[derive(Debug, Clone)]
pub struct StoredArtifact {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    meta: Meta,
}

impl StoredArtifact {
    /// Reads the record and compares the payloads' sizes: what is cheap.
    pub(super) fn open(disk: Arc<dyn Disk>, folder: PathBuf, key: Option<&Key>) -> Result<Self> {
        let path = folder.join(META);
        let text = disk.read(&path).map_err(|error| damaged(&path).found(error.to_string()))?;
        let meta = Meta::from_text(&text).map_err(|found| damaged(&path).found(found))?;
        if key.is_some_and(|key| Key::hash_of(&meta.key) != key.hash()) {
            return Err(damaged(&path).expected("the key that its folder is named after").found("another key"));
        }
        for (name, stored) in &meta.payloads {
            let path = folder.join(name);
            let bytes = disk.size(&path).map_err(|error| damaged(&path).found(error.to_string()))?;
            if bytes != stored.bytes {
                return Err(damaged(&path).expected(format!("{} bytes", stored.bytes)).found(bytes.to_string()));
            }
        }
        Ok(Self { disk, folder, meta })
    }

    /// Compares every payload's hash.
    ///
    /// # Errors
    /// The first payload that is not what was written.
    pub fn verify(&self) -> Result<()> {
        let same = |(name, stored): (&String, &StoredFile)| {
            let path = self.folder.join(name);
            let found = StoredFile::of(&*self.disk, &path).map_err(|error| damaged(&path).found(error.to_string()))?;
            same(&path, stored, &found)
        };
        // A few bytes are hashed sooner than another thread wakes.
        if self.meta.bytes() < 1 << 20 {
            return self.meta.payloads.iter().try_for_each(same);
        }
        let payloads: Vec<(&String, &StoredFile)> = self.meta.payloads.iter().collect();
        payloads.into_par_iter().try_for_each(same)
    }

    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Where it lies.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The names of the payloads, sorted.
    pub fn payloads(&self) -> impl Iterator<Item = &str> {
        self.meta.payloads.keys().map(String::as_str)
    }

    fn stored(&self, name: &str) -> Result<&StoredFile> {
        let missing = || damaged(&self.folder).expected(format!("a payload `{name}`")).found("none of that name");
        self.meta.payloads.get(name).ok_or_else(missing)
    }

    /// Where a payload lies; its bytes are not looked at.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn path(&self, name: &str) -> Result<PathBuf> {
        self.stored(name).map(|_| self.folder.join(name))
    }

    /// A payload to be read as it is used; its bytes are not looked at.
    ///
    /// # Errors
    /// There is none of that name, or it cannot be read.
    pub fn map(&self, name: &str) -> Result<Mapped> {
        let path = self.path(name)?;
        self.disk.map(&path).map_err(|error| Error::io("map", &path, &error))
    }

    /// A payload's bytes, which have the hash that they were written with.
    ///
    /// # Errors
    /// Damage, with what is damaged.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let stored = self.stored(name)?;
        let path = self.folder.join(name);
        let bytes = self.disk.read(&path).map_err(|error| damaged(&path).found(error.to_string()))?;
        same(&path, stored, &StoredFile { bytes: bytes.len() as u64, sha256: sha256::of_bytes(&bytes) })?;
        Ok(bytes)
    }
}

fn damaged(path: &Path) -> Error {
    Error::damaged("a stored artifact is damaged")
        .at(path.display().to_string())
        .hint("it is not used; a run makes it anew")
}

impl StoredFile {
    /// Size and hash of a file as it lies on the disk.
    pub(super) fn of(disk: &dyn Disk, path: &Path) -> std::io::Result<Self> {
        sha256::of_reader(&mut disk.reader(path)?).map(|(sha256, bytes)| Self { bytes, sha256 })
    }
}

fn same(path: &Path, stored: &StoredFile, found: &StoredFile) -> Result<()> {
    if found == stored {
        return Ok(());
    }
    Err(damaged(path).expected(format!("SHA-256 {}", stored.sha256)).found(found.sha256.clone()))
}
