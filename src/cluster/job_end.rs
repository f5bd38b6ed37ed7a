//! How jobs of a submission ended that did not do what they were started for: what `status` tells of a worker that refused to
//! begin, and of which the store knows nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::files::atomic::{is_temporary, write_atomically};
use crate::files::{owner, regular};
use crate::machine;
use ghostlab_store::Shared;

/// A scheduler's job that ended without its work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobEnd {
    /// The scheduler's name of it: `45_0`, a task of an array, or `46`.
    pub job: String,
    /// Its exit code.
    pub exit_code: u8,
    /// Why.
    pub reason: String,
    /// What it said.
    #[serde(serialize_with = "crate::files::shown::path")]
    #[schemars(with = "String")]
    pub log: PathBuf,
    /// The machine's name.
    pub host: String,
    /// When, in seconds since 1970 (UTC), by that machine's clock.
    pub time: u64,
}

impl JobEnd {
    /// The folder of the jobs' logs, beside the submission's file.
    pub const LOGS: &str = "logs";
    /// That of their ends.
    pub(super) const FOLDER: &str = "ends";

    /// Notes how the job that this process is ended, beside the submission's file; a better end takes the note of a worse
    /// one away. Without a scheduler nothing is noted: whoever started it sees it.
    pub fn note(submission: &Path, bad: Option<(u8, String)>) {
        let (Some(job), Some(folder)) = (machine::scheduler_job(), submission.parent()) else { return };
        let path = folder.join(Self::FOLDER).join(format!("{job}.json"));
        let noted = match bad {
            None => fs::remove_file(&path).map_err(|error| Error::io("remove", &path, &error)),
            Some((exit_code, reason)) => {
                let log = folder.join(Self::LOGS).join(format!("{job}.log"));
                let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
                Self { job, exit_code, reason, log, host: owner::host(), time }.put(&path)
            }
        };
        // Where it cannot be written down the log has it.
        noted.ok();
    }

    fn put(&self, path: &Path) -> Result<()> {
        let folder = path.parent().unwrap_or(path);
        fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
        write_atomically(path, |file| {
            serde_json::to_writer_pretty(file, self)
                .map_err(|error| Error::job("a job's end has no JSON form").found(error.to_string()))
        })?;
        Shared::as_its_folder(path);
        Ok(())
    }

    /// What is noted in a submission's folder, the oldest first.
    pub fn all(folder: &Path) -> Vec<Self> {
        let files = fs::read_dir(folder.join(Self::FOLDER)).into_iter().flatten().flatten();
        let whole = files.filter(|file| !is_temporary(&file.file_name().to_string_lossy()));
        let read = |path: PathBuf| serde_json::from_slice::<Self>(&regular::read(&path).ok()?).ok();
        let mut ends: Vec<Self> = whole.filter_map(|file| read(file.path())).collect();
        ends.sort_by(|a, b| (a.time, &a.job).cmp(&(b.time, &b.job)));
        ends
    }
}
