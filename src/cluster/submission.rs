//! Submissions: grids frozen in the store, each with its lock file, the hashes of its inputs, and the program.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Binary;
use super::queue::{self, JobEnd, Queue};
use crate::error::{Error, Result};
use crate::files::{self, regular, sha256};
use crate::grid::Grid;
use crate::pipeline::plan::Inputs;
use ghostlab_store::{Store, fault};

/// Grid that is frozen for submission to a scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    pub format: u64,
    /// First 12 digits of the SHA-256 of the other fields.
    pub id: String,
    /// ID of the plan's [`Outline`](crate::pipeline::plan::Outline) in the store.
    pub plan: String,
    pub name: String,
    pub cells: usize,
    pub artifact: Option<ArtifactCall>,
    /// Overrides given on the command line.
    pub overrides: Vec<String>,
    grid: Value,
    /// Frozen grid for the gate: the dense backbones, which must reproduce the paper's numbers before pruned cells run.
    gate: Option<Value>,
    /// Contents of `hub.lock` at the time of submission.
    lock: Option<String>,
    /// SHA-256 of each input file, keyed by path.
    inputs: BTreeMap<String, String>,
    pub binary: Binary,
    #[serde(default)]
    pub engine: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArtifactCall {
    pub file: PathBuf,
    pub profile: Option<String>,
    /// Whether the dense backbones must reproduce the paper's numbers.
    pub gated: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmittedJobs {
    /// Type (`array` or `report`) and number of each job, oldest first.
    pub jobs: Vec<(String, String)>,
    /// Type of the job that is being submitted. If it is still set after a crash, only the scheduler knows whether it
    /// accepted the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "handing")]
    pub pending: Option<String>,
}

impl SubmittedJobs {
    pub const ARRAY: &str = "array";
    /// Type of the report job, which runs after the array.
    pub const REPORT: &str = "report";

    /// Returns whether the scheduler may have accepted jobs of the submission.
    pub fn may_have_jobs(&self) -> bool {
        self.pending.is_some() || !self.jobs.is_empty()
    }
}

fn json_error(error: serde_json::Error) -> Error {
    Error::job("cannot write the submission as JSON").found(error)
}

const FORMAT_VERSION: u64 = 1;

impl Submission {
    /// Name of the submission file. Commands accept it in place of a grid file and then use the frozen grid.
    pub const FILE: &str = "submission.json";
    pub const SCRIPT: &str = "job.sh";
    const JOBS: &str = "jobs.json";

    /// Freezes a grid and the grid for its gate. `plan` is the ID of the plan, and `engine` describes its engines.
    ///
    /// # Errors
    /// Fails if the grid cannot be frozen.
    pub fn freeze(
        name: &str,
        artifact: Option<ArtifactCall>,
        overrides: &[String],
        grids: (&Grid, Option<&Grid>),
        inputs: &[&Inputs],
        (plan, engine): (String, String),
        binary: Binary,
    ) -> Result<Self> {
        let (grid, gate) = grids;
        let lock = fs::read_to_string(&grid.lock_file).ok();
        let inputs = inputs.iter().flat_map(|inputs| inputs.hashes_by_path());
        let mut submission = Self {
            format: FORMAT_VERSION,
            id: String::new(),
            plan,
            name: name.to_owned(),
            cells: grid.cells.len(),
            artifact,
            overrides: overrides.to_vec(),
            grid: grid.frozen()?,
            gate: gate.map(Grid::frozen).transpose()?,
            lock,
            inputs: inputs.map(|(path, hash)| (files::absolute(path.as_ref()).display().to_string(), hash)).collect(),
            binary,
            engine,
        };
        let text = serde_json::to_string(&submission).map_err(json_error)?;
        submission.id = sha256::of_bytes(text)[..12].to_owned();
        Ok(submission)
    }

    pub fn folder(&self, store: &Store) -> PathBuf {
        store.submissions().join(&self.id)
    }

    pub fn job_name(&self) -> String {
        format!(
            "ghostlab-{}-{}",
            self.name
                .chars()
                .take(24)
                .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' })
                .collect::<String>(),
            &self.plan
        )
    }

    /// Returns the comment that identifies the submission's jobs in the scheduler.
    pub fn comment(&self) -> String {
        format!("ghostlab:{}:{}", self.plan, self.id)
    }

    /// Writes the submission file and the job script.
    pub fn write(&self, store: &Store, script: &str) -> Result<()> {
        let folder = self.folder(store);
        for name in [JobEnd::LOGS, JobEnd::FOLDER] {
            store.make_folder(&folder.join(name))?;
        }
        self.write_json(store, Self::FILE, self)?;
        store.put_file(&folder.join(Self::SCRIPT), script.as_bytes())
    }

    /// Writes a JSON file into the folder of the submission.
    fn write_json(&self, store: &Store, name: &str, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(value).map_err(json_error)?;
        store.put_file(&self.folder(store).join(name), text.as_bytes())
    }

    /// Reads all submissions in a store, sorted by ID. Skips those that are unreadable.
    pub fn all(store: &Store) -> Vec<Self> {
        Self::read_each(store).filter_map(Result::ok).collect()
    }

    /// Reads all submissions in a store. Returns `None` if one of them is unreadable.
    pub(super) fn all_if_readable(store: &Store) -> Option<Vec<Self>> {
        Self::read_each(store).map(Result::ok).collect()
    }

    fn read_each(store: &Store) -> impl Iterator<Item = Result<Self>> + use<> {
        // The folders are named after the IDs.
        let folders = files::entries(&store.submissions()).unwrap_or_default().into_iter();
        folders.map(|folder| Self::read(&folder.join(Self::FILE)))
    }

    pub fn inputs(&self) -> &BTreeMap<String, String> {
        &self.inputs
    }

    /// Reads a submission file.
    ///
    /// # Errors
    /// Fails if the file is not a submission or has another format version.
    pub fn read(file: &Path) -> Result<Self> {
        let value: Value = serde_json::from_slice(&regular::read(file)?)
            .map_err(|error| damaged_record_error(file, error.to_string()))?;
        if value["format"] != FORMAT_VERSION {
            return Err(damaged_record_error(file, format!("format {}", value["format"]))
                .expected(format!("format {FORMAT_VERSION}")));
        }
        serde_json::from_value(value).map_err(|error| damaged_record_error(file, error.to_string()))
    }

    pub fn is_submission(path: &Path) -> bool {
        path.file_name().is_some_and(|name| name == Self::FILE)
    }

    /// Returns the grid and the grid for the gate.
    ///
    /// # Errors
    /// Fails if this program does not support the frozen format.
    pub fn grids(&self) -> Result<(Grid, Option<Grid>)> {
        Ok((Grid::from_frozen(&self.grid)?, self.gate.as_ref().map(Grid::from_frozen).transpose()?))
    }

    /// Checks that the program and the inputs are still the ones that were submitted.
    ///
    /// # Errors
    /// Fails if one of them changed, because a table would then mix results from two versions.
    pub fn check(&self, store: &Store) -> Result<()> {
        let this = Binary::current(store)?;
        if this.sha256 != self.binary.sha256 {
            return Err(Error::bad_input("this program differs from the one that submitted the grid")
                .at(this.path.display().to_string())
                .expected(format!("SHA-256 {}", self.binary.sha256))
                .found(this.sha256)
                .hint("run the copy in the store's folder `programs`, or submit the grid again"));
        }
        for (path, hash) in &self.inputs {
            let found = store.input(Path::new(path))?;
            if found.sha256() != hash {
                return Err(Error::bad_input("an input has changed since the grid was submitted")
                    .at(path.clone())
                    .expected(format!("SHA-256 {hash}"))
                    .found(found.sha256().to_owned())
                    .hint("submit the grid again"));
            }
        }
        Ok(())
    }

    pub fn jobs(&self, store: &Store) -> SubmittedJobs {
        let text = store.file(&self.folder(store).join(Self::JOBS)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Submits a job of type `array` or `report` with sbatch. Records the attempt beforehand and the job number
    /// afterwards. If the process is killed in between, [`Self::find_jobs`] recovers the job.
    ///
    /// # Errors
    /// Fails if the store is not writable or the scheduler rejects the job.
    pub fn submit(&self, store: &Store, job_type: &str, options: &[String], script: &str) -> Result<String> {
        let mut jobs = self.jobs(store);
        jobs.pending = Some(job_type.to_owned());
        self.write_jobs(store, &jobs)?;
        let sbatch = queue::start_sbatch(options, script).inspect_err(|_| {
            jobs.pending = None;
            self.write_jobs(store, &jobs).ok();
        })?;
        let number = queue::read_job_number(sbatch, script)?;
        fault::fault_point("handed-over");
        jobs.pending = None;
        jobs.jobs.push((job_type.to_owned(), number.clone()));
        self.write_jobs(store, &jobs).map(|()| number)
    }

    /// Records the jobs of this submission that the scheduler lists and that are not recorded yet. Returns all recorded
    /// jobs.
    pub fn find_jobs(&self, store: &Store, queue: &Queue) -> Result<SubmittedJobs> {
        let mut jobs = self.jobs(store);
        for job in queue.jobs_with_comment(&self.comment()) {
            let (number, what) = match job.id.split_once('_') {
                Some((number, _)) => (number, SubmittedJobs::ARRAY),
                None => (job.id.as_str(), SubmittedJobs::REPORT),
            };
            if jobs.jobs.iter().all(|(_, known)| known != number) {
                jobs.jobs.push((what.to_owned(), number.to_owned()));
                self.write_jobs(store, &jobs)?;
            }
        }
        Ok(jobs)
    }

    fn write_jobs(&self, store: &Store, jobs: &SubmittedJobs) -> Result<()> {
        self.write_json(store, Self::JOBS, jobs)
    }
}

fn damaged_record_error(file: &Path, found: String) -> Error {
    Error::bad_input("cannot read the submission").at(file.display().to_string()).found(found)
}
