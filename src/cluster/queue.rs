//! Slurm's commands: listing and cancelling jobs. Each may be absent, slow or broken; none is asked for progress. Also
//! how a submission's jobs ended that could not start, so that `status` can report a worker of which the store knows
//! nothing.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::files::atomic::{is_temporary, write_atomically};
use crate::files::{owner, regular};
use crate::machine;
use ghostlab_store::Shared;

/// Timeout of a query.
const PATIENCE: Duration = Duration::from_secs(2);
/// Timeout of an action.
const WORKING: Duration = Duration::from_secs(60);

/// A job as the scheduler shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct QueuedJob {
    /// `45_1`, `45_[2-3]`, `46`
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its state in the scheduler's words: `PENDING`, `RUNNING`.
    pub state: String,
    /// Why it waits; empty where that is not told.
    pub reason: String,
    /// Its comment, which tells whose it is.
    pub comment: String,
}

/// The scheduler's list of this user's jobs.
#[derive(Debug, Clone, Serialize)]
pub struct Queue {
    /// Which command told it.
    pub told_by: &'static str,
    pub jobs: Vec<QueuedJob>,
}

const FORMAT: &str = "%i|%j|%T|%r|%k";

impl Queue {
    /// Queries squeue within two seconds, or else sacct.
    ///
    /// # Errors
    /// Why neither does.
    pub fn ask() -> Result<Self, String> {
        let asked = answer("squeue", &["--me", "--noheader", "-o", FORMAT], PATIENCE);
        match asked {
            Ok(text) => Ok(Self { told_by: "squeue", jobs: text.lines().filter_map(parsed).collect() }),
            Err(reason) => {
                let format = "JobID,JobName,State,Reason,Comment";
                let arguments = ["-X", "-n", "-P", "-S", "now-30days", "-o", format];
                let text = answer("sacct", &arguments, PATIENCE).map_err(|_| reason)?;
                let jobs = text.lines().filter_map(parsed).filter(|job| !ended(&job.state)).collect();
                Ok(Self { told_by: "sacct", jobs })
            }
        }
    }

    /// Returns the jobs of a submission by its comment ([`Submission::comment`](super::Submission::comment)), because job
    /// numbers are reused.
    pub fn of(&self, comment: &str) -> impl Iterator<Item = &QueuedJob> {
        self.jobs.iter().filter(move |job| job.comment == comment)
    }
}

fn ended(state: &str) -> bool {
    let word = state.split_whitespace().next().unwrap_or_default();
    !["PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "CONFIGURING", "COMPLETING"].contains(&word)
}

fn parsed(line: &str) -> Option<QueuedJob> {
    let mut fields = line.trim().splitn(5, '|').map(str::to_owned);
    let mut next = || fields.next();
    let id = next()?;
    let name = next()?;
    let state = next()?;
    let reason = next()?;
    let reason = if reason == "None" { String::new() } else { reason };
    Some(QueuedJob { id, name, state, reason, comment: next()? })
}

/// A job that sbatch did not take, as far as it says.
pub struct NotTaken {
    pub error: Error,
    /// Whether there is no sbatch: then nothing is queued.
    pub absent: bool,
}

/// Hands a script to sbatch; the job's number.
///
/// # Errors
/// What sbatch says against it.
pub fn sbatch(options: &[String], script: &str) -> Result<String, NotTaken> {
    let mut arguments = vec!["--parsable"];
    arguments.extend(options.iter().map(String::as_str));
    arguments.push(script);
    let text = told("sbatch", &arguments, WORKING).map_err(|SilentCommand { reason, absent }| NotTaken {
        absent,
        error: Error::missing("sbatch did not take the job")
            .at(script)
            .found(reason)
            .hint("`ghostlab submit slurm … --dry-run` prints the script; run workers by hand where there is no Slurm"),
    })?;
    // `NUMBER` or `NUMBER;CLUSTER`
    let number = text.trim().split(';').next().unwrap_or_default().to_owned();
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        let error = Error::missing("sbatch named no job").found(text.trim().to_owned());
        return Err(NotTaken { error, absent: false });
    }
    Ok(number)
}

/// Ends jobs, by their numbers.
///
/// # Errors
/// What scancel says.
pub fn cancel(numbers: &[String]) -> Result<()> {
    let arguments: Vec<&str> = numbers.iter().map(String::as_str).collect();
    answer("scancel", &arguments, WORKING)
        .map(drop)
        .map_err(|reason| Error::missing("scancel failed").found(reason).hint("`squeue --me` shows the remaining jobs"))
}

/// Asks for the job that this process is to be queued again, and ended: of an array, this task and no other.
///
/// # Errors
/// What scontrol says, or that this is no job of Slurm's.
pub fn scontrol_requeue() -> Result<(), String> {
    let job = machine::scheduler_job().ok_or("SLURM_JOB_ID is not set")?;
    answer("scontrol", &["requeue", &job], WORKING).map(drop)
}

/// Why a command said nothing of use.
struct SilentCommand {
    reason: String,
    /// Whether it cannot be started.
    absent: bool,
}

/// Runs a command and returns its standard output, within a time.
fn answer(program: &str, arguments: &[&str], within: Duration) -> Result<String, String> {
    told(program, arguments, within).map_err(|silent| silent.reason)
}

fn told(program: &str, arguments: &[&str], within: Duration) -> Result<String, SilentCommand> {
    let spawned = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.map_err(|error| SilentCommand { reason: format!("{program}: {error}"), absent: true })?;
    let out = child.stdout.take();
    let err = child.stderr.take();
    let (sender, receiver) = mpsc::channel();
    // On its own thread, so that a command that hangs with open pipes blocks nothing.
    std::thread::spawn(move || {
        fn read(pipe: Option<impl Read>) -> String {
            let mut text = Vec::new();
            pipe.map(|mut pipe| pipe.read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        }
        sender.send((read(out), read(err))).ok();
    });
    let Ok((stdout, stderr)) = receiver.recv_timeout(within) else {
        child.kill().ok();
        child.wait().ok();
        return Err(command_failed(format!("{program} did not answer within {} s", within.as_secs())));
    };
    match child.wait() {
        Ok(status) if status.success() => Ok(stdout),
        Ok(status) => Err(command_failed(format!("{program}: {status}: {}", stderr.trim()))),
        Err(error) => Err(command_failed(format!("{program}: {error}"))),
    }
}

fn command_failed(reason: String) -> SilentCommand {
    SilentCommand { reason, absent: false }
}

/// A scheduler's job that ended without its work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobEnd {
    /// The scheduler's name of it: `45_0`, a task of an array, or `46`.
    pub job: String,
    /// Its exit code.
    pub exit_code: u8,
    /// Why.
    pub reason: String,
    /// Its output.
    #[serde(serialize_with = "crate::files::shown::path")]
    #[schemars(with = "String")]
    pub log: PathBuf,
    /// The machine's name.
    pub host: String,
    /// When, in seconds since 1970 (UTC), by that machine's clock.
    pub time: u64,
}

impl JobEnd {
    /// Folder of the jobs' logs, next to the submission's file.
    pub const LOGS: &str = "logs";
    /// Folder of the jobs' end notes.
    pub(super) const FOLDER: &str = "ends";

    /// Notes how the job of this process ended, next to the submission's file; a better end replaces a worse one.
    /// Without a scheduler nothing is noted.
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

    /// Reads the notes in a submission's folder, oldest first.
    pub fn all(folder: &Path) -> Vec<Self> {
        let files = fs::read_dir(folder.join(Self::FOLDER)).into_iter().flatten().flatten();
        let complete = files.filter(|file| !is_temporary(&file.file_name().to_string_lossy()));
        let read = |path: PathBuf| serde_json::from_slice::<Self>(&regular::read(&path).ok()?).ok();
        let mut ends: Vec<Self> = complete.filter_map(|file| read(file.path())).collect();
        ends.sort_by(|a, b| (a.time, &a.job).cmp(&(b.time, &b.job)));
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_squeue_is_a_job() {
        let job = parsed("45_[2-3%2]|ghostlab-a|PENDING|JobArrayTaskLimit|ghostlab:p:s").unwrap();
        assert_eq!((&*job.id, &*job.state, &*job.comment), ("45_[2-3%2]", "PENDING", "ghostlab:p:s"));
        assert_eq!(parsed("46|b|RUNNING|None|(null)").unwrap().reason, "");
        assert!(parsed("slurm_load_jobs error").is_none());
        assert!(ended("CANCELLED by 0") && !ended("PENDING"));
    }

    #[cfg(unix)]
    #[test]
    fn a_command_that_hangs_is_not_waited_for() {
        let began = std::time::Instant::now();
        let reason = answer("sleep", &["60"], Duration::from_millis(200)).unwrap_err();
        assert!(reason.contains("did not answer") && began.elapsed() < Duration::from_secs(20), "{reason}");
        assert!(answer("ghostlab-no-such-program", &[], PATIENCE).unwrap_err().contains("no-such-program"));
        assert_eq!(answer("echo", &["a"], WORKING).unwrap(), "a\n");
        assert!(answer("false", &[], WORKING).unwrap_err().contains("exit status"));
    }
}
