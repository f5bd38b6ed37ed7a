//! Submission of a grid to a scheduler, which starts any number of workers (layer 3 of the architecture).
//!
//! The scheduler only starts, stops and lists jobs. Progress is read from the store. This module also manages the
//! frozen copies of the program, which are kept for as long as a job may run them.

mod options;
mod queue;
mod script;
mod slurm_profile;
mod submission;

pub use options::{MIN_TIME_LIMIT, check_options, time_limit};
pub use queue::{JobEnd, Queue, QueuedJob, cancel, scontrol_requeue};
pub use script::{JobScript, path_to_text};
pub use slurm_profile::{GpuType, SlurmProfile};
pub use submission::{ArtifactCall, Submission, SubmittedJobs};

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::files::atomic::write_atomically;
use crate::files::{self, regular, sha256};
use ghostlab_store::{Store, StoreSharing};

/// Minimum age of a frozen copy that may be removed. It covers requeued jobs and the time between freezing the program
/// and submitting the jobs.
const MIN_IDLE_TIME: Duration = Duration::from_secs(24 * 3600);

/// Returns the frozen copies that no job can run anymore. They are at least a day old, and each submission that uses
/// them belongs to this user, has no queued or running jobs, and has been idle for a day. All copies are kept if a
/// submission is unreadable. If the scheduler does not respond, copies with submitted jobs are kept.
pub fn unused_programs(store: &Store) -> Vec<FrozenProgram> {
    let mut unused: Vec<FrozenProgram> =
        FrozenProgram::all(store).into_iter().filter(|program| program.age() >= MIN_IDLE_TIME).collect();
    if unused.is_empty() {
        return unused;
    }
    let Some(submissions) = Submission::all_if_readable(store) else { return Vec::new() };
    let named: BTreeSet<&str> = submissions.iter().map(|submission| submission.binary.sha256.as_str()).collect();
    let needs_queue = unused.iter().any(|program| named.contains(program.sha256.as_str()));
    let queue = if needs_queue { Queue::query().ok() } else { None };
    unused.retain(|program| {
        submissions.iter().filter(|submission| submission.binary.sha256 == program.sha256).all(|submission| {
            let folder = submission.folder(store);
            let has_ended = match (submission.jobs(store).may_have_jobs(), &queue) {
                (false, _) => true,
                (true, Some(queue)) => queue.jobs_with_comment(&submission.comment()).next().is_none(),
                (true, None) => false,
            };
            has_ended && is_owned_by_user(&folder) && idle_time(&folder) >= MIN_IDLE_TIME
        })
    });
    unused
}

/// Returns the time since the last modification of a submission's files or subdirectories.
fn idle_time(folder: &Path) -> Duration {
    let outer = files::entries(folder).unwrap_or_default().into_iter();
    let all = outer.flat_map(|path| files::entries(&path).unwrap_or_default().into_iter().chain([path]));
    all.map(|path| time_since_modified(&path)).min().unwrap_or_default()
}

/// Returns whether a path belongs to this user. The scheduler does not show the jobs of other users.
#[cfg(unix)]
fn is_owned_by_user(path: &Path) -> bool {
    owner(path).is_some_and(|user| owner(Path::new("/proc/self")) == Some(user))
}

#[cfg(unix)]
fn owner(path: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).map(|data| data.uid()).ok()
}

#[cfg(not(unix))]
fn is_owned_by_user(_: &Path) -> bool {
    false
}

/// File name of a frozen copy of the program.
const PROGRAM_FILE_NAME: &str = "ghostlab";

/// Copy of the program, frozen when jobs were submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrozenProgram {
    pub sha256: String,
    pub path: PathBuf,
    pub bytes: u64,
}

impl FrozenProgram {
    /// Lists the frozen copies in a store, sorted by hash.
    pub fn all(store: &Store) -> Vec<Self> {
        let folders = files::entries(&store.programs()).unwrap_or_default();
        let all = folders.into_iter().filter_map(|folder| {
            let sha256 = folder.file_name()?.to_str()?.to_owned();
            let is_hash = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
            let path = Some(folder.join(PROGRAM_FILE_NAME)).filter(|_| is_hash)?;
            let data = path.symlink_metadata().ok().filter(fs::Metadata::is_file)?;
            Some(Self { sha256, path, bytes: data.len() })
        });
        all.collect()
    }

    /// Returns the time since the copy was created or last used for a submission.
    pub fn age(&self) -> Duration {
        time_since_modified(&self.path).min(self.path.parent().map_or(Duration::ZERO, time_since_modified))
    }

    pub fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("remove", &self.path, &error));
            }
            _ => {}
        }
        // Ignore the error: the directory may not be empty.
        self.path.parent().map(fs::remove_dir);
        Ok(())
    }
}

/// Returns the time since a path was last modified, or zero if unknown.
fn time_since_modified(path: &Path) -> Duration {
    let written = path.symlink_metadata().and_then(|data| data.modified());
    written.ok().and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or_default()
}

/// Path and hash of the program that workers must run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binary {
    pub path: PathBuf,
    pub sha256: String,
}

impl Binary {
    /// Locates the running program and hashes it through the cache in the store.
    pub fn current(store: &Store) -> Result<Self> {
        let found = std::env::current_exe();
        let path = found.map_err(|error| Error::io("find", Path::new("/proc/self/exe"), &error))?;
        let sha256 = store.input(&path)?.sha256().to_owned();
        Ok(Self { path, sha256 })
    }

    /// Returns the path of the program's frozen copy in a store.
    pub fn frozen_path(&self, store: &Store) -> PathBuf {
        store.programs().join(&self.sha256).join(PROGRAM_FILE_NAME)
    }

    /// Copies the program into the store, so that rebuilding it does not affect submitted jobs.
    ///
    /// # Errors
    /// Fails if the store is not writable or the program has just changed.
    pub fn freeze(&self, store: &Store) -> Result<PathBuf> {
        let path = self.frozen_path(store);
        let folder = path.parent().unwrap_or(&path);
        // Refresh the modification time so that no other process removes the copy before its submission is written.
        // This fails if another user owns the directory. Ignore the error, because the submission is written moments
        // later.
        File::open(folder).and_then(|folder| folder.set_modified(SystemTime::now())).ok();
        if sha256::of_file(&path).is_ok_and(|(found, _)| found == self.sha256) {
            return Ok(path);
        }
        store.make_folder(folder)?;
        write_atomically(&path, |file| {
            io::copy(&mut regular::open(&self.path)?, file).map_err(|error| Error::io("write", &path, &error))?;
            make_executable(file).map_err(|error| Error::io("write", &path, &error))
        })?;
        StoreSharing::inherit_folder_mode(&path);
        let (found, _) = sha256::of_file(&path).map_err(|error| Error::io("read", &path, &error))?;
        if found == self.sha256 {
            return Ok(path);
        }
        fs::remove_file(&path).ok();
        Err(Error::bad_input("the program changed during the submission")
            .at(self.path.display().to_string())
            .expected(format!("SHA-256 {}", self.sha256))
            .found(found)
            .hint("submit again after the build"))
    }
}

/// Makes a file executable for every user who may read it.
#[cfg(unix)]
fn make_executable(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = file.metadata()?.permissions().mode();
    file.set_permissions(fs::Permissions::from_mode(mode | (mode & 0o444) >> 2))
}

#[cfg(not(unix))]
fn make_executable(_: &File) -> io::Result<()> {
    Ok(())
}
