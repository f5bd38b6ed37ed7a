//! Damaged entries next to the objects of a store: damaged records, and entries of the wrong type, such as a pipe,
//! socket, device or folder in place of a file, or a file in place of a folder.

use std::fs;
use std::path::{Path, PathBuf};

use super::Store;
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::{self, regular};

/// File or folder in a store that is damaged or of the wrong type.
#[derive(Debug)]
pub struct DamagedEntry {
    pub path: PathBuf,
    /// Error that describes the damage.
    pub error: Error,
    /// Message and hint for the error if the entry cannot be removed.
    removal_failure: [&'static str; 2],
}

/// Folders that contain only regular files.
const FILE_FOLDERS: [&str; 6] = ["claims", "index", "plans", "processes", "runs", "uses"];
/// Folders that contain folders of files.
const NESTED_FOLDERS: [&str; 2] = ["attempts", "journals"];

impl Store {
    /// Lists the entries of the wrong type in `FILE_FOLDERS` and `NESTED_FOLDERS`.
    pub fn unknown_entries(&self) -> Vec<DamagedEntry> {
        let mut entries = Vec::new();
        for name in FILE_FOLDERS {
            add_non_regular_entries(&self.root().join(name), &mut entries);
        }
        for name in NESTED_FOLDERS {
            for folder in files::entries(&self.root().join(name)).unwrap_or_default() {
                if folder.is_dir() {
                    add_non_regular_entries(&folder, &mut entries);
                } else if let Some(found) = regular::non_regular_kind(&folder) {
                    entries.push(DamagedEntry::of_wrong_type(folder, found, "a folder"));
                }
            }
        }
        entries
    }
}

impl DamagedEntry {
    /// Describes a record whose content does not match its checksum.
    pub(super) fn record(path: PathBuf) -> Self {
        let error = Error::damaged("a run record or plan summary is damaged")
            .at(path.display())
            .found("a checksum mismatch")
            .hint("run `ghostlab cache verify --repair` to remove the record; no results are lost");
        Self { path, error, removal_failure: ["cannot remove a damaged record", "remove the file manually"] }
    }

    fn of_wrong_type(path: PathBuf, found: &'static str, expected: &'static str) -> Self {
        let error = Error::damaged("the store contains an entry of the wrong type")
            .at(path.display())
            .expected(expected)
            .found(found)
            .hint("run `ghostlab cache verify --repair` to remove the entry (move non-empty folders manually)");
        let message = "cannot remove an entry of the wrong type from the store";
        Self { path, error, removal_failure: [message, "move the entry out of the store"] }
    }

    /// Removes the entry. A folder is removed only if it is empty.
    ///
    /// # Errors
    /// Fails if the entry cannot be removed.
    pub fn remove(&self) -> Result<()> {
        let removed = if self.path.is_dir() { fs::remove_dir(&self.path) } else { fs::remove_file(&self.path) };
        let [message, hint] = self.removal_failure;
        removed.map_err(|error| Error::damaged(message).at(self.path.display()).found(error).hint(hint))
    }
}

fn add_non_regular_entries(folder: &Path, entries: &mut Vec<DamagedEntry>) {
    for path in files::entries(folder).unwrap_or_default() {
        if let Some(found) = regular::non_regular_kind(&path) {
            entries.push(DamagedEntry::of_wrong_type(path, found, "a file"));
        }
    }
}
