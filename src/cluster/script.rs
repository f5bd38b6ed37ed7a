//! Job script shared by the array of workers and the report job.

use std::path::{Path, PathBuf};

use minijinja::context;

use super::slurm_profile::SlurmProfile;
use super::submission::Submission;
use crate::error::{Error, Result, command_line};
use crate::template;

const TEMPLATE: &str = include_str!("slurm.sh.j2");

/// Environment variables that are passed to all jobs if they are set at submission.
const PASSED_VARIABLES: [&str; 12] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "HF_HOME",
    "HF_HUB_CACHE",
    "RAYON_NUM_THREADS",
    "CUDA_HOME",
    "GHOSTLAB_EXPERIMENTS",
];

#[derive(Debug, Clone)]
pub struct JobScript<'a> {
    pub submission: &'a Submission,
    /// Number of workers.
    pub workers: usize,
    /// Maximum number of workers that run at once.
    pub at_a_time: usize,
    pub cpus: usize,
    /// Memory per worker, in megabytes.
    pub memory: u64,
    /// Additional sbatch options, one word per item.
    pub options: Vec<String>,
    pub logs: PathBuf,
    /// Profile with the setup lines and the names of additional environment variables to pass to the jobs.
    pub profile: &'a SlurmProfile,
    /// Command line of a worker, one word per item.
    pub worker: Vec<String>,
    /// Command line of the report job, one word per item.
    pub report: Vec<String>,
}

impl JobScript<'_> {
    /// Renders the script for the submission in `folder`.
    ///
    /// # Errors
    /// Fails if a path cannot be passed to the scheduler. Also fails if the template is invalid, which indicates a bug.
    pub fn render(&self, folder: &Path) -> Result<String> {
        let Submission { id, name, .. } = self.submission;
        let path = path_to_text(&folder.join(Submission::SCRIPT))?;
        let sbatch_command =
            |options: Vec<String>| command_line(["sbatch".to_owned()].into_iter().chain(options).chain([path.clone()]));
        let array = sbatch_command(self.array_options()?);
        let report = sbatch_command(self.report_options("ARRAY")?);
        // The name is in a one-line comment of the script, so it must not contain line breaks.
        let name: String = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let values = context! {
            what => format!("{name}: {} cells", self.submission.cells),
            id => id,
            array_command => array,
            report_command => report,
            name => self.submission.job_name(),
            comment => self.submission.comment(),
            cpus => self.cpus,
            memory => self.memory,
            setup => &self.profile.setup,
            export => self.exported_variables(),
            worker => command_line(self.worker.iter().cloned()),
            report => command_line(self.report.iter().cloned()),
        };
        template::render("the job script", TEMPLATE, values).map(|text| text + "\n")
    }

    fn exported_variables(&self) -> String {
        let exported = self.profile.export.iter().map(String::as_str);
        let set = PASSED_VARIABLES.into_iter().filter(|name| std::env::var_os(name).is_some());
        set.chain(exported).collect::<Vec<_>>().join(",")
    }

    /// Returns the sbatch options for the workers. They are passed as arguments, which need no quoting and override
    /// environment variables.
    ///
    /// # Errors
    /// Fails if the path of the log directory cannot be passed to the scheduler.
    pub fn array_options(&self) -> Result<Vec<String>> {
        let array = format!("--array=0-{}%{}", self.workers.max(1) - 1, self.at_a_time);
        Ok([vec![array, self.output_option("%A_%a.log")?], self.common_options()].concat())
    }

    /// Returns the sbatch options for the report job, which runs after the array.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::array_options`].
    pub fn report_options(&self, array: &str) -> Result<Vec<String>> {
        let options =
            [format!("--dependency=afterany:{array}"), "--signal=B:TERM@30".into(), self.output_option("%j.log")?];
        Ok([options.to_vec(), self.common_options()].concat())
    }

    fn common_options(&self) -> Vec<String> {
        let export = format!("--export={}", self.exported_variables());
        [export].into_iter().chain(self.options.iter().cloned()).collect()
    }

    /// Returns the `--output` option for the logs. `name` is a Slurm filename pattern. Pattern characters in the
    /// directory are escaped.
    fn output_option(&self, name: &str) -> Result<String> {
        let folder = path_to_text(&self.logs)?;
        if folder.contains('\\') {
            return Err(path_error(&self.logs).expected("a path without `\\`, which Slurm interprets"));
        }
        Ok(format!("--output={}/{name}", folder.replace('%', "%%")))
    }
}

/// Converts a path to a string that can be passed to a scheduler.
///
/// # Errors
/// Fails if the path is not UTF-8 or contains control characters.
pub fn path_to_text(path: &Path) -> Result<String> {
    let text = path.to_str().filter(|text| !text.chars().any(char::is_control));
    text.map(str::to_owned).ok_or_else(|| path_error(path).expected("a UTF-8 path on one line"))
}

fn path_error(path: &Path) -> Error {
    Error::bad_input("the path cannot be passed to the scheduler")
        .at(path.display().to_string())
        .hint("choose other folders with --store and --results")
}
