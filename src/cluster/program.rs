//! Copies of programs below a store, which a scheduler's jobs run.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};
use ghostlab_store::Store;

/// The copy's name in its folder.
const NAME: &str = "ghostlab";
/// A program as it was when something was submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrozenProgram {
    pub sha256: String,
    pub path: PathBuf,
    pub bytes: u64,
}

impl FrozenProgram {
    /// Where the copy of a program lies below a store, or would.
    pub fn place(store: &Store, sha256: &str) -> PathBuf {
        store.programs().join(sha256).join(NAME)
    }

    /// Says that it is used again, so that nobody throws it away before its submission is written.
    pub(super) fn touch(place: &Path) {
        let Some(folder) = place.parent() else { return };
        // Another user's folder stays as old as it is: then the submission is there a moment later.
        File::open(folder).and_then(|folder| folder.set_modified(SystemTime::now())).ok();
    }

    /// All of a store.
    pub fn all(store: &Store) -> Vec<Self> {
        let folders = fs::read_dir(store.programs()).into_iter().flatten().flatten();
        let mut all: Vec<Self> = folders
            .filter_map(|folder| {
                let sha256 = folder.file_name().into_string().ok()?;
                let is_hash = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
                let path = Some(folder.path().join(NAME)).filter(|_| is_hash)?;
                let data = path.symlink_metadata().ok().filter(fs::Metadata::is_file)?;
                Some(Self { sha256, path, bytes: data.len() })
            })
            .collect();
        all.sort_by(|a, b| a.sha256.cmp(&b.sha256));
        all
    }

    /// How long ago it was made, or used for a submission.
    pub fn age(&self) -> Duration {
        since(&self.path).min(self.path.parent().map_or(Duration::ZERO, since))
    }

    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("remove", &self.path, &error));
            }
            _ => {}
        }
        // Only where it is empty.
        self.path.parent().map(fs::remove_dir);
        Ok(())
    }
}

/// How long ago a path was written; no time at all where that is not known.
pub(super) fn since(path: &Path) -> Duration {
    let written = path.symlink_metadata().and_then(|data| data.modified());
    written.ok().and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or_default()
}
