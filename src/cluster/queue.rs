//! Slurm commands that submit, list, cancel and requeue jobs, and records of how jobs ended.
//!
//! Slurm commands may be missing, slow or broken, so runs never depend on them. The records let `status` report jobs
//! that failed before they used the store.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::files::atomic::{is_temporary, write_atomically};
use crate::files::{owner, regular};
use crate::machine;
use ghostlab_store::StoreSharing;

/// Timeout for commands that query Slurm.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for commands that submit, cancel or requeue jobs.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// Job as listed by the scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct QueuedJob {
    /// Job ID, such as `45_1`, `45_[2-3]` or `46`.
    pub id: String,
    /// Job name.
    pub name: String,
    /// Slurm state, such as `PENDING` or `RUNNING`.
    pub state: String,
    /// Reason for waiting; empty if unknown.
    pub reason: String,
    /// Job comment, which identifies the submission.
    pub comment: String,
}

/// Jobs of this user, as listed by the scheduler.
#[derive(Debug, Clone)]
pub struct Queue(Vec<QueuedJob>);

impl QueuedJob {
    /// Formats the state and the reason for waiting, such as `pending (Priority)`.
    pub fn state_text(&self) -> String {
        let reason = if self.reason.is_empty() { String::new() } else { format!(" ({})", self.reason) };
        format!("{}{reason}", self.state.to_lowercase())
    }
}

const SQUEUE_FORMAT: &str = "%i|%j|%T|%r|%k";

impl Queue {
    /// Queries squeue with a timeout of two seconds. Falls back to sacct if squeue fails.
    ///
    /// # Errors
    /// Fails with the error from squeue if neither command succeeds.
    pub fn query() -> Result<Self, String> {
        let squeue = run_with_timeout("squeue", &["--me", "--noheader", "-o", SQUEUE_FORMAT], QUERY_TIMEOUT);
        if let Ok(text) = &squeue {
            return Ok(Self(text.lines().filter_map(parse_job).collect()));
        }
        let arguments = ["-X", "-n", "-P", "-S", "now-30days", "-o", "JobID,JobName,State,Reason,Comment"];
        let text = run_with_timeout("sacct", &arguments, QUERY_TIMEOUT).or(squeue)?;
        let jobs = text.lines().filter_map(parse_job).filter(|job| !is_final_state(&job.state));
        Ok(Self(jobs.collect()))
    }

    /// Returns the jobs of a submission, identified by its comment
    /// ([`Submission::comment`](super::Submission::comment)), because job numbers are reused.
    pub fn jobs_with_comment(&self, comment: &str) -> impl Iterator<Item = &QueuedJob> {
        self.0.iter().filter(move |job| job.comment == comment)
    }
}

fn is_final_state(state: &str) -> bool {
    let word = state.split_whitespace().next().unwrap_or_default();
    !["PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "CONFIGURING", "COMPLETING"].contains(&word)
}

fn parse_job(line: &str) -> Option<QueuedJob> {
    let fields: Vec<String> = line.trim().splitn(5, '|').map(str::to_owned).collect();
    let [id, name, state, reason, comment] = <[String; 5]>::try_from(fields).ok()?;
    let reason = if reason == "None" { String::new() } else { reason };
    Some(QueuedJob { id, name, state, reason, comment })
}

/// Starts sbatch to submit a script.
///
/// # Errors
/// Fails if sbatch could not be started, so that no job was queued.
pub(super) fn start_sbatch(options: &[String], script: &str) -> Result<Child> {
    let mut arguments = vec!["--parsable"];
    arguments.extend(options.iter().map(String::as_str));
    arguments.push(script);
    start("sbatch", &arguments).map_err(|reason| sbatch_error(script, reason))
}

/// Waits for sbatch and returns the job number.
///
/// # Errors
/// Fails with the message from sbatch if it rejects the job.
pub(super) fn read_job_number(sbatch: Child, script: &str) -> Result<String> {
    let text = wait("sbatch", sbatch, COMMAND_TIMEOUT).map_err(|reason| sbatch_error(script, reason))?;
    // sbatch prints `NUMBER` or `NUMBER;CLUSTER`.
    let number = text.trim().split(';').next().unwrap_or_default();
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Error::missing("sbatch did not print a job ID").found(text.trim()));
    }
    Ok(number.to_owned())
}

fn sbatch_error(script: &str, reason: String) -> Error {
    let hint = "print the script with `ghostlab submit slurm GRID --dry-run`, or start workers manually without Slurm";
    Error::missing("sbatch failed").at(script).found(reason).hint(hint)
}

/// Cancels the jobs with the given numbers.
///
/// # Errors
/// Fails with the message from scancel if it fails.
pub fn cancel(numbers: &[String]) -> Result<()> {
    let arguments: Vec<&str> = numbers.iter().map(String::as_str).collect();
    run_with_timeout("scancel", &arguments, COMMAND_TIMEOUT).map(drop).map_err(|reason| {
        Error::missing("scancel failed").found(reason).hint("run `squeue --me` to see the remaining jobs")
    })
}

/// Requeues the Slurm job of this process, which terminates the process. In an array job, only the current task is
/// requeued.
///
/// # Errors
/// Fails if scontrol fails or this process does not run in a Slurm job.
pub fn scontrol_requeue() -> Result<(), String> {
    let job = machine::scheduler_job().ok_or("SLURM_JOB_ID is not set")?;
    run_with_timeout("scontrol", &["requeue", &job], COMMAND_TIMEOUT).map(drop)
}

/// Runs a command with a timeout and returns its stdout.
fn run_with_timeout(program: &str, arguments: &[&str], timeout: Duration) -> Result<String, String> {
    wait(program, start(program, arguments)?, timeout)
}

fn start(program: &str, arguments: &[&str]) -> Result<Child, String> {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{program}: {error}"))
}

/// Waits for a command and returns its stdout.
fn wait(program: &str, mut child: Child, timeout: Duration) -> Result<String, String> {
    let out = child.stdout.take();
    let err = child.stderr.take();
    let (sender, receiver) = mpsc::channel();
    // Read on a separate thread so that a command that hangs without closing its pipes cannot block this one.
    std::thread::spawn(move || {
        fn read(pipe: Option<impl Read>) -> String {
            let mut text = Vec::new();
            pipe.map(|mut pipe| pipe.read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        }
        sender.send((read(out), read(err))).ok();
    });
    let Ok((stdout, stderr)) = receiver.recv_timeout(timeout) else {
        child.kill().ok();
        child.wait().ok();
        return Err(format!("{program} timed out after {} s", timeout.as_secs()));
    };
    match child.wait() {
        Ok(status) if status.success() => Ok(stdout),
        Ok(status) => Err(format!("{program}: {status}: {}", stderr.trim())),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

/// Scheduler job that ended without completing its work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobEnd {
    /// Job ID: `45_0` for an array task, or `46`.
    pub job: String,
    /// Exit code.
    pub exit_code: u8,
    /// Reason why the job ended.
    pub reason: String,
    /// Path of the log file.
    #[serde(serialize_with = "crate::files::serialize_path::one")]
    #[schemars(with = "String")]
    pub log: PathBuf,
    /// Host name.
    pub host: String,
    /// End time in Unix seconds, according to the host's clock.
    pub time: u64,
}

impl JobEnd {
    /// Name of the directory for logs, next to the submission file.
    pub const LOGS: &str = "logs";
    pub(super) const FOLDER: &str = "ends";

    /// Records how the scheduler job of this process ended, in a file next to the submission file. If the job succeeded
    /// (`failure` is `None`), removes an earlier record. Does nothing outside a scheduler job.
    pub fn record(submission: &Path, failure: Option<(u8, String)>) {
        let (Some(job), Some(folder)) = (machine::scheduler_job(), submission.parent()) else { return };
        let path = folder.join(Self::FOLDER).join(format!("{job}.json"));
        let result = match failure {
            None => fs::remove_file(&path).map_err(|error| Error::io("remove", &path, &error)),
            Some((exit_code, reason)) => {
                let log = folder.join(Self::LOGS).join(format!("{job}.log"));
                let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
                Self { job, exit_code, reason, log, host: owner::host(), time }.write(&path)
            }
        };
        // Ignore errors, because the reason is also in the log.
        result.ok();
    }

    fn write(&self, path: &Path) -> Result<()> {
        let folder = path.parent().unwrap_or(path);
        fs::create_dir_all(folder).map_err(|error| Error::folder_io("create", folder, &error))?;
        write_atomically(path, |file| {
            serde_json::to_writer_pretty(file, self)
                .map_err(|error| Error::job("cannot write the job record as JSON").found(error.to_string()))
        })?;
        StoreSharing::inherit_folder_mode(path);
        Ok(())
    }

    /// Reads the records of ended jobs in a submission's directory, oldest first. Skips unreadable records.
    pub fn all(folder: &Path) -> Vec<Self> {
        let files = fs::read_dir(folder.join(Self::FOLDER)).into_iter().flatten().flatten();
        let complete = files.filter(|file| !is_temporary(&file.file_name().to_string_lossy()));
        let mut ends: Vec<Self> =
            complete.filter_map(|file| serde_json::from_slice(&regular::read(&file.path()).ok()?).ok()).collect();
        ends.sort_by(|a, b| (a.time, &a.job).cmp(&(b.time, &b.job)));
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squeue_line_is_parsed_as_a_job() {
        let job = parse_job("45_[2-3%2]|ghostlab-a|PENDING|JobArrayTaskLimit|ghostlab:p:s").unwrap();
        assert_eq!((&*job.id, &*job.state, &*job.comment), ("45_[2-3%2]", "PENDING", "ghostlab:p:s"));
        assert_eq!(parse_job("46|b|RUNNING|None|(null)").unwrap().reason, "");
        assert!(parse_job("slurm_load_jobs error").is_none());
        assert!(is_final_state("CANCELLED by 0") && !is_final_state("PENDING"));
    }

    #[cfg(unix)]
    #[test]
    fn hanging_command_times_out() {
        let started = std::time::Instant::now();
        let reason = run_with_timeout("sleep", &["60"], Duration::from_millis(200)).unwrap_err();
        assert!(reason.contains("timed out") && started.elapsed() < Duration::from_secs(20), "{reason}");
        assert!(
            run_with_timeout("ghostlab-no-such-program", &[], QUERY_TIMEOUT).unwrap_err().contains("no-such-program")
        );
        assert_eq!(run_with_timeout("echo", &["a"], COMMAND_TIMEOUT).unwrap(), "a\n");
        assert!(run_with_timeout("false", &[], COMMAND_TIMEOUT).unwrap_err().contains("exit status"));
    }
}
