//! The lock file `hub.lock`. It pins each revision to a commit and records the size and SHA-256 of each file.

use std::collections::BTreeMap;
use std::path::Path;

use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::atomic::write_whole;
use ghostlab_core::files::regular;
use serde::{Deserialize, Serialize};

use crate::name::{Commit, ContentHash, FileName};
use crate::repo::Source;

/// Version of the file format.
const FORMAT_VERSION: u32 = 1;

/// Pinned repositories, as stored in the lock file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lock {
    version: u32,
    /// Pins by repository and requested revision (`org/name@main`).
    repositories: BTreeMap<String, LockedRepo>,
}

/// Pin for one repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedRepo {
    /// Full hash of the commit that the revision pointed to.
    pub commit: Commit,
    pub files: BTreeMap<FileName, LockedFile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedFile {
    pub bytes: u64,
    pub sha256: ContentHash,
}

impl Default for Lock {
    fn default() -> Self {
        Self { version: FORMAT_VERSION, repositories: BTreeMap::new() }
    }
}

impl Lock {
    pub const FILE: &str = "hub.lock";

    /// Reads the lock file, or returns an empty lock if it does not exist.
    ///
    /// # Errors
    /// Fails if the file is not a valid lock file or has another format version.
    pub fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let lock: Self =
            serde_json::from_slice(&regular::read(path)?).map_err(|error| lock_error(error.to_string(), path))?;
        if lock.version != FORMAT_VERSION {
            return Err(lock_error(
                format!("version {}, but this program supports version {FORMAT_VERSION}", lock.version),
                path,
            ));
        }
        for source in lock.repositories.keys() {
            Source::parse(source).map_err(|error| error.at(path.display()))?;
        }
        Ok(lock)
    }

    /// Writes the lock file atomically.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| Error::job("cannot serialize `hub.lock`").found(error))?;
        write_whole(path, (text + "\n").as_bytes())
    }

    /// Returns the pin for a repository, if any.
    pub fn get(&self, source: &Source) -> Option<&LockedRepo> {
        self.repositories.get(&source.to_string())
    }

    /// Pins a repository. Pins of other files at the same commit are kept, and those at another commit are dropped.
    pub fn pin(&mut self, source: &Source, repo: LockedRepo) {
        match self.repositories.get_mut(&source.to_string()) {
            Some(known) if known.commit == repo.commit => known.files.extend(repo.files),
            _ => drop(self.repositories.insert(source.to_string(), repo)),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.repositories.is_empty()
    }
}

fn lock_error(found: String, path: &Path) -> Error {
    Error::bad_input("cannot read hub.lock")
        .at(path.display())
        .found(found)
        .hint("restore the file from version control, or run `ghostlab fetch GRID --lock` for the grid that uses it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked_repo(digit: &str, names: &[&str]) -> LockedRepo {
        let files = names.iter().map(|name| {
            (
                FileName::new(name).unwrap(),
                LockedFile { bytes: 5, sha256: ContentHash::new(&digit.repeat(64)).unwrap() },
            )
        });
        LockedRepo { commit: Commit::new(&digit.repeat(40)).unwrap(), files: files.collect() }
    }

    #[test]
    fn lock_round_trips_and_drops_files_of_old_commits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(Lock::FILE);
        let source = Source::parse("o/n").unwrap();
        let mut lock = Lock::read(&path).unwrap();
        assert!(lock.is_empty() && lock.get(&source).is_none());
        lock.pin(&source, locked_repo("1", &["a"]));
        lock.pin(&source, locked_repo("1", &["b/c"]));
        lock.write(&path).unwrap();
        let read = Lock::read(&path).unwrap();
        assert_eq!(read, lock);
        assert_eq!(read.get(&source).unwrap().files.len(), 2, "files of one commit must be kept");
        assert!(read.get(&Source::parse("o/n@other").unwrap()).is_none());
        lock.pin(&source, locked_repo("2", &["d"]));
        assert_eq!(lock.get(&source), Some(&locked_repo("2", &["d"])), "files of the old commit must be removed");
    }

    #[test]
    fn error_for_invalid_lock_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(Lock::FILE);
        let commit = "1".repeat(40);
        std::fs::write(&path, one_file_lock("a", &"a".repeat(64), &commit)).unwrap();
        Lock::read(&path).unwrap();
        for (text, found) in [
            ("{".to_owned(), "EOF"),
            ("{\"version\":2,\"repositories\":{}}".to_owned(), "version 2"),
            (
                "{\"version\":1,\"repositories\":{\"o/n@main\":{\"commit\":\"main\",\"files\":{}}}}".to_owned(),
                "invalid commit",
            ),
            (
                format!("{{\"version\":1,\"repositories\":{{\"../x\":{{\"commit\":\"{commit}\",\"files\":{{}}}}}}}}"),
                "invalid repository name",
            ),
            (one_file_lock("../a", &"a".repeat(64), &commit), "contains `.` or `..`"),
            (one_file_lock("a", "abc", &commit), "invalid SHA-256"),
            (one_file_lock("a", &"g".repeat(64), &commit), "invalid SHA-256"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = Lock::read(&path).unwrap_err();
            assert!(error.to_string().contains(found) && error.to_string().contains("hub.lock"), "{error}");
        }
    }

    fn one_file_lock(name: &str, sha256: &str, commit: &str) -> String {
        format!(
            "{{\"version\":1,\"repositories\":{{\"o/n@main\":{{\"commit\":\"{commit}\",\"files\":{{\"{name}\":{{\"bytes\":1,\"sha256\":\"{sha256}\"}}}}}}}}}}"
        )
    }
}
