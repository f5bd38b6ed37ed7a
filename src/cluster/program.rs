//! Copies of programs below a store, which a scheduler's jobs run: kept as long as a job may run them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::queue::Queue;
use super::submission::Submission;
use crate::error::{Error, Result};
use crate::store::Store;

/// The copy's name in its folder.
const NAME: &str = "ghostlab";
/// For so long a job that is out of the queue may be queued again, and who freezes a program may take to submit it.
const QUIET: Duration = Duration::from_secs(24 * 3600);

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

    /// Those that no job runs or may run any more: of all submissions that name one, nothing is queued or running, nothing
    /// stirred for a day, and the scheduler says so. Where anything of that is not known they stay: a scheduler that does not
    /// answer, another user's submission, one that this program cannot read.
    pub fn unneeded(store: &Store) -> Vec<Self> {
        let mut quiet: Vec<Self> = Self::all(store).into_iter().filter(|of| of.age() >= QUIET).collect();
        if quiet.is_empty() {
            return quiet;
        }
        let Some(submissions) = Submission::every(store) else { return Vec::new() };
        let named: BTreeSet<&str> = submissions.iter().map(|of| of.binary.sha256.as_str()).collect();
        let asks = quiet.iter().any(|of| named.contains(of.sha256.as_str()));
        let queue = if asks { Queue::ask("now-30days").ok() } else { None };
        let over = |of: &Submission| {
            let folder = of.folder(store);
            let gone = match (of.jobs(store).any(), &queue) {
                (false, _) => true,
                (true, Some(queue)) => queue.of(of).next().is_none(),
                (true, None) => false,
            };
            gone && is_mine(&folder) && stirred(&folder) >= QUIET
        };
        quiet.retain(|program| submissions.iter().filter(|of| of.binary.sha256 == program.sha256).all(over));
        quiet
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

/// How long ago anything of a submission was written: its notes, its logs, how its jobs ended.
fn stirred(folder: &Path) -> Duration {
    let below = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|of| of.path());
    let all = below(folder).flat_map(|path| below(&path).collect::<Vec<_>>().into_iter().chain([path]));
    all.map(|path| since(&path)).min().unwrap_or_default()
}

/// How long ago a path was written; no time at all where that is not known.
fn since(path: &Path) -> Duration {
    let written = path.symlink_metadata().and_then(|data| data.modified());
    written.ok().and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or_default()
}

/// Whether it is this user's: the scheduler tells nobody of another user's jobs.
#[cfg(unix)]
fn is_mine(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let owner = |path: &Path| fs::metadata(path).map(|data| data.uid()).ok();
    owner(path).is_some_and(|of| owner(Path::new("/proc/self")) == Some(of))
}

#[cfg(not(unix))]
fn is_mine(_: &Path) -> bool {
    false
}
