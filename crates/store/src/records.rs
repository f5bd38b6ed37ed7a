//! Small files next to the objects of a store, and checksummed records of runs and plan summaries.
//!
//! A record contains JSON, a tab and the first 16 digits of the JSON's SHA-256, like a journal line. Records of earlier
//! versions, which lack the tab and the hash, are still accepted.

use std::io::ErrorKind;
use std::path::Path;

use serde::de::IgnoredAny;

use super::Store;
use super::damaged_entry::DamagedEntry;
use super::journal::checksum;
use super::key::is_hex;
use ghostlab_core::error::{Error, Result};

impl Store {
    /// Writes a small file into the store atomically, replacing any existing one.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn put_file(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let written = self.disk.replace(path, bytes).or_else(|error| match path.parent() {
            Some(folder) if error.kind() == ErrorKind::NotFound => {
                self.disk.make_folder(folder).and_then(|()| self.disk.replace(path, bytes))
            }
            _ => Err(error),
        });
        written.map_err(|error| Error::io("write", path, &error))
    }

    /// Creates a folder in the store.
    ///
    /// # Errors
    /// Fails if the folder cannot be created.
    pub fn make_folder(&self, path: &Path) -> Result<()> {
        self.disk.make_folder(path).map_err(|error| Error::folder_io("create", path, &error))
    }

    pub fn has_file(&self, path: &Path) -> bool {
        self.disk.exists(path)
    }

    /// Reads a small file in the store. Returns `None` if it cannot be read.
    pub fn file(&self, path: &Path) -> Option<Vec<u8>> {
        self.disk.read(path).ok()
    }

    /// Reads all small files in a folder of the store. Unreadable files are skipped.
    pub fn files(&self, folder: &Path) -> Vec<Vec<u8>> {
        self.disk.list(folder).into_iter().filter_map(|name| self.disk.read(&folder.join(name)).ok()).collect()
    }

    /// Writes a record with its checksum.
    ///
    /// # Errors
    /// Fails if the store is not writable.
    pub fn put_record(&self, path: &Path, json: &[u8]) -> Result<()> {
        self.put_file(path, &[json, b"\t", checksum(json).as_bytes(), b"\n"].concat())
    }

    /// Reads the JSON of a record. Returns `None` if the record is missing or damaged.
    pub fn record(&self, path: &Path) -> Option<Vec<u8>> {
        Some(verified_json(&self.file(path)?)?.to_vec())
    }

    /// Reads the JSON of all intact records in a folder.
    pub fn records(&self, folder: &Path) -> Vec<Vec<u8>> {
        self.files(folder).iter().filter_map(|bytes| Some(verified_json(bytes)?.to_vec())).collect()
    }

    /// Returns the damaged run records and plan summaries. Files with other names are skipped.
    pub fn damaged_records(&self) -> Vec<DamagedEntry> {
        let folders = [(self.runs_dir(), is_run_record_name as fn(&str) -> bool), (self.plans(), is_plan_record_name)];
        let mut damaged = Vec::new();
        for (folder, is_record) in folders {
            let mut names: Vec<String> = self.disk.list(&folder).into_iter().filter(|name| is_record(name)).collect();
            names.sort();
            let paths = names.into_iter().map(|name| folder.join(name));
            // Skip entries that cannot be read, because they are not files or another process is removing them.
            let damaged_paths =
                paths.filter(|path| self.file(path).is_some_and(|bytes| verified_json(&bytes).is_none()));
            damaged.extend(damaged_paths.map(DamagedEntry::record));
        }
        damaged
    }
}

/// Returns the JSON of a record, if it is intact. A record without a checksum only has to be valid JSON.
fn verified_json(bytes: &[u8]) -> Option<&[u8]> {
    match bytes.iter().rposition(|byte| *byte == b'\t') {
        Some(tab) if bytes[tab + 1..].strip_suffix(b"\n") == Some(checksum(&bytes[..tab]).as_bytes()) => {
            Some(&bytes[..tab])
        }
        _ => serde_json::from_slice::<IgnoredAny>(bytes).is_ok().then_some(bytes),
    }
}

/// Returns whether a name has the form `SECONDS-PROCESS-NUMBER.json`.
fn is_run_record_name(name: &str) -> bool {
    name.strip_suffix(".json").and_then(|name| name.split_once('-')).is_some_and(|(seconds, rest)| {
        seconds.len() == 12 && seconds.bytes().all(|byte| byte.is_ascii_digit()) && rest.contains('-')
    })
}

/// Returns whether a name has the form `ID.json`.
fn is_plan_record_name(name: &str) -> bool {
    name.strip_suffix(".json").is_some_and(|id| is_hex(id, 12))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::tests::SCHEMA;

    #[test]
    fn flipped_bit_in_a_record_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), SCHEMA).unwrap();
        let json = b"{\n  \"file\": \"/a/b\"\n}";
        let run = store.runs_dir().join("000001700000-5-0123456789ab-0.json");
        let plan = store.plans().join("0123456789ab.json");
        for path in [&run, &plan] {
            store.put_record(path, json).unwrap();
            assert_eq!(store.record(path).unwrap(), json);
            let intact = fs::read(path).unwrap();
            for position in 0..intact.len() {
                for bit in 0..8 {
                    let mut bytes = intact.clone();
                    bytes[position] ^= 1 << bit;
                    fs::write(path, bytes).unwrap();
                    assert!(store.record(path).is_none(), "byte {position}, bit {bit}");
                }
            }
            let damaged = store.damaged_records();
            assert!(damaged.len() == 1 && damaged[0].path == *path, "{damaged:?}");
            assert!(damaged[0].error.to_string().contains(&*path.to_string_lossy()));
            damaged[0].remove().unwrap();
            assert!(store.damaged_records().is_empty());
        }
    }

    #[test]
    fn old_records_and_foreign_files_are_not_reported_as_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), SCHEMA).unwrap();
        let earlier = store.runs_dir().join("000001700000-5-0123456789ab-0.json");
        store.put_file(&earlier, b"{\"grid\": \"g\"}").unwrap();
        store.put_file(&store.runs_dir().join("10k.json"), b"mine").unwrap();
        store.put_file(&store.plans().join("house.json"), b"mine").unwrap();
        assert_eq!(store.record(&earlier).unwrap(), b"{\"grid\": \"g\"}");
        assert!(store.damaged_records().is_empty());
    }
}
