//! Functions that read the output of programs run by the tests.

use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns standard output followed by standard error.
pub fn combined_output(output: &Output) -> String {
    stdout(output) + &stderr(output)
}

/// Sends a signal, such as `-KILL`, to a process.
pub fn send_signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// Waits until a process exits, and returns its output.
///
/// # Panics
/// Panics if the process is still running after four minutes.
pub fn wait_for_exit(mut child: Child) -> Output {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(240) {
            child.kill().unwrap();
            panic!("the command hangs: {:?}", child.wait_with_output().unwrap());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// Polls until `done` returns true.
///
/// # Panics
/// Panics with `what` after two minutes.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Parses the output of a command with `--events`.
pub fn parse_events(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub fn events_of_kind<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["event"] == kind).collect()
}

/// Sums the tokens that a process itself computed. Excludes those read to solve operators, because a restarted process
/// reads them again if an operator is missing.
pub fn computed_tokens(events: &[Value]) -> u64 {
    let solving: Vec<&Value> = events_of_kind(events, "started")
        .into_iter()
        .filter(|job| job["label"].as_str().is_some_and(|label| label.contains(": solve ")))
        .map(|job| &job["job"])
        .collect();
    let advanced = events_of_kind(events, "advanced").into_iter().filter(|event| event["elsewhere"] == false);
    let unsolved = advanced.filter(|event| !solving.contains(&&event["job"]));
    unsolved.map(|event| event["tokens"].as_u64().unwrap()).sum()
}
