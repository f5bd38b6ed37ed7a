//! Access to the Python interpreters created by `.ci/run`, and to scripts in `tools/`.
#![allow(
    clippy::disallowed_macros,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a test prints the missing dependency and returns; each crate compiles its own copy"
)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path in an environment variable. If the variable is unset, panics in CI. Elsewhere, prints a message and
/// returns `None`, so that the caller skips the test. The value `skip` always skips the test, because another CI job
/// runs it.
pub fn path_from_env(variable: &str, dependency: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable);
    let in_ci = std::env::var("CI").is_ok_and(|value| !value.is_empty());
    assert!(named.is_some() || !in_ci, "{variable} names no interpreter with {dependency}: CI must not skip this test");
    let path = named.filter(|named| named != "skip").map(PathBuf::from);
    if path.is_none() {
        eprintln!("skipped: {variable} names no interpreter with {dependency}");
    }
    path
}

fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("tools"))
        .find(|folder| folder.is_dir())
        .unwrap()
}

/// Returns the path of the interpreter given by `GHOSTLAB_PYTHON`.
pub fn python(dependency: &str) -> Option<PathBuf> {
    path_from_env("GHOSTLAB_PYTHON", dependency)
}

/// Runs a command and returns its output. Panics if the command fails.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns a command that runs a script from `tools/` offline.
pub fn script<Argument: AsRef<OsStr>>(
    python: &Path,
    name: &str,
    arguments: impl IntoIterator<Item = Argument>,
) -> Command {
    let mut command = Command::new(python);
    command.arg(tools().join(name)).args(arguments);
    command.envs([("HF_HUB_OFFLINE", "1"), ("HF_DATASETS_OFFLINE", "1"), ("HF_HUB_DISABLE_TELEMETRY", "1")]);
    command
}
