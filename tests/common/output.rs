//! Functions that read the output of programs run by the tests.

use std::process::{Child, Output};
use std::time::{Duration, Instant};

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
