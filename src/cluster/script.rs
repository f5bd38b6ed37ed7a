//! The job script: one for the array of workers and for the report after it.

use std::path::Path;

use minijinja::{Environment, context};

use super::submission::Submission;
use crate::error::{Error, Result};

const TEMPLATE: &str = include_str!("slurm.sh.j2");

/// The variables that jobs have where they are set.
const EXPORTED: [&str; 12] = [
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

/// What makes a job script.
#[derive(Debug, Clone)]
pub struct JobScript<'a> {
    pub submission: &'a Submission,
    pub workers: ArrayRequest,
    pub cpus: usize,
    /// Megabytes.
    pub memory: u64,
    /// `gpu:1`, `gpu:a100:1`; none on the CPU.
    pub gres: Option<String>,
    /// Further options of sbatch.
    pub options: Vec<String>,
    pub setup: Vec<String>,
    /// Names of variables beside those that every job has.
    pub export: Vec<String>,
    /// The commands, word by word.
    pub worker: Vec<String>,
    pub report: Vec<String>,
}

/// How many workers, and how many of them at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrayRequest {
    pub workers: usize,
    pub at_a_time: usize,
}

impl JobScript<'_> {
    /// The script's text; `folder` is where the submission lies.
    ///
    /// # Errors
    /// A template that does not fit, which is a fault of the program.
    pub fn render(&self, folder: &Path) -> Result<String> {
        let Submission { id, name, .. } = self.submission;
        let script = folder.join(Submission::SCRIPT);
        let path = script.display().to_string();
        let [array, report] = [self.array_options(), self.report_options("ARRAY")]
            .map(|options| line(["sbatch".to_owned()].into_iter().chain(options).chain([path.clone()])));
        let values = context! {
            what => format!("{name}: {} cells", self.submission.cells),
            id => id,
            array_command => array,
            report_command => report,
            name => self.submission.job_name(),
            comment => self.submission.comment(),
            logs => folder.join("logs").join("%A_%a.log").display().to_string(),
            cpus => self.cpus,
            memory => self.memory,
            gres => &self.gres,
            options => &self.options,
            setup => &self.setup,
            export => self.exported(),
            worker => line(self.worker.iter().cloned()),
            report => line(self.report.iter().cloned()),
        };
        let mut templates = Environment::new();
        let failed =
            |error: minijinja::Error| Error::job("the job script cannot be written").found(format!("{error:#}"));
        templates.add_template("slurm.sh", TEMPLATE).map_err(failed)?;
        let text = templates.get_template("slurm.sh").and_then(|template| template.render(values)).map_err(failed)?;
        Ok(text + "\n")
    }

    fn exported(&self) -> String {
        let own = self.export.iter().map(String::as_str);
        let set = EXPORTED.into_iter().filter(|name| std::env::var_os(name).is_some());
        set.chain(own).collect::<Vec<_>>().join(",")
    }

    /// What sbatch is told of the workers. The environment's own wishes count less than the command line.
    pub fn array_options(&self) -> Vec<String> {
        let ArrayRequest { workers, at_a_time } = self.workers;
        vec![format!("--array=0-{}%{at_a_time}", workers.max(1) - 1), format!("--export={}", self.exported())]
    }

    /// The same of the report, after the array of this number.
    pub fn report_options(&self, array: &str) -> Vec<String> {
        let signal = "--signal=B:TERM@30".into();
        vec![format!("--dependency=afterany:{array}"), signal, format!("--export={}", self.exported())]
    }
}

/// Words as a shell reads them.
fn line(words: impl Iterator<Item = String>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,%@+".contains(c);
    let quoted = |word: String| match !word.is_empty() && word.chars().all(plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_shell_as_they_are() {
        let words = ["a b", "it's", "$HOME", "--set=depth=7,9", ""].map(str::to_owned);
        assert_eq!(line(words.into_iter()), r"'a b' 'it'\''s' '$HOME' --set=depth=7,9 ''");
    }
}
