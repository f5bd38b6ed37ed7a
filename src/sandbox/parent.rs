//! Parent process of the sandbox, which starts child processes and converts their failures into errors.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::CHILD_ARGUMENT;
use super::child::{PANIC_EXIT_CODE, Report, Request};
use super::limits::{Limits, ResourceLimit};
use super::probe::Probe;
use crate::error::{Error, Result};
use crate::files::limit::TextLimit;

static ENABLED: AtomicBool = AtomicBool::new(false);
/// Serialized requests whose probes have already passed in a child process.
static PASSED_PROBES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Number of seconds without a report after which a child is killed. A child reports twenty times per second.
const MAX_SILENT_SECONDS: u32 = 120;
/// Maximum number of bytes to read from a child's stderr.
const MAX_STDERR_BYTES: u64 = 64 << 10;

/// Enables the sandbox: from now on, [`check_probe`] starts children that run the current executable.
pub fn enable() {
    ENABLED.store(true, Relaxed);
}

/// Runs a probe in a child process. Does nothing if the sandbox is disabled or the probe has passed before.
///
/// # Errors
/// Fails with kind `BadInput` if the probe exceeds a limit, and with kind `Job` if no child can be started.
pub fn check_probe(probe: Probe) -> Result<()> {
    if !ENABLED.load(Relaxed) {
        return Ok(());
    }
    let limits = Limits::for_probe(&probe);
    let text_bytes = TextLimit::current().bytes();
    let request = Request { threads: probe.threads(), probe, limits, text_bytes };
    let text = serde_json::to_string(&request)
        .map_err(|error| Error::job("cannot pass an input to the sandbox").found(error.to_string()))?;
    if passed_probes().contains(&text) {
        return Ok(());
    }
    run(&request, &text)?;
    passed_probes().insert(text);
    Ok(())
}

fn passed_probes() -> std::sync::MutexGuard<'static, BTreeSet<String>> {
    PASSED_PROBES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the path of the running executable. On Linux, the path stays valid even if the executable file is replaced.
fn executable_path() -> std::io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

fn start_child() -> std::io::Result<Child> {
    let mut command = Command::new(executable_path()?);
    command.arg(CHILD_ARGUMENT).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Start a new process group so that Ctrl-C does not reach the child. The child exits once its parent has exited.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn()
}

/// Reports received from a child, and its exit status.
#[derive(Debug, Default)]
struct Outcome {
    is_done: bool,
    exceeded: Option<(ResourceLimit, Option<String>)>,
    /// Input that was started most recently.
    last_started: Option<String>,
    /// Whether the child was killed because it stopped reporting.
    is_silent: bool,
    status: Option<ExitStatus>,
    stderr: String,
}

fn run(request: &Request, text: &str) -> Result<()> {
    let mut child = start_child().map_err(|error| {
        Error::job("cannot start the sandbox for untrusted inputs")
            .found(error.to_string())
            .hint("check the limits on processes and memory (the sandbox is a child process)")
    })?;
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let reports = stdout.map(read_reports);
    let errors = stderr.map(read_stderr);
    // Ignore write errors: if the child has died, its exit status explains why.
    stdin.map(|mut stdin| stdin.write_all(text.as_bytes()));
    let mut outcome = Outcome::default();
    if let Some(reports) = reports {
        outcome.receive(&reports);
    }
    if outcome.is_silent {
        child.kill().ok();
    }
    outcome.status = child.wait().ok();
    outcome.stderr = errors.and_then(|errors| errors.join().ok()).unwrap_or_default();
    outcome.into_result(request)
}

fn read_reports(stdout: ChildStdout) -> Receiver<Report> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(std::io::Result::ok);
        let mut reports = lines.filter_map(|line| serde_json::from_str(&line).ok());
        reports.try_for_each(|report| sender.send(report)).ok();
    });
    receiver
}

fn read_stderr(stderr: ChildStderr) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        stderr.take(MAX_STDERR_BYTES).read_to_end(&mut bytes).ok();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Outcome {
    fn receive(&mut self, reports: &Receiver<Report>) {
        let mut silent_seconds = 0;
        loop {
            match reports.recv_timeout(Duration::from_secs(1)) {
                Ok(report) => {
                    silent_seconds = 0;
                    match report {
                        Report::Alive => {}
                        Report::Started(input) => self.last_started = Some(input),
                        Report::Exceeded(limit, input) => self.exceeded = Some((limit, input)),
                        Report::Done => self.is_done = true,
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
                // Count timeouts instead of comparing clock times, because both processes may be suspended meanwhile.
                Err(RecvTimeoutError::Timeout) => silent_seconds += 1,
            }
            if silent_seconds > MAX_SILENT_SECONDS {
                self.is_silent = true;
                return;
            }
        }
    }

    /// Infers which limit the child exceeded, from its reports, its stderr, or its silence.
    fn infer_exceeded_limit(&self) -> Option<ResourceLimit> {
        if let Some((limit, _)) = self.exceeded {
            return Some(limit);
        }
        if self.stderr.contains("overflowed its stack") {
            return Some(ResourceLimit::Stack);
        }
        if self.stderr.contains("memory allocation of") || self.stderr.contains("capacity overflow") {
            return Some(ResourceLimit::Heap);
        }
        self.is_silent.then_some(ResourceLimit::Time)
    }

    fn into_result(self, request: &Request) -> Result<()> {
        if self.is_done {
            return Ok(());
        }
        let limit = self.infer_exceeded_limit();
        let input = self.exceeded.and_then(|(_, input)| input).or(self.last_started);
        let input = input.unwrap_or_else(|| request.probe.origin());
        let error = match limit {
            Some(limit) => {
                let (resource, most) = limit.describe(request.limits);
                Error::bad_input(format!("an untrusted input exceeds the {resource} limit")).expected(most)
            }
            None if self.status.and_then(|status| status.code()) == Some(PANIC_EXIT_CODE) => {
                Error::bad_input("cannot process an untrusted input").found(first_line(&self.stderr))
            }
            None => {
                let status = self.status.map_or("no exit status".to_owned(), |status| status.to_string());
                Error::bad_input("an untrusted input crashed the sandbox")
                    .found(format!("{status} {}", first_line(&self.stderr)).trim_end().to_owned())
            }
        };
        let error = error.at(input).hint(HINT);
        Err(match request.probe.subject() {
            Some(subject) => error.at(subject),
            None => error,
        })
    }
}

const HINT: &str = "check the task definition or chat template for loops, repetition and deep nesting";

fn first_line(text: &str) -> &str {
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default()
}
