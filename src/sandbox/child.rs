//! Child process of the sandbox, which enforces its limits itself and reports its progress.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::{self, Arguments, Write as _};
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ghostlab_definitions::activity::{self, Watcher};
use serde::{Deserialize, Serialize};

use super::limits::{CHILD_STACK_BYTES, Limits, ResourceLimit};
use super::probe::Probe;
use crate::error::{Error, Result};
use crate::files::limit::TextLimit;
use crate::heap;

/// Request that the parent writes to the child's stdin.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) probe: Probe,
    pub(super) limits: Limits,
    /// Number of threads that process inputs, as in the parent.
    pub(super) threads: usize,
    /// Maximum size of a text in bytes (`--text` of the parent).
    pub(super) text_bytes: u64,
}

/// JSON line that the child writes to stdout.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Report {
    Alive,
    /// Name of an input whose processing has started. Sent once per name.
    Started(String),
    /// Exceeded limit, and the name of the input that exceeded it. The child exits after this report.
    Exceeded(ResourceLimit, Option<String>),
    /// The work is done, successfully or with an error.
    Done,
}

/// Interval at which the child reports that it is alive and checks its CPU time.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum length in bytes of an input's name.
const MAX_NAME_BYTES: usize = 1_000;

/// Number of finished items. Each extends the CPU time limit.
static ITEMS: AtomicU64 = AtomicU64::new(0);
/// Names of all inputs started so far, and the name of the latest one.
static STARTED_NAMES: Mutex<(BTreeSet<String>, String)> = Mutex::new((BTreeSet::new(), String::new()));

thread_local! {
    /// Name of the input that this thread is processing.
    static CURRENT: RefCell<Name> = const { RefCell::new(Name(String::new())) };
    /// Names that this thread has found in [`STARTED_NAMES`], cached to avoid locking it again.
    static SEEN_NAMES: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

/// Name of an input, at most [`MAX_NAME_BYTES`] bytes long. Pieces that would exceed this length are dropped.
struct Name(String);

impl fmt::Write for Name {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() <= MAX_NAME_BYTES {
            self.0.push_str(text);
        }
        Ok(())
    }
}

struct Reporter;

impl Watcher for Reporter {
    fn record_start(&self, input: Arguments<'_>) {
        CURRENT.with_borrow_mut(|name| {
            name.0.clear();
            name.write_fmt(input).ok();
            if SEEN_NAMES.with_borrow(|known| known.contains(&name.0)) {
                return;
            }
            SEEN_NAMES.with_borrow_mut(|known| known.insert(name.0.clone()));
            let mut started = STARTED_NAMES.lock().unwrap_or_else(PoisonError::into_inner);
            if !started.0.contains(&name.0) {
                started.0.insert(name.0.clone());
                started.1.clone_from(&name.0);
                send_report(&Report::Started(name.0.clone()));
            }
        });
    }

    fn record_finish(&self) {
        ITEMS.fetch_add(1, Relaxed);
    }
}

/// Runs the child process. Its exit code is 0 if the work stayed within the limits.
pub fn run() -> ExitCode {
    match read_request() {
        Ok(request) => run_request(request),
        Err(error) => {
            io::stderr().write_all(error.one_line().as_bytes()).ok();
            ExitCode::from(error.exit_code())
        }
    }
}

fn read_request() -> Result<Request> {
    let mut text = String::new();
    let read = io::stdin().read_to_string(&mut text);
    read.map_err(|error| Error::job("the sandbox received no request").found(error.to_string()))?;
    serde_json::from_str(&text)
        .map_err(|error| Error::job("the sandbox cannot read its request").found(error.to_string()))
}

fn run_request(request: Request) -> ExitCode {
    #[cfg(unix)]
    disable_core_dumps();
    TextLimit::set(request.text_bytes);
    activity::watch(&Reporter);
    let threads = rayon::ThreadPoolBuilder::new().num_threads(request.threads).stack_size(CHILD_STACK_BYTES);
    threads.build_global().ok();
    let limits = request.limits;
    thread::spawn(move || watch(limits));
    heap::set_limit(limits.heap_bytes, || report_limit_and_exit(ResourceLimit::Heap, current_input()));
    // Ignore the error: the parent repeats the work and reports it.
    let work = thread::Builder::new().stack_size(CHILD_STACK_BYTES).spawn(move || drop(request.probe.run()));
    match work.map(thread::JoinHandle::join) {
        Ok(Ok(())) => {
            send_report(&Report::Done);
            exit(0)
        }
        Ok(Err(_)) => exit(PANIC_EXIT_CODE),
        Err(error) => {
            io::stderr().write_all(error.to_string().as_bytes()).ok();
            exit(4)
        }
    }
}

/// Exit code of a Rust program that panicked.
pub(super) const PANIC_EXIT_CODE: i32 = 101;

/// Reports at regular intervals that the child is alive. Exits when the CPU time is used up or the parent has exited.
fn watch(limits: Limits) {
    loop {
        thread::sleep(CHECK_INTERVAL);
        if !send_report(&Report::Alive) {
            exit(1);
        }
        if cpu_time().as_millis() as u64 > limits.milliseconds_after(ITEMS.load(Relaxed)) {
            let last = STARTED_NAMES.try_lock().ok().map(|started| started.1.clone());
            report_limit_and_exit(ResourceLimit::Time, last.filter(|name| !name.is_empty()));
        }
    }
}

fn current_input() -> Option<String> {
    CURRENT.try_with(|name| Some(name.try_borrow().ok()?.0.clone())).ok().flatten().filter(|name| !name.is_empty())
}

fn report_limit_and_exit(limit: ResourceLimit, input: Option<String>) -> ! {
    send_report(&Report::Exceeded(limit, input));
    exit(1)
}

/// Writes a report without taking a lock that this thread may already hold. Returns whether the write succeeded.
fn send_report(report: &Report) -> bool {
    let Ok(line) = serde_json::to_string(report) else { return false };
    write_stdout(format!("{line}\n").as_bytes())
}

#[cfg(unix)]
fn write_stdout(bytes: &[u8]) -> bool {
    // SAFETY: the pointer and the length belong to the same slice.
    unsafe { libc::write(libc::STDOUT_FILENO, bytes.as_ptr().cast(), bytes.len()) >= 0 }
}

#[cfg(not(unix))]
fn write_stdout(bytes: &[u8]) -> bool {
    io::stdout().write_all(bytes).and_then(|()| io::stdout().flush()).is_ok()
}

/// Disables core dumps, which a stack overflow would otherwise cause.
#[cfg(unix)]
fn disable_core_dumps() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer refers to a live local variable.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
}

/// Exits without running exit handlers, which could wait for other threads.
#[cfg(unix)]
fn exit(code: i32) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(code) }
}

#[cfg(not(unix))]
fn exit(code: i32) -> ! {
    std::process::exit(code)
}

#[cfg(unix)]
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer refers to a live local variable.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the wall-clock time since the first call, because reading the CPU time is implemented only for Unix.
#[cfg(not(unix))]
fn cpu_time() -> Duration {
    static BEGUN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    BEGUN.get_or_init(std::time::Instant::now).elapsed()
}
