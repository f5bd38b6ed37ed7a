//! Store entries of the wrong type, such as a pipe, socket, device or folder in place of a file, or a file in place of
//! a folder.

use std::fs;
use std::path::{Path, PathBuf};

use super::Store;
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::{self, regular};

/// Entry of the wrong type.
#[derive(Debug)]
pub struct UnknownEntry {
    pub path: PathBuf,
    found: &'static str,
    expected: &'static str,
}

/// Folders that contain only regular files.
const FILE_FOLDERS: [&str; 6] = ["claims", "index", "plans", "processes", "runs", "uses"];
/// Folders that contain folders of files.
const NESTED_FOLDERS: [&str; 2] = ["attempts", "journals"];

impl Store {
    /// Lists the entries of the wrong type in `FILE_FOLDERS` and `NESTED_FOLDERS`.
    pub fn unknown_entries(&self) -> Vec<UnknownEntry> {
        let mut entries = Vec::new();
        for name in FILE_FOLDERS {
            add_non_regular_entries(&self.root().join(name), &mut entries);
        }
        for name in NESTED_FOLDERS {
            for folder in files::entries(&self.root().join(name)).unwrap_or_default() {
                if folder.is_dir() {
                    add_non_regular_entries(&folder, &mut entries);
                } else if let Some(found) = regular::non_regular_kind(&folder) {
                    entries.push(UnknownEntry { path: folder, found, expected: "a folder" });
                }
            }
        }
        entries
    }
}

impl UnknownEntry {
    pub fn error(&self) -> Error {
        Error::damaged("the store contains an entry of the wrong type")
            .at(self.path.display())
            .expected(self.expected)
            .found(self.found)
            .hint("run `ghostlab cache verify --repair` to remove the entry (move non-empty folders manually)")
    }

    /// Removes the entry. A folder is removed only if it is empty.
    ///
    /// # Errors
    /// Fails if the entry cannot be removed.
    pub fn remove(&self) -> Result<()> {
        let removed = if self.path.is_dir() { fs::remove_dir(&self.path) } else { fs::remove_file(&self.path) };
        removed.map_err(|error| {
            Error::damaged("cannot remove an entry of the wrong type from the store")
                .at(self.path.display())
                .found(error)
                .hint("move the entry out of the store")
        })
    }
}

fn add_non_regular_entries(folder: &Path, entries: &mut Vec<UnknownEntry>) {
    for path in files::entries(folder).unwrap_or_default() {
        if let Some(found) = regular::non_regular_kind(&path) {
            entries.push(UnknownEntry { path, found, expected: "a file" });
        }
    }
}
