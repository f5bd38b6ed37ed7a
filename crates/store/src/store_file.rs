//! Small files next to the objects of a store.

use std::io::ErrorKind;
use std::path::Path;

use ghostlab_core::error::{Error, Result};

use crate::Store;

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
}
